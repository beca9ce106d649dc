"""Several models behind one address, from their clients' side: real servers, tiny models."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.many import cycles, swapping
from tests.many.arrivals import Ask, drawn, loads_in_order
from tests.many.models import PROMPTS, Prepared, prepare
from tests.many.swapping import answer, serving, settings
from tests.support.server import ChorusServer, running

DEADLINE = 120.0
STREAMED_TOKENS = 900
"""Of a context of 1024: a stream must not be at its end when a rank is."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("models"), large=False, names=("ada", "bob", "cleo"))


@pytest.fixture(scope="module")
def pair(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    """Two models on two ranks each, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("pair")
    broken = folder / "broken"
    broken.mkdir()
    for file in prepared.path("ada").iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no tensors")
    tree = settings(prepared, 8 * 10**9)
    tree["engine"] |= {"ranks": 2, "context": 1024}
    chosen = [{**entry, "preload": True} for entry in tree["models"] if entry["aliases"] != ["cleo"]]
    tree["models"] = [*chosen, {"source": str(broken), "aliases": ["lost"]}]
    with serving(tree, folder) as server:
        until(lambda: all(states(server)[name] == "ready" for name in ("ada", "bob")))
        yield server


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline, "this does not happen"
        time.sleep(0.05)


def states(server: ChorusServer) -> dict[str, str]:
    return {model["id"]: model["state"] for model in server.get("/cluster/status")["models"]}


def pids(server: ChorusServer) -> dict[str, list[int]]:
    """The processes of each model's ranks."""
    return {
        name: [rank["pid"] for rank in server.get(f"/cluster/status?model={name}")["ranks"]] for name in ("ada", "bob")
    }


def test_interleaved_requests_are_answered_as_by_each_model_alone(pair: ChorusServer, prepared: Prepared) -> None:
    asks = drawn(3, 48, ("ada", "bob"))
    with ThreadPoolExecutor(8) as clients:
        texts = list(clients.map(lambda ask: answer(pair, ask), asks))
    assert texts == [prepared.answers[ask.model][ask.prompt] for ask in asks]


class Stream(threading.Thread):
    """One long answer, with the time at which each part of it came."""

    def __init__(self, server: ChorusServer, model: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/completions"
        self._body = {"model": model, "prompt": PROMPTS[0], "max_tokens": STREAMED_TOKENS, "temperature": 0}
        self.times: list[float] = []
        self.text = ""
        self.failed = ""

    def run(self) -> None:
        body = {**self._body, "stream": True, "logit_bias": {"2": -100}}
        with httpx.stream("POST", self._url, json=body, timeout=DEADLINE) as reply:
            self.failed = "" if reply.status_code == 200 else reply.read().decode()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    self.failed = self.failed or str(event.get("error", ""))
                    self.text += "".join(choice["text"] for choice in event.get("choices", ()))
                    self.times.append(time.monotonic())

    def gap(self, began: float, ended: float) -> float:
        """The longest time without a part, between these two moments."""
        times = [began, *(moment for moment in self.times if began < moment < ended)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def test_a_killed_rank_of_one_model_leaves_the_others_streams_alone(
    pair: ChorusServer, record_property: Callable[[str, object], None]
) -> None:
    calm = Stream(pair, "bob")
    calm.start()
    calm.join(DEADLINE)
    assert not calm.failed
    until(lambda: all(len(ranks) == 2 for ranks in pids(pair).values()))
    victim, before = pids(pair)["ada"][1], pids(pair)["bob"]
    hurt, other = Stream(pair, "ada"), Stream(pair, "bob")
    for stream in (hurt, other):
        stream.start()
    until(lambda: (hurt.times and other.times) or hurt.failed or other.failed)
    killed = time.monotonic()
    psutil.Process(victim).kill()
    for stream in (hurt, other):
        stream.join(DEADLINE)
    assert not hurt.failed
    assert not other.failed
    assert other.text == calm.text
    assert len(hurt.text) > 0
    until(lambda: len(ranks := pids(pair)["ada"]) == 2 and victim not in ranks)
    assert pids(pair)["bob"] == before
    record_property("largest gap before", calm.gap(calm.times[0], calm.times[-1]))
    record_property("largest gap of the other model", other.gap(killed, other.times[-1]))


def test_a_model_that_cannot_be_loaded_fails_its_own_requests_only(pair: ChorusServer, prepared: Prepared) -> None:
    reply = httpx.post(f"{pair.url}/v1/completions", json={"model": "lost", "prompt": "x"}, timeout=DEADLINE)
    assert reply.status_code == 503
    assert "broken" in reply.text
    ask = Ask("ada", PROMPTS[1], stream=False)
    assert answer(pair, ask) == prepared.answers["ada"][ask.prompt]


def test_an_unknown_model_is_told_the_nearest(pair: ChorusServer) -> None:
    reply = httpx.post(f"{pair.url}/v1/completions", json={"model": "bobb", "prompt": "x"}, timeout=DEADLINE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert "'bob'" in reply.json()["error"]["message"]


def test_models_that_do_not_fit_together_take_turns(prepared: Prepared, tmp_path: Path) -> None:
    outcome = swapping.run(prepared, tmp_path, requests=10, clients=3, seed=2)
    assert outcome.wrong == ()
    assert 0 < outcome.most_booked <= outcome.budget
    assert outcome.most_held <= 1.05 * outcome.budget
    # How few they are is measured (`python -m tests.many`): with ten requests that is a matter of chance.
    assert 3 <= outcome.loads <= len(outcome.arrived)


def test_an_unloaded_model_leaves_nothing_in_memory(prepared: Prepared, tmp_path: Path) -> None:
    seen = cycles.run(prepared, tmp_path, cycles=2)
    assert seen.wrong == ()
    assert max(seen.loaded) > seen.before + 20 * swapping.MB
    assert seen.growth <= cycles.KEPT_BYTES


def test_loads_in_the_order_of_arrival() -> None:
    assert loads_in_order(["a", "b", "a", "c", "a", "b"], 2) == 4


def test_group_processes_are_told_from_others(pair: ChorusServer) -> None:
    """What is sampled is what groups hold: two leaders and their ranks, and no front end."""
    found = swapping.group_processes(pair)
    assert len(running(found, "chorus.engine")) == 2
    assert not running(found, "chorus.api")
