"""Loads the settings in force, and remembers where each of them came from.

The command line goes over the environment, that over `.env`, that over `chorus.yaml` (or JSON), that over the defaults.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import ValidationError

from chorus.config.choice import check_models, choose
from chorus.config.explain import unfit
from chorus.config.file import ConfigError, read_file, user_path
from chorus.config.older_projects import (
    VARIABLES,
    WORKERS,
    Translation,
    read_hostfile,
    translate_file,
    translate_variables,
)
from chorus.config.origins import COMMAND_LINE, DEFAULT, Given, Values, flatten, unflatten
from chorus.config.sections import DeviceConfig
from chorus.config.settings import Settings, fields_of, known_keys
from chorus.config.variables import key_of, name_of, strays
from chorus.models.hub.cache import use_hub_cache
from chorus.platform.terminal import warn
from chorus.transport import catalog

_NOT_GIVEN = Given(None, DEFAULT, "")
DEFAULT_FILES = ("chorus.yaml", "chorus.yml", "chorus.json", "distributed_config.json")


@dataclass(frozen=True)
class LoadedSettings:
    """The settings in force, where they came from, and what somebody should be told about them."""

    settings: Settings
    given: Mapping[str, Given]
    """By its full key, each setting that is not as it is by default."""
    warnings: tuple[str, ...]
    file: Path | None = None
    """The settings file or hostfile that was read."""
    model_origins: tuple[str, ...] = ()
    """Where each of several models is named, in their order."""

    @property
    def origins(self) -> dict[str, str]:
        """By the full key of every setting."""
        return {key: self.given[key].shown_origin(key) if key in self.given else DEFAULT for key in known_keys()}

    def is_given(self, key: str) -> bool:
        """Whether somebody gave it, wherever: what follows from other settings counts as a default."""
        return key in self.given and self.given[key].source != DEFAULT

    def typed(self, key: str) -> bool:
        """Whether this very command line gives it."""
        return key in self.given and self.given[key].source == COMMAND_LINE


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The effective settings. `overrides` is the command line, as a tree; None in it means not given."""
    return load_told(file, overrides, environment, folder).settings


