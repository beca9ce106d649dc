"""Three hosts with addresses, users and home folders of their own, brought together in all the ways there are."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosts.namespaces import Host, block_multicast

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(900)]

ASK = """
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=300)
question = [{"role": "user", "content": "Please tell me the capital of France."}]
answer = client.chat.completions.create(model="default_model", messages=question, temperature=0, max_tokens=16)
print(answer.choices[0].message.content)
"""
COMMANDS = ("-m", "chorus.cli")


def write_config(hosts: list[Host], model: str) -> Path:
    first = hosts[0]
    config = first.home / "three.json"
    devices = [
        {"device_id": f"host{h.number}", "hostname": h.address, "ssh": f"{h.user}@{h.address}", "python": str(h.python)}
        for h in hosts
    ]
    devices[0].pop("ssh")
    config.write_text(json.dumps({"model": model, "devices": devices, "engine": {"split": [10, 12, 8]}}))
    config.chmod(0o644)
    return config


def test_up_serves_over_three_hosts_and_down_leaves_nothing(hosts: list[Host], model_on_first: str) -> None:
    first = hosts[0]
    config = write_config(hosts, model_on_first)
    ports, files = [host.listening() for host in hosts], [host.files() for host in hosts]
    up = first.chorus("up", "-c", str(config), "--json")
    assert up.returncode == 0, up.stdout + up.stderr
    told = json.loads(up.stdout.strip().splitlines()[-1])
    assert set(told["seconds"]) == {"connect", "check", "sync", "agents", "load"}
    print("phases, first time:", told["seconds"])
    assert "Paris" in ask(first, "http://127.0.0.1:8100")
    held = [host.runs() for host in hosts]
    assert all(any("chorus.rank" in command for command in commands) for commands in held[1:]), held
    begun = time.perf_counter()
    status = first.chorus("status", "-c", str(config), "--json")
    print(f"status of three hosts: {time.perf_counter() - begun:.2f} s")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    assert {node["name"] for node in found["nodes"]} == {"host2", "host3"}
    assert {host["device_id"]: list(host["running"]) for host in found["hosts"]} == {
        "host1": ["coordinator"],
        "host2": ["agent"],
        "host3": ["agent"],
    }
    doctor = first.chorus("doctor", "--cluster", "-c", str(config), "--json")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    about = {finding["where"] for finding in json.loads(doctor.stdout)["findings"]}
    assert about >= {"host2", "host3", "this machine → host2", "this machine → host3"}
    logs = first.chorus("logs", "host2", "-c", str(config))
    assert "holds layers 8-19" in logs.stdout, logs.stdout + logs.stderr
    own = first.chorus("logs", "coordinator", "-c", str(config), "--lines", "200")
    assert "ready" in own.stdout, own.stdout + own.stderr
    asked = first.chorus("test", "-c", str(config))
    assert "Paris" in asked.stdout, asked.stdout + asked.stderr

    again = first.chorus("up", "-c", str(config), "--json")
    assert again.returncode == 0, again.stderr
    assert "every host has this Chorus already" in again.stderr
    assert [{p.pid for p in host.own_processes()} for host in hosts]

    down = first.chorus("down", "-c", str(config))
    assert down.returncode == 0, down.stdout + down.stderr
    nothing_runs(hosts, ports)

    warm = first.chorus("up", "-c", str(config), "--json")
    assert warm.returncode == 0, warm.stderr
    print("phases, caches warm:", json.loads(warm.stdout.strip().splitlines()[-1])["seconds"])
    purge = first.chorus("down", "-c", str(config), "--purge")
    assert purge.returncode == 0, purge.stdout + purge.stderr
    nothing_runs(hosts, ports)
    for host, before in zip(hosts, files, strict=True):
        left = {file for file in host.files() - before if not file.startswith(f"{host.home}/.cache")}
        assert not left, f"{host.user} has files left: {sorted(left)[:10]}"


def test_down_without_up_is_no_error(hosts: list[Host], model_on_first: str) -> None:
    first = hosts[0]
    down = first.chorus("down", "-c", str(write_config(hosts, model_on_first)))
    assert down.returncode == 0, down.stderr
    assert down.stdout.count("nothing was running") == 3


def test_up_says_all_that_is_wrong_before_it_touches_anything(hosts: list[Host], model_on_first: str) -> None:
    first, second, third = hosts
    config = json.loads(write_config(hosts, model_on_first).read_text())
    config["devices"][1]["python"] = "/no/such/python"
    ghost = {"device_id": "ghost", "hostname": third.address, "port": 50052, "ssh": f"nobody@{third.address}"}
    config["devices"].append(ghost)
    config.pop("engine")
    file = first.home / "wrong.json"
    file.write_text(json.dumps(config))
    unreachable = first.chorus("up", "-c", str(file))
    assert unreachable.returncode == 1
    assert "ssh-copy-id" in unreachable.stderr
    config["devices"].pop()
    file.write_text(json.dumps(config))
    # The port of its rank; a door that is taken is another one.
    busy = third.start(third.folder / "busy.log", str(third.python), "-m", "http.server", "50051")
    assert eventually(lambda: "0.0.0.0:50051" in third.listening())
    wrong = first.chorus("up", "-c", str(file))
    busy.terminate()
    assert wrong.returncode == 1
    assert "/no/such/python" in wrong.stderr, wrong.stderr
    assert "port 50051 is taken" in wrong.stderr
    assert not (second.home / ".chorus").exists()
    assert not (third.home / ".chorus").exists()


def test_three_hosts_find_each_other_by_multicast(hosts: list[Host], model_on_first: str) -> None:
    serve_by_token(hosts, model_on_first, [], [], ["--nodes", "2"])


def test_without_multicast_the_coordinator_is_told_the_nodes(hosts: list[Host], model_on_first: str) -> None:
    for host in hosts:
        block_multicast(host)
    peers = [word for host in hosts[1:] for word in ("--peer", host.address)]
    serve_by_token(hosts, model_on_first, [], [], peers)


def test_without_multicast_the_nodes_are_told_the_coordinator(hosts: list[Host], model_on_first: str) -> None:
    for host in hosts:
        block_multicast(host)
    serve_by_token(hosts, model_on_first, ["--peer", hosts[0].address], [], ["--nodes", "2"])


def serve_by_token(
    hosts: list[Host], model: str, join_words: list[str], token_words: list[str], serve_words: list[str]
) -> None:
    with served_by_token(hosts, model, join_words, token_words, serve_words):
        pass


@contextmanager
def served_by_token(
    hosts: list[Host], model: str, join_words: list[str], token_words: list[str], serve_words: list[str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The server's address, which has answered once, and its process; everything ends in order afterwards."""
    first = hosts[0]
    ports = [host.listening() for host in hosts]
    token = first.chorus("token", "new", *token_words).stdout.strip()
    assert token.startswith("chorus2-")
    logs = [host.folder / f"chorus-{host.number}.log" for host in hosts]
    agents = [
        host.start(
            log,
            str(host.python),
            *COMMANDS,
            "join",
            "--name",
            f"host{host.number}",
            *join_words,
            CHORUS_TOKEN=token,
            PYTHONPATH=str(first.source),
        )
        for host, log in zip(hosts[1:], logs[1:], strict=True)
    ]
    server = first.start(
        logs[0],
        str(first.python),
        "-m",
        "chorus.cli",
        "serve",
        "--cluster",
        model,
        "--port",
        "0",
        *serve_words,
        PYTHONPATH=str(first.source),
    )
    shown = lambda: "\n".join(log.read_text(errors="replace") for log in logs)  # noqa: E731
    found = eventually(lambda: re.search(r"ready .* at +(http://\S+)/v1", logs[0].read_text()) or server.poll(), 240)
    assert isinstance(found, re.Match), shown()
    assert "Paris" in ask(first, found[1])
    assert token not in shown()
    yield found[1], server
    for process in (server, *agents):
        process.terminate()
    for process in (server, *agents):
        assert process.wait(120) == 0, shown()
    nothing_runs(hosts, ports)


def ask(host: Host, url: str) -> str:
    done = host.run(str(host.python), "-c", ASK, url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def nothing_runs(hosts: list[Host], ports: list[set[str]]) -> None:
    for host, before in zip(hosts, ports, strict=True):
        eventually(lambda host=host: not host.own_processes(), 60)
        assert not [" ".join(p.cmdline()) for p in host.own_processes()], host.user
        assert host.listening() == before
        assert not [file for file in host.files() if file.endswith(("/pipe", ".sock"))]


def eventually(check: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
