"""The one form of a generation request between a protocol and the engine: plain data that prints and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorus.messages.engine import Sampling
from chorus.messages.grammar import Grammar
from chorus.serving.requests.tools import NO_TOOLS, Tools

Message = dict[str, Any]


@dataclass(frozen=True)
class FieldNames:
    """What the client's protocol calls the fields that an error may name."""

    prompt: str = "messages"
    stop: str = "stop"
    count: str = "n"
    logit_bias: str = "logit_bias"
    grammar: str = ""
    tools: str = "tools"
    tool_choice: str = "tool_choice"


@dataclass(frozen=True)
class GenerationRequest:
    """What a client asked for, whichever protocol it spoke."""

    messages: Sequence[Message] | None = None
    """A conversation as chat templates expect it: texts joined, arguments of calls as objects."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Where there is no conversation: texts or tokens, each to be continued."""
    tools: Tools = NO_TOOLS
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_last: bool = False
    """The last message is the beginning of the answer."""
    role_mapping: Mapping[str, str] | None = None
    """Texts to put before each message, instead of the model's template."""
    sampling: Sampling = field(default_factory=Sampling)
    seeded: bool = True
    """Whether somebody chose the seed; where nobody did, equal prompts of one request are not answered alike."""
    max_tokens: int | None = None
    cut_to_fit: bool = False
    """The limit is a ceiling that need not fit the context, as where a protocol makes clients name one."""
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    choices_per_prompt: int = 1
    logprobs: int | None = None
    """How many of the best candidates to report with each token; 0: the token's own log probability alone."""
    grammar: Grammar | None = None
    grammar_has_tools: bool = False
    """The grammar itself says how tools are called, so calls that the model may make are not added to it."""
    call_id_prefix: str = "call_"
    fields: FieldNames = FieldNames()
    id: str = ""
    """Part of the id that the engine sees, so that its log lines can be matched with the front end's."""
    owner: str = ""
    """Whom the request is counted for."""
    scope: str = ""
    """Only requests of one scope share what is kept of their prompts."""
    conversation: str = ""
    """What is kept of a conversation goes after everything else."""
    pinned: bool = False
    """The client marked parts of the prompt to be kept."""
    uncached: bool = False
    """Nothing that is stored is used for it, and nothing of it is stored."""

    @property
    def choices(self) -> int:
        return self.choices_per_prompt * (len(self.prompts) if self.messages is None else 1)
