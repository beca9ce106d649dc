"""What the settings describe and a command would not start: it says so, with the command that would."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Sequence

from chorus.config.hostfile import address_refusal, split_address
from chorus.config.sections import ClusterConfig, DeviceConfig
from chorus.config.sources import DEFAULT_FILES, LoadedSettings
from chorus.deploy.ssh.connect import is_this_machine, own_addresses, own_names, resolve
from chorus.deploy.ssh.hosts import ANY_PYTHON
from chorus.deploy.ssh.shell import Login
from chorus.errors import ChorusError
from chorus.transport import catalog


class AnotherCommand(ChorusError):
    """The settings are for another command: one line that names it."""


def check_served_here(loaded: LoadedSettings) -> None:
    """Refuse what `chorus serve`, which starts every rank on this machine, would leave out."""
    settings = loaded.settings
    _refuse_rank(loaded, "chorus serve")
    _refuse_unreachable(loaded)
    if reasons := [reason for device in settings.devices if (reason := why_elsewhere(device))]:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise AnotherCommand(
            f"{loaded.given['devices'].place}: {reasons[0]}{more}, and `chorus serve` starts every rank here; for all "
            f"of them: {up_command(loaded)}{_or_by_hand(loaded)}"
        )
    _refuse_address(loaded)
    if named := next((entry for entry in settings.served if entry.nodes), None):
        raise AnotherCommand(
            f"{loaded.given['models'].place}: {named.source}: nodes {', '.join(named.nodes)}, and `chorus serve` "
            "starts every rank here; over nodes: chorus serve --cluster, or chorus up -c FILE"
        )
    transport = settings.engine.transport
    if transport != catalog.AUTO and catalog.get(transport).rdma:
        raise AnotherCommand(
            f"{loaded.given['engine.transport'].place}: {transport} joins machines, and `chorus serve` starts every "
            f"rank here; over the nodes that joined: chorus serve --cluster --transport {transport}; over those of a "
            "file: chorus up -c FILE"
        )


def check_served_over_nodes(loaded: LoadedSettings, command: str) -> None:
    """Refuse what a command that has agents start the other ranks would leave out."""
    if loaded.settings.cluster.rank:
        _refuse_rank(loaded, command)
    _refuse_unreachable(loaded)
    _refuse_address(loaded)


def check_leads(loaded: LoadedSettings) -> None:
    """Refuse to lead where the file says that this machine is another rank than the first."""
    devices = loaded.settings.devices
    here = [rank for rank, device in enumerate(devices) if why_elsewhere(device) is None]
    if here and 0 not in here:
        raise AnotherCommand(
            f"{loaded.given['devices'].place}: {devices[0].device_id} is rank 0, which leads, and this machine is "
            f"{devices[here[0]].device_id}: run this on {devices[0].hostname}, or from anywhere: {up_command(loaded)}"
        )


def why_elsewhere(device: DeviceConfig) -> str | None:
    """Why a device is none that this very process can start a rank of; None where it is this machine."""
    name, host = device.device_id, device.hostname
    assert host is not None  # those are refused before
    if not is_this_machine(host, own_addresses(), own_names(), resolve(host)):
        return f"{name} is another machine" if name == host else f"{name} ({host}) is another machine"
    if device.ssh and Login.parse(device.ssh).user not in (None, getpass.getuser()):
        return f"{name} is reached as {device.ssh}"
    if device.python not in (ANY_PYTHON, sys.executable):
        return f"{name} uses {device.python}"
    return None


def up_command(loaded: LoadedSettings) -> str:
    """`chorus up` as it would read the same settings."""
    settings, words = loaded.settings, ["chorus", "up"]
    devices = loaded.given.get("devices")
    if loaded.file and (loaded.file.name not in DEFAULT_FILES or (devices and devices.source == str(loaded.file))):
        words += ["-c", str(loaded.file)]
    if loaded.typed("model"):
        words.append(settings.model)
    for key, value in (("host", settings.api.host), ("port", settings.api.port)):
        words += [f"--{key}", str(value)] if loaded.typed(f"api.{key}") else []
    return _command(words)


def by_hand_command(loaded: LoadedSettings, rank: str) -> str:
    """`chorus worker` for one rank of a hostfile."""
    settings, hostfile = loaded.settings, hostfile_of(loaded)
    words = ["chorus", "worker", "mlx-distributed", "--hostfile", hostfile or "FILE", "--rank", rank]
    if settings.engine.transport != catalog.AUTO:
        words += ["--backend", settings.engine.transport]
    if "cluster.address" in loaded.given:
        words += ["--addr", settings.cluster.address]
    if settings.cluster.coordinator:
        words += ["--coordinator", settings.cluster.coordinator]
    return _command([*words, "--model", settings.model])


def hostfile_of(loaded: LoadedSettings) -> str | None:
    """The hostfile that the devices come from; None where they come from elsewhere, or there are none."""
    if loaded.settings.cluster.hostfile:
        return str(loaded.settings.cluster.hostfile)
    devices = loaded.given.get("devices")
    return devices.source if devices and devices.spelled == "hosts" else None


def _refuse_rank(loaded: LoadedSettings, command: str) -> None:
    rank = loaded.settings.cluster.rank
    if rank is not None:
        raise AnotherCommand(
            f"{loaded.given['cluster.rank'].place}: `{command}` starts every rank itself: leave it out; rank {rank} "
            f"alone is started by: {by_hand_command(loaded, str(rank))}"
        )


def _refuse_unreachable(loaded: LoadedSettings) -> None:
    if refusal := address_refusal(loaded.settings.devices):
        raise AnotherCommand(f"{loaded.given['devices'].place}: {refusal}")


def _refuse_address(loaded: LoadedSettings) -> None:
    address = loaded.settings.cluster.address
    if address == ClusterConfig().address:
        return
    host, port = split_address(address)
    words = ["chorus", "serve", "--host", host, *(["--port", str(port)] if port else [])]
    raise AnotherCommand(
        f"{loaded.given['cluster.address'].place}: that is where rank 0 of a hostfile listens "
        f"({by_hand_command(loaded, '0')}); an API from here is at: {_command(words)}"
    )


def _or_by_hand(loaded: LoadedSettings) -> str:
    return f"; or on each machine, as rank N: {by_hand_command(loaded, 'N')}" if hostfile_of(loaded) else ""


def _command(words: Sequence[str]) -> str:
    return shlex.join(words)
