"""Service files that start an agent at every boot: launchd on a Mac, systemd on Linux, both for the user alone."""

from __future__ import annotations

import os
import plistlib
import sys
from pathlib import Path

from chorus.cluster.agent.process import AgentOptions
from chorus.platform.files import write_whole
from chorus.platform.paths import STATE_VARIABLE
from chorus.security.node_folder import write_private

LABEL = "dev.chorus.agent"
_UNIT = "chorus-agent.service"
_KEPT = (STATE_VARIABLE, "CHORUS_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT")


def agent_command(options: AgentOptions, peers: list[str], listen: str) -> list[str]:
    """What the service runs; the token stays in a file that only this user can read."""
    command = [sys.executable, "-m", "chorus.cli", "join", "--name", options.name, "--listen", listen]
    command += ["--log-dir", str(options.logs.resolve())]
    for peer in peers:
        command += ["--peer", peer]
    if options.rank_port:
        command += ["--port", str(options.rank_port)]
    if not options.announce:
        command.append("--no-announce")
    if options.token:
        command += ["--token-file", str(options.state / "join.token")]
    return command


def launchd(command: list[str], environment: dict[str, str]) -> bytes:
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": command,
            "EnvironmentVariables": environment,
            "RunAtLoad": True,
            "KeepAlive": True,
            "ProcessType": "Interactive",
        }
    )


def systemd(command: list[str], environment: dict[str, str]) -> bytes:
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in environment.items())
    return (
        "[Unit]\nDescription=Chorus agent\nAfter=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nExecStart={' '.join(_quoted(word) for word in command)}\n{variables}"
        "Restart=always\nRestartSec=2\nKillMode=mixed\n\n[Install]\nWantedBy=default.target\n"
    ).encode()


def install_service(options: AgentOptions, peers: list[str], listen: str) -> tuple[Path, str]:
    """Write the service file; answers where it is and how to start it."""
    if options.token:
        write_private(options.state / "join.token", options.token.text.encode())
    command = agent_command(options, peers, listen)
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    file = service_file()
    if sys.platform == "darwin":
        write_whole(file, launchd(command, environment))
        return file, f"launchctl bootstrap gui/{os.getuid()} {file}"
    write_whole(file, systemd(command, environment))
    return file, f"loginctl enable-linger && systemctl --user enable --now {_UNIT}"


def remove_service() -> Path:
    file = service_file()
    file.unlink(missing_ok=True)
    return file


def service_file() -> Path:
    if sys.platform == "darwin":
        return Path("~/Library/LaunchAgents").expanduser() / f"{LABEL}.plist"
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user" / _UNIT


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
