"""A program that the system starts at every boot and keeps running: launchd on a Mac, systemd on Linux."""

from __future__ import annotations

import getpass
import os
import plistlib
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform import system
from chorus.platform.network import failures
from chorus.platform.storage import paths
from chorus.platform.storage.filelimit import MAC_FILES, PLENTY
from chorus.platform.storage.files import write_whole

LABEL = "dev.chorus.agent"
UNIT = "chorus-agent.service"
DAEMONS = Path("/Library/LaunchDaemons")
GONE_SECONDS = 30.0
"""launchd gives a service 20 seconds to end, then kills it."""
_LOOK_SECONDS = 0.2
_STEP_SECONDS = 60.0
_PASSWORD_SECONDS = 300.0

Say = Callable[[str], None]


class ServiceError(ChorusError):
    """The system did not take the service, or did not let go of it: says what it was asked and what it answered."""


@dataclass(frozen=True)
class Job:
    """Where launchd knows the agent: of this user while they are logged in, or of the system from the boot on."""

    domain: str
    file: Path
    needs_root: bool

    @property
    def target(self) -> str:
        return f"{self.domain}/{LABEL}"


def install(command: Sequence[str], environment: Mapping[str, str], daemon: bool, say: Say) -> None:
    """Start the command now and at every boot, in place of what was installed before; `daemon`: without a login."""
    if system.is_mac():
        _install_on_mac(command, environment, daemon, say)
    elif daemon:
        raise ServiceError("--daemon is for Macs: here a service of this user runs from the boot on without it")
    else:
        _install_with_systemd(command, environment, say)


def uninstall(say: Say) -> None:
    """End the service and remove its file, so that nothing of it runs now or later."""
    if system.is_mac():
        _uninstall_from_mac(say)
    else:
        _uninstall_from_systemd(say)


