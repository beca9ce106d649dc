"""An agent as a service of the system: started at every boot, or ended and removed."""

from __future__ import annotations

import os
import sys

from chorus.cluster.agent.process import AgentOptions
from chorus.platform import service
from chorus.platform.storage.paths import STATE_VARIABLE
from chorus.security.node_folder import write_private

_KEPT = (STATE_VARIABLE, "CHORUS_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT")
_TOKEN_FILE = "join.token"


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
        command += ["--token-file", str(options.state / _TOKEN_FILE)]
    return command


def install_service(
    options: AgentOptions, peers: list[str], listen: str, daemon: bool = False, say: service.Say = print
) -> None:
    """Start the agent now and at every boot; `say` hears what was done."""
    if options.token:
        write_private(options.state / _TOKEN_FILE, options.token.text.encode())
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    service.install(agent_command(options, peers, listen), environment, daemon, say)


def remove_service(say: service.Say = print) -> None:
    """End the agent and remove its service; `say` hears what was done."""
    service.uninstall(say)
