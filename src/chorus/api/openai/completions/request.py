"""The body of a completions request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, model_validator

from chorus.api.fields import Harmless, by_json_type, refused
from chorus.api.openai.sampling import SamplingFields
from chorus.config.sampling import TokenId


def _prompt_kind(value: Any) -> str:
    if not isinstance(value, list):
        return "<string>"
    return "<tokens>" if value and all(isinstance(item, int) for item in value) else "<list>"


OnePrompt = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[TokenId], Tag("<list>")], Discriminator(by_json_type)
]
PromptField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[TokenId], Field(min_length=1), Tag("<tokens>")]
    | Annotated[list[OnePrompt], Field(min_length=1), Tag("<list>")],
    Discriminator(_prompt_kind),
]


class CompletionRequest(SamplingFields):
    unserved: ClassVar[dict[str, Harmless]] = {**SamplingFields.unserved, "suffix": ("",)}

    prompt: PromptField
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _no_best_of_more(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refused("unsupported", "best_of", "only as many answers as n asks for are made; leave it out")
        return self

    @model_validator(mode="after")
    def _no_logprobs_of_the_prompt(self) -> CompletionRequest:
        if self.echo and self.asked_logprobs is not None:
            raise refused("unsupported", "logprobs", "not known for the tokens of an echoed prompt; leave echo out")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        return split_prompts(self.prompt)


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """One text or one list of tokens stands for itself; anything else is a list of them."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)
