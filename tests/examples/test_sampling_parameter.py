"""A sampling parameter of one's own: over HTTP, over LocalAI and as the server's default it changes what is drawn."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.examples.support import changed_files, patched
from tests.localai.process import Backend
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

PROMPT = "Many machines, one"
BOLD = {"temperature": 2, "seed": 7}
"""Drawn so, an answer is never the likeliest one."""
NARROW = 0.001
"""So near the best logit is no other: what is drawn is the likeliest answer, however bold."""


@pytest.fixture(scope="module")
def source() -> dict[str, str]:
    return {"PYTHONPATH": str(patched("sampling_parameter") / "src")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=4096)


def test_it_touches_four_files() -> None:
    written = [file for file in changed_files("sampling_parameter") if "_pb2" not in file]
    assert written == [
        "src/chorus/config/sampling.py",
        "src/chorus/engine/sampling.py",
        "src/chorus/messages/engine.py",
        "src/chorus/messages/proto/engine.proto",
    ]


def test_a_request_says_it_over_http_or_the_server_says_it_for_all(
    model: Path, source: dict[str, str], tmp_path: Path
) -> None:
    default = {"CHORUS_SAMPLING__TOP_N_SIGMA": str(NARROW)}
    with ChorusServer(model, [], tmp_path, {**source, **default}) as server:
        likeliest = server.text(PROMPT)
        assert server.text(PROMPT, **BOLD) == likeliest
        assert server.text(PROMPT, **BOLD, top_n_sigma=0) != likeliest
        assert server.text(PROMPT, **BOLD, top_n_sigma=NARROW) == likeliest
        body = {"prompt": PROMPT, "top_n_sigma": -1}
        refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_n_sigma")


def test_the_owner_of_a_model_fixes_it_over_localai(model: Path, source: dict[str, str], tmp_path: Path) -> None:
    bold = {"Temperature": 2, "Seed": 7}
    with Backend(tmp_path, environment=source) as backend:
        backend.load(model)
        likeliest = backend.text(PROMPT)
        assert backend.text(PROMPT, **bold) != likeliest
        backend.load(model, f"top_n_sigma:{NARROW}")
        assert backend.text(PROMPT, **bold) == likeliest
        refused = backend.client.LoadModel(Model=str(model), Options=["top_n_sigma:-1"])
        assert "option top_n_sigma: expected a number from 0 to 100, got -1" in refused.message
