"""What `chorus up` decides before and while it talks to hosts; hosts themselves are in tests/e2e/hosts."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from chorus.cli import app
from chorus.cluster.agent.process import AgentOptions
from chorus.cluster.logs import follow, tail
from chorus.config.sections import DeviceConfig
from chorus.deploy.services import agent_command
from chorus.deploy.ssh import launch
from chorus.deploy.ssh.cluster import HostsUnfit, check, cluster_name
from chorus.deploy.ssh.connect import is_this_machine
from chorus.deploy.ssh.hosts import Facts, HostPlan, SshHost, plan_hosts, problems
from chorus.deploy.ssh.package import build_wheel, content_hash, package_files
from chorus.deploy.ssh.shell import LocalShell, Login
from chorus.platform import service
from chorus.platform.network.ports import free_port
from chorus.platform.process.mark import mark
from chorus.platform.process.output import RotatingLog
from chorus.security.node_folder import BadName
from chorus.security.token import Token
from tests.cluster.harness import eventually

PLAN = HostPlan("mini", "10.0.0.2", None, "python3", 1, 50150, 50051)
FACTS = Facts("/home/a", (3, 12, 1), (), {"mlx": "0.32.4"}, (), 10 << 30, True)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("192.168.1.10", True),
        ("studio", True),
        ("STUDIO.local", True),
        ("studio.lan", True),
        ("mini", False),
        ("192.168.1.11", False),
    ],
)
def test_this_machine_is_known_by_address_name_and_loopback(host: str, expected: bool) -> None:
    resolved = {"studio.lan": {"192.168.1.10"}, "mini": {"192.168.1.11"}}.get(host, set())
    assert is_this_machine(host, {"127.0.0.1", "192.168.1.10"}, {"studio", "studio.local"}, resolved) is expected


def test_logins_are_read_as_people_write_them() -> None:
    assert Login.parse("anna@mini.local:2222") == Login("mini.local", "anna", 2222)
    assert Login.parse("mini") == Login("mini", None, None)


def test_what_up_was_told_goes_over_variables_on_its_own_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`API_PORT=8000 chorus up --port 9000`: the coordinator reads 9000 from its file, and no variable over it."""
    given = {
        "API_PORT": "8000",
        "CHORUS_API__PORT": "8001",
        "WORKER_HOSTS": "a",
        "CHORUS_CACHE": "/kept",
        "HF_HOME": "/h",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    done = asyncio.run(LocalShell("localhost").run("env"))
    seen = dict(line.partition("=")[::2] for line in done.output.splitlines())
    assert {name: seen[name] for name in given if name in seen} == {"CHORUS_CACHE": "/kept", "HF_HOME": "/h"}


def test_a_host_without_problems_has_none() -> None:
    assert problems(PLAN, FACTS, {"mlx": "0.32.4"}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": (3, 9, 0)}, "Python 3.9.0"),
        ({"missing": ("mlx", "grpc")}, "lacks mlx, grpc"),
        ({"versions": {"mlx": "0.31.0"}}, "mlx is 0.31.0 there and 0.32.4 here"),
        ({"taken": (50151,)}, "port 50151 is taken"),
        ({"disk_free": 1 << 20}, "1 MiB of disk"),
        ({"writable": False}, "/home/a cannot be written"),
    ],
)
def test_every_problem_of_a_host_is_named(change: dict[str, object], said: str) -> None:
    found = problems(PLAN, replace(FACTS, **change), {"mlx": "0.32.4"})  # type: ignore[arg-type]
    assert len(found) == 1
    assert said in found[0]


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one's own, and first on the PATH a `python3` that has none of the packages."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return python


def local_host(**device: str) -> SshHost:
    port = free_port("127.0.0.1")
    (plan,) = plan_hosts([DeviceConfig(device_id="mini", hostname="localhost", port=port, **device)], 1, 1)
    return SshHost(plan, LocalShell("localhost"), "test")


def test_on_its_own_machine_up_uses_its_own_interpreter_and_not_that_of_the_path(bare_python: Path) -> None:
    host = local_host()
    facts = asyncio.run(host.check())
    assert host.plan.python == sys.executable
    assert facts.missing == ()


def test_a_python_that_a_device_names_is_used_on_ones_own_machine_too(bare_python: Path) -> None:
    host = local_host(python="python3")
    with pytest.raises(HostsUnfit) as unfit:
        asyncio.run(check([host]))
    assert host.plan.python == "python3"
    assert unfit.value.rows[0].problems[0].startswith("python3 lacks mlx, mlx_lm, grpc, psutil")


