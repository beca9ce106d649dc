"""Two hosts and 20 Mbit/s between them: there packing must turn itself on, and pay."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.platform.process.lifeline import Lifeline
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]

HOSTS = {"chslow1": "10.177.84.1", "chslow2": "10.177.84.2"}
LEADER, FOLLOWER = HOSTS
RATE = "20mbit"
DRIVER = Path(__file__).with_name("slow_link_driver.py")


def must(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def remove_hosts() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True, timeout=60, check=False)


@pytest.fixture
def slow_link() -> Iterator[None]:
    if os.geteuid() != 0 or not shutil.which("tc"):
        pytest.skip("needs root and iproute2: network namespaces with a slow link are made")
    with Path("/run/chorus-test-slow-link.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_hosts()
        try:
            for host in HOSTS:
                must("ip", "netns", "add", host)
                must("ip", "-n", host, "link", "set", "lo", "up")
            must("ip", "-n", LEADER, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", FOLLOWER)
            for host, address in HOSTS.items():
                must("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
                must("ip", "-n", host, "link", "set", "eth0", "up")
                shape = ["rate", RATE, "burst", "32kb", "latency", "400ms"]
                must("tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)
            yield
        finally:
            remove_hosts()


@contextlib.contextmanager
def followers(addresses: list[str], folder: Path) -> Iterator[None]:
    lifeline = Lifeline()
    environment = {**os.environ, **lifeline.environment()}
    started = []
    try:
        for number, address in enumerate(addresses):
            command = [sys.executable, "-m", "chorus.rank", "--rank", "1", "--listen", address, "--threads", "1"]
            with (folder / f"follower-{number}.log").open("wb") as log:
                inside = ["ip", "netns", "exec", FOLLOWER, *command, "--insecure"]
                started.append(subprocess.Popen(inside, env=environment, stdout=log, stderr=subprocess.STDOUT))
        yield
    finally:
        lifeline.cut()
        for process in started:
            process.wait(60)


def test_on_a_slow_link_packing_turns_itself_on_and_fewer_bytes_cross_it(slow_link: None, tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 4, "max_position_embeddings": 4096}
    model = write_tiny_model(tmp_path / "model", "llama", vocab_size=512, **sizes)
    addresses = [f"{HOSTS[host]}:{port}" for port in (7701, 7702) for host in (LEADER, FOLLOWER)]
    command = [sys.executable, str(DRIVER), str(model), *addresses]
    with followers(addresses[1::2], tmp_path):
        done = subprocess.run(
            ["ip", "netns", "exec", LEADER, *command], capture_output=True, text=True, timeout=400, check=False
        )
    logs = "".join(file.read_text() for file in tmp_path.glob("follower-*.log"))
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{logs[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"]["auto"] == found["tokens"]["off"]
    plain, sent = found["traffic"]["off"]
    assert plain == sent
    plain, sent = found["traffic"]["auto"]
    assert plain / sent > 1.1
    # The first round is where the link is measured.
    ratios = [off / auto for off, auto in zip(found["seconds"]["off"], found["seconds"]["auto"], strict=True)][1:]
    print(f"20 Mbit/s: {plain / sent:.2f} times fewer bytes, prefill {statistics.median(ratios):.2f} times as fast")
    print(found["seconds"])
