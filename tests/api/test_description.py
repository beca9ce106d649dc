"""The API's description of itself, and schemathesis, which takes it at its word."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import ApiProcess, settings_for
from tests.api.scripted_engine import ScriptedEngine, say

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
CASES = 2000


@pytest.fixture
def described(engine: ScriptedEngine, tool_model_path: Path, tmp_path: Path) -> Iterator[ApiProcess]:
    engine.default = say([70, 71, 72])
    engine.description.context_length = 4000
    api = ApiProcess(tmp_path, settings_for(engine, tool_model_path, embeddings=True, log_level="error"))
    api.wait_until_live()
    yield api
    api.stop()
    engine.description.context_length = 256


def test_every_endpoint_is_described(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"):
        operation = paths[path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(operation["responses"])


@pytest.mark.timeout(900)
def test_whatever_the_description_allows_or_forbids_is_answered_as_it_says(
    described: ApiProcess, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{described.url}/openapi.json"]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "20", "--seed", "1", "--continue-on-failure"]
    command += ["--checks", ",".join(CHECKS), "--no-shrink", "--suppress-health-check", "all", "--no-color"]
    command += ["--request-timeout", "60", "--generation-database", "none"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    found = re.search(r"(\d+) generated", run.stdout)
    assert found, run.stdout[-2000:]
    assert int(found[1]) >= CASES