def test_what_fails_on_a_host_is_one_line_of_its_row(bare_python: Path, tmp_path: Path) -> None:
    """Also where it was brought up before, with an interpreter that had all the packages."""
    folder = tmp_path / ".chorus" / "test" / "mini"
    (folder / "app" / "0").mkdir(parents=True)
    (folder / "app" / "current").write_text("0")
    (folder / "python").write_text("python3")
    for python in ("python3", "/bin/echo", "/no/such/python"):
        with pytest.raises(HostsUnfit) as unfit:
            asyncio.run(check([local_host(python=python)]))
        (problem,) = (text for text in unfit.value.rows[0].problems if "port" not in text)
        assert "\n" not in problem
        assert "Traceback" not in problem
        assert python in problem
        assert "give `python:`" in problem or "-m pip install" in problem


def test_ports_that_our_own_agent_has_are_no_problem() -> None:
    assert problems(PLAN, replace(FACTS, taken=(50150,), running={"agent": 7}), {}) == []


def test_devices_of_one_host_get_doors_of_their_own() -> None:
    devices = [DeviceConfig(device_id=f"d{n}", hostname=host, port=5000 + n) for n, host in enumerate("aba")]
    assert [plan.door_port for plan in plan_hosts(devices, 100, 16)] == [100, 100, 116]


def test_the_same_code_gives_the_same_wheel() -> None:
    files = package_files()
    assert content_hash(files) == content_hash(dict(reversed(files.items())))
    assert content_hash({**files, "chorus/__init__.py": b""}) != content_hash(files)
    small = {name: data for name, data in files.items() if name.count("/") == 1}
    wheel = build_wheel(small)
    assert hashlib.sha256(wheel).digest() == hashlib.sha256(build_wheel(small)).digest()
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert archive.testzip() is None
        assert archive.read("chorus/__init__.py") == files["chorus/__init__.py"]
        record = next(name for name in archive.namelist() if name.endswith("RECORD"))
        assert len(archive.read(record).splitlines()) == len(archive.namelist())


def test_a_started_process_outlives_its_starter_and_is_started_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ready = "open('agent.ready', 'w').close()"
    command = [sys.executable, "-c", f"import time; print('now ready', flush=True); {ready}; time.sleep(600)"]
    start = [sys.executable, "-m", "chorus.deploy.ssh.launch", "start", str(tmp_path), "agent", *command]
    try:
        first = subprocess.run(start, capture_output=True, text=True, timeout=60, check=True)
        assert first.stdout.strip() == "now ready"
        pid = json.loads((tmp_path / "agent.pid").read_text())["pid"]
        assert psutil.pid_exists(pid)
        again = subprocess.run(start, capture_output=True, text=True, timeout=60, check=True)
        assert "runs already" in again.stdout
        (tmp_path / "config.json").write_text('{"model": "other"}')
        subprocess.run(start, capture_output=True, text=True, timeout=60, check=True)
        assert json.loads((tmp_path / "agent.pid").read_text())["pid"] != pid, "another configuration: started anew"
    finally:
        ended = launch.stop(tmp_path)
    assert list(ended) == ["agent"]
    assert eventually(lambda: not psutil.pid_exists(ended["agent"]))
    assert not [*tmp_path.glob("*.pid"), *tmp_path.glob("*.ready")]


