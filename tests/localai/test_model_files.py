"""Models' YAML as LocalAI's users have it, sent as LocalAI sends it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.localai.hand_started import Workers
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


def test_what_upstreams_own_test_asks_is_answered_as_it_expects(backend: Backend, models: Path) -> None:
    result = load(backend, models, PLAIN)
    assert (result.success, result.message) == (True, "Model loaded successfully"), backend.log
    sampled = {"TopP": 0.8, "Tokens": 50, "Temperature": 0.7, "TopK": 40, "MinP": 0.05, "Seed": 42}
    assert backend.client.Predict(Prompt="The capital of France is", **sampled).message


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


def test_a_file_as_localais_importer_writes_it_is_loaded(backend: Backend, models: Path) -> None:
    """With options for other backends, and one that is no key:value: upstream takes no notice, here the log has it."""
    written = "options: [use_jinja, tool_parser:granite4, reasoning_parser:granite]"
    assert load(backend, models, PLAIN + written).success, backend.log
    for said in (
        "option 'use_jinja' is skipped",
        "option tool_parser is ignored",
        "option reasoning_parser is ignored",
    ):
        assert said in backend.log


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("gone/", [], "/gone; check the path. Nor is there "),
        ("gone.gguf", [], "/gone.gguf; check the path. Nor is there "),
        (NAME, ["hostfile:/etc/no/hosts.json"], "option hostfile: /etc/no/hosts.json: cannot be read"),
        (NAME, ["distributed_backend:carrier-pigeon"], "option distributed_backend: expected one of"),
        (NAME, ["split:20,10"], "split 20,10 adds up to 30 layers where the model has 6"),
        (NAME, ["transport:nccl", "ranks:2"], "use option transport:grpc for pipelines"),
    ],
)
def test_a_load_that_cannot_be_says_what_is_wrong_and_what_to_do(
    backend: Backend, models: Path, model: str, options: list[str], said: str
) -> None:
    """LocalAI shows its user LoadModel's message; a request that comes all the same is told it too."""
    result = load(backend, models, PLAIN.replace(NAME, model) + f"options: {json.dumps(options)}")
    assert not result.success
    assert said in result.message
    assert not any(internal in result.message for internal in ("Traceback", "unix:", "UNAVAILABLE", "command line"))
    with pytest.raises(grpc.RpcError) as caught:
        backend.client.Predict(Prompt="Hi")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == f"no model is loaded, for the last one failed: {result.message}"


@pytest.fixture(scope="module")
def downloaded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a machine that has the model in Hugging Face's own cache."""
    home, commit = tmp_path_factory.mktemp("huggingface"), "0" * 40
    repository = home / "hub" / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def test_upstreams_example_of_a_ring_is_loaded_with_its_worker(tmp_path: Path, downloaded: dict[str, str]) -> None:
    with Workers(tmp_path, 2, **downloaded) as workers, Backend(tmp_path, environment=downloaded) as backend:
        workers.start_as_localai(1)
        options = f'options:\n  - "hostfile:{workers.hostfile}"\n  - "distributed_backend:ring"\n'
        result = load(backend, tmp_path / "models", PLAIN + options)
        assert result.success, f"{result.message}\n{backend.log}\n{workers.logs()}"
        assert backend.client.Predict(Prompt="The capital of France is", Tokens=4, IgnoreEOS=True).tokens == 4
        assert sorted(backend.client.Status().memory.breakdown) == ["rank 0", "rank 1"]
