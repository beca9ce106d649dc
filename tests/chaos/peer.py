"""The same faults with upstream's own server over two ranks: what a client sees, and when.

With a random model, since upstream has pipelines for few architectures, and SmolLM2's is none of them.
"""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil

from benchmarks.models import QWEN2, model_folder
from benchmarks.servers import HttpServer, ServerFailed, mlx_launch

NAME = "mlx.launch -n 2 mlx_lm.server --pipeline"
DEADLINE = 60.0
"""Who has seen nothing by then sees nothing any more."""
PIECES = 8
TOKENS = 200
RANKS = {"leader": "0", "follower": "1"}
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Seen:
    """What the client of one stream saw of a fault."""

    kind: str
    victim: str
    noticed: float | None
    """Seconds until its stream ended, in whatever way; None: it did not."""
    answered: float | None
    """Seconds until somebody was answered again; None: nobody was."""


def measure() -> list[Seen]:
    return [_tried(kind, victim) for victim in RANKS for kind in KINDS]


def _tried(kind: str, victim: str, tries: int = 3) -> Seen:
    """Again where it does not start: a port of its ring may be taken meanwhile."""
    try:
        return _one(kind, victim)
    except ServerFailed:
        if tries == 1:
            raise
        return _tried(kind, victim, tries - 1)


def rows(seen: list[Seen]) -> list[str]:
    """Markdown."""
    lines = [f"| fault, `{NAME}` | stream ended after | answers again after | lost |", "| --- | --- | --- | --- |"]
    never = f"not within {DEADLINE:g} s"
    for one in seen:
        noticed, answered = (never if value is None else f"{value:.2f} s" for value in (one.noticed, one.answered))
        lines.append(f"| {one.kind}, {one.victim} | {noticed} | {answered} | 1 of 1 |")
    return lines


def _one(kind: str, victim: str) -> Seen:
    with mlx_launch(model_folder(QWEN2), "--pipeline", ranks=2, threads=1, name=NAME) as server:
        began = ended = None
        body = {"prompt": "The quick brown fox", "max_tokens": TOKENS, "temperature": 0, "stream": True}
        timeout = httpx.Timeout(DEADLINE)
        with (
            suppress(httpx.HTTPError),
            httpx.stream(
                "POST", f"{server.url}/v1/completions", json=body, timeout=timeout, trust_env=False
            ) as response,
        ):
            pieces = 0
            for line in response.iter_lines():
                pieces += line.startswith("data: ")
                if pieces == PIECES and began is None:
                    rank_process(server, RANKS[victim]).send_signal(KINDS[kind])
                    began = time.monotonic()
        ended = time.monotonic()
        if began is None:
            raise ServerFailed(f"{NAME} ended before its fault:\n{server.log_tail()}")
        waited = ended - began
        return Seen(kind, victim, waited if waited < DEADLINE else None, _answered(server, began))


def rank_process(server: HttpServer, rank: str) -> psutil.Process:
    for process in server.processes_running("benchmarks.peer"):
        if process.environ().get("MLX_RANK") == rank:
            return process
    raise ServerFailed(f"{NAME} has no rank {rank}:\n{server.log_tail()}")


def _answered(server: HttpServer, since: float) -> float | None:
    """When it gave a whole answer again."""
    body = {"prompt": "The quick brown fox", "max_tokens": 4, "temperature": 0}
    while (left := since + DEADLINE - time.monotonic()) > 0:
        with suppress(httpx.HTTPError, json.JSONDecodeError):
            url = f"{server.url}/v1/completions"
            if httpx.post(url, json=body, timeout=left, trust_env=False).json().get("choices"):
                return time.monotonic() - since
        time.sleep(0.2)
    return None


if __name__ == "__main__":
    print(*rows(measure()), sep="\n")
