from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.config.grammar import GrammarLimits
from tests.support.grammars import DEADLINE, GrammarHost
from tests.support.tiny_tokenizer import write_tiny_tokenizer

VOCABULARY = 512
STOPS = frozenset({2})
PATIENT = GrammarLimits(compile_seconds=DEADLINE, mask_seconds=DEADLINE)
"""Where time is not what is looked at: a process on a busy machine may have to wait for its turn at every token."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar")
    write_tiny_tokenizer(folder, VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def host(model: Path) -> Iterator[GrammarHost]:
    with GrammarHost(model, VOCABULARY, PATIENT) as host:
        yield host
