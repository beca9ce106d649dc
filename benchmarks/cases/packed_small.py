"""Products on packed weights for SmolLM2: speed against another checkout and llama.cpp, and what they do to a text."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.cases import common, packed
from benchmarks.cases.grammar import NO_END
from benchmarks.inprocess import LlamaCpp
from benchmarks.load import body, streams
from benchmarks.models import default_gguf, stored_default
from benchmarks.perplexity import TOKENS, perplexity
from benchmarks.prompts import TokenPrompts
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run, awake
from benchmarks.servers import HttpServer, chorus

STREAMS = (1, 8)
UNPACKED, PACKED = "float32, unpacked", "float32, packed"
PERPLEXITY = "perplexity of a fixed text"
CHANGE = "change of the perplexity by packing, either way"
QUICK_TOKENS = 256


def measure(run: Run) -> list[Goal]:
    model = stored_default()
    prompts = TokenPrompts(model, run.options.seed)
    options = ("--threads", str(packed.THREADS))
    with ExitStack() as running:
        ours = running.enter_context(chorus(model, *options, name=packed.NOW))
        theirs = running.enter_context(chorus(model, *options, name=packed.BEFORE, checkout=packed.checkout(run)))
        packed.check_packed(ours)
        sides = [partial(measure_server, run, server, prompts) for server in (ours, theirs)]
        for server in (ours, theirs):
            packed.warm(server, prompts, STREAMS)
        if run.options.llama:
            peer = running.enter_context(LlamaCpp(Path(run.options.llama), default_gguf(), threads=packed.THREADS))
            run.notes.append(f"llama.cpp: llama-cpp-python {peer.ready['version']}, in process, no server before it")
            measure_llama(Run(run.options, run.say), peer, prompts)
            peer.pause()
            sides.append(partial(measure_llama, run, peer, prompts))
        else:
            run.notes.append("llama.cpp was not measured: --llama names no Python that has it")
        run.interleave(*sides)
    tokens = QUICK_TOKENS if run.options.quick else TOKENS
    run.notes.append(f"perplexity over {tokens:,} tokens, teacher forced, in chunks")
    found = {}
    for policy in (UNPACKED, PACKED):
        run.say(f"perplexity, {policy}")
        found[policy] = perplexity(model, policy, threads=packed.THREADS, tokens=tokens)
        run.samples.add(PERPLEXITY, "", policy, found[policy])
    run.samples.add(CHANGE, "%", packed.NOW, 100 * abs(found[PACKED] / found[UNPACKED] - 1))
    return [
        Goal(common.DECODE, packed.NOW, ">=", 1.7, against=packed.BEFORE),
        Goal(packed.throughput(8), packed.NOW, ">=", 1.4, against=packed.BEFORE),
        Goal(CHANGE, packed.NOW, "<=", 0.5),
    ]


def measure_server(run: Run, server: HttpServer, prompts: TokenPrompts) -> None:
    for number in STREAMS:
        asked = prompts.several(number, common.SHORT_PROMPT)
        bodies = [body(prompt, run.options.tokens) | {"logit_bias": NO_END} for prompt in asked]
        packed.add_rates(run, server.name, streams(server, bodies))


def measure_llama(run: Run, peer: LlamaCpp, prompts: TokenPrompts) -> None:
    with awake(peer):
        for number in STREAMS:
            asked = prompts.several(number, common.SHORT_PROMPT)
            packed.add_rates(run, peer.name, peer.generate(asked, run.options.tokens))


BENCHMARK = Benchmark(
    "packed_small", "SmolLM2 on a CPU: speed against another checkout (--before FOLDER), perplexity", measure
)
