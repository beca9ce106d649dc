"""Which family a model belongs to: read from its chat template, or given by name."""

from __future__ import annotations

from dataclasses import replace

from chorus.text.parsers import (
    deepseek,
    gemma,
    glm,
    harmony,
    hermes,
    invoke,
    kimi,
    kimi_k3,
    llama3,
    mistral,
    plain,
    pythonic,
    qwen3_coder,
)
from chorus.text.parsers.toolkit.family import THINK, ParserFamily

# The first whose signs a template shows is taken: the special ones before those that they resemble.
FAMILIES: tuple[ParserFamily, ...] = (
    invoke.MINIMAX,
    gemma.GEMMA4,
    gemma.FUNCTION_GEMMA,
    glm.LONGCAT,
    glm.FAMILY,
    pythonic.FAMILY,
    qwen3_coder.FAMILY,
    kimi.FAMILY,
    kimi_k3.FAMILY,
    invoke.MUSE_SPARK,
    invoke.MINICPM,
    deepseek.TAGGED,
    deepseek.FENCED,
    deepseek.BARE,
    harmony.FAMILY,
    mistral.NAMED,
    mistral.FAMILY,
    hermes.FAMILY,
    llama3.FAMILY,
    plain.FAMILY,
)

# Longer ones first: what a template shows of them may hold a shorter one.
_REASONING = (
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    THINK,
)

_BY_NAME = {name: family for family in FAMILIES for name in (family.name, *family.aliases)}


def is_known(name: str) -> bool:
    return name in _BY_NAME


def choose(template: str | None, name: str | None = None) -> ParserFamily:
    """The family of a model. The name decides if there is one; the template also shows how the model thinks."""
    template = template or ""
    if name is None:
        family = next((family for family in FAMILIES if _shows(template, family)), plain.FAMILY)
    elif is_known(name):
        family = _BY_NAME[name]
    else:
        raise ValueError(f"no output parser is called {name!r}: use one of {', '.join(sorted(_BY_NAME))}")
    if family.reasoning is not None:
        return family
    return replace(family, reasoning=next((pair for pair in _REASONING if _thinks(template, pair)), None))


def _shows(template: str, family: ParserFamily) -> bool:
    return any(all(sign in template for sign in signs) for signs in family.signs)


def _thinks(template: str, pair: tuple[str, str]) -> bool:
    """Either mark will do: some templates only open the reasoning, others only cut it out of earlier turns."""
    return any(mark in template for mark in pair)
