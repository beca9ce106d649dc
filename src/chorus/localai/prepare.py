"""From a predict request to an answer about to be generated: everything that can be refused has been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chorus.localai.chat import FIELDS, read_chat
from chorus.localai.errors import BadRequest
from chorus.localai.loading import LoadedModel
from chorus.localai.requests import (
    asked_tokens,
    grammar_of,
    is_uncached,
    metadata_name,
    sampling_of,
    stop_strings,
    wanted_logprobs,
)
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.errors import ContextExceeded
from chorus.serving.generation import Generation
from chorus.serving.prepare import check_token
from chorus.serving.prepare import prepare as prepare_generation
from chorus.serving.prompt.conversation import NoCalls, conversation_tokens
from chorus.serving.requests import measure
from chorus.serving.requests.measure import Unsupported
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.sharing import conversation_of, scope_of
from chorus.text.errors import TextError


async def prepare(loaded: LoadedModel, request: wire.PredictOptions, label: str) -> Generation:
    """Raises BadRequest or BadField."""
    workers = loaded.model.workers
    asked = await workers.run(request.ByteSize(), lambda: generation_request(loaded, request, label))
    try:
        return await prepare_generation(asked, loaded.model)
    except ContextExceeded as error:
        raise BadRequest(f"Prompt: {error}") from None
    except NoCalls as error:
        raise BadRequest(f"{error}: use auto, or say how it does with the model's option tool_parser") from None
    except Unsupported as error:
        raise BadRequest(f"Tools: {error.problem}") from None


def is_chat(request: wire.PredictOptions) -> bool:
    """Messages are rendered here where LocalAI asks for it, or has rendered nothing itself."""
    return bool(request.Messages) and (request.UseTokenizerTemplate or not request.Prompt)


def generation_request(loaded: LoadedModel, request: wire.PredictOptions, label: str) -> GenerationRequest:
    logprobs, top_logprobs = wanted_logprobs(request)
    fixed, settings, capacity = loaded.plan.sampling, loaded.plan.settings, loaded.capacity
    return replace(
        prompt_of(loaded, request),
        sampling=sampling_of(request, fixed, capacity.vocabulary, loaded.limits, settings.sampling),
        max_tokens=asked_tokens(request, fixed, capacity.context_length, settings.api.max_tokens),
        cut_to_fit=True,
        stops=stop_strings(request, loaded.limits),
        ignore_eos=request.IgnoreEOS,
        logprobs=top_logprobs if logprobs else None,
        grammar=grammar_of(request, loaded.limits),
        scope=scope_of(metadata_name(request, "cache_salt"), owner=""),
        conversation=conversation_of(metadata_name(request, "conversation_id"), owner=""),
        uncached=is_uncached(request),
        id=label,
    )


def prompt_of(loaded: LoadedModel, request: wire.PredictOptions) -> GenerationRequest:
    if is_chat(request):
        return read_chat(request, loaded.plan.special_tokens, loaded.limits)
    measure.count("Prompt", len(request.Prompt), loaded.limits.max_body_bytes, "characters")
    return GenerationRequest(prompts=(request.Prompt,), fields=replace(FIELDS, prompt="Prompt"))


def prompt_tokens(loaded: LoadedModel, request: wire.PredictOptions) -> Sequence[int]:
    """A prompt without a token is none too few here: it is only counted."""
    asked = prompt_of(loaded, request)
    try:
        if asked.messages is not None:
            return conversation_tokens(asked, loaded.model.tokenizer).tokens
        return loaded.model.tokenizer.encode(request.Prompt)
    except TextError as error:
        raise BadRequest(f"{asked.fields.prompt}: {error}") from None


def embedding_tokens(loaded: LoadedModel, request: wire.PredictOptions) -> list[int]:
    tokens = list(request.EmbeddingTokens) or _encoded(loaded, request.Embeddings or request.Prompt)
    check_tokens(tokens, loaded.capacity.vocabulary, "EmbeddingTokens")
    context = loaded.capacity.context_length
    if len(tokens) > context:
        raise BadRequest(f"Embeddings: {len(tokens)} tokens where the model's context holds {context}")
    return tokens


def _encoded(loaded: LoadedModel, text: str) -> list[int]:
    measure.count("Embeddings", len(text), loaded.limits.max_body_bytes, "characters")
    try:
        tokens = loaded.model.tokenizer.encode(text)
    except TextError as error:
        raise BadRequest(f"Embeddings: {error}") from None
    if not tokens:
        raise BadRequest("Embeddings: there is no token in it")
    return tokens


def check_tokens(tokens: Sequence[int], vocabulary: int, field: str) -> None:
    for token in tokens:
        check_token(token, vocabulary, field)
