"""What can go wrong between a front end and the engine, as types a protocol can map to its own codes."""

from __future__ import annotations

from chorus.errors import ChorusError


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
