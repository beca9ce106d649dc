"""A real server over two ranks sends its traces to a real collector: one tree for each request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from chorus.telemetry.spans import OWN
from tests.support.collector import Collector
from tests.support.server import ChorusServer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SECRET = "never to be told"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(tiny_model: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("traced")
    (folder / f"{OWN}yaml").write_text(f"telemetry: {{otlp_endpoint: '{collector.url}'}}\n")
    variables = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_SERVICE_NAME": "choir"}
    with ChorusServer(
        tiny_model, ["--ranks", "2", "--split", "4,3", "--transport", "grpc"], folder, variables
    ) as server:
        yield server


def test_a_request_is_one_tree_over_two_ranks_below_its_clients_span(
    traced: ChorusServer, collector: Collector
) -> None:
    before = time.time_ns()
    answer = httpx.post(
        f"{traced.url}/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": SECRET}],
            "max_tokens": 12,
            "temperature": 0.5,
            "seed": 7,
            "stop": ["NEVER"],
            "logit_bias": {"2": -100},
        },
        headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    root, *parts = collector.wait_for(TRACE)
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{root.span_id}-01"
    assert (root.name, root.parent_id, root.failed) == ("chat tiny", PARENT, False)
    told = root.attributes
    usage = answer.json()["usage"]
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "chorus"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "tiny"
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 12
    assert told["gen_ai.usage.cache_read.input_tokens"] == 0
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.temperature"]) == (12, 0.5)
    assert told["gen_ai.request.seed"] == 7
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told[f"{OWN}request_id"] == answer.headers["x-request-id"]
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", httpx.URL(traced.url).port)
    assert told["http.response.status_code"] == 200
    assert root.resource["service.name"] == "choir"
    assert sorted(part.name for part in parts) == ["decode", "prefill", "queue", "rank 0", "rank 1"]
    named = {part.name: part for part in parts}
    assert {part.parent_id for part in parts} == {root.span_id}
    assert named["queue"].end == named["prefill"].begin
    assert named["prefill"].end == named["decode"].begin
    assert all(root.begin <= part.begin <= part.end <= root.end for part in parts)
    assert before <= root.end
    layers = [
        (named[f"rank {n}"].attributes[f"{OWN}first_layer"], named[f"rank {n}"].attributes[f"{OWN}last_layer"])
        for n in (0, 1)
    ]
    assert layers == [(3, 6), (0, 2)]
    assert {named["rank 1"].begin, named["rank 0"].begin} == {named["prefill"].begin}
    assert named["rank 1"].end == named["decode"].end
    assert SECRET not in repr(collector.spans)
    assert "NEVER" not in repr(collector.spans)


def test_requests_without_a_parent_have_a_tree_each_and_streams_too(traced: ChorusServer, collector: Collector) -> None:
    body = {"prompt": "one two", "max_tokens": 3, "n": 2, "stream": True, "logit_bias": {"2": -100}, "temperature": 1}
    answers = [httpx.post(f"{traced.url}/v1/completions", json=body, timeout=300) for _ in range(2)]
    traces = [answer.headers["traceresponse"].split("-")[1] for answer in answers]
    assert len(set(traces)) == 2
    for trace in traces:
        root, *parts = collector.wait_for(trace)
        assert (root.name, root.parent_id) == ("text_completion tiny", "")
        assert root.attributes["gen_ai.request.stream"] is True
        assert root.attributes["gen_ai.request.choice.count"] == 2
        assert root.attributes["gen_ai.usage.output_tokens"] == 6
        for choice in (0, 1):
            assert sum(part.attributes[f"{OWN}choice"] == choice for part in parts) == 5


def test_what_fails_is_marked_with_the_kind_that_its_client_was_told(
    traced: ChorusServer, collector: Collector
) -> None:
    body = {"messages": [{"role": "user", "content": SECRET * 2000}], "max_tokens": 3}
    answer = httpx.post(f"{traced.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    root, *parts = collector.wait_for(answer.headers["traceresponse"].split("-")[1])
    assert root.failed
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert root.attributes["http.response.status_code"] == 400
    assert parts == []


def test_a_client_that_asks_not_to_be_sampled_is_not(traced: ChorusServer, collector: Collector) -> None:
    unwanted = "1" * 32
    headers = {"traceparent": f"00-{unwanted}-{PARENT}-00"}
    body = {"prompt": "one", "max_tokens": 1}
    answer = httpx.post(f"{traced.url}/v1/completions", json=body, headers=headers, timeout=300)
    assert answer.headers["traceresponse"].startswith(f"00-{unwanted}-")
    wanted = httpx.post(f"{traced.url}/v1/completions", json=body, headers={"traceparent": "nonsense"}, timeout=300)
    collector.wait_for(wanted.headers["traceresponse"].split("-")[1])
    assert unwanted not in {span.trace_id for span in collector.spans}
    assert set(collector.paths) == {"/v1/traces"}
