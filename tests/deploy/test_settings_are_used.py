"""Every setting of the tree, given alone: a command that takes settings uses it or refuses it, and none is left out.

"Uses" is seen from outside: what would be started differs from what is started without the setting. That each process
then reads what it is told is looked up in the sources.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest
from huggingface_hub import constants

import chorus
from chorus.cli.commands import ENTRIES
from chorus.cli.commands import load as load_command
from chorus.config.engine import EngineSpec
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.config.sections import CacheConfig, Limits, RecoveryConfig
from chorus.config.served import LoadConfig, ModelConfig
from chorus.config.settings import Settings, fields_of, known_keys
from chorus.config.sources import load
from chorus.deploy import local
from chorus.deploy.groups.registry import Registry
from chorus.deploy.nodes import serve as over_nodes
from chorus.deploy.nodes.model import SpreadModel
from chorus.deploy.ssh.cluster import told_settings
from chorus.errors import ChorusError
from chorus.platform.process.timing import WatchTimes
from tests.support.architectures import ARCHITECTURES
from tests.support.tiny_model import override, write_random_model

GIVEN: dict[str, Any] = {
    "api.host": "localhost",
    "api.port": 18100,
    "api.aliases": ["other"],
    "api.hosts": ["box.example"],
    "api.cors_origins": ["https://chat.example"],
    "api.tool_parser": "hermes",
    "cache.memory": "1GB",
    "cache.disk": "1GB",
    "load.memory": "1GB",
    "load.idle_unload": "5m",
    "model": "given",
    "models": [{"source": "given", "pin": True, "aliases": ["a"], "engine": {"max_batch": 3}, "idle_unload": "30m"}],
    "engine.prefill_chunk": 256,
    "engine.split": [3, 1],
    "engine.weights": [1, 1],
    "engine.transport": "ring",
    "engine.parallel": "tensor",
    "devices": [
        {"device_id": name, "hostname": "localhost", "port": port} for name, port in (("a", 5001), ("b", 5002))
    ],
    "sharding.strategy": "uniform",
    "telemetry.otlp_endpoint": "http://127.0.0.1:4318",
    "sharding.custom_proportions": [0.75, 0.25],
    "cluster.address": "10.0.0.1:5000",
    "cluster.coordinator": "10.0.0.1:5000",
    "cluster.hostfile": "hosts.json",
    "cluster.rank": 1,
    "cluster.env": {"ANYTHING": "1"},
}
"""Where the type of a setting does not tell another value."""
BESIDE: dict[str, dict[str, Any]] = {
    "sharding.strategy": {"engine.ranks": 2},
    "engine.parallel": {"engine.ranks": 2},
    "watch.join_seconds": {"watch.join_silence_seconds": 600},
}
REFUSED = {
    "serve": {"cluster.hostfile", "cluster.rank", "cluster.address"},
    "serve --cluster": {"cluster.rank", "cluster.address"},
}
IN_PLACE_OF = "config/sections.py"
"""Has properties that put several settings together, which are read in their place."""
ALONE = {"api.tls_certificate", "api.tls_key"}
"""Neither is right without the other."""


def another(key: str) -> Any:
    """A value that is right for a setting and is not the one it has by default."""
    if key in GIVEN:
        return GIVEN[key]
    section, _, name = key.rpartition(".")
    kind = fields_of(fields_of(Settings)[section] if section else Settings)[name]
    default = getattr(getattr(Settings(), section) if section else Settings(), name)
    kinds = {get_origin(each) or each for each in (kind, *get_args(kind))}
    if Literal in kinds:
        choices = get_args(next(each for each in (kind, *get_args(kind)) if get_origin(each) is Literal))
        return next(choice for choice in choices if choice != default)
    if bool in kinds:
        return not default
    if Path in kinds:
        return str(Path(os.environ["CHORUS_STATE"]) / "given")
    if kinds & {int, float}:
        often = re.search(r"tick|look|heartbeat|fraction", name)
        return (default / 2 if often else default * 2) if default else 2 if int in kinds else 0.5
    return "given"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    four = override(ARCHITECTURES["llama"], {"num_hidden_layers": 4})
    folder = write_random_model(tmp_path_factory.mktemp("model") / "tiny", four, tokenizer=True)
    folder.with_name("given").symlink_to(folder)
    return folder


@pytest.fixture
def started(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What `chorus serve` with these words would start, as text; nothing where it refuses."""
    monkeypatch.chdir(model.parent)
    (tmp_path / "hosts.json").write_text('["10.0.0.1:5000", "10.0.0.2:5000"]')
    monkeypatch.delenv("CHORUS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))  # a setting changes it for good
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path))
    seen: list[str] = []
    before = dict(os.environ)
    command = load_command(ENTRIES[0])

    class Recorded:
        front_end_serves = True

        def __init__(self, *values: Any, **more: Any) -> None:
            seen.extend(map(repr, values))

    class FakeListener(Recorded):
        descriptors = ()

        def __init__(self, host: str, port: int) -> None:
            super().__init__(host, port)
            self.place = host, port

        def close(self) -> None:
            pass

    @contextlib.asynccontextmanager
    async def meet(options: Any) -> AsyncIterator[SimpleNamespace]:
        seen.append(repr(options))
        yield SimpleNamespace(nodes=None)

    async def prepared(settings: Settings, model: Any, _: Any, options: Any, make_spec: Any, *more: Any) -> Any:
        Recorded(model, settings.sharding, make_spec(()), options)
        return SimpleNamespace(start=lambda wanted, *more: Recorded(wanted))

    async def announced(_: Any, registry: Registry, *more: Any) -> None:
        seen.append(repr(registry._policy))
        for each in registry.models:
            seen.append(repr(each.settings))
            if each.loadable:
                each.loadable.make(0)
        seen.append(str({name: text for name, text in os.environ.items() if before.get(name) != text}))

    def front_end(settings: ApiSettings, _: Path) -> str:
        return repr(settings.model_copy(update={"configuration": {}}))  # all of them, to be shown: no use of any

    for module in (local, over_nodes):
        for name in ("FrontEnd", "Control"):
            monkeypatch.setattr(module, name, Recorded)
        monkeypatch.setattr(module, "listen", FakeListener)
        monkeypatch.setattr(module, "front_end_program", front_end)
        monkeypatch.setattr(module, "run_announced", announced)
    monkeypatch.setattr(local, "ProcessGroup", Recorded)
    monkeypatch.setattr(over_nodes, "meet", meet)
    monkeypatch.setattr(SpreadModel, "prepared", prepared)

    def start(*words: str, **settings: Any) -> str:
        tree: dict[str, Any] = {"model": str(model), "api": {"port": 0}}
        for key, value in settings.items():
            section, _, name = key.rpartition(".")
            (tree.setdefault(section, {}) if section else tree)[name] = value
        if "models" in tree:  # in place of the one
            del tree["model"]
        file = tmp_path / "chorus.json"
        file.write_text(json.dumps(tree))
        seen.clear()
        os.environ.clear()
        os.environ.update(before)
        try:
            command.main(["-c", str(file), *words], standalone_mode=False)
        except ChorusError:
            return ""
        # Folders and objects are new each time.
        return re.sub(r"0x[0-9a-f]+|chorus-[0-9a-f]{6}-\w+|\b[0-9a-f]{16}\b", "", "\n".join(seen))

    yield start
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("command", ["serve", "serve --cluster"])
def test_every_setting_changes_what_is_started_or_is_refused(command: str, started: Callable[..., str]) -> None:
    words, left_out, refused = command.split()[1:], [], set()
    plain = started(*words)
    assert plain == started(*words)
    for key in known_keys():
        beside = BESIDE.get(key, {})
        without = started(*words, **beside) if beside else plain
        if (found := started(*words, **beside, **{key: another(key)})) == without:
            left_out.append(key)
        if not found:
            refused.add(key)
    assert left_out == []
    assert refused == REFUSED[command] | ALONE


def test_up_hands_every_setting_to_the_machine_that_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path))
    given = {key: another(key) for key in known_keys() if not key.startswith("cluster.") and key != "engine.weights"}
    tree: dict[str, Any] = {}
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    tree["watch"]["join_silence_seconds"] = 600
    tree["sharding"] = {"strategy": "custom"}
    settings = load(overrides=tree, environment={}, folder=tmp_path).settings
    file = tmp_path / "told.json"
    file.write_bytes(told_settings(settings))
    assert load(file, environment={}, folder=tmp_path).settings == settings


def test_what_a_process_is_told_it_also_reads() -> None:
    package = Path(chorus.__file__).parent
    files = [file for file in package.rglob("*.py") if "config" not in file.relative_to(package).parts]
    read = set(re.findall(r"\.([a-z_0-9]+)\b", "\n".join(file.read_text() for file in (*files, package / IN_PLACE_OF))))
    told = [EngineSpec, ApiSettings, ModelSettings, ModelConfig, LoadConfig, Limits]
    told += [CacheConfig, RecoveryConfig, WatchTimes]
    assert {name for kind in told for name in fields_of(kind)} - read == set()
