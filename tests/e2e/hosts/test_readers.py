"""Whoever comes from `launch.sh` has a `.env` and SSH to the other machine: what is typed now, on such machines."""

from __future__ import annotations

import shlex
import signal

import pytest

from tests.e2e.hosts.namespaces import PACKAGES, Host, interpreter, must
from tests.e2e.hosts.test_three_hosts import COMMANDS, eventually
from tests.readers.happens import HAPPENS, OverSsh
from tests.readers.hub_folder import write_hub
from tests.readers.tables import HERE, now

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]

MODEL = "mlx-community/Qwen3-14B-4bit"
ASK = """
import json, urllib.request
body = {"messages": [{"role": "user", "content": "Hello, test both ranks"}], "max_tokens": 20}
request = urllib.request.Request("http://127.0.0.1:8100/v1/chat/completions", json.dumps(body).encode())
request.add_header("content-type", "application/json")
print(json.load(urllib.request.urlopen(request, timeout=120))["performance"])
"""


@pytest.fixture
def first(hosts: list[Host]) -> Host:
    """The machine that leads: it has the model and the `.env`, with the addresses of these hosts."""
    first, second = hosts[:2]
    own_interpreter(first)
    hub = write_hub(first.home / ".cache" / "huggingface", [MODEL])
    variables = (HERE / "ring_project" / ".env").read_text()
    for theirs, ours in {"mini2@": f"{second.user}@", "192.168.5.2": second.address}.items():
        variables = variables.replace(theirs, ours)
    (first.home / ".env").write_text(variables)
    must("chown", "-R", f"{first.user}:", str(hub.parent), str(first.home / ".env"))
    return first


def own_interpreter(host: Host) -> None:
    """An environment with all packages, whatever PYTHONPATH is: `up` starts what runs here with its own interpreter."""
    environment = host.folder / "environment"
    must(str(interpreter()), "-m", "venv", "--without-pip", str(environment))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(PACKAGES)
    host.python.write_text(f'#!/bin/sh\nexec {environment}/bin/python "$@"\n')


def test_what_launch_sh_did_is_done_over_ssh(hosts: list[Host], first: Host) -> None:
    def typed(line: str) -> None:
        (words, outcome) = shlex.split(now("ring_project", line)[0]), HAPPENS["ring_project", line][0]
        assert isinstance(outcome, OverSsh)
        environment = {"PYTHONPATH": str(first.source), "HF_HUB_OFFLINE": "1"}
        done = first.run(str(first.python), *COMMANDS, *words[1:], timeout=300, **environment)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert outcome.text in done.stdout, f"{line}: {done.stdout}{done.stderr}"

    ports = [host.listening() for host in hosts]
    typed("`./launch.sh start`")
    asked = first.run(str(first.python), "-c", ASK)
    assert asked.returncode == 0, asked.stderr
    assert "generation" in asked.stdout
    typed("`./launch.sh status`")
    typed("`./launch.sh test`")
    follow(first, "`tail -f server.log`")
    typed("`./launch.sh restart`")
    typed("`./launch.sh stop`")
    assert eventually(lambda: [host.listening() for host in hosts] == ports)


def follow(first: Host, line: str) -> None:
    """What goes on until somebody ends it."""
    words, outcome = shlex.split(now("ring_project", line)[0]), HAPPENS["ring_project", line][0]
    assert isinstance(outcome, OverSsh)
    log = first.folder / "followed.log"
    process = first.start(log, str(first.python), *COMMANDS, *words[1:], PYTHONPATH=str(first.source))
    assert eventually(lambda: outcome.text in log.read_text())
    process.send_signal(signal.SIGTERM)
    process.wait(30)
