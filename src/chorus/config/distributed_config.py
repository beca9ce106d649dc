"""The keys of `distributed_config.json`, as the gRPC project wrote that file, that are called otherwise here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chorus.config.file import ConfigError
from chorus.config.origins import Given, Values, without_effect
from chorus.config.settings import nearest

_SECTIONS = ("network", "inference", "monitoring")
"""Sections that only that file has."""

_RENAMED: Mapping[str, str] = {
    "api_host": "api.host",
    "api_port": "api.port",
    "model.cache_dir": "hub_cache_dir",
    "model.max_sequence_length": "engine.context",
    "network.protocol": "engine.transport",
    "network.compression": "engine.compression",
    "inference.default_max_tokens": "api.max_tokens",
    "inference.default_temperature": "sampling.temperature",
    "inference.default_top_p": "sampling.top_p",
    "inference.default_repetition_penalty": "sampling.repetition_penalty",
    "inference.timeout_s": "api.request_timeout_seconds",
    "monitoring.log_level": "log.level",
}

_LINKS = "Chorus keeps its links alive and bounds its messages itself, by the settings under watch"
_MODEL_FILES = "a model's own files say it"
_NUMBERS = "each machine computes in what suits it; engine.dtype says otherwise"
_METRICS = "the API's own port has /health and /cluster/status"
_PARTS = "`chorus models preshard` cuts a model once"

_MEANINGLESS: Mapping[str, str] = {
    "model.quantization": _MODEL_FILES,
    "model.dtype": _NUMBERS,
    "network.max_message_size_mb": _LINKS,
    "network.keepalive_time_ms": _LINKS,
    "network.keepalive_timeout_ms": _LINKS,
    "network.connection_timeout_s": _LINKS,
    "network.tensor_timeout_s": _LINKS,
    "network.barrier_timeout_s": _LINKS,
    "sharding.min_layers_per_device": "every rank has a layer at least; sharding.layers says how many",
    "sharding.optimize_for": "sharding.strategy says how layers are shared out",
    "sharding.allow_partial_layers": "engine.parallel: tensor divides layers",
    "sharding.cache_shards": _PARTS,
    "sharding.cache_dir": _PARTS,
    "inference.batch_size": "requests share a batch as they come; engine.max_batch bounds it",
    "inference.enable_streaming": "a request says whether it is streamed",
    "inference.tensor_receive_timeout_s": _LINKS,
    "inference.max_retries": "a request goes on by itself when a rank is lost",
    "monitoring.enable_metrics": _METRICS,
    "monitoring.metrics_port": _METRICS,
    "monitoring.health_check_interval_s": "watch.heartbeat_seconds says how often nodes are heard",
    "monitoring.log_performance": "every answer has its speeds in performance",
    "monitoring.trace_requests": "log.level: debug tells more",
    "devices.grpc_options": _LINKS,
}

_AS_HERE: Mapping[str, Any] = {
    "sharding.min_layers_per_device": 1,
    "sharding.optimize_for": "balance",
    "sharding.allow_partial_layers": False,
    "sharding.cache_shards": True,
    "inference.enable_streaming": True,
    "monitoring.log_performance": True,
    "monitoring.trace_requests": False,
    "devices.grpc_options": {},
}
"""What is so here anyway: nobody needs to hear of it."""

_DESCRIBED = {
    *("device_id", "hostname", "model", "cpu_cores", "cpu_performance_cores", "cpu_efficiency_cores"),
    *("neural_engine_cores", "mlx_metal_available", "max_recommended_model_size_gb"),
}
"""Capabilities that ask for nothing: nodes tell such things themselves."""


def take_over(tree: dict[str, Any], source: str) -> tuple[dict[str, Any], Values, list[str]]:
    """The tree without these keys, what they mean in our own, and what of them has no effect and why."""
    if "device_list" in tree:
        raise ConfigError(
            f"{source}: device_list: the form from before gRPC; expected devices, each with device_id, hostname, port "
            "and role, and model with name and provider"
        )
    values: Values = {}
    idle: list[str] = []

    def take(key: str, value: Any) -> None:
        if key in _RENAMED and value is not None:
            values[_RENAMED[key]] = Given(_meant(key, value), source, key)
        elif key in _MEANINGLESS and value is not None and value != _AS_HERE.get(key):
            idle.append(key)

    def left(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        """What is not of that file stays, for the tree of settings to know or to refuse."""
        for name, value in section.items():
            take(f"{prefix}{name}", value)
        return {name: value for name, value in section.items() if f"{prefix}{name}" not in _KNOWN}

    tree = left(tree, "")
    for name in ("model", "sharding"):
        if isinstance(tree.get(name), dict):
            tree[name] = left(tree[name], f"{name}.")
    for name in _SECTIONS:
        section = tree.pop(name, None) or {}
        if not isinstance(section, dict):
            raise ConfigError(f"{source}: {name}: expected a mapping of settings, got {section!r}")
        for unknown in left(section, f"{name}."):
            raise ConfigError(
                f"{source}: {name}.{unknown}: no such setting{nearest(f'{name}.{unknown}', sorted(_KNOWN))}"
            )
    coordinator = tree.pop("coordinator_device_id", None)
    if isinstance(tree.get("devices"), list):
        tree["devices"] = _devices(tree["devices"], coordinator, left)
    elif coordinator is not None:
        raise ConfigError(f"{source}: coordinator_device_id: expected one of the devices, and there are none")
    return tree, values, without_effect(idle, _MEANINGLESS, source)


_KNOWN = {*_RENAMED, *_MEANINGLESS}


def _meant(key: str, value: Any) -> Any:
    if key == "network.compression" and isinstance(value, bool):
        return "on" if value else "off"
    return value.lower() if key == "monitoring.log_level" and isinstance(value, str) else value


def _devices(devices: list[Any], coordinator: Any, left: Any) -> list[Any]:
    """Those that are enabled, with what Chorus wants to know of them; the one that was named leads."""
    kept = []
    for device in devices:
        if not isinstance(device, dict):
            kept.append(device)
            continue
        device = left(device, "devices.")
        if device.pop("enabled", True) is False:
            continue
        if coordinator is not None and device.get("device_id") == coordinator:
            device["role"] = "coordinator"
        if isinstance(device.get("capabilities"), dict):
            able = {name: value for name, value in device["capabilities"].items() if name not in _DESCRIBED}
            rate = able.pop("bandwidth_gbps", None)
            device["capabilities"] = able if rate is None else {"bandwidth_gbs": rate, **able}
        elif "capabilities" in device and device["capabilities"] is None:
            del device["capabilities"]
        kept.append(device)
    return kept