def test_a_process_that_ends_instead_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    start = [sys.executable, "-m", "chorus.deploy.ssh.launch", "start", str(tmp_path), "agent", *command]
    done = subprocess.run(start, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no such model" in done.stdout


def test_a_process_that_runs_already_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    start = [sys.executable, "-m", "chorus.deploy.ssh.launch", "start", str(tmp_path), "agent", *command]
    try:
        with subprocess.Popen(start) as first:
            assert eventually((tmp_path / "agent.pid").exists)
            first.kill()
        with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as again:
            assert again.stdout
            assert again.stdout.readline().strip() == "agent runs already"
            assert again.poll() is None, "it is not ready yet"
            (tmp_path / "agent.ready").write_text("now")
            assert again.wait(60) == 0
    finally:
        launch.stop(tmp_path)


def test_a_number_that_another_process_got_is_not_ours() -> None:
    own = psutil.Process().pid
    assert launch.alive({"pid": own, "mark": mark(own)})
    assert not launch.alive({"pid": own, "mark": mark(1)})


def test_service_files_hold_no_token(tmp_path: Path) -> None:
    token = Token.new()
    options = AgentOptions(name="mini", state=tmp_path, logs=tmp_path / "my logs", token=token)
    command = agent_command(options, ["10.0.0.1"], "0.0.0.0:50150")
    kept = {"HF_HOME": "/models"}
    for file in (service.launchd(command, kept, None, tmp_path), service.systemd(command, kept)):
        assert token.text.encode() not in file
        assert b"HF_HOME" in file
        assert b"my logs" in file
        assert b"10.0.0.1" in file


def test_logs_are_rotated_and_followed_across(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "mini_server.log", max_bytes=100, keep=2)
    for number in range(30):
        log.write(f"line number {number:02}\n".encode())
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {"mini_server.log", "mini_server.log.1", "mini_server.log.2"}
    assert all(size <= 100 for size in sizes.values())
    text, position = tail(log.path, 2)
    assert text.splitlines()[-1] == b"line number 29"

    async def read_three() -> bytes:
        found = b""
        async for data in follow(log.path, position, poll_seconds=0.01):
            found += data
            if found.count(b"\n") >= 3:
                return found
            log.write(b"x" * 60 + b"\n")
        raise AssertionError

    log.write(b"y" * 60 + b"\n")
    assert asyncio.run(asyncio.wait_for(read_three(), 60)).count(b"\n") >= 3


def test_every_hosts_json_is_a_cluster_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of one name in two folders, as readers have them, neither share state nor end each other."""
    names = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        names += [cluster_name(Path("hosts.json")), cluster_name(tmp_path / place / "hosts.json")]
    assert names[0] == names[1] != names[2] == names[3]
    assert names[0].startswith("hosts-")
    (tmp_path / "linked").symlink_to(tmp_path / "one")
    assert cluster_name(tmp_path / "linked" / "hosts.json") == names[0]
    assert re.fullmatch(r"[A-Za-z0-9._-]+", cluster_name(Path("my $(hosts) file.json")))


def test_a_door_that_another_cluster_has_is_not_waited_for_and_ones_own_stays() -> None:
    devices = [DeviceConfig(device_id=f"d{n}", hostname="a", port=5000 + n) for n in range(2)]
    first, second = plan_hosts(devices, 100, 16)
    assert not {first.door_port, *first.other_doors} & {second.door_port, *second.other_doors}
    assert first.with_door("", ()).door_port == 100
    assert first.with_door("", (101,)).door_port == first.other_doors[0]
    assert first.with_door("132", (132, 133)).door_port == 132, "what was started there has it"


def test_a_device_id_that_no_folder_could_have_is_refused() -> None:
    with pytest.raises(BadName, match="cannot name a node"):
        plan_hosts([DeviceConfig(device_id="../mini", hostname="a")], 100, 16)


def test_logs_say_where_they_lie_by_device_id(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    devices = [
        {"device_id": "mini1", "hostname": "localhost"},
        {"device_id": "mini2", "hostname": "b", "ssh": "anna@b"},
    ]
    file.write_text(json.dumps({"devices": devices}))
    name = cluster_name(file)
    shown = CliRunner().invoke(app, ["logs", "-c", str(file), "--paths"])
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["mini1", f"localhost:.chorus/{name}/mini1/logs/api_server.log"],
        ["mini2", f"anna@b:.chorus/{name}/mini2/logs/mini2_server.log"],
    ]
    wrong = CliRunner().invoke(app, ["logs", "mini3", "-c", str(file)])
    assert wrong.exit_code == 1
    assert "no device mini3, did you mean mini" in wrong.stderr


def test_logs_are_read_by_device_id_where_nothing_runs_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "hosts.json"
    devices = [{"device_id": f"mini{n}", "hostname": "localhost", "port": 5000 + n} for n in (1, 2, 3)]
    file.write_text(json.dumps({"devices": devices}))
    for device, log in (("mini1", "api_server.log"), ("mini2", "mini2_server.log")):
        folder = tmp_path / ".chorus" / cluster_name(file) / device / "logs"
        folder.mkdir(parents=True)
        (folder / log).write_text(f"older\n{device} ended\n")
    every = CliRunner().invoke(app, ["logs", "-c", str(file), "-n", "1"])
    assert sorted(every.stdout.splitlines()) == ["mini1: mini1 ended", "mini2: mini2 ended"]
    assert every.exit_code == 1
    assert "mini3: there is no log at ~/.chorus/" in every.stderr
    for name in ("mini1", "coordinator"):
        assert CliRunner().invoke(app, ["logs", name, "-c", str(file), "-n", "1"]).stdout == "mini1 ended\n"
