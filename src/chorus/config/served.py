"""Which models a server has, and when each of them is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from chorus.config.sampling import DefaultSampling
from chorus.config.sections import AnswerOptions, Bytes, CacheConfig, EngineConfig, Section

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_from_text(value: Any) -> Any:
    """`30m` as people type it."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)
    if not found:
        raise ValueError("must be a number of seconds, or one with a unit, e.g. 30m")
    return float(found[1]) * _UNITS[found[2]]


Seconds = Annotated[float, BeforeValidator(seconds_from_text), Field(ge=0, allow_inf_nan=False)]


class ModelConfig(AnswerOptions):
    """One entry of `models`. What it says goes over what `api`, `engine`, `cache` and `sampling` say for all."""

    source: str = Field(min_length=1)
    """What the command line takes for a model: a folder, an id, a file, a name."""
    pin: bool = False
    """Never unloaded to make room for another."""
    preload: bool | None = None
    """Loaded when the server starts; by default the first model is, and those that are pinned."""
    idle_unload: Seconds | None = None
    """Unloaded when nobody has asked for it for so long; by default as `load.idle_unload` says."""
    nodes: tuple[str, ...] = ()
    """Over the nodes of a cluster, the names of those that it may use; none: all of them."""
    engine: EngineConfig = EngineConfig()
    cache: CacheConfig = CacheConfig()
    sampling: DefaultSampling = DefaultSampling()
    """Of these three, what is given; the rest stays as it is for all."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the settings call it by, before its files are looked at."""
        return (self.source, *self.aliases)

    @property
    def plain(self) -> bool:
        """Whether it says no more than which model it is."""
        return self.model_fields_set == {"source"}

    @model_validator(mode="before")
    @classmethod
    def _from_its_name(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | ModelConfig):
            raise ValueError("must be the name of a model, or a mapping with its source")
        return {"source": value} if isinstance(value, str) else value


class LoadConfig(Section):
    """The section `load`: what becomes of models that are not loaded, and of those that nobody uses."""

    patience_seconds: float = Field(default=300, gt=0)
    """How long a request waits for its model."""
    memory: Bytes | None = None
    """What all models of this machine may take together; None: what is free when the first is loaded, less a part."""
    on_full: Literal["swap", "wait", "refuse"] = "swap"
    """When a model does not fit beside the others: unload one that is not pinned, wait for one to go, or say no."""
    min_loaded_seconds: float = Field(default=30, ge=0)
    """A model that is in use serves at least so long before it makes room for another that is asked for."""
    idle_unload: Seconds | None = None
    """None: a model stays until its room is needed."""
