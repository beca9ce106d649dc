from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.models import resolve
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model, from the package that carries it; fetched once, then cached."""
    return resolve("smollm2-135m").path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("tiny") / "tiny", "llama", vocab_size=512, max_position_embeddings=4096
    )


@pytest.fixture(scope="session")
def smollm2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    """One rank of SmolLM2, shared by the tests that do it no harm."""
    folder = tmp_path_factory.mktemp("smollm2")
    with ChorusServer("smollm2-135m", ["--step-log", "steps.jsonl"], folder) as server:
        yield server
