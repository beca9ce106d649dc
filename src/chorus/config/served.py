"""Which models a server has, and when each of them is loaded."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from chorus.config.sections import AnswerOptions, Bytes, Section

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
    """Over a cluster, the machines that may hold it; by default all."""
    engine: dict[str, Any] = Field(default_factory=dict)
    cache: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_its_name(cls, value: Any) -> Any:
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
    """A model serves at least so long before it makes room for another that is asked for."""
    idle_unload: Seconds | None = None
    """None: a model stays until its room is needed."""
