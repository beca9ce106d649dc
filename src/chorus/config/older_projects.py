"""Names that people already use, in files and in the environment, and what they mean here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorus.config.distributed_config import take_over
from chorus.config.file import ConfigError, read_file, user_path
from chorus.config.hostfile import BACKENDS, Hostfile, HostfileError, is_hostfile, parse_hostfile, split_address
from chorus.config.origins import Given, Values, without_effect

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
WORKERS = "WORKER_HOSTS"
PROVIDERS = ("huggingface", "hf", "mlx-community", "local", "catalog")


@dataclass
class Translation:
    """What a source says, in our own keys."""

    values: Values = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def translate_file(file: Path, content: Any) -> tuple[dict[str, Any], Translation]:
    """The tree that is left to be read as it is, and what had to be translated."""
    result, source = Translation(), str(file)
    if content is None:
        return {}, result
    if is_hostfile(content):
        result.values |= hostfile_values(_parsed(content, source), source, "hosts")
        return {}, result
    if file.name == ".env":
        raise ConfigError(f"{source}: holds variables: `chorus config show` in its folder reads and checks them")
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected a mapping of settings at the top, got a {type(content).__name__}")
    tree, taken, told = take_over(dict(content), source)
    result.values |= taken
    result.warnings += told
    if isinstance(tree.get("model"), dict):
        result.values["model"] = Given(_model(tree.pop("model"), source), source, "model.name")
    _translate_layers(tree, source, result)
    cluster = tree.get("cluster")
    if isinstance(cluster, dict) and isinstance(cluster.get("hostfile"), str):
        path = file.parent / user_path(cluster["hostfile"])
        tree["cluster"] = {**cluster, "hostfile": str(path)}
        result.values |= read_hostfile(path, source, "cluster.hostfile")
    return tree, result


def _model(model: dict[str, Any], source: str) -> str:
    for key in model:
        if key not in ("name", "provider"):
            raise ConfigError(f"{source}: model.{key}: no such setting; expected name and provider")
    name, provider = model.get("name"), model.get("provider", "huggingface")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{source}: model.name: expected a folder, a Hugging Face id or a catalog name, got {name!r}")
    if provider not in PROVIDERS:
        raise ConfigError(f"{source}: model.provider: expected one of {', '.join(PROVIDERS)}, got {provider!r}")
    if provider == "mlx-community" and "/" not in name:
        return f"mlx-community/{name}"
    if provider == "local" and not name.startswith((".", "/", "~")):
        return f"./{name}"  # otherwise a catalog name of the same spelling would win
    return name


def _translate_layers(tree: dict[str, Any], source: str, result: Translation) -> None:
    """`sharding.layers` is `engine.split` by its other name."""
    sharding = tree.get("sharding")
    if not isinstance(sharding, dict) or "layers" not in sharding:
        return
    tree["sharding"] = {key: value for key, value in sharding.items() if key != "layers"}
    layers, engine = sharding["layers"], tree.get("engine")
    if layers is None:
        return
    if isinstance(engine, dict) and engine.get("split") not in (None, layers):
        raise ConfigError(f"{source}: sharding.layers: differs from engine.split; expected one of them")
    if isinstance(layers, list) and any(isinstance(count, bool) or not isinstance(count, int) for count in layers):
        raise ConfigError(f"{source}: sharding.layers: expected numbers of layers like [20, 7, 3], got {layers!r}")
    result.values["engine.split"] = Given(layers, source, "sharding.layers")


def read_hostfile(path: Path, source: str, spelled: str) -> Values:
    try:
        content = read_file(path)
        return hostfile_values(_parsed(content, str(path)), source, spelled)
    except ConfigError as error:
        raise ConfigError(f"{source}: {spelled}: {error}") from None


def _parsed(content: Any, source: str) -> Hostfile:
    try:
        return parse_hostfile(content)
    except HostfileError as error:
        raise ConfigError(f"{source}: {error}") from None


def hostfile_values(hostfile: Hostfile, source: str, spelled: str) -> Values:
    """A hostfile as devices: its entries in rank order, the first one leading."""
    names = [host.hostname or f"rank{rank}" for rank, host in enumerate(hostfile.hosts)]
    times = Counter(names)
    devices = [
        {
            "device_id": names[rank] if times[names[rank]] == 1 else f"{names[rank]}-{rank}",
            "hostname": host.hostname,
            "port": host.port,
            "role": "worker" if rank else "coordinator",
            "ssh": host.ssh,
            "addresses": list(host.addresses),
            "rdma": list(host.rdma),
        }
        for rank, host in enumerate(hostfile.hosts)
    ]
    values = {"devices": Given(devices, source, spelled)}
    if hostfile.backend:
        values["engine.transport"] = Given(hostfile.backend, source, "backend" if spelled == "hosts" else spelled)
    if hostfile.envs:
        values["cluster.env"] = Given(dict(hostfile.envs), source, "envs" if spelled == "hosts" else spelled)
    return values


def _backend(text: str) -> str:
    return BACKENDS.get(text.strip().lower(), text)


def _log_level(text: str) -> str:
    level = text.strip().lower()
    return {"warn": "warning", "critical": "error", "fatal": "error", "trace": "debug", "notset": "debug"}.get(
        level, level
    )


def _as_written(text: str) -> str:
    return text


@dataclass(frozen=True)
class _Renamed:
    key: str
    convert: Callable[[str], Any] = _as_written


RENAMED: Mapping[str, _Renamed] = {
    "MODEL_REPO": _Renamed("model"),
    "MODEL_CACHE_DIR": _Renamed("hub_cache_dir", os.path.expandvars),
    "CHORUS_CACHE": _Renamed("cache_dir"),
    "API_HOST": _Renamed("api.host"),
    "API_PORT": _Renamed("api.port"),
    "REQUEST_TIMEOUT_SECONDS": _Renamed("api.request_timeout_seconds"),
    "DEFAULT_MAX_TOKENS": _Renamed("api.max_tokens"),
    "NUM_DEVICES": _Renamed("engine.ranks"),
    "MAX_SEQUENCE_LENGTH": _Renamed("engine.context"),
    "KV_CACHE_MAX_SIZE": _Renamed("cache.max_tokens"),
    "KV_CACHE_RESERVED_MEMORY_MB": _Renamed("engine.reserve_mb"),
    "DISTRIBUTED_BACKEND": _Renamed("engine.transport", _backend),
    "MLX_DISTRIBUTED_BACKEND": _Renamed("engine.transport", _backend),
    "MLX_DISTRIBUTED_HOSTFILE": _Renamed("cluster.hostfile"),
    "MLX_DISTRIBUTED_ADDR": _Renamed("cluster.address"),
    "MLX_RANK": _Renamed("cluster.rank"),
    "MLX_JACCL_COORDINATOR": _Renamed("cluster.coordinator"),
    "LOG_LEVEL": _Renamed("log.level", _log_level),
    "MINIMAX_PIPELINE_SPLIT": _Renamed("engine.split"),
    "CHORUS_PIPELINE_SPLIT": _Renamed("engine.split"),
}
"""Where two variables name one setting, the later one here goes over the earlier."""

_SOCKETS = "requests reach the engine over a private socket"
_LOGS = "`chorus logs` shows the logs"
_LIMITS = "Chorus keeps the limits it was started with; ulimit -n sets them"

MEANINGLESS: Mapping[str, str] = {
    "SOCKET_PATH": _SOCKETS,
    "REQUEST_FILE_PATH": _SOCKETS,
    "RESPONSE_FILE_PATH": _SOCKETS,
    "SERVER_LOG_PATH": _LOGS,
    "API_LOG_PATH": _LOGS,
    "POLL_INTERVAL_SECONDS": "nothing is polled: every wait ends with the event it waits for",
    "MODEL_LOAD_WAIT_SECONDS": "a load is waited for until it is done; engine.start_timeout_seconds is its deadline",
    "MAX_PROMPT_LEN_BYTES": "a prompt goes through no buffer of a fixed size; engine.context bounds it",
    "FILE_DESCRIPTOR_SOFT_LIMIT": _LIMITS,
    "FILE_DESCRIPTOR_HARD_LIMIT": _LIMITS,
}

VARIABLES = frozenset({*RENAMED, *MEANINGLESS, "WORKER_HOSTS", "WORKER_SSH"})
"""Every variable of an older project that is read."""


def translate_variables(variables: Mapping[str, str], source: str, folder: Path) -> Translation:
    result = Translation()
    given = {name: text for name, text in variables.items() if text.strip()}
    for name, renamed in RENAMED.items():
        if name in given:
            result.values[renamed.key] = Given(renamed.convert(given[name]), source, name)
    result.warnings += without_effect([name for name in MEANINGLESS if name in given], MEANINGLESS, source)
    if hostfile := given.get("MLX_DISTRIBUTED_HOSTFILE"):
        path = folder / user_path(hostfile)
        found = read_hostfile(path, source, "MLX_DISTRIBUTED_HOSTFILE")
        found.pop("engine.transport", None) if "engine.transport" in result.values else None
        result.values |= found
    elif WORKERS in given:
        result.values["devices"] = Given(_workers(given, source), source, WORKERS)
    elif "WORKER_SSH" in given:
        result.warnings.append(f"{source}: WORKER_SSH has no effect: there is no WORKER_HOSTS for it to log in to")
    return result


def _workers(given: Mapping[str, str], source: str) -> list[dict[str, Any]]:
    """This machine leads; the hosts named are its workers, whether or not it is listed among them."""
    hosts = [host.strip() for host in given[WORKERS].split(",") if host.strip()]
    logins = [login.strip() for login in given.get("WORKER_SSH", "").split(",") if login.strip()]
    if logins and len(logins) != len(hosts):
        raise ConfigError(
            f"{source}: WORKER_SSH: expected one login for each of the {len(hosts)} WORKER_HOSTS, got {len(logins)}"
        )
    devices: list[dict[str, Any]] = [{"device_id": "localhost", "hostname": "localhost", "role": "coordinator"}]
    for index, host in enumerate(hosts):
        try:
            name, port = split_address(host)
        except ValueError as error:
            raise ConfigError(f"{source}: WORKER_HOSTS: {error}") from None
        if name in LOCAL_NAMES:
            continue
        worker = {"device_id": name, "hostname": name, "ssh": logins[index] if logins else None}
        devices.append(worker if port is None else {**worker, "port": port})
    return devices
