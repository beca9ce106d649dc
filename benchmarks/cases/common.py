"""The measurements that several benchmarks share."""

from __future__ import annotations

from benchmarks.load import Answer, many_streams, one_stream, time_to_first_token
from benchmarks.prompts import Prompts
from benchmarks.run import Run
from benchmarks.servers import HttpServer, ServerFailed
from chorus.platform.cpu import cores

SHORT_PROMPT = 16
LONG_PROMPT = 1024
STREAMS = 8
MANY_STREAMS = 16

DECODE = "decode, 1 stream"
FIRST_TOKEN = f"time to first token, {LONG_PROMPT:,}-token prompt"


def throughput_of(streams: int) -> str:
    return f"throughput, {streams} streams"


THROUGHPUT = throughput_of(STREAMS)


def warm(server: HttpServer, prompts: Prompts, *, long_prompt: bool = False) -> None:
    """First calls load, compile and allocate; none of that is what we compare."""
    one_stream(server, prompts.of(SHORT_PROMPT), 4)
    many_streams(server, prompts.several(STREAMS, SHORT_PROMPT), 4)
    if long_prompt:
        time_to_first_token(server, prompts.of(LONG_PROMPT))


def decode(run: Run, server: HttpServer, prompts: Prompts) -> None:
    add_decode(run, server.name, one_stream(server, prompts.of(SHORT_PROMPT), run.options.tokens))


def add_decode(run: Run, side: str, answer: Answer) -> None:
    if answer.total_seconds <= answer.first_seconds:
        raise ServerFailed(f"{side} sent all its text at once: its decode speed cannot be seen")
    run.samples.add(DECODE, "tok/s", side, answer.decode_rate)


def throughput(run: Run, server: HttpServer, prompts: Prompts, streams: int = STREAMS) -> None:
    batch = many_streams(server, prompts.several(streams, SHORT_PROMPT), run.options.tokens)
    run.samples.add(throughput_of(streams), "tok/s", server.name, batch.rate)


def peer_threads(ranks: int) -> int:
    """A core for each thread of the peer's ranks: what is left to its front end, it takes from them itself."""
    return cores.most_threads(cores.usable_cores(), ranks)


def first_token(run: Run, server: HttpServer, prompts: Prompts) -> None:
    answer = time_to_first_token(server, prompts.of(LONG_PROMPT))
    if answer.cached_tokens > SHORT_PROMPT:
        raise ServerFailed(f"{server.name} took {answer.cached_tokens} tokens of a new prompt from its cache")
    run.samples.add(FIRST_TOKEN, "s", server.name, answer.total_seconds)
