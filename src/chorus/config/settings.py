"""Every setting there is: the tree of all sections, and the full keys of what is in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from chorus.config.hostfile import RdmaDevice
from chorus.config.sampling import DefaultSampling
from chorus.config.sections import (
    AnswerOptions,
    ApiConfig,
    CacheConfig,
    ClusterConfig,
    DeviceConfig,
    EngineConfig,
    LogConfig,
    RecoveryConfig,
    Section,
    ShardingConfig,
    TelemetryConfig,
)
from chorus.config.served import LoadConfig, ModelConfig
from chorus.platform.process.timing import DEFAULTS, WatchTimes

DIVISION = frozenset({"ranks", "split", "weights"})
"""Of the section `engine`: whoever says one of them divides a model anew, and what others said of it is forgotten."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    model: str = Field(default="smollm2-135m", min_length=1)
    """Where several are listed, the first of them."""
    models: tuple[ModelConfig, ...] = ()
    """Several, where one is not enough; the first is what a request without a name means."""
    load: LoadConfig = LoadConfig()
    cache_dir: Path | None = None
    hub_cache_dir: Path | None = None
    """Hugging Face's own folder of models, or the one above it; None: as its library is set."""
    api: ApiConfig = ApiConfig()
    engine: EngineConfig = EngineConfig()
    cache: CacheConfig = CacheConfig()
    sampling: DefaultSampling = DefaultSampling()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    devices: tuple[DeviceConfig, ...] = ()
    sharding: ShardingConfig = ShardingConfig()
    cluster: ClusterConfig = ClusterConfig()
    watch: WatchTimes = DEFAULTS
    recovery: RecoveryConfig = RecoveryConfig()

    @property
    def rdma_devices(self) -> tuple[tuple[RdmaDevice, ...], ...] | None:
        """Which RDMA device each rank reaches each other rank by; None unless all devices say so."""
        rows = tuple(device.rdma for device in self.devices)
        return rows if rows and all(rows) else None

    @property
    def served(self) -> tuple[ModelConfig, ...]:
        """All models in their order; where none are listed, the one that `model` names."""
        return self.models or (ModelConfig(source=self.model),)

    def of(self, model: ModelConfig) -> Settings:
        """The settings that hold for one of several models. Raises ValidationError where they do not go together."""
        answers = {name: value for name, value in given_of(model).items() if name in AnswerOptions.model_fields}
        aliases = (*model.aliases, *(self.api.aliases if model == self.served[0] else ()))
        engine = given_of(self.engine)
        if divided := model.engine.model_fields_set & DIVISION:
            engine = {name: value for name, value in engine.items() if name not in DIVISION}
        own = {
            "api": ApiConfig(**{**given_of(self.api), **answers, "aliases": aliases}),
            "engine": EngineConfig(**{**engine, **given_of(model.engine)}),
            "cache": CacheConfig(**{**given_of(self.cache), **given_of(model.cache)}),
            "sampling": DefaultSampling(**{**given_of(self.sampling), **given_of(model.sampling)}),
            "sharding": ShardingConfig() if divided - {"ranks"} else self.sharding,
        }
        return self.model_copy(update={"model": model.source, "models": (), **own})

    @property
    def of_first(self) -> Settings:
        """The settings that hold for the model which is meant where none is named."""
        return self.of(self.served[0])

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The loader reads all sources itself, since it must know where each value came from."""
        return (init_settings,)


def given_of(section: Section) -> dict[str, Any]:
    """What is given of a section: the rest stays open, since defaults may follow from what is."""
    return {name: getattr(section, name) for name in section.model_fields_set}


def fields_of(kind: Any) -> dict[str, Any]:
    """The settings of a section with their types; of what is no section, none."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind) if is_dataclass(kind) else {}


def sections() -> Iterator[str]:
    return (name for name, kind in fields_of(Settings).items() if fields_of(kind))


def known_keys(section: Any = Settings, prefix: str = "") -> Iterator[str]:
    for name, kind in fields_of(section).items():
        if fields_of(kind):
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def path_keys() -> Iterator[str]:
    """The settings that name a file or a folder."""
    for key in known_keys():
        section, _, name = key.rpartition(".")
        kind = fields_of(fields_of(Settings)[section] if section else Settings)[name]
        if Path in (kind, *get_args(kind)):
            yield key


def nearest(key: str, known: list[str] | None = None) -> str:
    """A hint to append to an error about an unknown key; empty when nothing is close."""
    names = known or list(known_keys())
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    tails = {name.rpartition(".")[2]: name for name in names}
    close = close or [tails[t] for t in difflib.get_close_matches(key.rpartition(".")[2], list(tails), n=1, cutoff=0.6)]
    return f"; did you mean {close[0]}?" if close else ""
