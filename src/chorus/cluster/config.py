"""The configuration tree. Command line over environment over .env over chorus.yaml (or JSON) over defaults."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "CHORUS_"
NESTED = "__"
OTHER_VARIABLES = {"CHORUS_CACHE", "CHORUS_BLAS", "CHORUS_LIFELINE", "CHORUS_CONFIG", "CHORUS_PIPELINE_SPLIT"}
DEFAULT_FILES = ("chorus.yaml", "chorus.yml", "chorus.json")


class ConfigError(Exception):
    """One line that names the source, the key and what was expected."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiConfig(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    aliases: tuple[str, ...] = ()
    max_tokens: int | None = Field(default=None, ge=1)
    max_body_bytes: int = Field(default=4 << 20, ge=1024)
    request_timeout_seconds: float = Field(default=600, gt=0)
    shutdown_grace_seconds: float = Field(default=5, ge=0, le=600)


class EngineConfig(Section):
    ranks: int = Field(default=1, ge=1)
    split: tuple[int, ...] | None = None
    transport: Literal["auto", "grpc", "ring", "mpi"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16", "stored"] = "auto"
    memory_fraction: float = Field(default=0.8, gt=0, le=1)
    context: int | None = Field(default=None, ge=1)
    max_batch: int = Field(default=32, ge=1)
    max_queue: int = Field(default=256, ge=1)
    prefill_chunk: int = Field(default=512, ge=1)
    trust_remote_code: bool = False
    step_log: Path | None = None
    start_timeout_seconds: float = Field(default=600, gt=0)
    step_timeout_seconds: float = Field(default=120, gt=0)

    @field_validator("split", mode="before")
    @classmethod
    def _split_from_text(cls, value: Any) -> Any:
        """`20,7,3` as people type it; a lone number reaches us as one."""
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            raise ValueError("must be numbers of layers separated by commas, e.g. 20,7,3") from None

    @model_validator(mode="after")
    def _split_fits_ranks(self) -> Self:
        if self.split is not None and "ranks" not in self.model_fields_set:
            object.__setattr__(self, "ranks", len(self.split))  # a split says how many ranks there are
        if self.split is not None and any(count < 1 for count in self.split):
            raise ValueError(f"split {_commas(self.split)}: every rank needs at least 1 layer")
        if self.split is not None and self.ranks != len(self.split):
            raise ValueError(f"split {_commas(self.split)} has {len(self.split)} entries for {self.ranks} ranks")
        return self


class SamplingConfig(Section):
    """What a request gets that does not say otherwise."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json_lines: bool = False


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
    )

    model: str = "smollm2-135m"
    api: ApiConfig = ApiConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    log: LogConfig = LogConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The effective settings. `overrides` is the command line, as a tree; None in it means not given."""
    folder = folder or Path.cwd()
    environment = os.environ if environment is None else environment
    variables = {**_dotenv(folder / ".env"), **environment}
    file = file or _configured_file(variables, folder)
    tree: dict[str, Any] = {}
    if file is not None:
        tree = _merge(tree, _read_file(file))
    tree = _merge(tree, _tree_of_variables(variables))
    tree = _merge(tree, _split_variable(variables))
    tree = _merge(tree, without_none(overrides or {}))
    return _validate(tree, file)


def without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: without_none(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def known_keys(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def nearest(key: str) -> str:
    """A hint to append to an error about an unknown key; empty when nothing is close."""
    close = difflib.get_close_matches(key, list(known_keys()), n=1, cutoff=0.5)
    tails = {known.rpartition(".")[2]: known for known in known_keys()}
    close = close or [tails[t] for t in difflib.get_close_matches(key.rpartition(".")[2], list(tails), n=1, cutoff=0.6)]
    return f"; did you mean {close[0]}?" if close else ""


def _configured_file(variables: Mapping[str, str], folder: Path) -> Path | None:
    if named := variables.get("CHORUS_CONFIG"):
        return Path(named)
    return next((folder / name for name in DEFAULT_FILES if (folder / name).is_file()), None)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON is YAML, too
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected a mapping of settings at the top, found a {type(content).__name__}")
    return content


def _dotenv(file: Path) -> dict[str, str]:
    from dotenv import dotenv_values

    return {key: value for key, value in dotenv_values(file).items() if value is not None} if file.is_file() else {}


def _tree_of_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in variables.items():
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        path = name.removeprefix(PREFIX).lower().split(NESTED)
        key = ".".join(path)
        if key not in set(known_keys()):
            raise ConfigError(f"environment variable {name}: no such setting{nearest(key)}")
        branch: Any = yaml.safe_load(value) if value else value
        for part in reversed(path):
            branch = {part: branch}
        tree = _merge(tree, branch)
    return tree


SPLIT_VARIABLES = ("CHORUS_PIPELINE_SPLIT", "MINIMAX_PIPELINE_SPLIT")


def _split_variable(variables: Mapping[str, str]) -> dict[str, Any]:
    for name in SPLIT_VARIABLES:
        if value := variables.get(name):
            try:
                split = tuple(int(part) for part in value.split(","))
            except ValueError:
                raise ConfigError(f"environment variable {name}: expected numbers like 22,40, got {value!r}") from None
            return {"engine": {"split": split}}
    return {}


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _validate(tree: dict[str, Any], file: Path | None) -> Settings:
    class FromTree(Settings):
        """The sources are merged already."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **others: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings,)

    try:
        return FromTree(**tree)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        where = f"{file}: " if file else ""
        if problem["type"] == "extra_forbidden":
            raise ConfigError(f"{where}{key}: no such setting{nearest(key)}") from None
        raise ConfigError(f"{where}{key}: {problem['msg'].lower()}, got {problem['input']!r}") from None
