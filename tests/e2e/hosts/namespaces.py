"""Three hosts on one machine: network namespaces on a bridge, each with its own user, home folder and SSH server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import chorus

SUBNET = "10.177.83"
MARK = "chtst"


PACKAGES = sysconfig.get_path("purelib")


def interpreter() -> str | None:
    """One that every user may run: ours, or the system's of the same version, to which our packages are lent."""
    own = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & 0o001 for folder in own.parents):
        return sys.executable
    return shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin")


def must(*command: str, data: str | None = None, timeout: float = 60) -> str:
    done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def attempt(*command: str) -> None:
    subprocess.run(command, capture_output=True, timeout=60, check=False)


@dataclass
class Host:
    number: int
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    clock_ahead: float = 0.0
    """By how many seconds the monotonic clock of whatever is started here is ahead of this machine's."""

    @property
    def namespace(self) -> str:
        return f"{MARK}{self.number}"

    @property
    def user(self) -> str:
        return f"{MARK}user{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number}"

    @property
    def home(self) -> Path:
        return self.folder / f"home-{self.number}" / self.user

    @property
    def python(self) -> Path:
        return self.folder / f"python-of-host-{self.number}"

    @property
    def commands(self) -> Path:
        """First on the PATH of whoever comes by SSH."""
        return self.folder / f"bin-of-host-{self.number}"

    @property
    def source(self) -> Path:
        """Chorus itself, for the first command on the first host; the others must get it from there."""
        return self.folder / "source"

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.user).pw_uid

    def command(self, *words: str, **environment: str) -> list[str]:
        """As that user, on that host, with nothing of our own environment."""
        variables = {"HOME": str(self.home), "USER": self.user, "PATH": "/usr/bin:/bin:/usr/sbin", "COLUMNS": "250"}
        given = [f"{name}={value}" for name, value in {**variables, **environment}.items()]
        gid = pwd.getpwnam(self.user).pw_gid
        change = ["setpriv", f"--reuid={self.uid}", f"--regid={gid}", "--clear-groups"]
        clock = ["unshare", "--time", f"--monotonic={self.clock_ahead:g}"] if self.clock_ahead else []
        return ["ip", "netns", "exec", self.namespace, *clock, *change, "env", "-i", *given, *words]

    def chorus(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.python), "-m", "chorus.cli", *words, timeout=timeout, PYTHONPATH=str(self.source))

    def run(self, *words: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, **environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.home,
        )

    def start(self, log: Path, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                self.command(*words, **environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self.home,
            )
        self.processes.append(process)
        return process

    def own_processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["uids"]):
            with contextlib.suppress(psutil.Error):
                own = process.info["uids"] and process.info["uids"].real == self.uid
                if own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def runs(self) -> set[str]:
        """What its processes run: the first two words behind the program."""
        found = set()
        for process in self.own_processes():
            with contextlib.suppress(psutil.Error):  # one that ends while we look
                found.add(" ".join(process.cmdline()[1:3]))
        return found

    def listening(self) -> set[str]:
        """Addresses that something listens on, apart from sshd."""
        lines = must("ip", "netns", "exec", self.namespace, "ss", "-Htln").splitlines()
        return {line.split()[3] for line in lines} - {"0.0.0.0:22", "[::]:22"}

    def files(self) -> set[str]:
        """Everything of this user, at home and in the places for temporary files."""
        found = {str(path) for path in self.home.rglob("*") if not str(path).startswith(f"{self.home}/.ssh")}
        for place in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
            for path in place.iterdir():
                with contextlib.suppress(OSError):
                    if path.lstat().st_uid == self.uid and path != self.folder:
                        found.add(str(path))
        return found


