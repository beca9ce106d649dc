"""What 50 browsers that watch the page cost the front end, and what a client notices of them."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from statistics import median
from types import TracebackType
from typing import Self

import httpx

from benchmarks.models import SMOLLM2
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus

BROWSERS = 50
REST_SECONDS = 5.0
TOKENS = 64
ALONE, WATCHED = "alone", f"{BROWSERS} watch"
MORE = "cores that the front end takes more than alone"
CPU, RATE, FIRST = "the front end's share of a core", "tokens per second, one stream", "first token"
MOST_MORE = 0.03


class Browsers:
    """Plain sockets in a thread that read what comes: they are to cost the server something, and the machine little."""

    def __init__(self, port: int, number: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(number)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.frames = 0

    def __enter__(self) -> Self:
        for each in self._sockets:
            each.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            self._selector.register(each, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.2):
                self.frames += key.fileobj.recv(1 << 16).count(b"data: ")  # type: ignore[union-attr]


def measure(run: Run) -> list[Goal]:
    with chorus(SMOLLM2) as server:
        answer(server)

        def side(name: str) -> float:
            taken = cpu_at_rest(server)
            run.samples.add(CPU, "", name, taken)
            rate, first = answer(server)
            run.samples.add(RATE, "tok/s", name, rate)
            run.samples.add(FIRST, "ms", name, 1000 * first)
            return taken

        rest: list[float] = []

        def alone() -> None:
            rest.append(side(ALONE))

        def watched() -> None:
            with Browsers(server.port, BROWSERS) as browsers:
                time.sleep(1.5)
                run.samples.add(MORE, "", WATCHED, side(WATCHED) - rest[-1])
            if browsers.frames < BROWSERS * REST_SECONDS / 2:
                raise ServerFailed(f"{BROWSERS} browsers were shown {browsers.frames} pictures only")

        run.interleave(alone, watched)
    return [
        Goal(MORE, WATCHED, "<=", MOST_MORE),
        Goal(RATE, WATCHED, ">=", 0.97, ALONE),
        Goal(FIRST, WATCHED, "<=", 1.05, ALONE),
    ]


def cpu_at_rest(server: HttpServer) -> float:
    (front_end,) = server.processes_running("chorus.api")
    before, began = front_end.cpu_times(), time.monotonic()
    time.sleep(REST_SECONDS)
    after = front_end.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def answer(server: HttpServer) -> tuple[float, float]:
    """Tokens per second and the time to the first one, medians of three."""
    body = {"prompt": "The quick brown fox", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    # An answer that ends early has no speed to speak of.
    body |= {"logit_bias": {"0": -100, "2": -100}}
    rates, firsts = [], []
    for _ in range(3):
        began = time.perf_counter()
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False) as stream:
            if stream.status_code != 200:
                raise ServerFailed(f"{server.name} answers {stream.status_code}")
            times = [time.perf_counter() for line in stream.iter_lines() if line.startswith("data: {")]
        firsts.append(times[0] - began)
        rates.append((len(times) - 1) / (times[-1] - times[0]))
    return median(rates), median(firsts)


BENCHMARK = Benchmark("watched", f"a server alone, and while {BROWSERS} browsers watch its page", measure)
