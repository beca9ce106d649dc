"""Traces cost a front end nothing where nobody wants them, and hold up nobody where nobody takes them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from chorus.api.tracing import asked_of
from chorus.config.settings import Settings
from chorus.deploy.front_end import CannotServe, find_access
from chorus.messages.engine import Sampling
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.requests.request import GenerationRequest
from chorus.telemetry.spans import ChoiceTimes, RankPart, parts_of
from chorus.telemetry.traces import is_asked_for
from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, say
from tests.support.collector import Collector


def break_off(run: Run) -> None:
    run.accept()
    run.send(70)
    run.finish(pb.FAILED, error="the rank broke")


TEXT = {"prompt": "Once upon a time", "max_tokens": 4}


def test_without_a_collector_opentelemetrys_sdk_is_not_loaded(model_path: Path) -> None:
    code = f"""
from chorus.api.process import build_service
from chorus.config.front_end import ApiSettings
model = dict(engine_address="unix:/none", id="m", name="m", path={str(model_path)!r})
assert build_service(ApiSettings(models=(model,))).traces is None
import json, sys
print(json.dumps([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_an_answer_names_no_trace_where_none_is_sent(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70, 71]))
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    answer = http.post("/v1/completions", json=TEXT, headers=headers)
    assert answer.status_code == 200
    assert "traceresponse" not in answer.headers


@pytest.mark.parametrize(
    ("setting", "variables", "asked"),
    [
        (None, {}, False),
        ("http://here:4318", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://here:4318/x"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here", "OTEL_TRACES_EXPORTER": "none"}, False),
        ("http://here:4318", {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_setting_or_opentelemetrys_own_variables_name_the_collector(
    setting: str | None, variables: dict[str, str], asked: bool
) -> None:
    assert is_asked_for(setting, variables) is asked


def test_a_collector_that_a_variable_names_gets_an_errors_span(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        api = start_api()
        engine.next(break_off)
        with httpx.stream(
            "POST", f"{api.url}/v1/completions", json={**TEXT, "stream": True}, timeout=DEADLINE
        ) as answer:
            trace = answer.headers["traceresponse"].split("-")[1]
            assert "engine_failed" in answer.read().decode()
        root, *_ = collector.wait_for(trace)
        assert root.failed
        assert root.attributes["error.type"] == "engine_failed"
        assert root.attributes["http.response.status_code"] == 200  # it had begun
        assert root.resource["service.name"] == "chorus"


def test_a_collector_that_takes_nothing_holds_up_neither_answers_nor_the_end(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine
) -> None:
    """It accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = start_api(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(5):
            engine.next(say([70, 71]))
            assert httpx.post(f"{api.url}/v1/completions", json=TEXT, timeout=DEADLINE).status_code == 200
        api.stop()
        assert api.process.returncode == 0


def test_without_the_sdk_one_line_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotServe, match=r"telemetry\.otlp_endpoint: traces need .*: pip install opentelemetry-sdk"):
        find_access(Settings(telemetry={"otlp_endpoint": "http://127.0.0.1:4318"}), insecure=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "told"), [(7, 7), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (-5 % 2**64, -5)])
def test_every_seed_is_a_number_that_a_collector_takes(asked: int, told: int) -> None:
    request = GenerationRequest(prompts=("Hello",), sampling=Sampling(seed=asked))
    assert asked_of(request, stream=False)["seed"] == told


def test_parts_follow_each_other_and_none_begins_before_its_request() -> None:
    times = ChoiceTimes(0, 110.0, 1.0, 2.0, 4.0, 20, 5, 9)
    ranks = [RankPart(0, "here", "host", "cpu", 3, 6), RankPart(1, "there", "other", "cpu", 0, 2)]
    spans = parts_of(times, ranks, 100.0)
    assert [(span.name, span.begin, span.end) for span in spans] == [
        ("queue", 103.0, 104.0),
        ("prefill", 104.0, 106.0),
        ("decode", 106.0, 110.0),
        ("rank 0", 104.0, 110.0),
        ("rank 1", 104.0, 110.0),
    ]
    assert all(span.begin >= 105.0 for span in parts_of(times, ranks, 105.0))
