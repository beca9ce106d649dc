"""Three hosts that are network namespaces, and the cables between them, which can be plugged in and out."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from chorus.security.authority import Authority
from tests.cluster.harness import Process
from tests.e2e.hosts.namespaces import attempt, must

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


READ = """
import json, sys, time, urllib.request
request = urllib.request.Request(sys.argv[1] + "/v1/completions", sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
for line in urllib.request.urlopen(request, timeout=180):
    if line.startswith(b"data: {"):
        print(json.dumps({"at": time.monotonic(), **json.loads(line[6:])}), flush=True)
"""


def end_of(subnet: str, host: int) -> str:
    """The name of a host's end of a cable."""
    return f"{MARK}{subnet.replace('.', '')}{host}"


class Client(Process):
    """Prints every event of its stream, with the time at which it came."""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines(keepends=True) if line.endswith("}\n")]

    def text(self) -> str:
        """All of it, once it has ended in order."""
        assert self.wait(180) == 0, self.log
        assert not [event for event in self.events if "error" in event], self.log
        return "".join(event["choices"][0]["text"] for event in self.events)

    @property
    def longest_gap(self) -> float:
        return max(later["at"] - earlier["at"] for earlier, later in itertools.pairwise(self.events))


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
        ends = {host: end_of(subnet, host) for host in (one, other)}
        must("ip", "link", "add", ends[one], "type", "veth", "peer", "name", ends[other])
        for host, end in ends.items():
            space = f"{MARK}{host}"
            must("ip", "link", "set", end, "netns", space)
            if slow:
                self.slow_down(host, subnet)
            must("ip", "-n", space, "addr", "add", f"10.{subnet}.{host}/24", "dev", end)
            must("ip", "-n", space, "link", "set", end, "up")

    def slow_down(self, host: int, subnet: str) -> None:
        """From now on 20 Mbit/s leave this end, as of a bad cable."""
        words = ["root", "tbf", "rate", "20mbit", "burst", "64kb", "latency", "100ms"]
        must("tc", "-n", f"{MARK}{host}", "qdisc", "add", "dev", end_of(subnet, host), *words)

    def cut(self, host: int, *subnets: str) -> None:
        """Nothing passes any more, and nobody is told."""
        for subnet in subnets:
            must("ip", "-n", f"{MARK}{host}", "link", "set", end_of(subnet, host), "down")

    def mend(self, host: int, *subnets: str) -> None:
        for subnet in subnets:
            must("ip", "-n", f"{MARK}{host}", "link", "set", end_of(subnet, host), "up")

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

    def serve(self, model: Path | str, split: str = "2,2,3") -> Process:
        words = ["serve", "--cluster", str(model), "--port", "0", "--nodes", "2", "--split", split]
        return self.run(1, "server", *words, "--start-timeout", "120")

    def stream(self, url: str, prompt: str, count: int, **options: Any) -> Client:
        """A client on the first host that reads an answer as it comes."""
        body = json.dumps({"prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True, **options})
        client = Client(
            "client", ["-c", READ, url, body], self.folder / "host-1", {}, inside=["ip", "netns", "exec", f"{MARK}1"]
        )
        self.processes.append(client)
        return client

    def ask(self, url: str) -> str:
        return must("ip", "netns", "exec", f"{MARK}1", sys.executable, "-c", ASK, url, timeout=180).strip()

    def remove(self) -> None:
        for process in reversed(self.processes):
            process.end()
        for holder in self.held:
            holder.kill()
            holder.wait(60)
        for host in (1, 2, 3):
            attempt("ip", "netns", "del", f"{MARK}{host}")
