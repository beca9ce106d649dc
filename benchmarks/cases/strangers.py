"""What a client with a key notices of thousands of strangers who have none."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import httpx

from benchmarks.crowd import Crowd
from benchmarks.models import TINY, model_folder
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import HttpServer, ServerFailed, chorus
from chorus.security.key_file import add_key

STRANGERS = 2000
SECONDS = 5.0
"""Of each measurement: about as long as strangers take to come back."""
ALONE, AMID = "alone", "amid strangers"
KEPT, NEW = "one token, connection kept", "one token, connection new each time"
HELD = "connections that the server holds"


def measure(run: Run) -> list[Goal]:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        headers = {"authorization": f"Bearer {add_key(keys, 'client')}"}
        with chorus(model_folder(TINY), environment={"CHORUS_KEYS_FILE": str(keys)}) as server:
            latencies(server, headers, SECONDS / 4, kept=True)

            def side(name: str) -> None:
                for measure, kept in ((KEPT, True), (NEW, False)):
                    found = latencies(server, headers, SECONDS, kept)
                    run.samples.add(measure, "ms", name, 1000 * median(found))
                    run.samples.add(f"{measure}, 95 of 100", "ms", name, 1000 * quantiles(found, n=20)[-1])
                run.samples.add(HELD, "", name, held(server))

            def amid() -> None:
                with Crowd(server.port, STRANGERS):
                    side(AMID)

            run.interleave(lambda: side(ALONE), amid)
    return [Goal(measure, AMID, "<=", 2, ALONE) for measure in (KEPT, NEW)]


def latencies(server: HttpServer, headers: dict[str, str], seconds: float, kept: bool) -> list[float]:
    """Of one request after the other."""
    body = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
    limits = httpx.Limits(max_keepalive_connections=1 if kept else 0)
    found: list[float] = []
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, limits=limits, trust_env=False) as http:
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            answer = http.post("/v1/completions", json=body)
            found.append(time.perf_counter() - begin)
            if answer.status_code != 200:
                raise ServerFailed(f"{server.name} answers {answer.status_code}: {answer.text[:200]}")
    return found


def held(server: HttpServer) -> int:
    (front_end,) = server.processes_running("chorus.api")
    return sum(connection.status == "ESTABLISHED" for connection in front_end.net_connections(kind="tcp"))


BENCHMARK = Benchmark("strangers", f"a client with a key amid {STRANGERS} connections that have shown none", measure)
