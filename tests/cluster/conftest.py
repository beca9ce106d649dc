from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, cluster
from tests.platform.conftest import blas_cache
from tests.support.tiny_model import write_tiny_model

__all__ = ["blas_cache"]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=4096)
