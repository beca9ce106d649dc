"""What a grammar costs: the request that has one, a mask per token; the others beside it, nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Self

from tokenizers import Tokenizer

from benchmarks.cases import common
from benchmarks.load import body, streams
from benchmarks.models import FLOAT32_SUFFIX, SMOLLM2, model_folder
from benchmarks.prompts import Prompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus
from chorus.config.grammar import GrammarLimits
from chorus.platform.cpu import cores
from chorus.serving.requests import grammar as grammars
from chorus.text.grammar.client import Grammars

MEDIAN_COST = "grammar per token, p50"
HIGH_COST = "grammar per token, p99"
OTHERS = 4
OTHERS_RATE = f"decode of {OTHERS} plain streams, each"
STREAMS_RATE = f"throughput, {common.STREAMS} streams with a schema each"
BEFORE = "before"
WITH_GRAMMAR, WITH_PLAIN = "beside one with a grammar", "beside one more plain one"

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "inhabitants": {"type": "integer", "minimum": 0},
        "founded": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        "climate": {"enum": ["mild", "dry", "wet", "polar"]},
        "position": {
            "type": "object",
            "properties": {"latitude": {"type": "number"}, "longitude": {"type": "number"}},
            "required": ["latitude", "longitude"],
            "additionalProperties": False,
        },
        "rivers": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "inhabitants", "founded", "climate", "position", "rivers"],
    "additionalProperties": False,
}
PARIS = {
    "name": "Paris, the city of light",
    "inhabitants": 2102650,
    "founded": "0259-01-01",
    "climate": "mild",
    "position": {"latitude": 48.8566, "longitude": 2.3522},
    "rivers": ["Seine", "Bièvre"],
}
# Longer than any answer that is measured, so that this stream ends no sooner than the others.
ENDLESS = {"type": "array", "items": CITY, "minItems": 10_000}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["label", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CHOICE = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "number"},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ]
    },
}
# Each with a document that it allows: free text, digits, patterns, nesting, alternatives, and no schema to speak of.
DOCUMENTS: tuple[tuple[dict[str, Any], Any], ...] = (
    (CITY, PARIS),
    ({"type": "array", "items": CITY}, [PARIS, {**PARIS, "name": "Lutetia", "rivers": []}]),
    (TREE, {"label": "root", "children": [{"label": f"leaf {n}", "children": []} for n in range(6)]}),
    (CHOICE, [None, True, -12.5e3, {"first name": "Ada", "last name": "Lovelace"}, False, 0.125]),
    ({"type": "string"}, "A long text is the easiest thing that a schema can ask for, and the most frequent one."),
    ({"type": "object"}, {"anything": ["goes", {"here": [1, 2, 3]}], "even": "this", "or that": {"deep": {"er": []}}}),
)


NO_END = {"0": -100, "2": -100}
"""SmolLM2's end tokens: a plain stream that is done early would measure something else."""


def measure(run: Run) -> list[Goal]:
    model = model_folder(SMOLLM2 + FLOAT32_SUFFIX)
    prompts = Prompts(model, run.options.seed)
    threads = cores.threads_per_rank(cores.usable_cores(), 1)
    run.notes.append(f"{SMOLLM2} in float32, {threads} BLAS threads; {len(DOCUMENTS)} schemas")
    options = ("--dtype", "float32", "--threads", str(threads))
    goals = [
        Goal(MEDIAN_COST, "chorus", "<=", 1),
        Goal(OTHERS_RATE, WITH_GRAMMAR, ">=", 0.95, against=WITH_PLAIN),
    ]
    with ExitStack() as running:
        costs = running.enter_context(MaskCosts(model))
        servers = [running.enter_context(chorus(model, *options))]
        if run.options.before:
            older = chorus(model, *options, name=BEFORE, checkout=Path(run.options.before))
            servers.append(running.enter_context(older))
            goals.append(Goal(STREAMS_RATE, "chorus", ">=", 0.97, against=BEFORE))
        for server in servers:
            common.warm(server, prompts)
            add_throughput(Run(run.options, run.say), server, prompts)
        own = servers[0]
        run.interleave(
            lambda: add_costs(run, costs),
            lambda: add_rates(run, own, prompts),
            *(partial(add_throughput, run, server, prompts) for server in servers),
        )
    return goals


