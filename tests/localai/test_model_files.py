"""Models' YAML as LocalAI's users have it, sent as LocalAI sends it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.localai.model_file import sent
from tests.localai.process import Backend

NAME = "mlx-community/Llama-3.2-1B-Instruct-4bit"
"""As upstream's examples call their model."""
CONTEXT = 8192


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LocalAI's models folder, with a model whose context is longer than what LocalAI sends by itself."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(tiny_model, folder / NAME)
    file = folder / NAME / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": CONTEXT}))
    return folder


def load(backend: Backend, models: Path, text: str) -> Any:
    return backend.client.LoadModel(**sent(text, models))


def longest(backend: Backend) -> int:
    """The context, as whoever sends far too much is told it."""
    with pytest.raises(grpc.RpcError) as caught:
        backend.client.Predict(Prompt="a " * 2 * CONTEXT)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    said = re.search(r"context holds (\d+) tokens", caught.value.details())
    assert said, caught.value.details()
    return int(said[1])


PLAIN = f"""
name: llama-distributed
backend: mlx-distributed
parameters:
  model: {NAME}
"""


def test_a_model_without_context_size_has_its_own_context(backend: Backend, models: Path) -> None:
    """LocalAI sends 4096 for it; nobody asked for a cap, and upstream's backend has none."""
    assert load(backend, models, PLAIN).success, backend.log
    assert longest(backend) == CONTEXT
    assert f"the context is {CONTEXT} tokens: LocalAI sends context_size 4096" in backend.log
    assert "option context:4096" in backend.log


@pytest.mark.parametrize(("said", "context"), [("context_size: 2048", 2048), ('options: ["context:4096"]', 4096)])
def test_a_context_that_is_said_is_kept_to(backend: Backend, models: Path, said: str, context: int) -> None:
    assert load(backend, models, f"{PLAIN}\n{said}").success, backend.log
    assert longest(backend) == context
