"""LocalAI's PredictOptions as the values the front end works with. Protobuf has no "not given": zero stands for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from chorus.config.sampling import DefaultSampling, given
from chorus.localai.errors import BadRequest
from chorus.localai.options import FixedSampling
from chorus.messages.engine import Sampling
from chorus.messages.grammar import Grammar
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.requests import measure
from chorus.serving.requests.grammar import rules, sent_as
from chorus.serving.requests.measure import Amounts
from chorus.serving.requests.sampling import XTC_THRESHOLD, draw_seed
from chorus.serving.requests.sharing import LONGEST_NAME

MOST_TOP_LOGPROBS = 20
NOTHING_USUAL = DefaultSampling()


def sampling_of(
    request: wire.PredictOptions,
    fixed: FixedSampling,
    vocabulary: int,
    limits: Amounts,
    usual: DefaultSampling = NOTHING_USUAL,
) -> Sampling:
    """What the model's options fix goes over what the request says, and that over what is usual; temperature 0 is
    greedy."""
    for name in ("Temperature", "TopP", "MinP", "Penalty", "PresencePenalty", "FrequencyPenalty"):
        value = getattr(request, name)
        if not math.isfinite(value) or (value < 0 and name not in ("PresencePenalty", "FrequencyPenalty")):
            raise BadRequest(f"{name}: expected a number from 0 on, got {value:g}")
    for name in ("TopP", "MinP"):
        if getattr(request, name) > 1:
            raise BadRequest(f"{name}: expected a number from 0 to 1, got {getattr(request, name):g}")
    asked = Sampling(
        temperature=request.Temperature,
        top_p=request.TopP or usual.top_p or 1.0,
        top_k=max(request.TopK or usual.top_k or 0, 0),
        min_p=request.MinP or usual.min_p or 0.0,
        repetition_penalty=request.Penalty or usual.repetition_penalty or 1.0,
        presence_penalty=request.PresencePenalty,
        frequency_penalty=request.FrequencyPenalty,
        logit_bias=logit_bias(request.LogitBias, vocabulary, limits),
        seed=max(request.Seed, 0),
        xtc_threshold=XTC_THRESHOLD,
    )
    chosen = replace(asked, **given(fixed))
    # LocalAI draws a seed itself for clients that give none, so zero means none.
    return chosen if chosen.seed else replace(chosen, seed=draw_seed())


def asked_tokens(request: wire.PredictOptions, fixed: FixedSampling, room: int, usual: int | None = None) -> int:
    """0 and less mean what is usual, or the rest of the context; the model's own ceiling holds either way."""
    asked = request.Tokens if request.Tokens > 0 else usual or room
    return min(asked, room, fixed.max_tokens or room)


def is_uncached(request: wire.PredictOptions) -> bool:
    """Whether the model's owner wants nothing kept: `prompt_cache_all: false`, or `prompt_cache_ro`, with which nobody
    would store what could be found.

    LocalAI says true where its owner says nothing, but only since versions a little older than those that send a
    ModelIdentity; without one, false may just as well be what was never said.
    """
    return request.PromptCacheRO or (bool(request.ModelIdentity) and not request.PromptCacheAll)


def metadata_name(request: wire.PredictOptions, key: str) -> str:
    """What the client put into its metadata, which LocalAI hands on. Its CorrelationId names no conversation: it is a
    new one for each request unless the client chose it, and nothing tells which."""
    name = request.Metadata.get(key, "")
    measure.count(f"Metadata {key}", len(name), LONGEST_NAME, "characters")
    return name


def logit_bias(text: str, vocabulary: int, limits: Amounts) -> dict[int, float]:
    if not text.strip():
        return {}
    biases = json_field("LogitBias", text, dict, limits)
    measure.count("LogitBias", len(biases), limits.max_logit_biases, "tokens")
    try:
        read = {int(token): float(bias) for token, bias in biases.items()}
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"LogitBias: expected token ids with a number each, got {text[:60]!r}") from None
    for token, bias in read.items():
        if not 0 <= token < vocabulary:
            raise BadRequest(f"LogitBias: token {token} is outside the model's vocabulary of {vocabulary}")
        if not math.isfinite(bias):
            raise BadRequest(f"LogitBias: the bias of token {token} is no number")
    return read


def wanted_logprobs(request: wire.PredictOptions) -> tuple[bool, int]:
    """Whether, and for how many of the best candidates. Text completions give that number in Logprobs itself."""
    if request.Logprobs < 0 or request.TopLogprobs < 0:
        raise BadRequest("Logprobs and TopLogprobs: expected a number from 0 on")
    wanted = request.Logprobs > 0 or request.TopLogprobs > 0
    top = request.TopLogprobs or (request.Logprobs if request.Logprobs > 1 else 0)
    if top > MOST_TOP_LOGPROBS:
        raise BadRequest(f"TopLogprobs: at most {MOST_TOP_LOGPROBS} are given, got {top}")
    return wanted, top


def grammar_of(request: wire.PredictOptions, limits: Amounts) -> Grammar | None:
    if not request.Grammar.strip():
        return None
    measure.grammar("Grammar", request.Grammar, limits)
    return sent_as(rules(request.Grammar), "Grammar")


def stop_strings(request: wire.PredictOptions, limits: Amounts) -> tuple[str, ...]:
    strings = tuple(dict.fromkeys(stop for stop in request.StopPrompts if stop))
    measure.stops("StopPrompts", strings, limits)
    return strings


def template_arguments(request: wire.PredictOptions, special_tokens: dict[str, str], limits: Amounts) -> dict[str, Any]:
    """What the chat template sees besides messages and tools."""
    arguments: dict[str, Any] = {**special_tokens}
    metadata = request.Metadata
    if metadata.get("chat_template_kwargs"):
        name = "Metadata chat_template_kwargs"
        given = json_field(name, metadata["chat_template_kwargs"], dict, limits)
        measure.template_arguments(given, limits, name)
        arguments |= given
    if thinking := metadata.get("enable_thinking", "").strip().lower():
        if thinking not in ("true", "false"):
            raise BadRequest(f"Metadata enable_thinking: expected true or false, got {thinking!r}")
        arguments["enable_thinking"] = thinking == "true"
    if effort := metadata.get("reasoning_effort", "").strip():
        arguments["reasoning_effort"] = effort
    return arguments


def json_field(name: str, text: str, kind: type, limits: Amounts) -> Any:
    try:
        value = measure.decoded(name, text, limits.max_nesting)
    except measure.BadField:
        raise
    except ValueError as error:
        raise BadRequest(f"{name} is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise BadRequest(f"{name}: expected a JSON {'object' if kind is dict else 'list'}, got {text[:60]!r}")
    return value
