"""Several models in the settings: which are served, what holds for each, and what is told where one is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorus.config.file import ConfigError
from chorus.config.served import ModelConfig
from chorus.config.sources import LoadedSettings, load
from chorus.deploy.ssh.cluster import told_settings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
THREE: dict[str, Any] = {
    "models": [
        {"source": "org/big", "aliases": ["coder"], "pin": True, "engine": {"split": [3, 1], "context": 4096}},
        "small",
        {"source": "org/embed", "embeddings": True, "idle_unload": "30m"},
    ],
    "engine": {"context": 8192, "kv_bits": 8},
    "sampling": {"temperature": 0.7},
}


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., LoadedSettings]:
    """What holds with this file, these variables and this command line."""

    def loaded(tree: dict[str, Any], overrides: dict[str, Any] | None = None, **variables: str) -> LoadedSettings:
        (tmp_path / "chorus.json").write_text(json.dumps(tree))
        return load(overrides=overrides, environment=variables, folder=tmp_path)

    return loaded


def sources(loaded: LoadedSettings) -> list[str]:
    return [model.source for model in loaded.settings.served]


def test_an_entry_goes_over_what_holds_for_all(said: Callable[..., LoadedSettings]) -> None:
    settings = said(THREE).settings
    big, small, embed = (settings.of(entry) for entry in settings.served)
    assert (big.model, big.models, settings.model) == ("org/big", (), "org/big")
    assert (big.engine.split, big.engine.ranks, big.engine.context, big.engine.kv_bits) == ((3, 1), 2, 4096, 8)
    assert (small.engine.split, small.engine.ranks, small.engine.context) == (None, 1, 8192)
    assert (big.api.aliases, small.api.aliases) == (("coder",), ())
    assert (embed.api.embeddings, small.api.embeddings) == (True, None)
    assert settings.served[2].idle_unload == 1800
    assert {each.sampling.temperature for each in (big, small, embed)} == {0.7}


def test_who_divides_a_model_anew_keeps_nothing_of_the_common_division(said: Callable[..., LoadedSettings]) -> None:
    tree = {
        "models": [{"source": "a", "engine": {"ranks": 3}}, {"source": "b", "engine": {"weights": [1, 1]}}, "c"],
        "sharding": {"strategy": "custom", "custom_proportions": [0.5, 0.5]},
    }
    settings = said(tree).settings
    engines = [settings.of(entry).engine for entry in settings.served]
    assert [(engine.ranks, engine.weights) for engine in engines] == [(3, None), (2, (1, 1)), (2, None)]
    shares = [settings.of(entry).sharding.custom_proportions for entry in settings.served]
    assert shares == [(0.5, 0.5), None, (0.5, 0.5)]


def test_the_command_line_names_all_that_are_served_and_entries_keep_what_they_say(
    said: Callable[..., LoadedSettings],
) -> None:
    loaded = said(THREE, {"models": ["org/embed", "other", "coder"]})
    assert sources(loaded) == ["org/embed", "other", "org/big"]
    assert loaded.settings.model == "org/embed"
    assert loaded.settings.served[2].pin
    file = loaded.file
    assert loaded.model_origins == (f"{file}: models[2]", "command line: models[1]", f"{file}: models[0]")
    assert loaded.warnings == ()


def test_one_model_of_the_command_line_is_served_alone_with_its_entry(said: Callable[..., LoadedSettings]) -> None:
    loaded = said(THREE, {"model": "coder"})
    assert sources(loaded) == ["org/big"]
    assert loaded.settings.model == "org/big"
    assert loaded.settings.of_first.engine.split == (3, 1)
    assert sources(said(THREE, {"model": "other"})) == ["other"]
    assert said(THREE, {"model": "other"}).settings.models == ()


def test_flags_go_over_the_entry_of_one_model_and_are_defaults_for_several(
    said: Callable[..., LoadedSettings],
) -> None:
    flags = {"engine": {"context": 100}, "load": {"idle_unload": "5m"}}
    several = said(THREE, {"models": ["coder", "small", "org/embed"], **flags}).settings
    assert [several.of(entry).engine.context for entry in several.served] == [4096, 100, 100]
    assert [entry.idle_unload for entry in several.served] == [None, None, 1800]
    alone = said(THREE, {"model": "coder", "engine": {"context": 100, "ranks": 4}}).settings.of_first
    assert (alone.engine.context, alone.engine.ranks, alone.engine.split) == (100, 4, None)
    assert alone.api.aliases == ("coder",)
    assert said(THREE, {"model": "org/embed", **flags}).settings.served[0].idle_unload is None


def test_model_beside_models_names_the_first(said: Callable[..., LoadedSettings]) -> None:
    assert sources(said({**THREE, "model": "small"})) == ["small", "org/big", "org/embed"]
    assert sources(said({**THREE, "model": "another"})) == ["another", "org/big", "small", "org/embed"]


def test_a_variable_names_models_too_and_one_alone_is_told_that_it_replaces_a_list(
    said: Callable[..., LoadedSettings],
) -> None:
    assert sources(said(THREE, CHORUS_MODELS="small,coder")) == ["small", "org/big"]
    entries = [{"source": "x", "pin": True}, "y"]
    assert said({}, CHORUS_MODELS=json.dumps(entries)).settings.served[0].pin
    loaded = said(THREE, MODEL_REPO="small")
    assert sources(loaded) == ["small"]
    assert loaded.warnings == (
        f"{loaded.file}: models has no effect: environment: MODEL_REPO names the one model that is served",
    )
    assert said({"model": "a"}, {"model": "c"}, MODEL_REPO="b").warnings == ()


def test_who_names_one_model_has_the_settings_that_there_always_were(said: Callable[..., LoadedSettings]) -> None:
    settings = said({"model": "a", "api": {"aliases": ["b"]}, "engine": {"split": [2, 1]}}).settings
    assert settings.models == ()
    assert settings.of_first == settings


BOTH = "org/big ({file}: models[0]) and small ({file}: models[1]) are both called"
FOR_ONE = "can only mean one model, and 3 are served: put it into the model's entry in chorus.yaml, e.g. models: [{{"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"models": ["a", {"source": "b", "pni": True}]}, "{file}: models[1].pni: no such setting; did you mean pin?"),
        ({"models": [{"sorce": "a"}]}, "{file}: models[0].sorce: no such setting; did you mean source?"),
        ({"models": [{"pin": True}]}, "{file}: models[0].source: missing; expected a value"),
        ({"models": [7]}, "{file}: models[0]: must be the name of a model, or a mapping with its source"),
        ({"models": "a"}, "{file}: models: should be a list, got 'a'"),
        (
            {"models": ["a", {"source": "b", "engine": {"rank": 2}}]},
            "{file}: models[1].engine.rank: no such setting; did you mean ranks?",
        ),
        (
            {"models": ["a", {"source": "b", "engine": {"ranks": 0}}]},
            "{file}: models[1].engine.ranks: should be greater than or equal to 1, got 0",
        ),
        (
            {"models": ["a", {"source": "b", "sampling": {"temperature": 9}}]},
            "{file}: models[1].sampling.temperature: should be less than or equal to 2, got 9",
        ),
        (
            {"models": ["a", {"source": "b", "engine": {"pack": 8}}], "engine": {"cpu_products": "float32"}},
            "{file}: models[1].engine: pack 8 is for packed products, and cpu_products is float32: leave one out",
        ),
        (
            {"models": [{"source": "a", "idle_unload": "soon"}]},
            "{file}: models[0].idle_unload: must be a number of seconds, or one with a unit, e.g. 30m",
        ),
        ({"models": ["a", "b", "a"]}, "{file}: models[2]: a is already {file}: models[0]; expected each model once"),
        ({"models": [{"source": "org/big", "aliases": ["small"]}, "small"]}, f"{BOTH} small; expected each name for"),
        ({"models": ["org/big", {"source": "small", "aliases": ["big"]}]}, f"{BOTH} big; expected each name for one"),
        ({"models": ["org/big", {"source": "small", "aliases": ["x"]}], "api": {"aliases": ["x"]}}, f"{BOTH} x;"),
        (
            {**THREE, "engine": {"split": [2, 2]}},
            f"{{file}}: engine.split: {FOR_ONE}source: org/big, engine: {{{{split: [20, 7, 3]}}}}}}}}, small, ",
        ),
        ({**THREE, "engine": {"weights": "2,1"}}, f"{{file}}: engine.weights: {FOR_ONE}"),
        ({**THREE, "engine": {"step_log": "x"}}, f"{{file}}: engine.step_log: {FOR_ONE}"),
        ({"load": {"on_ful": "swap"}}, "{file}: load.on_ful: no such setting; did you mean load.on_full?"),
        ({"load": {"on_full": "swop"}}, "{file}: load.on_full: should be 'swap', 'wait' or 'refuse', got 'swop'"),
        ({"model": 3, "models": ["a"]}, "{file}: model: should be a valid string, got 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_an_entry_is_told_with_its_place(
    changes: dict[str, Any], told: str, said: Callable[..., LoadedSettings], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        said(changes)
    assert str(caught.value).startswith(told.format(file=tmp_path / "chorus.json"))


def test_an_error_in_the_entry_of_a_file_is_told_there_whoever_chose_it(
    said: Callable[..., LoadedSettings], tmp_path: Path
) -> None:
    tree = {"models": ["a", {"source": "b", "engine": {"pack": 8}}]}
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'chorus.json'}: models[1].engine: pack 8 is")):
        said(tree, {"models": ["b", "c"], "engine": {"cpu_products": "float32"}})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"engine": {"split": "2,2"}}, "command line: engine.split: can only mean one model, and 3 are served"),
        ({"api": {"aliases": ("x",)}}, "command line: api.aliases: can only mean one model, and 3 are served"),
    ],
    ids=str,
)
def test_a_flag_that_can_only_mean_one_model_is_refused_for_several(
    flags: dict[str, Any], told: str, said: Callable[..., LoadedSettings]
) -> None:
    with pytest.raises(ConfigError, match=told):
        said(THREE, flags)
    said(THREE, {"model": "small", **flags})


def test_a_variables_entry_is_told_by_its_number(said: Callable[..., LoadedSettings]) -> None:
    with pytest.raises(ConfigError) as caught:
        said({}, CHORUS_MODELS='["a", {"source": "b", "pni": true}]')
    assert str(caught.value) == "environment: CHORUS_MODELS[1].pni: no such setting; did you mean pin?"


def test_the_machine_that_leads_is_told_every_entry_and_finds_what_lies_here(
    said: Callable[..., LoadedSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    tree = {**THREE, "models": [{"source": "./parts", "cache": {"disk_folder": "kept"}}, *THREE["models"]]}
    settings = said(tree).settings
    file = tmp_path / "told.json"
    file.write_bytes(told_settings(settings))
    told = load(file, environment={}, folder=tmp_path).settings
    assert told.models[1:] == settings.models[1:]
    assert told.models[0].source == told.model == str(tmp_path / "parts")
    assert told.models[0].cache.disk_folder == tmp_path / "kept"


def test_what_an_entry_may_say_is_documented_and_the_documented_example_is_right(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Several models")[2].partition("\n## ")[0]
    for name in ModelConfig.model_fields:
        assert f"`{name}`" in section, name
    example = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert example
    file = tmp_path / "chorus.yaml"
    file.write_text(example[1])
    settings = load(file, environment={}, folder=tmp_path).settings
    assert len(settings.served) == 3
    assert settings.served[0].pin
    assert yaml.safe_load(example[1])["models"][1] == settings.served[1].source
