"""Every setting there is: the tree of all sections, and the full keys of what is in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from chorus.config.sections import (
    ApiConfig,
    ClusterConfig,
    DeviceConfig,
    EngineConfig,
    LogConfig,
    SamplingConfig,
    ShardingConfig,
    WatchConfig,
)

PREFIX = "CHORUS_"
NESTED = "__"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
    )

    model: str = Field(default="smollm2-135m", min_length=1)
    cache_dir: Path | None = None
    api: ApiConfig = ApiConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    log: LogConfig = LogConfig()
    devices: tuple[DeviceConfig, ...] = ()
    sharding: ShardingConfig = ShardingConfig()
    cluster: ClusterConfig = ClusterConfig()
    watch: WatchConfig = WatchConfig()

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


def sections() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name


def known_keys(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def nearest(key: str, known: list[str] | None = None) -> str:
    """A hint to append to an error about an unknown key; empty when nothing is close."""
    names = known or list(known_keys())
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    tails = {name.rpartition(".")[2]: name for name in names}
    close = close or [tails[t] for t in difflib.get_close_matches(key.rpartition(".")[2], list(tails), n=1, cutoff=0.6)]
    return f"; did you mean {close[0]}?" if close else ""
