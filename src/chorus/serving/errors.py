"""What can go wrong between a front end and the engine, as types a protocol can map to its own codes."""

from __future__ import annotations

from dataclasses import replace

from chorus.errors import ChorusError
from chorus.messages.deploy import ModelRow, ModelState


class EngineError(ChorusError):
    """The engine did not serve a request."""


class EngineLost(EngineError):
    """The engine cannot be reached, or its session broke while the request ran."""


class EngineOverloaded(EngineError):
    """The engine's queue is full: the same request may succeed later."""


class RequestRejected(EngineError):
    """The engine will never serve this request as it is; `field` is what the client calls what is wrong with it."""

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.field = field


class RequestFailed(EngineError):
    """The engine took the request and failed it."""


class ContextExceeded(ChorusError):
    """The prompt, or the prompt with the tokens asked for, does not fit the model's context."""

    field = ""
    """What the client calls its prompt."""

    def __init__(self, prompt_tokens: int, max_tokens: int | None, context_length: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_length = context_length
        if max_tokens is None:
            wanted = f"the prompt has {prompt_tokens} tokens and leaves no room for an answer"
        else:
            total = prompt_tokens + max_tokens
            wanted = f"the prompt has {prompt_tokens} tokens and {max_tokens} more are asked for, {total} together"
        super().__init__(f"The model's context holds {context_length} tokens, but {wanted}; send less or ask for less.")


class UnknownModel(ChorusError):
    """There is no model of this name; the nearest is named where there is one, or the owner's own words are."""

    def __init__(self, name: str, nearest: str | None, told: str = "") -> None:
        self.name = name
        meant = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(told or f"The model {name[:200]!r} is not served here{meant or '.'}")


class ModelNotReady(ChorusError):
    """A model was not loaded within the time that its request waits; the row says how far it is."""

    def __init__(self, row: ModelRow, patience: float) -> None:
        self.row, self.patience = row, patience
        super().__init__(f"the model {row.id} was not ready within {patience:g} s ({doing(row)}); try again later")


class ModelFailed(ChorusError):
    """A model cannot be loaded, or its processes have given up."""

    def __init__(self, model_id: str, reason: str) -> None:
        self.model_id, self.reason = model_id, reason
        super().__init__(f"the model {model_id} has failed: {reason or 'the log of the server says why'}")


class OwnerAway(ChorusError):
    """Whoever owns the models cannot be asked now."""


class OwnerRefused(ChorusError):
    """The owner of the models does not do what it was asked for; its own words say why."""


def heard(row: ModelRow, models: tuple[str, ...] | None) -> ModelRow:
    """What a key for these models hears of one (None: all). Why a model waits or has failed may name others, and tell
    how much they hold.
    """
    told = models is None or row.state not in (ModelState.WAITING, ModelState.FAILED)
    return row if told else replace(row, detail="")


def doing(row: ModelRow) -> str:
    """What becomes of a model, for people: `loading acme/x: 43 %, 1.2 of 2.8 GB`."""
    detail = f": {' '.join(row.detail.split())}" if row.detail else ""
    if row.state is not ModelState.LOADING:
        return f"{_WORDS[row.state]} {row.id}{detail}"
    size = f", {row.loaded_bytes / 1e9:.1f} of {row.total_bytes / 1e9:.1f} GB" if row.total_bytes else detail
    return f"loading {row.id} {row.progress * 100:.0f} %{size}"


_WORDS = {
    ModelState.UNLOADED: "waiting for",
    ModelState.WAITING: "waiting for",
    ModelState.READY: "ready:",
    ModelState.DRAINING: "waiting for the last requests of",
    ModelState.FAILED: "waiting for another attempt to load",
}
