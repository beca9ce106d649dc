"""What all routes share: the engine link, the tokenizer, the served model, and the way from a wish to its answers."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import chorus
from chorus.api.errors import ApiError, from_context, invalid, unavailable
from chorus.api.server.lifetime import Lifetimes
from chorus.api.wish import Prompt, Wish, choose_sampling
from chorus.config.front_end import ApiSettings
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving import measure
from chorus.serving.answer import Answer
from chorus.serving.choices import Choices, choice_seed
from chorus.serving.engine_client import EngineClient
from chorus.serving.errors import ContextExceeded, EngineLost
from chorus.serving.generation import TextGeneration, TextRequest, answer_budget
from chorus.serving.prompt import plain_tools
from chorus.serving.prompt.plain_tools import template_shows_tools
from chorus.serving.prompt.voice import Voice
from chorus.serving.tokenizer import ServedTokenizer
from chorus.serving.workers import Workers
from chorus.text.errors import TextError
from chorus.text.parsers import choose
from chorus.text.stops import Stops


@dataclass(frozen=True)
class EngineView:
    """What the engine says of itself, as far as it can be asked."""

    state: str
    progress: float
    detail: str
    description: pb.Description | None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@dataclass(frozen=True)
class Prepared:
    """Everything that could be refused without the engine's queue has been; nothing is submitted yet."""

    choices: Choices
    prompts: tuple[tuple[int, ...], ...]
    fingerprint: str


RATES_KEPT = 32


