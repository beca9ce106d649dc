"""From a predict request to an answer about to be generated: everything that can be refused has been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorus.localai.chat import answer_grammar, answer_parser, chat_prompt, read_chat
from chorus.localai.errors import BadRequest
from chorus.localai.loading import Loaded, with_end_ids
from chorus.localai.requests import asked_tokens, grammar_of, sampling_of, stop_strings, wanted_logprobs
from chorus.messages.grammar import Grammar
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving import measure
from chorus.serving.answer import Answer
from chorus.serving.errors import ContextExceeded
from chorus.serving.generation import TextGeneration, TextRequest, answer_budget
from chorus.text.errors import TextError
from chorus.text.parsers.toolkit.pieces import OutputParser


@dataclass(frozen=True)
class Prepared:
    request: TextRequest
    parser: OutputParser | None
    """None: a plain prompt, whose answer LocalAI reads itself."""

    def begin(self, loaded: Loaded, ignore_eos: bool) -> Answer:
        tokenizer = with_end_ids(loaded.tokenizer, frozenset()) if ignore_eos else loaded.tokenizer
        return Answer(0, TextGeneration(loaded.host.client, tokenizer, self.request), self.parser)


def prepare(loaded: Loaded, request: wire.PredictOptions, label: str) -> Prepared:
    """Pure but for the tokenizer's work; may take a while for a long prompt. Raises BadRequest or BadField."""
    if is_chat(request):
        return _prepare_chat(loaded, request, label)
    prompt = _encoded(loaded, request.Prompt, "Prompt")
    return Prepared(_text_request(loaded, request, prompt, label, grammar_of(request, loaded.limits)), None)


def is_chat(request: wire.PredictOptions) -> bool:
    """Messages are rendered here where LocalAI asks for it, or has rendered nothing itself."""
    return bool(request.Messages) and (request.UseTokenizerTemplate or not request.Prompt)


def prompt_tokens(loaded: Loaded, request: wire.PredictOptions) -> list[int]:
    if is_chat(request):
        return chat_prompt(read_chat(request, loaded.plan.special_tokens, loaded.limits), loaded.tokenizer)
    return _encoded(loaded, request.Prompt, "Prompt", empty=True)


def embedding_tokens(loaded: Loaded, request: wire.PredictOptions) -> list[int]:
    tokens = list(request.EmbeddingTokens) or _encoded(loaded, request.Embeddings or request.Prompt, "Embeddings")
    check_tokens(tokens, loaded.vocabulary, "EmbeddingTokens")
    if len(tokens) > loaded.context_length:
        raise BadRequest(f"Embeddings: {len(tokens)} tokens where the model's context holds {loaded.context_length}")
    return tokens


def _prepare_chat(loaded: Loaded, request: wire.PredictOptions, label: str) -> Prepared:
    chat = read_chat(request, loaded.plan.special_tokens, loaded.limits)
    prompt = chat_prompt(chat, loaded.tokenizer)
    family, tokenizer = loaded.parsers, loaded.tokenizer
    grammar = answer_grammar(chat, grammar_of(request, loaded.limits), prompt, family, tokenizer)
    text_request = _text_request(loaded, request, prompt, label, grammar, show_special=family.needs_special_tokens)
    return Prepared(text_request, answer_parser(chat, prompt, family, tokenizer))


def _text_request(
    loaded: Loaded,
    request: wire.PredictOptions,
    prompt: Sequence[int],
    label: str,
    grammar: Grammar | None,
    show_special: bool = False,
) -> TextRequest:
    check_tokens(prompt, loaded.vocabulary, "Prompt")
    fixed = loaded.plan.sampling
    try:
        room = answer_budget(len(prompt), None, None, loaded.context_length)
    except ContextExceeded as error:
        raise BadRequest(f"Prompt: {error}") from None
    logprobs, top_logprobs = wanted_logprobs(request)
    if logprobs:
        # They are kept until their answer ends.
        room = max(min(room, loaded.limits.max_logprobs // (1 + top_logprobs)), 1)
    return TextRequest(
        prompt=tuple(prompt),
        max_tokens=asked_tokens(request, fixed, room),
        sampling=sampling_of(request, fixed, loaded.vocabulary, loaded.limits),
        stops=stop_strings(request, loaded.limits),
        label=label,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        grammar=grammar,
        show_special=show_special,
    )


def _encoded(loaded: Loaded, text: str, field: str, *, empty: bool = False) -> list[int]:
    measure.count(field, len(text), loaded.limits.max_body_bytes, "characters")
    try:
        tokens = loaded.tokenizer.encode(text)
    except TextError as error:
        raise BadRequest(f"{field}: {error}") from None
    if not tokens and not empty:
        raise BadRequest(f"{field}: there is no token in it")
    return tokens


def check_tokens(tokens: Sequence[int], vocabulary: int, field: str) -> None:
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise BadRequest(f"{field}: token {token} is outside the model's vocabulary of {vocabulary}")
