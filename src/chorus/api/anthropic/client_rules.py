"""What real clients send that would make prompts differ which mean the same: each rule is a function of its own.

They hold whether prompts are kept or not, so that what a model reads does not depend on that, and are turned off
together by the setting `api.client_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from chorus.api.anthropic.request import InputMessage, TextBlock
from chorus.serving.requests.tools import Tool

_BILLING = "x-anthropic-billing-header:"

Block = TypeVar("Block")


def without_billing(system: str | Sequence[Block] | None) -> str | Sequence[Block] | None:
    """Claude Code's first block of the system prompt is for Anthropic's accounts and new with every request."""
    if system is None or isinstance(system, str):
        return None if system and system.startswith(_BILLING) else system
    return [block for block in system if not (isinstance(block, TextBlock) and block.text.startswith(_BILLING))]


def environment_first(messages: Sequence[InputMessage]) -> Sequence[InputMessage]:
    """Claude Code tells the folder, the date and the tools to come in an instruction behind the first prompt; before
    it, sessions that ask something else share it. Later instructions stay where they are, so that what was read before
    them stays read.
    """
    answered = next((place for place, message in enumerate(messages) if message.role == "assistant"), len(messages))
    for place, message in enumerate(messages[:answered]):
        if message.role == "system":
            return [message, *messages[:place], *messages[place + 1 :]]
    return messages


def without_empty(blocks: Sequence[Block]) -> list[Block]:
    """A block without a text comes and goes with the client's own bookkeeping."""
    return [block for block in blocks if not (isinstance(block, TextBlock) and not block.text)]


def described(name: str, tools: Mapping[str, Tool]) -> str:
    """A tool that was left out of the leading ones, where it is referred to, as templates write those."""
    return json.dumps(tools[name].for_template(), ensure_ascii=False) if name in tools else name