def launchd(command: Sequence[str], environment: Mapping[str, str], user: str | None, logs: Path) -> bytes:
    """A property list; with a user it is a daemon that runs as that user."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": {**environment, "HOME": str(Path.home())},
            **({"UserName": user} if user else {}),
            "RunAtLoad": True,
            "KeepAlive": True,
            "ProcessType": "Interactive",
            # An agent prints what it also logs, and nobody would cut that file: here is only what comes before its log.
            "StandardOutPath": os.devnull,
            "StandardErrorPath": str(logs / "agent.log"),
            "SoftResourceLimits": {"NumberOfFiles": MAC_FILES},
        }
    )


def systemd(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in environment.items())
    return (
        "[Unit]\nDescription=Chorus agent\nAfter=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nExecStart={' '.join(_quoted(word) for word in command)}\n{variables}"
        f"Restart=always\nRestartSec=2\nKillMode=mixed\nLimitNOFILE={PLENTY}\n\n"
        "[Install]\nWantedBy=default.target\n"
    ).encode()


def unit_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user" / UNIT


def is_root() -> bool:
    return os.geteuid() == 0


def _jobs() -> tuple[Job, Job]:
    """The user's agent and the system's daemon."""
    agents = Path("~/Library/LaunchAgents").expanduser()
    return (
        Job(f"gui/{os.getuid()}", agents / f"{LABEL}.plist", False),
        Job("system", DAEMONS / f"{LABEL}.plist", not is_root()),
    )


def _install_on_mac(command: Sequence[str], environment: Mapping[str, str], daemon: bool, say: Say) -> None:
    if os.environ.get("SUDO_USER") and is_root():
        raise ServiceError("run it without sudo: what needs root asks for the password itself")
    job = _jobs()[daemon]
    if _asked("launchctl", "print", job.domain).returncode:
        raise ServiceError(
            "nobody is logged in at this Mac's screen, so it runs no agents: log in there, or add --daemon"
        )
    _uninstall_from_mac(say)
    logs = paths.log_dir()
    logs.mkdir(parents=True, exist_ok=True)
    content = launchd(command, environment, getpass.getuser() if daemon else None, logs)
    if job.needs_root:
        # launchd refuses a daemon whose file is not root's; only these steps need to be root.
        aside = paths.private_folder(paths.state_dir()) / job.file.name
        write_whole(aside, content)
        try:
            _must(job, "install", "-o", "root", "-g", "wheel", "-m", "644", str(aside), str(job.file))
        finally:
            aside.unlink()
    else:
        write_whole(job.file, content)
        job.file.chmod(0o644)
    say(f"wrote {job.file}")
    _must(job, "launchctl", "enable", job.target)
    _must(job, "launchctl", "bootstrap", job.domain, str(job.file))
    say(f"started {job.target}; its log is in {logs}")
    if daemon:
        say("it runs from the boot on, as this user, whether or not anybody is logged in")
    else:
        say("it runs while this user is logged in. macOS 15 and newer ask once whether it may use the local network:")
        say(f"{failures.LOCAL_NETWORK}. Without the permission, connections fail with 'No route to host'.")


def _uninstall_from_mac(say: Say) -> None:
    """Whichever of the two is there: somebody may have installed one after the other."""
    for job in _jobs():
        if _is_loaded(job):
            _must(job, "launchctl", "bootout", job.target)
            _wait_until_gone(job)
            say(f"stopped {job.target}")
        if job.file.exists():
            if job.needs_root:
                _must(job, "rm", str(job.file))
            else:
                job.file.unlink()
            say(f"removed {job.file}")


def _is_loaded(job: Job) -> bool:
    done = _asked("launchctl", "print", job.target)
    return done.returncode == 0


def _wait_until_gone(job: Job) -> None:
    """`bootout` returns before the service has ended, and until then it cannot be started again."""
    deadline = time.monotonic() + GONE_SECONDS
    while _is_loaded(job):
        if time.monotonic() > deadline:
            raise ServiceError(f"{job.target} still runs {GONE_SECONDS:g} s after `launchctl bootout {job.target}`")
        time.sleep(_LOOK_SECONDS)


def _install_with_systemd(command: Sequence[str], environment: Mapping[str, str], say: Say) -> None:
    if shutil.which("systemctl") is None:
        raise ServiceError("there is no systemctl: without systemd, start `chorus join` by what starts services here")
    # Before anything else: it also starts this user's systemd where they are not logged in.
    lingering = _asked("loginctl", "enable-linger")
    file = unit_file()
    write_whole(file, systemd(command, environment))
    say(f"wrote {file}")
    for step in (("daemon-reload",), ("enable", UNIT), ("restart", UNIT)):
        _must(None, "systemctl", "--user", *step)
    say(f"started {UNIT}; its log: journalctl --user -u {UNIT}")
    if lingering.returncode:
        say(f"it ends when this user logs out: loginctl enable-linger failed: {_last_line(lingering.stdout)}")
    else:
        say("it runs from the boot on (loginctl enable-linger)")


def _uninstall_from_systemd(say: Say) -> None:
    file = unit_file()
    if not file.exists():
        say(f"there is no {file}")
        return
    _must(None, "systemctl", "--user", "disable", "--now", UNIT)
    say(f"stopped {UNIT}")
    file.unlink()
    say(f"removed {file}")
    _must(None, "systemctl", "--user", "daemon-reload")


def _must(job: Job | None, *command: str) -> None:
    """Run one step, as root where the job needs that; raises ServiceError with what it said."""
    words = ("sudo", *command) if job and job.needs_root else command
    done = _asked(*words)
    if done.returncode:
        raise ServiceError(f"`{' '.join(words)}` failed: {_last_line(done.stdout) or f'exit code {done.returncode}'}")


def _asked(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        # sudo asks at the terminal, not on its standard input.
        done = system.run_tool(*command, seconds=_PASSWORD_SECONDS if command[0] == "sudo" else _STEP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"`{' '.join(command)}` did not end within {error.timeout:g} s") from None
    if done is None:
        raise ServiceError(f"there is no {command[0]} here")
    return done


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
