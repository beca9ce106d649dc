"""Whoever comes from another project has its files and SSH to the other machine: what is typed now, on two machines."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.hosts.namespaces import PACKAGES, Host, interpreter, must
from tests.e2e.hosts.test_three_hosts import COMMANDS, eventually
from tests.readers.happens import HAPPENS, OverSsh, Starts
from tests.readers.hub_folder import write_hub
from tests.readers.tables import HERE, now

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]

ASK = """
import json, sys, urllib.request
host, key = sys.argv[1:]
def get(path, body=None):
    request = urllib.request.Request(f"http://{host}:8100{path}", body and json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    request.add_header("authorization", f"Bearer {key}")
    return json.load(urllib.request.urlopen(request, timeout=120))
question = {"messages": [{"role": "user", "content": "Hello, test both ranks"}], "max_tokens": 20}
assert get("/v1/chat/completions", question)["performance"]
print(*(rank["layers"] for rank in get("/cluster/status")["ranks"]))
"""


class Desk:
    """Two machines; the first, which leads, has the model."""

    def __init__(self, hosts: list[Host], model: str) -> None:
        self.hosts = hosts
        self.first, self.second = hosts[:2]
        self._ports = [host.listening() for host in hosts]
        own_interpreter(self.first)
        hub = write_hub(self.first.home / ".cache" / "huggingface", [model])
        must("chown", "-R", f"{self.first.user}:", str(hub.parent))

    def write(self, host: Host, name: str, text: str) -> None:
        (host.home / name).write_text(text)
        (host.home / name).chmod(0o644)

    def type(self, project: str, line: str, **environment: str) -> None:
        """On the first machine, as the page says; it ends, and says what happens."""
        words, text = self._row(project, line)
        done = self.first.run(*self._command(self.first, words), **self._environment(self.first), **environment)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert text in done.stdout, f"{line}: {done.stdout}{done.stderr}"

    def start(
        self, host: Host, project: str, line: str, **environment: str
    ) -> tuple[subprocess.Popen[bytes], Path, str]:
        """What goes on until somebody ends it: the process, its output, and what it will say."""
        words, text = self._row(project, line)
        log = host.folder / f"{host.number}-{words[0]}.log"
        environment = {**self._environment(host), **environment}
        return host.start(log, *self._command(host, words), **environment), log, text

    def ask(self, host: str = "127.0.0.1", key: str = "none") -> str:
        """The layers of each rank, once a question was answered."""
        asked = self.first.run(str(self.first.python), "-c", ASK, host, key)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.strip()

    def is_quiet(self) -> bool:
        return [host.listening() for host in self.hosts] == self._ports

    @staticmethod
    def _row(project: str, line: str) -> tuple[list[str], str]:
        outcome = HAPPENS[project, line][0]
        assert isinstance(outcome, OverSsh | Starts)
        return shlex.split(now(project, line)[0])[1:], outcome.text if isinstance(outcome, OverSsh) else ""

    @staticmethod
    def _command(host: Host, words: list[str]) -> list[str]:
        return [str(host.python), *COMMANDS, *words]

    @staticmethod
    def _environment(host: Host) -> dict[str, str]:
        return {"PYTHONPATH": str(host.source), "HF_HUB_OFFLINE": "1"}


def own_interpreter(host: Host) -> None:
    """An environment with all packages, whatever PYTHONPATH is: `up` starts what runs here with its own interpreter."""
    environment = host.folder / "environment"
    must(str(interpreter()), "-m", "venv", "--without-pip", str(environment))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(PACKAGES)
    host.python.write_text(f'#!/bin/sh\nexec {environment}/bin/python "$@"\n')


def test_what_launch_sh_did_is_done_over_ssh(hosts: list[Host]) -> None:
    desk = Desk(hosts, "mlx-community/Qwen3-14B-4bit")
    variables = (HERE / "ring_project" / ".env").read_text()
    ours = {"mini2@": f"{desk.second.user}@", "192.168.5.2": desk.second.address, "127.0.0.1": desk.first.address}
    for theirs, own in ours.items():
        variables = variables.replace(theirs, own)
    desk.write(desk.first, ".env", variables)
    # Where other machines reach the API, as they do by that project's own address, it asks for a key.
    refused = desk.first.chorus("up")
    assert refused.returncode == 1
    assert "make one with `chorus keys new NAME`" in refused.stderr
    key = desk.first.chorus(*shlex.split(now("ring_project", "`API_HOST=192.168.5.1` in `.env`")[0])[1:])
    desk.type("ring_project", "`./launch.sh start`")
    desk.ask(desk.first.address, key.stdout.split()[0])
    desk.type("ring_project", "`./launch.sh status`")
    desk.type("ring_project", "`./launch.sh test`")
    for followed in ("`tail -f server.log`", "`tail -f api.log`"):
        process, log, text = desk.start(desk.first, "ring_project", followed)
        assert eventually(lambda log=log, text=text: text in log.read_text()), log.read_text()  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    desk.type("ring_project", "`./launch.sh restart`")
    desk.type("ring_project", "`./launch.sh stop`")
    assert eventually(desk.is_quiet)


def test_devices_that_were_launched_one_by_one_are(hosts: list[Host]) -> None:
    desk = Desk(hosts, "mlx-community/Qwen3-1.7B-8bit")
    config = json.loads((HERE / "grpc_project" / "distributed_config.json").read_text())
    for device, host in zip(config["devices"], (desk.first, desk.second), strict=False):
        device |= {"hostname": host.address, "port": 50051}
    for host in (desk.first, desk.second):
        desk.write(host, "distributed_config.json", json.dumps(config))
    token = desk.first.chorus("token", "new").stdout.strip()
    agent = "`./launch_grpc_server.sh --device-id mini2 --port 50051`"
    desk.start(desk.second, "grpc_project", agent, CHORUS_TOKEN=token)
    server = "`./launch_distributed_api.sh --config distributed_config.json`"
    _, log, _ = desk.start(desk.first, "grpc_project", server)
    assert eventually(lambda: "ready  mlx-community/Qwen3-1.7B-8bit" in log.read_text(), 240), log.read_text()
    assert desk.ask() == "8-27 0-7", "0.7 and 0.3 of 28 layers"


def test_a_hostfile_of_mlx_launch_and_its_split_are_served_over_ssh(hosts: list[Host]) -> None:
    desk = Desk(hosts, "mlx-community/MiniMax-M2.1-4bit")
    text = (HERE / "mlx_lm" / "hosts.json").read_text()
    addresses = {"192.168.1.100": desk.first.address, "192.168.1.101": desk.second.address}
    for theirs, ours in {**addresses, "user@": f"{desk.second.user}@"}.items():
        text = text.replace(theirs, ours)
    desk.write(desk.first, "hosts.json", text)
    row = (
        "`mlx.launch --backend ring --hostfile hosts.json -- python distributed_server.py "
        "--model mlx-community/MiniMax-M2.1-4bit`"
    )
    desk.type("mlx_lm", row, MINIMAX_PIPELINE_SPLIT="22,40")
    assert desk.ask() == "40-61 0-39"
    down = desk.first.chorus("down", "-c", "hosts.json")
    assert down.returncode == 0, down.stderr
    assert eventually(desk.is_quiet)