def load_told(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """As `load_settings`, with the origin of every setting. `variables` are those that the command line gives for
    ranks: one that is a setting is read as such.
    """
    loaded = load(file, overrides, environment, folder, variables)
    for warning in loaded.warnings:
        warn(warning)
    return loaded


def load(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    with_dotenv: bool = True,
) -> LoadedSettings:
    """As `load_told`, with the warnings handed back; without `.env` where the file is not of this folder.

    Of strays in the environment the command itself has told (`chorus.cli`), whether or not it reads settings.
    """
    folder = folder or Path.cwd()
    environment = os.environ if environment is None else environment
    dotenv = _dotenv(folder / ".env") if with_dotenv else {}
    named, file = file, file or _configured_file({**dotenv, **environment}, folder)
    of_file = _of_file(file) if file else Translation()
    of_variables = [_of_variables(dotenv, ".env", folder), _of_variables(environment, "environment", folder)]
    if named and "devices" in of_file.values:
        _prefer_named_devices(str(named), of_variables)
    for_ranks = {name: text for name, text in (variables or {}).items() if is_setting(name)}
    sources = [
        of_file,
        *of_variables,
        _of_variables(for_ranks, "--env", folder),
        _of_command_line(overrides or {}, folder),
    ]
    values: Values = {}
    replaced: list[str] = []
    for source in sources:
        _read_variables_for_ranks(source, folder)
        replaced += _forget_what_is_replaced(values, source.values)
        values |= source.values
    chosen = choose([source.values for source in sources])
    values.pop("models", None)
    values |= chosen.values
    ordered = _lead_with_coordinator(values)
    _complete(values)
    _check_entries(values)
    settings = _validate(values)
    check_models(settings, chosen, values)
    warnings = ordered + replaced + list(chosen.warnings) + _check(settings, values)
    warnings += [warning for source in sources for warning in source.warnings]
    warnings += strays(dotenv, ".env") + strays(variables or {}, "--env")
    if settings.engine.split and "engine.ranks" not in values:
        values["engine.ranks"] = Given(settings.engine.ranks, DEFAULT, "one rank for each part of the split")
    return LoadedSettings(settings, values, tuple(warnings), file, chosen.places)


def find_device(settings: Settings, device_id: str) -> tuple[int, DeviceConfig]:
    """The rank and the entry of one device, for starting it alone."""
    names = [device.device_id for device in settings.devices]
    if device_id not in names:
        near = get_close_matches(device_id, names, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise ConfigError(f"devices: no device {device_id}{hint}; expected one of: {', '.join(names) or 'none given'}")
    rank = names.index(device_id)
    return rank, settings.devices[rank]


def use_cache_dir(settings: Settings) -> None:
    """Let this process and its children find and keep models where the settings say."""
    if settings.cache_dir is not None:
        os.environ["CHORUS_CACHE"] = str(settings.cache_dir.expanduser())
    if settings.hub_cache_dir is not None:
        use_hub_cache(settings.hub_cache_dir.expanduser())


def without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: without_none(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def configured_file(folder: Path | None = None) -> Path | None:
    """The file that is read in a folder where the command line names none."""
    folder = folder or Path.cwd()
    return _configured_file({**_dotenv(folder / ".env"), **os.environ}, folder)


def _configured_file(variables: Mapping[str, str], folder: Path) -> Path | None:
    if named := variables.get("CHORUS_CONFIG"):
        return user_path(named)
    return next((folder / name for name in DEFAULT_FILES if (folder / name).is_file()), None)


def _dotenv(file: Path) -> dict[str, str]:
    from dotenv import dotenv_values

    return {key: value for key, value in dotenv_values(file).items() if value is not None} if file.is_file() else {}


def _of_file(file: Path) -> Translation:
    tree, translated = translate_file(file, read_file(file))
    # What the file says itself goes over what its hostfile says.
    translated.values = {**translated.values, **flatten(tree, str(file))}
    return translated


def _of_variables(variables: Mapping[str, str], source: str, folder: Path) -> Translation:
    translated, known = translate_variables(variables, source, folder), set(known_keys())
    for name, text in variables.items():
        key = key_of(name)
        if key not in known or not text.strip():
            continue
        if key == "cluster.hostfile":
            translated.values |= read_hostfile(folder / user_path(text), source, name)
        translated.values[key] = Given(_from_text(key, text), source, name)
    return translated


def _read_variables_for_ranks(source: Translation, folder: Path) -> None:
    """Variables meant for ranks that are settings, as people gave them to what started theirs: a rank reads none."""
    given = source.values.get("cluster.env")
    if given is None or not isinstance(given.value, Mapping):
        return
    texts = {str(name): str(text) for name, text in given.value.items()}
    read = _of_variables({name: text for name, text in texts.items() if is_setting(name)}, given.source, folder)
    source.warnings += read.warnings + strays(texts, given.place)
    rest = {name: text for name, text in given.value.items() if not is_setting(str(name))}
    source.values = {**read.values, **source.values, "cluster.env": replace(given, value=rest)}


def is_setting(name: str) -> bool:
    """Whether a variable is read as a setting, by our name or by that of an older project."""
    return name in VARIABLES or key_of(name) in set(known_keys())


def _of_command_line(overrides: Mapping[str, Any], folder: Path) -> Translation:
    values = flatten(without_none(overrides), COMMAND_LINE)
    if hostfile := values.get("cluster.hostfile"):
        path = folder / user_path(hostfile.value)
        values = {**read_hostfile(path, COMMAND_LINE, "cluster.hostfile"), **values}
    return Translation(values)


def _from_text(key: str, text: str) -> Any:
    """Lists and mappings are written as YAML or, for plain lists, with commas; the rest is left to the tree."""
    if key in ("engine.split", "engine.weights"):
        return text
    section, _, name = key.rpartition(".")
    whole = fields_of(fields_of(Settings)[section] if section else Settings)[name]
    kinds = {get_origin(kind) or kind for kind in (whole, *get_args(whole))}
    if not kinds & {tuple, dict}:
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return [part.strip() for part in text.split(",")]


def _prefer_named_devices(file: str, variables: list[Translation]) -> None:
    """Who names a hostfile means its hosts, with their cables: WORKER_HOSTS lists the same machines with less."""
    for source in variables:
        given = source.values.get("devices")
        if given and given.spelled == WORKERS:
            del source.values["devices"]
            source.warnings.append(f"{given.place} has no effect: the devices are those of {file}")


def _forget_what_is_replaced(below: Values, above: Values) -> list[str]:
    """A source that brings its own devices is not bound by the number, split or shares meant for others, nor one that
    divides the model itself by another way of dividing it. Answers what to tell.
    """
    told = []
    if "devices" in above and "devices" in below and above["devices"].value != below["devices"].value:
        others = f"it is for the devices of {below['devices'].place}, and {above['devices'].place} has others"
        for key in ("engine.ranks", "engine.split", "sharding.custom_proportions"):
            if lost := below.pop(key, None):
                told.append(f"{lost.place} has no effect: {others}")
        if below.get("sharding.strategy", _NOT_GIVEN).value == "custom":
            del below["sharding.strategy"]  # it said that one of these was given
    if {"engine.split", "engine.weights"} & set(above):
        below.pop("sharding.custom_proportions", None)
    if "sharding.custom_proportions" in above:
        below.pop("engine.split", None)
        below.pop("engine.weights", None)
    return told


def _lead_with_coordinator(values: Values) -> list[str]:
    """Rank 0 leads, so a coordinator that is not the first device becomes it: the others keep their order, and what was
    written beside the devices, in their order, stays with each of them. Answers what to tell.
    """
    given = values.get("devices", _NOT_GIVEN)
    devices = given.value
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        return []
    leaders = [place for place, device in enumerate(devices) if device.get("role") == "coordinator"]
    if len(leaders) != 1 or leaders == [0]:
        return []
    order = [leaders[0], *(place for place in range(len(devices)) if place != leaders[0])]
    turned = [
        {**device, "rdma": _in_order(device["rdma"], order)} if device.get("rdma") else device for device in devices
    ]
    values["devices"] = replace(given, value=_in_order(turned, order))
    for key in ("engine.split", "engine.weights", "sharding.custom_proportions"):
        if key in values and values[key].source == given.source:
            values[key] = replace(values[key], value=_in_order(values[key].value, order))
    names = [str(devices[place].get("device_id")) for place in order]
    return [f"{given.place}: {names[0]} is the coordinator and leads as rank 0; the ranks are {', '.join(names)}"]


def _in_order(listed: Any, order: Sequence[int]) -> Any:
    """A list with an entry for each device; another, or what is no list, stays as it is."""
    entries = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(entries, (list, tuple)) or len(entries) != len(order):
        return listed
    return [entries[place] for place in order]


def _complete(values: Values) -> None:
    """Defaults that follow from other settings."""
    devices = values["devices"].value if "devices" in values else None
    if isinstance(devices, list) and devices and "engine.ranks" not in values:
        values["engine.ranks"] = Given(len(devices), DEFAULT, "one rank for each device")
    if "sharding.strategy" not in values:
        if "engine.split" in values or "sharding.custom_proportions" in values:
            values["sharding.strategy"] = Given("custom", DEFAULT, "a split is given")
        elif devices:
            values["sharding.strategy"] = Given("balanced", DEFAULT, "devices are given")
    if _describes_tensor(values):
        values["engine.parallel"] = Given("tensor", DEFAULT, "as DISTRIBUTED_BACKEND means it")
    shares = values.get("sharding.custom_proportions")
    counted = {"engine.ranks", "engine.split", "engine.weights"} & set(values)
    if shares and isinstance(shares.value, list) and values["sharding.strategy"].value == "custom" and not counted:
        values["engine.ranks"] = Given(max(1, len(shares.value)), DEFAULT, "one rank for each proportion")


def _check_entries(values: Values) -> None:
    """A list with an entry for each rank is as long as the list of hosts; where it is not, both are named."""
    devices = values.get("devices")
    hybrid = "engine.parallel" in values and values["engine.parallel"].value == "hybrid"
    if devices is None or not isinstance(devices.value, list) or hybrid:
        return
    hostfile = values.get("cluster.hostfile")
    for key in ("engine.split", "engine.weights", "sharding.custom_proportions"):
        given = values.get(key)
        entries = given.value.split(",") if given and isinstance(given.value, str) else given and given.value
        if given and isinstance(entries, list | tuple) and entries and len(entries) != len(devices.value):
            shown = f"{key.rpartition('.')[2]} {','.join(map(str, entries))}"
            counted = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
            beside = devices.spelled if devices.source == given.source else devices.place
            hosts = f"{hostfile.value if hostfile else beside} lists {len(devices.value)} hosts"
            raise ConfigError(f"{given.place}: {shown} has {counted}, and {hosts}: give one for each, rank 0 first")


def _describes_tensor(values: Values) -> bool:
    """Whether somebody's variables are those of the project whose ranks all hold a slice of every layer."""
    transport, ranks = values.get("engine.transport", _NOT_GIVEN), values.get("engine.ranks", _NOT_GIVEN)
    if transport.spelled != "DISTRIBUTED_BACKEND" or transport.value not in catalog.carrying("tensor"):
        return False
    return str(ranks.value or 1) != "1" and not {"engine.parallel", "engine.split", "engine.weights"} & set(values)


def _validate(values: Values) -> Settings:
    try:
        return Settings(**unflatten(values))
    except ValidationError as error:
        raise unfit(error, values) from None


def _check(settings: Settings, values: Values) -> list[str]:
    """What the parts of the tree must be to each other; answers with warnings."""
    devices, ranks, sharding = settings.devices, settings.engine.ranks, settings.sharding
    if devices:
        _check_devices(devices, values["devices"])
        if ranks != len(devices):
            given = values.get("engine.ranks") or values["engine.split"]
            raise ConfigError(f"{given.place}: expected {len(devices)}, the number of devices, got {ranks}")
    proportions = sharding.custom_proportions
    if sharding.strategy == "custom" and not proportions and not settings.engine.split:
        place = values["sharding.strategy"].place
        raise ConfigError(f"{place}: custom needs sharding.custom_proportions or sharding.layers; expected one of them")
    other = next((key for key in ("engine.split", "engine.weights") if values.get(key, _NOT_GIVEN).value), None)
    if proportions and sharding.strategy == "custom" and other:
        place = values["sharding.custom_proportions"].place
        raise ConfigError(f"{place}: {values[other].spelled} divides the model too; expected one of them")
    if proportions and (devices or "engine.ranks" in values) and len(proportions) != ranks:
        place = values["sharding.custom_proportions"].place
        raise ConfigError(f"{place}: expected {ranks} proportions, one per rank, got {len(proportions)}")
    return _warnings(settings, values)


def _check_devices(devices: tuple[DeviceConfig, ...], given: Given) -> None:
    for name, count in Counter(device.device_id for device in devices).items():
        if count > 1:
            raise ConfigError(f"{given.place}: device_id {name} is given {count} times; expected each once")
    places = Counter((device.hostname, device.port) for device in devices if device.hostname)
    for (hostname, port), count in places.items():
        if count > 1:
            raise ConfigError(f"{given.place}: {hostname}:{port} is given {count} times; expected a port for each rank")
    leaders = [device.device_id for device in devices if device.role == "coordinator"]
    if len(leaders) > 1:
        raise ConfigError(f"{given.place}: role: {' and '.join(leaders)} are coordinators; expected one")


def _warnings(settings: Settings, values: Values) -> list[str]:
    found = []
    if settings.sharding.custom_proportions and settings.sharding.strategy != "custom":
        place = values["sharding.custom_proportions"].place
        found.append(f"{place} has no effect: the strategy is {settings.sharding.strategy}, not custom")
    if settings.engine.split and settings.sharding.strategy not in ("auto", "custom"):
        place, split = values["sharding.strategy"].place, values["engine.split"].spelled
        found.append(f"{place} has no effect: {split} says what each rank holds")
    if values.get("engine.parallel", _NOT_GIVEN).source == DEFAULT and settings.engine.parallel == "tensor":
        found.append(
            f"{values['engine.transport'].place}: every rank holds a slice of each layer (parallel tensor), as where "
            f"this variable comes from; for runs of layers: {name_of('engine.parallel')}=pipeline"
        )
    silence, step = settings.watch.silence_seconds, settings.engine.step_timeout_seconds
    if step and silence >= step:
        found.append(
            f"watch.silence_seconds is {silence:g} and engine.step_timeout_seconds {step:g}: a rank that stands still "
            "is found only by the step that it does not finish"
        )
    return found
