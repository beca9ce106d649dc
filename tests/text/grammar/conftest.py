from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.grammars import GrammarHost
from tests.support.tiny_tokenizer import write_tiny_tokenizer

VOCABULARY = 512
STOPS = frozenset({2})


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar")
    write_tiny_tokenizer(folder, VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def host(model: Path) -> Iterator[GrammarHost]:
    with GrammarHost(model, VOCABULARY) as host:
        yield host