def add_costs(run: Run, costs: MaskCosts) -> None:
    milliseconds = sorted(1000 * seconds for schema, document in DOCUMENTS for seconds in costs.along(schema, document))
    run.samples.add(MEDIAN_COST, "ms", "chorus", percentile(milliseconds, 50))
    run.samples.add(HIGH_COST, "ms", "chorus", percentile(milliseconds, 99))


def add_rates(run: Run, server: HttpServer, prompts: Prompts) -> None:
    """The same prompts on both sides, close to each other in time; which comes first changes by the round."""
    asked = prompts.several(OTHERS + 1, common.SHORT_PROMPT)
    first = len(run.samples.figures.get(OTHERS_RATE, {}).get(WITH_PLAIN, ())) % 2 == 0
    for with_grammar in (first, not first):
        rate = others_rate(server, asked, run.options.tokens, with_grammar=with_grammar)
        run.samples.add(OTHERS_RATE, "tok/s", WITH_GRAMMAR if with_grammar else WITH_PLAIN, rate)


def add_throughput(run: Run, server: HttpServer, prompts: Prompts) -> None:
    asked = prompts.several(common.STREAMS, common.SHORT_PROMPT)
    bodies = [
        {**body(prompt, run.options.tokens), "logit_bias": NO_END, "guided_json": endless(place)}
        for place, prompt in enumerate(asked)
    ]
    run.samples.add(STREAMS_RATE, "tok/s", server.name, streams(server, bodies).rate)


def endless(place: int) -> dict[str, Any]:
    """The endless schema, a little different for each place."""
    properties = {**CITY["properties"], f"note {place}": {"type": "string", "maxLength": 20 + place}}
    return {**ENDLESS, "items": {**CITY, "properties": properties}}


def others_rate(server: HttpServer, prompts: Sequence[str], tokens: int, *, with_grammar: bool) -> float:
    *plain, last = (body(prompt, tokens) | {"logit_bias": NO_END} for prompt in prompts)
    fifth = {**last, "guided_json": ENDLESS} if with_grammar else last
    answers = streams(server, [*plain, fifth]).answers
    return mean(answer.decode_rate for answer in answers[:-1])


class MaskCosts:
    """The leader's own calls: a token handed to the grammar's process, and its next mask waited for."""

    def __init__(self, model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        ends = config["eos_token_id"]
        self._stops = frozenset(ends if isinstance(ends, list) else [ends])
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._grammars = Grammars(model, int(config["vocab_size"]), GrammarLimits(), most=1)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._grammars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._grammars.close()
        self._runner.close()

    def along(self, schema: dict[str, Any], document: Any) -> Iterator[float]:
        """Seconds for each token of the document, under a grammar that nobody used before."""
        constraint = self._runner.run(self._grammars.open(grammars.json_schema(schema), self._stops))
        mask = constraint.mask(time.monotonic())
        for token in self._tokenizer.encode(json.dumps(document, ensure_ascii=False), add_special_tokens=False).ids:
            if not allows(mask, token):
                raise ServerFailed(f"the grammar does not allow {document!r}: mend the benchmark's document")
            begin = time.perf_counter()
            constraint.advance(token)
            mask = constraint.mask(time.monotonic())
            yield time.perf_counter() - begin
        constraint.close()


def allows(mask: Sequence[int] | Any, token: int) -> bool:
    return bool(int(mask[token // 32]) >> (token % 32) & 1)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest rank of sorted figures."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


BENCHMARK = Benchmark(
    "grammar",
    "what masks cost: each, the streams beside one grammar, eight streams with one each",
    measure,
)
