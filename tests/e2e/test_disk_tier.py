"""What ranks keep on their disks, over restarts, sudden ends and damage. Whether an answer is right is judged by the
model itself, fed with it: each token must be the best within rounding.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import pytest

from chorus.rank.cache.disk import ASIDE, ENDING
from tests.support.margins import TOLERANCE, furthest_from_best, load_reference
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

VOCABULARY = 512
TURN = 10
"""Tokens that a conversation goes on with."""
WAIT_SECONDS = 120.0


def eventually(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Talk:
    """A conversation, as far as it has come."""

    number: int
    length: int
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # No two begin with the same token.
        self.tokens = [3 + self.number, *self._words(self.length - 1)]

    def goes_on(self) -> Talk:
        return Talk(self.number, self.length).followed_by([*self.tokens, *self._words(TURN)])

    def followed_by(self, tokens: list[int]) -> Talk:
        self.tokens = tokens
        return self

    def _words(self, count: int) -> list[int]:
        return Random(self.number).choices(range(3, VOCABULARY), k=count)


@dataclass(frozen=True)
class Place:
    """A model, and where its ranks write."""

    model: Path
    folder: Path
    settings: dict[str, str]

    def serve(self) -> ChorusServer:
        settings = {"CHORUS_CACHE__DISK_FOLDER": str(self.folder / "disk"), **self.settings}
        return ChorusServer(self.model, ["--ranks", "2", "--transport", "grpc"], self.folder, settings)

    def files(self, rank: int, ending: str = ENDING) -> list[Path]:
        return list((self.folder / "disk").glob(f"rank{rank}/*/*{ending}"))

    def file(self, rank: int, key: str) -> Path:
        (found,) = self.files(rank, f"{key}{ENDING}")
        return found

    @property
    def list(self) -> Path:
        (found,) = (self.folder / "disk").glob("rank0/*/list")
        return found

    def written_down(self) -> list[dict[str, Any]]:
        """What the leader knows to be on all disks."""
        with suppress(ValueError):
            return [json.loads(line) for line in self.list.read_text().splitlines()]
        return []

    def wait_until_written(self, talks: list[Talk]) -> None:
        """Tokens, and the states behind them where the model has any."""
        tokens = sum(len(talk.tokens) for talk in talks)
        assert eventually(lambda: self._tokens_written() >= tokens), self.written_down()

    def _tokens_written(self) -> int:
        return sum(len(base64.b64decode(entry["tokens"])) // 4 for entry in self.written_down())

    def beginning(self, talk: Talk) -> str:
        """The key of the file that holds a conversation's first tokens."""
        first = talk.tokens[0].to_bytes(4, "little")
        entries = (e for e in self.written_down() if not e["start"])
        return next(e["key"] for e in entries if base64.b64decode(e["tokens"])[:4] == first)

    def ask(self, server: ChorusServer, talk: Talk) -> int:
        """Take a conversation one answer further, which must be right; answers how much of its prompt was stored."""
        answer = server.complete(talk.tokens, max_tokens=8, return_token_ids=True)
        tokens = answer["choices"][0]["token_ids"]
        assert tokens
        assert furthest_from_best(load_reference(self.model), talk.tokens, tokens) < TOLERANCE
        # The last token was drawn and never fed.
        talk.tokens = [*talk.tokens, *tokens[:-1]]
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def place(folder: Path, architecture: str, settings: dict[str, str], **overrides: int) -> Place:
    size = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, **overrides}
    return Place(write_tiny_model(folder / "model", architecture, **size), folder, settings)


def cache(server: ChorusServer) -> dict[str, int]:
    facts: dict[str, int] = server.get("/health")["engine"]["cache"]
    return facts


def test_a_conversation_goes_on_after_a_restart_until_it_is_cleared(tmp_path: Path) -> None:
    here = place(tmp_path, "llama", {"CHORUS_CACHE__DISK": "100MB"})
    talk = Talk(0, 300)
    with here.serve() as server:
        assert here.ask(server, talk) == 0
        here.wait_until_written([talk])
        stored = [path for path in (tmp_path / "disk").rglob("*") if path.parent != tmp_path / "disk"]
        assert {path.stat().st_mode & 0o777 for path in stored if path.is_dir()} == {0o700}
        assert {path.stat().st_mode & 0o777 for path in stored if path.is_file()} == {0o600}
    known = len(talk.tokens)
    with here.serve() as server:
        talk = talk.goes_on()
        assert here.ask(server, talk) >= known
        assert cache(server)["restored_tokens"] >= known
        assert cache(server)["disk_bytes"] > 0
        here.wait_until_written([talk])
        assert httpx.post(f"{server.url}/cache/clear", timeout=60).status_code == 200
        assert eventually(lambda: not here.files(0) and not here.files(1) and not here.written_down())
        assert cache(server)["disk_bytes"] == 0
        assert here.ask(server, talk.goes_on()) == 0
