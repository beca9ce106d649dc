"""Three hosts with a subnet per cable, a slow network, a VPN that leads nowhere, and cables that come up late."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.security.authority import Authority
from tests.cluster.harness import Process
from tests.e2e.hosts.namespaces import attempt, must
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]

MARK = "chcab"
HOLD_VPN = """
import fcntl, os, struct, sys
device = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"vpn", 0x1001))  # TUNSETIFF: a tun without packet headers
print("made", flush=True)
sys.stdin.read()
"""
ASK = """
import json, sys, urllib.request
body = json.dumps({"prompt": "The quick brown fox", "max_tokens": 4}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).status)
"""


class Cables:
    """Namespaces of the hosts 1, 2 and 3, and what lies between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(folder / "state-1" / "authority")
        self.processes: list[Process] = []
        self.held: list[subprocess.Popen[bytes]] = []
        for host in (1, 2, 3):
            must("ip", "netns", "add", f"{MARK}{host}")
            must("ip", "-n", f"{MARK}{host}", "link", "set", "lo", "up")

    def plug(self, one: int, other: int, subnet: str, slow: bool = False) -> None:
        """A cable between two hosts, with addresses of its own at both ends."""
        ends = {host: f"{MARK}{subnet.replace('.', '')}{host}" for host in (one, other)}
        must("ip", "link", "add", ends[one], "type", "veth", "peer", "name", ends[other])
        for host, end in ends.items():
            space = f"{MARK}{host}"
            must("ip", "link", "set", end, "netns", space)
            if slow:
                words = ["root", "tbf", "rate", "20mbit", "burst", "64kb", "latency", "100ms"]
                must("tc", "-n", space, "qdisc", "add", "dev", end, *words)
            must("ip", "-n", space, "addr", "add", f"10.{subnet}.{host}/24", "dev", end)
            must("ip", "-n", space, "link", "set", end, "up")

    def dead_vpn(self, host: int) -> None:
        """Takes every packet and passes on none; the other hosts' ends of it are as dead."""
        space = f"{MARK}{host}"
        holder = subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-c", HOLD_VPN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.held.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"made\n"
        must("ip", "-n", space, "addr", "add", f"10.8.0.{host}/24", "dev", "vpn")
        must("ip", "-n", space, "link", "set", "vpn", "up")

    def run(self, host: int, name: str, *words: str, **environment: str) -> Process:
        settings = {"CHORUS_STATE": str(self.folder / f"state-{host}"), **environment}
        inside = ["ip", "netns", "exec", f"{MARK}{host}"]
        process = Process(
            name, ["-m", "chorus.cli", *words], self.folder / f"host-{host}", settings, subprocess.DEVNULL, inside
        )
        self.processes.append(process)
        return process

    def join(self, host: int) -> Process:
        return self.run(host, f"agent-{host}", "join", "--name", f"host{host}", CHORUS_TOKEN=self.authority.token.text)

    def serve(self, model: Path) -> Process:
        words = ["serve", "--cluster", str(model), "--port", "0", "--nodes", "2", "--split", "2,2,3"]
        return self.run(1, "server", *words, "--start-timeout", "120")

    def ask(self, url: str) -> str:
        return must("ip", "netns", "exec", f"{MARK}1", sys.executable, "-c", ASK, url, timeout=180).strip()

    def remove(self) -> None:
        for process in reversed(self.processes):
            process.end()
        for holder in self.held:
            holder.kill()
            holder.wait(10)
        for host in (1, 2, 3):
            attempt("ip", "netns", "del", f"{MARK}{host}")


@pytest.fixture
def cables(tmp_path: Path) -> Iterator[Cables]:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("needs root on Linux: network namespaces are made")
    with Path("/run/chorus-test-cables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for host in (1, 2, 3):
            attempt("ip", "netns", "del", f"{MARK}{host}")
        made = Cables(tmp_path)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(made.remove)
            yield made


def test_a_cluster_forms_over_the_quickest_links_and_a_pair_without_a_way_is_named_before_loading(
    cables: Cables, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    for host in (1, 2, 3):
        cables.dead_vpn(host)
    cables.plug(1, 2, "90.0", slow=True)
    cables.plug(1, 2, "12.0")
    # Nothing is plugged in at host 3 when its agent starts.
    agents = {host: cables.join(host) for host in (2, 3)}
    agents[3].wait_for("waiting on")
    cables.plug(1, 3, "13.0")

    server = cables.serve(model)
    assert server.wait(120) == 1, server.log
    lost = r"rank 2 on host[23] cannot reach rank 1 on host[23], tried .*10\.8\.0\.[23] \(no answer\)"
    server.wait_for(lost)
    assert "holds layers" not in server.log + agents[2].log + agents[3].log

    cables.plug(2, 3, "23.0")
    for host in (2, 3):
        agents[host].wait_for(rf"addresses are now .*10\.23\.0\.{host}")
    server = cables.serve(model)
    url = server.wait_for(r"ready .* at +(http://\S+)/v1")[1]
    server.wait_for(r"rank 2 -> rank 1 over ethernet 10\.23\.0\.[23]")
    server.wait_for(r"rank 0 -> rank [12] over ethernet 10\.12\.0\.2, [\d.]+ [GM]bit/s")
    server.wait_for(r"rank 0 -> rank [12] over ethernet 10\.13\.0\.3")
    assert cables.ask(url) == "200"
    assert server.stop() == 0, server.log
