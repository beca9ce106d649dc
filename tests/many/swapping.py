"""More models than memory holds: all are answered right, within the budget, with few loads."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.many.arrivals import Ask, drawn, loads_in_order
from tests.many.memory import Sampled
from tests.many.models import TOKENS, Prepared
from tests.support.server import ChorusServer, running

MB = 10**6
CACHE_MB, RESERVE_MB = 32, 256
PATIENCE_SECONDS = 60.0
ANSWER_SECONDS = 4 * PATIENCE_SECONDS
GROUP_MODULES = ("chorus.engine", "chorus.rank", "chorus.text.grammar")


@dataclass(frozen=True)
class Outcome:
    wrong: tuple[str, ...]
    """What was not answered, or not as the model alone would."""
    arrived: tuple[str, ...]
    loads: int
    loads_in_order: int
    """Of a server that answers in the order of arrival."""
    budget: int
    most_booked: int
    most_held: int
    samples: int
    seconds: float

    def told(self) -> str:
        return (
            f"{len(self.arrived)} requests in {self.seconds:.0f} s, {len(self.wrong)} wrong; {self.loads} loads, "
            f"{self.loads_in_order} in the order of arrival; budget {self.budget / MB:.0f} MB, booked at most "
            f"{self.most_booked / MB:.0f}, held at most {self.most_held / MB:.0f} in {self.samples} samples"
        )


def budget_for(prepared: Prepared, models: int) -> int:
    """Room for so many models, and not for one more."""
    weights = max(file.stat().st_size for file in prepared.folder.glob("*/model.safetensors"))
    return int((models + 0.4) * (weights + (CACHE_MB + RESERVE_MB) * MB))


def settings(prepared: Prepared, budget: int, **load: Any) -> dict[str, Any]:
    """A small cache and a small reserve: what is booked is then near what is held."""
    return {
        "models": [
            {"source": str(prepared.path(name)), "aliases": [name], "preload": False} for name in prepared.answers
        ],
        "engine": {"context": 512, "reserve_mb": RESERVE_MB},
        "cache": {"memory": f"{CACHE_MB}MB"},
        "load": {"memory": budget, "patience_seconds": PATIENCE_SECONDS, "min_loaded_seconds": 1, **load},
    }


@contextlib.contextmanager
def serving(tree: dict[str, Any], folder: Path) -> Iterator[ChorusServer]:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "chorus.json"
    file.write_text(json.dumps(tree))
    state = {"CHORUS_STATE": str(folder / "state")}
    with ChorusServer(None, ["-c", str(file)], folder, state) as server:
        yield server


def group_processes(server: ChorusServer) -> list[psutil.Process]:
    processes = server.processes()
    return [process for module in GROUP_MODULES for process in running(processes, module)]


def run(
    prepared: Prepared, folder: Path, requests: int, clients: int, seed: int, min_loaded_seconds: float = 1.0
) -> Outcome:
    names, budget = tuple(prepared.answers), budget_for(prepared, 2)
    asks, lock = iter(drawn(seed, requests, names)), threading.Lock()
    arrived: list[str] = []
    wrong: list[str] = []

    def client() -> None:
        while True:
            with lock:
                asked = next(asks, None)
                if asked is None:
                    return
                arrived.append(asked.model)
            text = answer(server, asked)
            if text != (right := prepared.answers[asked.model][asked.prompt]):
                wrong.append(f"{asked}: {text!r} and not {right!r}")

    tree = settings(prepared, budget, min_loaded_seconds=min_loaded_seconds)
    with serving(tree, folder) as server:
        began = time.monotonic()
        with Sampled(lambda: group_processes(server)) as sampled, ThreadPoolExecutor(clients) as pool:
            for each in [pool.submit(client) for _ in range(clients)]:
                each.result()
        seconds = time.monotonic() - began
        loads = sum(model["loads"] for model in server.get("/cluster/status")["models"])
        booked = most_booked(server.log)
    return Outcome(
        tuple(wrong),
        tuple(arrived),
        loads,
        loads_in_order(arrived, 2),
        budget,
        booked,
        sampled.most,
        sampled.samples,
        seconds,
    )


def answer(server: ChorusServer, asked: Ask) -> str:
    """The text of one answer, or why there is none."""
    body = {"model": asked.model, "prompt": asked.prompt, "max_tokens": TOKENS, "temperature": 0}
    try:
        if not asked.stream:
            reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=ANSWER_SECONDS)
            return str(reply.json()["choices"][0]["text"]) if reply.status_code == 200 else reply.text
        return streamed(server, body)
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return f"no answer: {error!r}"


def streamed(server: ChorusServer, body: dict[str, Any]) -> str:
    text = ""
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=ANSWER_SECONDS
    ) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return f"error: {event['error']}"
                text += "".join(choice["text"] for choice in event["choices"])
    return text


_BOOKED = re.compile(r"([\d.]+) of [\d.]+ MB are booked")


def most_booked(log: str) -> int:
    return max((round(float(found[1]) * MB) for found in _BOOKED.finditer(log)), default=0)