class Service:
    def __init__(self, settings: ApiSettings, client: EngineClient, tokenizer: ServedTokenizer) -> None:
        self.settings = settings
        self.client = client
        self.tokenizer = tokenizer
        self.template_shows_tools = template_shows_tools(tokenizer.chat_template)
        parser = settings.tool_parser or (None if self.template_shows_tools else plain_tools.PARSER)
        self.voice = Voice(choose(tokenizer.chat_template, parser), tokenizer)
        self.workers = Workers(settings.limits.max_preparing)
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)
        self._ready: pb.Description | None = None
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._answered = 0

    def note_rate(self, tokens_per_second: float | None) -> None:
        self._answered += 1
        if tokens_per_second is not None:
            self._rates.append(tokens_per_second)

    def observed(self) -> dict[str, Any]:
        return {"requests": self._answered, "tokens_per_second": median(self._rates) if self._rates else None}

    async def look(self) -> EngineView:
        try:
            description = await self.client.describe(self.settings.limits.describe_timeout_seconds)
        except EngineLost as error:
            self._ready = None
            return EngineView("unreachable", 0.0, str(error), None)
        view = EngineView(
            pb.EngineState.Name(description.state).lower(), description.progress, description.detail, description
        )
        self._ready = description if view.ready else None
        return view

    async def ready(self) -> pb.Description:
        """The ready engine's description, kept while its session lasts: it is not asked for every request."""
        if self._ready is not None and self.client.connected:
            return self._ready
        view = await self.look()
        if view.description is None or not view.ready:
            raise not_ready(view)
        return view.description

    def context_length(self, description: pb.Description) -> int:
        chosen = self.settings.context_length
        return description.context_length if chosen is None else min(chosen, description.context_length)

    def check_model(self, model: str | None) -> None:
        if not self.settings.serves(model):
            raise ApiError(
                404,
                f"The model {model!r} is not served here; {self.settings.model_id!r} is.",
                param="model",
                code="model_not_found",
            )

    def fingerprint(self, description: pb.Description) -> str:
        """Changes with whatever could change the tokens of a seeded request."""
        parts = [chorus.__version__, description.version, self.settings.model_id, description.parallel]
        parts += [f"{rank.device}/{rank.dtype}/{rank.first_layer}-{rank.last_layer}" for rank in description.ranks]
        return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]

    async def prepare(self, wish: Wish, label: str, owner: str) -> Prepared:
        """Refuses in the order in which a client would mend it."""
        self.check_model(wish.model)
        self._check_amounts(wish)
        description = await self.ready()
        for token in wish.sampling.logit_bias:
            if token >= description.vocabulary:
                raise outside_vocabulary(token, description.vocabulary, "logit_bias")
        requests: list[TextRequest] = []
        stops = Stops(wish.stops)
        for prompt in wish.prompts:
            tokens = await self.prompt_tokens(prompt, wish.fields.prompt, description)
            requests += self._requests(wish, tokens, stops, description, label, owner)
        answers = [self._answer(wish, choice, request) for choice, request in enumerate(requests)]
        prompts = tuple(request.prompt for request in requests[:: wish.count])
        return Prepared(Choices(answers), prompts, self.fingerprint(description))

    async def prompt_tokens(self, prompt: Prompt, field: str, description: pb.Description) -> tuple[int, ...]:
        try:
            tokens = await self.workers.run(prompt.size, prompt.tokenize)
        except TextError as error:
            raise invalid(f"{field}: {error}.", field) from None
        if not tokens:
            raise invalid(f"{field}: there is no token in it.", field)
        if (largest := max(tokens)) >= description.vocabulary:
            raise outside_vocabulary(largest, description.vocabulary, field)
        return tuple(tokens)

    def _check_amounts(self, wish: Wish) -> None:
        limits, fields = self.settings.limits, wish.fields
        measure.stops(fields.stop, wish.stops, limits)
        measure.count("logit_bias", len(wish.sampling.logit_bias), limits.max_logit_biases, "tokens")
        field = fields.count if wish.count > 1 else fields.prompt
        measure.count(field, wish.choices, limits.max_choices, "choices per request")

    def _requests(
        self, wish: Wish, prompt: tuple[int, ...], stops: Stops, description: pb.Description, label: str, owner: str
    ) -> list[TextRequest]:
        try:
            default = wish.max_tokens if wish.cut_to_fit else self.settings.max_tokens
            asked = None if wish.cut_to_fit else wish.max_tokens
            budget = answer_budget(len(prompt), asked, default, self.context_length(description))
        except ContextExceeded as error:
            raise from_context(error, wish.fields.prompt) from None
        budget = self._scored(wish, asked, budget)
        sampling = choose_sampling(wish.sampling, self.settings.sampling)
        reading, grammar = wish.reading, wish.grammar
        if grammar and reading and reading.grammar_after_reasoning:
            grammar = reading.grammar_after_reasoning(prompt, grammar)
        return [
            TextRequest(
                prompt=prompt,
                max_tokens=budget,
                sampling=replace(sampling, seed=choice_seed(sampling.seed, number)),
                stops=stops,
                label=label,
                owner=owner,
                logprobs=wish.logprobs,
                top_logprobs=wish.top_logprobs,
                grammar=grammar,
                show_special=bool(reading and reading.show_special),
            )
            for number in range(wish.count)
        ]

    def _scored(self, wish: Wish, asked: int | None, budget: int) -> int:
        """Log probabilities are kept until their answer ends. What the client asked for must fit; else it is cut."""
        if not wish.logprobs:
            return budget
        limit, each = self.settings.limits.max_logprobs, wish.choices * (1 + wish.top_logprobs)
        if asked is not None and asked * each > limit:
            problem = f"{wish.choices} choices of {asked} tokens with {1 + wish.top_logprobs} log probabilities each"
            raise measure.TooMuch("top_logprobs", f"{problem} are more than the {limit} that are accepted")
        return max(min(budget, limit // each), 1)

    def _answer(self, wish: Wish, choice: int, request: TextRequest) -> Answer:
        generation = TextGeneration(self.client, self.tokenizer, request)
        if wish.reading is None:
            return Answer(choice, generation)
        return Answer(choice, generation, wish.reading.parser(request.prompt), wish.reading.most_calls)


def not_ready(view: EngineView) -> ApiError:
    doing = f": {view.detail}" if view.detail else ""
    percent = f" ({view.progress:.0%})" if view.state == "loading" else ""
    return unavailable(
        f"The engine is {view.state}{percent}{doing}.",
        "engine_not_ready",
        {"state": view.state, "progress": view.progress, "detail": view.detail},
    )


def outside_vocabulary(token: int, vocabulary: int, field: str) -> ApiError:
    return invalid(f"{field}: token {token} is outside the model's vocabulary of {vocabulary}.", field)
