"""/metrics of a real server: a leader and a rank are killed under its clients, and Prometheus answers every board."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support import failure_logs
from tests.support.ports import listening_port
from tests.support.scrape import Scraped, scrape
from tests.support.server import ChorusServer
from tests.telemetry import boards

DEADLINE = 240.0
NO_END = {"0": -100, "2": -100}
TOKENS = 48
WINDOW = "2m"


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("metrics")
    with ChorusServer(tiny_model, ["--ranks", "2", "--transport", "grpc"], folder) as server:
        yield server


def wait_for(condition: Any, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.1)


def streamed(server: ChorusServer, **more: Any) -> tuple[Iterator[str], contextlib.ExitStack]:
    """The data of each event of a stream, and what closes it."""
    stack = contextlib.ExitStack()
    body = {"prompt": "The quick brown fox", "max_tokens": TOKENS, "temperature": 0, "logit_bias": NO_END, **more}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = stack.enter_context(httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=DEADLINE))
    return (line[6:] for line in response.iter_lines() if line.startswith("data: {")), stack


def never_back(before: Scraped, after: Scraped) -> None:
    """No counter, and no bucket of a histogram, has lost anything."""
    for (name, labels), value in before.values.items():
        if name.endswith(("_total", "_bucket", "_count", "_sum")):
            assert after.values.get((name, labels), 0.0) >= value - 1e-9, (name, labels)


class Got:
    """What clients were told of their answers."""

    def __init__(self) -> None:
        self.usages: list[dict[str, Any]] = []
        self.reasons: list[str] = []

    def take(self, *told: str) -> Got:
        """The events of a stream, or one whole answer."""
        for body in map(json.loads, told):
            self.reasons += [choice["finish_reason"] for choice in body["choices"] if choice["finish_reason"]]
            if usage := body.get("usage"):
                self.usages.append(usage)
        return self

    def sum(self, name: str) -> int:
        return sum(usage[name] for usage in self.usages)

    @property
    def cached(self) -> int:
        return sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in self.usages)


STORED = "The quick brown fox jumps over the lazy dog " * 8


def late_piece(text: str) -> str:
    """A few characters that first come as late in it as can be found."""
    starts = [place for place in range(len(text) - 4) if text.find(text[place : place + 4]) == place]
    return text[starts[-1] : starts[-1] + 4]


def is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("rank", "lost"), [(0, "leader"), (1, "rank")])
def test_counters_are_what_clients_got_and_never_go_back_whoever_is_killed(
    server: ChorusServer, rank: int, lost: str
) -> None:
    # Its first word may be of its load, and counts that later.
    wait_for(lambda: scrape(server.url).value("chorus_rank_memory_bytes", rank="1") > 1e6, "the ranks are heard of")
    asked = {"max_tokens": TOKENS, "temperature": 0, "logit_bias": NO_END}
    whole = server.complete(STORED, **asked)["choices"][0]["text"]
    assert Got().take(json.dumps(server.complete(STORED, **asked))).cached, "the prompt is stored"
    got, before = Got(), scrape(server.url)
    process = psutil.Process(server.get("/cluster/status")["ranks"][rank]["pid"])
    several = {"prompt": ["One story", "Another story"], "n": 2, "max_tokens": TOKENS, "logit_bias": NO_END}
    with ThreadPoolExecutor(1) as others:
        events, stack = streamed(server, prompt=STORED)
        stopped, other_stack = streamed(server, prompt=STORED, stop=late_piece(whole))
        with stack, other_stack:
            heard, also = [next(events) for _ in range(5)], [next(stopped)]
            at_once = others.submit(httpx.post, f"{server.url}/v1/completions", json=several, timeout=DEADLINE)
            process.send_signal(signal.SIGKILL)
            wait_for(lambda: is_dead(process), "it is dead")
            # Nobody is asked, so that nobody's death is waited for.
            meanwhile = scrape(server.url)
            never_back(before, meanwhile)
            got.take(*heard, *events).take(*also, *stopped)
        got.take(at_once.result(DEADLINE).text)
    assert sorted(got.reasons) == [*["length"] * 5, "stop"]

    def recovered() -> bool:
        """As the engine that serves now tells, which is told while it loads, too."""
        after = scrape(server.url)
        more = after.since(before).value("chorus_recoveries_total", lost=lost) == 1
        return more and all(after.value("chorus_rank_memory_bytes", rank=each) > 1e6 for each in ("0", "1"))

    wait_for(recovered, f"the {lost} was replaced")
    after = scrape(server.url)
    never_back(meanwhile, after)
    found = after.since(before)
    assert found.value("chorus_generation_tokens_total") == got.sum("completion_tokens")
    assert found.value("chorus_prompt_tokens_total") == got.sum("prompt_tokens")
    assert found.value("chorus_prompt_tokens_cached_total") == got.cached
    for reason in ("stop", "length", "abort", "error"):
        told = found.value("chorus_request_success_total", finished_reason=reason)
        assert told == got.reasons.count(reason), reason
    assert found.value("chorus_request_generation_tokens_sum") == got.sum("completion_tokens")
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert found.value(f"chorus_{name}_seconds_count") == len(got.reasons), name
    assert found.value("chorus_requests_lost_total") == 0
    assert found.value("chorus_model_loads_total") == (1 if lost == "leader" else 0)


def test_what_ranks_pass_on_is_counted(server: ChorusServer) -> None:
    before = scrape(server.url)
    server.complete("The quick brown fox", max_tokens=8)

    def told() -> bool:
        """All of it, at the latest a second after it was counted; what was counted before may be told now, too."""
        found = scrape(server.url).since(before)
        of_ranks = [found.value(f"chorus_rank_{name}", rank="1") for name in ("sent_bytes_total", "step")]
        names = ("iteration_tokens_count", "prefix_cache_queries_total")
        return all(value > 0 for value in [*of_ranks, *(found.value(f"chorus_{name}") for name in names)])

    wait_for(told, "these steps are told of, and the bytes of them")


@pytest.mark.system
def test_promtool_finds_nothing_to_mend(server: ChorusServer) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=60).content
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


class Prometheus:
    """Debian's, on loopback, scraping one server twice a second."""

    def __init__(self, server: ChorusServer, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{listening_port()}"
        target = server.url.removeprefix("http://")
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
            "scrape_configs": [{"job_name": "chorus", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        log = folder / "prometheus.log"
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        command += [f"--web.listen-address={self.url.removeprefix('http://')}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        failure_logs.keep("Prometheus", log, self.process)

    def ask(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def scrapes(self) -> float:
        try:
            found = self.query('sum_over_time(up{job="chorus"}[5m])')
        except (httpx.HTTPError, ValueError):
            return 0  # it starts, and may say so in plain words
        return float(found[0]["value"][1]) if found else 0

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture
def prometheus(server: ChorusServer, tmp_path: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus(server, tmp_path)
    yield prometheus
    prometheus.stop()


def as_grafana_sends_it(expression: str, model: str) -> str:
    for variable in ("$__rate_interval", "$__interval", "$__range"):
        expression = expression.replace(variable, WINDOW)
    return expression.replace("$model_name", model).replace("$Deployment_id", model)


@pytest.mark.system
def test_prometheus_answers_every_query_of_vllms_boards_and_of_ours(
    server: ChorusServer, prometheus: Prometheus
) -> None:
    model = server.get("/v1/models")["data"][0]["id"]
    wait_for(lambda: prometheus.scrapes() >= 2, "it was scraped twice")
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(lambda number: server.complete(f"Story {number}", max_tokens=16, n=1 + number % 2), range(8)))
    # What leaders count comes a second later.
    seen = prometheus.scrapes()
    wait_for(lambda: prometheus.scrapes() >= seen + 6, "it was scraped after all that, too")

    unanswered, senseless = [], []
    for query in [*boards.vllm_queries(), *boards.our_queries()]:
        found = prometheus.query(as_grafana_sends_it(query, model))
        if not found:
            unanswered.append(query)
        elif not any(math.isfinite(float(series["value"][1])) for series in found):
            senseless.append(query)
    assert (unanswered, senseless) == ([], [])
    for variable in boards.vllm_variables():
        asked = boards.VARIABLE.match(variable)
        assert asked, variable
        only = {"match[]": asked["of"]} if asked["of"] else {}
        assert model in prometheus.ask(f"label/{asked['label']}/values", **only), variable