@contextlib.contextmanager
def three_hosts() -> Iterator[list[Host]]:
    # pytest keeps its own folders to itself; other users must be able to pass through this one.
    folder = Path(tempfile.mkdtemp(prefix="chorus-hosts-"))
    folder.chmod(0o755)
    shutil.copytree(
        Path(chorus.__file__).parent, folder / "source" / "chorus", ignore=shutil.ignore_patterns("__pycache__")
    )
    hosts = [Host(number, folder) for number in (1, 2, 3)]
    # Names of namespaces and users are the same in every run: a second one waits for the first.
    with Path("/run/chorus-test-hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove(hosts)
        try:
            _make(hosts)
            yield hosts
        finally:
            _remove(hosts)
            shutil.rmtree(folder, ignore_errors=True)


def _make(hosts: list[Host]) -> None:
    bridge = f"{MARK}br"
    must("ip", "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
    must("ip", "link", "set", bridge, "up")
    for host in hosts:
        inside, outside = f"{MARK}in{host.number}", f"{MARK}out{host.number}"
        must("ip", "netns", "add", host.namespace)
        must("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
        must("ip", "link", "set", inside, "netns", host.namespace)
        must("ip", "link", "set", outside, "master", bridge, "up")
        must("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", inside)
        must("ip", "-n", host.namespace, "link", "set", inside, "up")
        must("ip", "-n", host.namespace, "link", "set", "lo", "up")
        must("ip", "-n", host.namespace, "route", "add", "default", "dev", inside)
        _make_user(host)
    _exchange_keys(hosts)
    for host in hosts:
        _start_sshd(host)


def _make_user(host: Host) -> None:
    must("useradd", "--no-create-home", "--home-dir", str(host.home), "--shell", "/bin/sh", host.user)
    must("usermod", "--password", "*", host.user)  # no password, and not locked
    host.home.mkdir(parents=True)
    entry = pwd.getpwnam(host.user)
    os.chown(host.home, entry.pw_uid, entry.pw_gid)
    # An interpreter of another name on each host, with the same packages behind it.
    host.python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{PACKAGES}"\nexec {interpreter()} "$@"\n'
    )
    host.python.chmod(0o755)
    # What `python3` is there, for whoever names no interpreter.
    host.commands.mkdir()
    (host.commands / "python3").symlink_to(host.python)


def _exchange_keys(hosts: list[Host]) -> None:
    first = hosts[0]
    ssh = first.home / ".ssh"
    ssh.mkdir(mode=0o700)
    must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / "id_ed25519"))
    public = (ssh / "id_ed25519.pub").read_text()
    known = []
    for host in hosts:
        key = host.folder / f"hostkey-{host.number}"
        must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        known.append(f"{host.address} {key.with_suffix('.pub').read_text()}")
        (host.home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (host.home / ".ssh" / "authorized_keys").write_text(public)
    (ssh / "known_hosts").write_text("".join(known))
    for host in hosts:
        must("chown", "-R", f"{host.user}:", str(host.home))


def _start_sshd(host: Host) -> None:
    Path("/run/sshd").mkdir(exist_ok=True)
    config = host.folder / f"sshd-{host.number}.conf"
    config.write_text(
        f"Port 22\nListenAddress 0.0.0.0\nHostKey {host.folder}/hostkey-{host.number}\nPidFile none\nUsePAM no\n"
        "PasswordAuthentication no\nAuthorizedKeysFile .ssh/authorized_keys\nStrictModes no\n"
        f"SetEnv PATH={host.commands}:/usr/bin:/bin\n"
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", host.namespace, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
        stdin=subprocess.DEVNULL,
        stderr=(host.folder / f"sshd-{host.number}.log").open("wb"),
    )
    host.processes.append(process)
    deadline = time.monotonic() + 60
    while ":22" not in must("ip", "netns", "exec", host.namespace, "ss", "-Htln"):
        assert time.monotonic() < deadline, (host.folder / f"sshd-{host.number}.log").read_text()
        time.sleep(0.05)


def _remove(hosts: list[Host]) -> None:
    for host in hosts:
        for process in host.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        with contextlib.suppress(KeyError):
            for left in host.own_processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            psutil.wait_procs(host.own_processes(), timeout=60)
            attempt("userdel", host.user)
        for process in host.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        attempt("ip", "netns", "del", host.namespace)
        attempt("ip", "link", "del", f"{MARK}out{host.number}")
        shutil.rmtree(host.folder / f"home-{host.number}", ignore_errors=True)
    attempt("ip", "link", "del", f"{MARK}br")


def block_multicast(host: Host) -> None:
    chains = [
        f"chain {hook} {{\ntype filter hook {hook} priority 0;\nip daddr 224.0.0.0/4 drop\n}}\n"
        for hook in ("input", "output")
    ]
    rules = f"table inet chorus_test {{\n{''.join(chains)}}}\n"
    must("ip", "netns", "exec", host.namespace, "nft", "-f", "-", data=rules)
