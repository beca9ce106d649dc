"""From a generation request to the requests that the engine is sent: everything that can be refused here is."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from chorus.messages.engine import Request
from chorus.messages.grammar import Grammar
from chorus.serving.errors import ContextExceeded
from chorus.serving.generation import Choice, Generation, Keep
from chorus.serving.models.model import Capacity, ModelLimits, ServedModel
from chorus.serving.prompt.answer_format import call_id
from chorus.serving.prompt.conversation import answer_grammar, conversation_size, conversation_tokens
from chorus.serving.prompt.remembered import answer_message
from chorus.serving.prompt.tokens import Prompt
from chorus.serving.requests import measure
from chorus.serving.requests.measure import InvalidValue
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.sampling import draw_seed
from chorus.text.errors import TextError
from chorus.text.parsers.toolkit.pieces import Piece
from chorus.text.stops import Stops


async def prepare(request: GenerationRequest, model: ServedModel) -> Generation:
    """Refuses in the order in which a client would mend it; nothing is submitted yet."""
    chat = request.messages is not None
    grammar = await answer_grammar(request, model.answer_format, model.workers) if chat else request.grammar
    check_amounts(request, model.limits)
    capacity = await model.capacity()
    for token in request.sampling.logit_bias:
        check_token(token, capacity.vocabulary, request.fields.logit_bias)
    choices: list[Choice] = []
    async for prompt in prompts_of(request, model, capacity):
        if choices and not request.seeded:
            request = replace(request, sampling=replace(request.sampling, seed=draw_seed()))
        choices += _choices(request, prompt, grammar, model, capacity)
    return Generation(
        model.client,
        model.tokenizer,
        choices,
        stops=Stops(request.stops),
        show_special=chat and model.answer_format.family.needs_special_tokens,
        most_calls=1 if chat and not request.tools.parallel else None,
        prompts=len(choices) // request.choices_per_prompt,
    )


async def prompts_of(request: GenerationRequest, model: ServedModel, capacity: Capacity) -> AsyncIterator[Prompt]:
    """The conversation, or every prompt in turn."""
    field = request.fields.prompt
    if request.messages is not None:
        yield await conversation_prompt(request, model, capacity)
    for text in request.prompts:
        tokens = await text_tokens(text, field, model, capacity)
        yield Prompt(tokens, cuts=(len(tokens),))


async def conversation_prompt(request: GenerationRequest, model: ServedModel, capacity: Capacity) -> Prompt:
    size, field = conversation_size(request), request.fields.prompt

    def make() -> Prompt:
        return conversation_tokens(request, model.tokenizer, model.memory)

    return await _checked(make, size, field, model, capacity)


async def text_tokens(
    prompt: str | Sequence[int], field: str, model: ServedModel, capacity: Capacity, *, special: bool = True
) -> tuple[int, ...]:
    def encode() -> Prompt:
        return Prompt(tuple(model.tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt))

    size = len(prompt) if isinstance(prompt, str) else 0
    return (await _checked(encode, size, field, model, capacity)).tokens


async def _checked(make: Callable[[], Prompt], size: int, field: str, model: ServedModel, capacity: Capacity) -> Prompt:
    """`size` in characters tells how long it will take."""
    try:
        prompt = await model.workers.run(size, make)
    except TextError as error:
        raise InvalidValue(field, str(error)) from None
    if not prompt.tokens:
        raise InvalidValue(field, "there is no token in it")
    check_token(max(prompt.tokens), capacity.vocabulary, field)
    return prompt


def check_token(token: int, vocabulary: int, field: str) -> None:
    if not 0 <= token < vocabulary:
        raise InvalidValue(field, f"token {token} is outside the model's vocabulary of {vocabulary}")


def answer_budget(prompt_tokens: int, asked: int | None, default: int | None, context_length: int) -> int:
    """How many tokens may be generated. What the client asked for must fit; a default is cut to fit."""
    room = context_length - prompt_tokens
    if room < 1:
        raise ContextExceeded(prompt_tokens, None, context_length)
    if asked is None:
        return min(default or room, room)
    if asked > room:
        raise ContextExceeded(prompt_tokens, asked, context_length)
    return asked


def choice_seed(seed: int, number: int) -> int:
    """The first choice uses the seed itself, so that asking for more choices does not change it."""
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def check_amounts(request: GenerationRequest, limits: ModelLimits) -> None:
    """What can be refused whichever model it is for."""
    fields = request.fields
    measure.stops(fields.stop, request.stops, limits)
    measure.count(fields.logit_bias, len(request.sampling.logit_bias), limits.max_logit_biases, "tokens")
    field = fields.count if request.choices_per_prompt > 1 else fields.prompt
    measure.count(field, request.choices, limits.max_choices, "choices per request")


def _choices(
    request: GenerationRequest,
    prompt: Prompt,
    grammar: Grammar | None,
    model: ServedModel,
    capacity: Capacity,
) -> list[Choice]:
    chat, form = request.messages is not None, model.answer_format
    if chat and grammar:
        grammar = form.after_reasoning(grammar, request.tools, prompt.tokens)
    sent = Request(
        id=request.id,
        prompt=prompt.tokens,
        max_tokens=_max_tokens(request, len(prompt.tokens), model, capacity),
        stop_tokens=frozenset() if request.ignore_eos else model.tokenizer.eos_ids,
        sampling=request.sampling,
        logprobs=request.logprobs,
        grammar=grammar,
        owner=request.owner,
        cuts=prompt.cuts,
        needed_cuts=prompt.needed_cuts,
        scope=request.scope,
        conversation=request.conversation,
        pinned=request.pinned,
        uncached=request.uncached,
    )
    return [
        Choice(
            replace(sent, sampling=replace(sent.sampling, seed=choice_seed(sent.sampling.seed, number))),
            form.parser(request.tools, prompt.tokens, call_id(request.call_id_prefix)) if chat else None,
            _keeper(prompt, model),
        )
        for number in range(request.choices_per_prompt)
    ]


def _keeper(prompt: Prompt, model: ServedModel) -> Keep | None:
    """Remembers an answer to the prompt."""
    memory, opened, deepest = model.memory, prompt.opened, model.limits.max_nesting
    if memory is None or opened is None:
        return None

    def keep(tokens: Sequence[int], pieces: Sequence[Piece]) -> None:
        if answer := answer_message(pieces, deepest):
            memory.put(opened, [*prompt.tokens, *tokens], prompt.cuts, answer)

    return keep


def _max_tokens(request: GenerationRequest, prompt_tokens: int, model: ServedModel, capacity: Capacity) -> int:
    asked = None if request.cut_to_fit else request.max_tokens
    default = request.max_tokens if request.cut_to_fit else model.max_tokens
    try:
        budget = answer_budget(prompt_tokens, asked, default, capacity.context_length)
    except ContextExceeded as error:
        error.field = request.fields.prompt
        raise
    if request.logprobs is None:
        return budget
    # Log probabilities are kept until their answer ends. What the client asked for must fit; else it is cut.
    limit, each = model.limits.max_logprobs, request.choices * (1 + request.logprobs)
    if asked is not None and asked * each > limit:
        problem = f"{request.choices} choices of {asked} tokens with {1 + request.logprobs} log probabilities each"
        raise measure.TooMuch("top_logprobs", f"{problem} are more than the {limit} that are accepted")
    return max(min(budget, limit // each), 1)
