from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chorus.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizer


def _loaded(folder: Path, write: Callable[[Path], None]) -> Tokenizer:
    write(folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _loaded(tmp_path_factory.mktemp("byte-level"), tiny_tokenizer.write_tiny_tokenizer)


@pytest.fixture(scope="session")
def byte_level_with_added(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Added tokens that are spelled as they read, with letters inside and outside the byte alphabet."""
    folder = tmp_path_factory.mktemp("added")
    tiny_tokenizer.write_tiny_tokenizer(folder)
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token, content in enumerate(("<think>", "two words", "éé", "日本", "\u2581"), start=512):
        spec["added_tokens"].append({"id": token, "content": content, "special": False, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _loaded(tmp_path_factory.mktemp("byte-fallback"), tiny_tokenizer.write_byte_fallback_tokenizer)


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _loaded(tmp_path_factory.mktemp("unigram"), tiny_tokenizer.write_unigram_tokenizer)


@pytest.fixture(scope="session")
def word_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _loaded(tmp_path_factory.mktemp("word-piece"), tiny_tokenizer.write_word_piece_tokenizer)
