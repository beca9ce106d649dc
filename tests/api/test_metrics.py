"""GET /metrics: counters are exactly what clients got, times are what they measured, and nobody is asked for them."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.declared import METRICS, Metric
from tests.api.conftest import MODEL_ID, ApiProcess, eventually, open_requests, settings_for
from tests.api.scripted_engine import (
    DEADLINE,
    Run,
    Script,
    ScriptedEngine,
    refuse,
    say,
    say_until_cancelled,
)
from tests.support.scrape import Scraped, scrape
from tests.support.sockets import short

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "a question that is nobody's business"}]}


def figure(metric: Metric, value: float, *labels: str) -> pb.Figure:
    return pb.Figure(name=metric.name, labels=labels, value=value)


@pytest.fixture
def before(api: ApiProcess, http: httpx.Client) -> Scraped:
    """Once whoever left in an earlier test is counted."""
    eventually(lambda: open_requests(http) == 0, "nothing of earlier tests is open")
    return scrape(api.url)


def added(api: ApiProcess, before: Scraped) -> Scraped:
    return scrape(api.url).since(before)


def reasons(found: Scraped) -> dict[str, int]:
    name = declared.REQUEST_SUCCESS.written
    counts = {reason: found.value(name, finished_reason=reason) for reason in declared.FINISHED_REASONS}
    return {reason: round(count) for reason, count in counts.items() if count}


def test_every_name_is_declared_with_its_kind_and_nothing_tells_what_was_asked(
    api: ApiProcess, engine: ScriptedEngine, http: httpx.Client
) -> None:
    engine.next(say([70, 71]))
    http.post(CHAT, json=HELLO)
    found = scrape(api.url)
    # The parser knows a counter by its name without the end that all counters have.
    assert {name: kind for name, kind in found.kinds.items() if METRICS[name].kind != kind} == {}
    assert {label for _, labels in found.values for label, _ in labels if label != "le"} <= {
        label for metric in METRICS.values() for label in metric.labels
    }
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "business" not in response.text
    newer = http.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert newer.headers["content-type"].startswith("application/openmetrics-text")


def test_counters_are_exactly_what_clients_got(
    api: ApiProcess, engine: ScriptedEngine, http: httpx.Client, before: Scraped
) -> None:
    usages: list[dict[str, Any]] = []
    finishes: list[str] = []

    def ask(path: str, body: dict[str, Any], *scripts: Script) -> None:
        engine.next(*scripts)
        answer = http.post(path, json=body).json()
        usages.append(answer["usage"])
        finishes.extend(choice["finish_reason"] for choice in answer["choices"])

    ask(CHAT, HELLO, say([70, 71, 72], cached=1))
    ask(COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 2}, say([70, 71], pb.LENGTH))
    ask(COMPLETIONS, {"prompt": [5, 6, 7], "n": 3}, say([70]), say([70, 71]), say([70, 71, 72]))
    ask(COMPLETIONS, {"prompt": [[5, 6], [5, 6, 7, 8]]}, say([70, 71]), say([70, 71]))
    # The answer ends before the engine does, which is then told to stop.
    text = http.post("/detokenize", json={"tokens": [71]}).json()["prompt"]
    ask(COMPLETIONS, {"prompt": [5], "stop": text}, say_until_cancelled([70, 71]))
    engine.next(say([70, 71, 72, 73]))
    streamed = {"prompt": [5, 6], "stream": True, "stream_options": {"include_usage": True}}
    events = [
        line[6:] for line in http.post(COMPLETIONS, json=streamed).text.splitlines() if line.startswith("data: {")
    ]
    usages.append(json.loads(events[-1])["usage"])
    finishes += [
        reason for event in events[:-1] for c in json.loads(event)["choices"] if (reason := c["finish_reason"])
    ]

    found = added(api, before)
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert found.value("chorus_generation_tokens_total") == generated
    assert found.value("chorus_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert found.value("chorus_prompt_tokens_cached_total") == cached == 1
    assert reasons(found) == {reason: finishes.count(reason) for reason in ("stop", "length")}
    for each in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert found.value(f"chorus_{each}_seconds_count") == len(finishes)
    assert found.value("chorus_request_queue_time_seconds_sum") == pytest.approx(0.25 * len(finishes))
    assert found.value("chorus_request_inference_time_seconds_sum") == pytest.approx(2.5 * len(finishes))
    assert found.value("chorus_request_generation_tokens_sum") == generated
    assert found.value("chorus_request_generation_tokens_count") == len(finishes)
    assert found.value("chorus_request_params_n_count") == len(usages)
    assert found.value("chorus_request_params_n_sum") == len(usages) + 2
    assert found.value("chorus_request_max_num_generation_tokens_count") == len(usages)
    # Between the tokens that were shown; a stop token is not.
    shown = generated - sum(reason == "stop" for reason in finishes) + 1
    assert found.value("chorus_inter_token_latency_seconds_count") == shown - len(finishes)


def test_whoever_is_refused_fails_or_leaves_is_counted_as_what_it_is(
    api: ApiProcess, engine: ScriptedEngine, http: httpx.Client, before: Scraped
) -> None:
    engine.next(refuse(pb.REJECTED, "no"), refuse(pb.OVERLOADED, "full"), refuse(pb.FAILED, "the step failed"))
    assert [http.post(CHAT, json=HELLO).status_code for _ in range(3)] == [400, 429, 500]
    assert reasons(added(api, before)) == {"error": 1}

    engine.next(say_until_cancelled([70, 71, 72]))
    with http.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
        lines = response.iter_lines()
        while "content" not in next(lines):
            pass
    eventually(lambda: reasons(added(api, before)) == {"error": 1, "abort": 1}, "the abort was counted")
    found = added(api, before)
    assert found.value("chorus_requests_lost_total") == 0
    assert found.value("chorus_e2e_request_latency_seconds_count") == 0


FIRST, GAP, TOKENS, CLIENTS = 1.6, 0.62, 4, 8
"""Times that lie well within a bucket."""
ROUNDS = 8
"""A machine that has much else to do may hold up a client and not its server."""


def paced(run: Run) -> None:
    pause = threading.Event()
    run.accept()
    for place in range(TOKENS):
        pause.wait(GAP if place else FIRST)
        run.send(70 + place)
    run.finish(
        pb.LENGTH,
        queue_seconds=0.1,
        prompt_seconds=FIRST - 0.1,
        generation_seconds=GAP * (TOKENS - 1),
        prompt_tokens=len(run.submit.prompt),
        generated_tokens=TOKENS,
    )


@dataclass
class Measured:
    """What clients saw, each with a clock of its own."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def clients(url: str) -> Measured:
    seen = Measured()

    async def one(http: httpx.AsyncClient) -> None:
        body = {"prompt": [5, 6], "max_tokens": TOKENS, "stream": True}
        begin, times = time.monotonic(), list[float]()
        async with http.stream("POST", COMPLETIONS, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                    times.append(time.monotonic())
        seen.first.append(times[0] - begin)
        seen.gaps.extend(later - earlier for earlier, later in pairwise(times))
        seen.whole.append(time.monotonic() - begin)

    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as http:
        # Connections are open before anybody looks at a clock: the server's begins with the request.
        await asyncio.gather(*(http.get("/health/live") for _ in range(CLIENTS)))
        await asyncio.gather(*(one(http) for _ in range(CLIENTS)))
    return seen


def compare(found: Scraped, seen: Measured) -> None:
    assert found.value("chorus_generation_tokens_total") == CLIENTS * TOKENS
    for metric, measured in (
        (declared.FIRST_TOKEN, seen.first),
        (declared.INTER_TOKEN, seen.gaps),
        (declared.E2E, seen.whole),
    ):
        assert found.value(f"{metric.name}_count") == len(measured)
        assert found.mean(metric.name) == pytest.approx(statistics.mean(measured), rel=0.05)
        lower, upper = found.bucket_of_quantile(metric.name, 0.95)
        own = sorted(measured)[math.ceil(0.95 * len(measured)) - 1]
        assert lower < own <= upper, (metric.name, own)
    assert found.mean(declared.TIME_PER_TOKEN.name) == pytest.approx(statistics.mean(seen.gaps), rel=0.05)


def test_times_are_those_that_clients_measure(api: ApiProcess, engine: ScriptedEngine) -> None:
    engine.default = paced
    for left in reversed(range(ROUNDS)):
        before = scrape(api.url)
        seen = asyncio.run(clients(api.url))
        try:
            compare(added(api, before), seen)
            return
        except AssertionError:
            if not left:
                raise


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(short(tmp_path_factory.mktemp("own")) / "engine.sock", vocabulary=512)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def own_api(
    own_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("own-api")
    nodes = [{"name": "studio", "ranks": [{"rank": 1, "running": True}]}]
    (folder / "cluster.json").write_text(json.dumps({"nodes": nodes}))
    named = {"rank_names": ["mini"], "status_file": str(folder / "cluster.json")}
    api = ApiProcess(folder, settings_for(own_engine, model_path, recovery={"patience_seconds": 6.0}, **named))
    api.wait_until_live()
    yield api
    api.stop()


def test_a_dead_engine_is_no_reason_for_a_counter_to_go_back_or_a_scrape_to_fail(
    own_engine: ScriptedEngine, own_api: ApiProcess
) -> None:
    def tell(started_at: float, hits: float, running: float, sent: float) -> None:
        own_engine.description.started_at = started_at
        own_engine.figures[:] = [
            figure(declared.PREFIX_HITS, hits),
            figure(declared.RUNNING, running),
            figure(declared.RANK_SENT, sent, "1"),
        ]

    def told() -> tuple[float, float, float, float]:
        found = scrape(own_api.url)
        return (
            found.value("chorus_engine_up"),
            found.value("chorus_prefix_cache_hits_total"),
            found.value("chorus_num_requests_running"),
            found.value("chorus_rank_sent_bytes_total", rank="1"),
        )

    tell(1.0, 10, 3, 500)
    eventually(lambda: told() == (1, 10, 3, 500), "what the engine counts was heard")
    own_engine.default = say([70, 71])
    assert httpx.post(own_api.url + CHAT, json=HELLO, timeout=DEADLINE).status_code == 200

    own_engine.stop()
    eventually(lambda: told() == (0, 10, 0, 500), "the engine was seen to be gone, and what it counted stays")
    assert scrape(own_api.url).value("chorus_generation_tokens_total") == 3

    tell(2.0, 4, 1, 20)
    own_engine.start()
    eventually(lambda: told() == (1, 14, 1, 520), "the next engine's counts came on top")


def test_what_is_told_of_a_rank_names_its_node(own_engine: ScriptedEngine, own_api: ApiProcess) -> None:
    of_ranks = [metric for metric in METRICS.values() if declared.RANK in metric.labels]
    own_engine.figures[:] = [
        figure(metric, 7 + int(rank), rank, *metric.own_labels[1:]) for metric in of_ranks for rank in ("0", "1", "2")
    ]
    # What an engine told before is added to what it counts now.
    eventually(lambda: scrape(own_api.url).has("chorus_rank_step", rank="2"), "what the engine counts was heard")
    found = scrape(own_api.url)
    for metric in of_ranks:
        for rank, node in {"0": "mini", "1": "studio", "2": ""}.items():
            assert found.value(metric.written, rank=rank, node=node) >= 7 + int(rank), metric
            assert found.value(metric.written, rank=rank) == found.value(metric.written, rank=rank, node=node)
    assert {name for name, labels in found.values if "node" in dict(labels)} == {each.written for each in of_ranks}


def spoken(line: str) -> str:
    """What a line of a stream says; the first one of all says who speaks, before any token has come."""
    chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))


def test_requests_that_wait_for_a_lost_engine_are_seen_and_lost_ones_counted(
    own_engine: ScriptedEngine, own_api: ApiProcess
) -> None:
    before = scrape(own_api.url)
    own_engine.default = say_until_cancelled([70])
    with (
        httpx.Client(base_url=own_api.url, timeout=DEADLINE) as http,
        http.stream("POST", CHAT, json={**HELLO, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        while not spoken(next(lines)):
            pass
        own_engine.stop()
        try:
            eventually(lambda: scrape(own_api.url).value("chorus_num_requests_waiting") == 1, "the request waits")
            assert "error" in "".join(lines)
        finally:
            own_engine.start()
    found = added(own_api, before)
    assert (found.value("chorus_requests_lost_total"), reasons(found)) == (1, {"error": 1})
    assert found.value("chorus_generation_tokens_total") == 1
    assert scrape(own_api.url).value("chorus_num_requests_waiting") == 0


def test_scrapes_are_told_in_the_log_no_more_than_probes(api: ApiProcess) -> None:
    scrape(api.url)
    assert MODEL_ID in httpx.get(f"{api.url}/metrics", timeout=DEADLINE).text
    assert '"path": "/metrics"' not in api.log.read_text()
