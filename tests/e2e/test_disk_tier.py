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

from chorus.rank.cache.disk import ASIDE, ENDING
from tests.support.freeze import freeze
from tests.support.margins import TOLERANCE, Reference, furthest_from_best
from tests.support.server import ChorusServer, answered
from tests.support.tiny_model import write_tiny_model

VOCABULARY, END = 512, 2
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
    reference: Reference

    def serve(self) -> ChorusServer:
        settings = {"CHORUS_CACHE__DISK_FOLDER": str(self.folder / "disk"), **self.settings}
        return ChorusServer(self.model, ["--ranks", "2", "--transport", "grpc"], self.folder, settings)

    def files(self, rank: int, ending: str = ENDING) -> list[Path]:
        return list((self.folder / "disk").glob(f"rank{rank}/*/*{ending}"))

    def written_bytes(self, rank: int) -> int:
        written = 0
        for file in (*self.files(rank), *self.files(rank, ASIDE)):
            with suppress(FileNotFoundError):
                written += file.stat().st_size
        return written

    def file(self, rank: int, key: str) -> Path:
        (found,) = self.files(rank, f"{key}{ENDING}")
        return found

    @property
    def list_file(self) -> Path:
        (found,) = (self.folder / "disk").glob("rank0/*/list")
        return found

    def written_down(self) -> list[dict[str, Any]]:
        """What the leader knows to be on all disks."""
        with suppress(ValueError):
            return [json.loads(line) for line in self.list_file.read_text().splitlines()]
        return []

    def wait_until_written(self, talks: list[Talk]) -> None:
        """Tokens, and the states behind them where the model has any."""
        tokens = sum(len(talk.tokens) for talk in talks)
        assert eventually(lambda: self._tokens_written() >= tokens), self.written_down()

    def _tokens_written(self) -> int:
        return sum(len(base64.b64decode(entry["tokens"])) // 4 for entry in self.written_down())

    def holds(self, talk: Talk) -> bool:
        """Whether what a conversation begins with is on the disks of both ranks."""
        with suppress(StopIteration):
            name = f"{self.beginning(talk)}{ENDING}"
            return all(self.files(rank, name) for rank in (0, 1))
        return False

    def beginning(self, talk: Talk) -> str:
        """The key of the file that holds a conversation's first tokens."""
        first = talk.tokens[0].to_bytes(4, "little")
        entries = (e for e in self.written_down() if not e["start"])
        return next(e["key"] for e in entries if base64.b64decode(e["tokens"])[:4] == first)

    def ask(self, server: ChorusServer, talk: Talk) -> int:
        """Take a conversation one answer further, which must be right; answers how much of its prompt was stored."""
        answer = server.complete(talk.tokens, max_tokens=8, return_token_ids=True)
        (choice,) = answer["choices"]
        tokens = [*choice["token_ids"], *[END] * (choice["finish_reason"] == "stop")]
        assert furthest_from_best(self.reference, talk.tokens, tokens) < TOLERANCE
        # The last token was drawn and never fed.
        talk.tokens = [*talk.tokens, *tokens[:-1]]
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def place(folder: Path, architecture: str, settings: dict[str, str], **overrides: int) -> Place:
    size = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, **overrides}
    model = write_tiny_model(folder / "model", architecture, **size)
    return Place(model, folder, settings, Reference(model))


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
        assert eventually(lambda: cache(server)["disk_bytes"] == 0)
        assert here.ask(server, talk.goes_on()) == 0


GARBAGE = [b"no line of ours", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b'{"before": "", "tokens": "", "start": 1e999}']


def test_what_is_damaged_or_missing_on_one_rank_is_read_on_none(tmp_path: Path) -> None:
    here = place(tmp_path, "falcon_h1", {"CHORUS_CACHE__DISK": "100MB"})
    intact, cut_off, flipped, swapped, other, lost, foreign = talks = [Talk(number, 200) for number in range(7)]
    with here.serve() as server:
        for talk in talks:
            here.ask(server, talk)
        here.wait_until_written(talks)
    file = {(talk.number, rank): here.file(rank, here.beginning(talk)) for talk in talks for rank in (0, 1)}
    os.truncate(file[cut_off.number, 0], 1000)
    _flip_a_bit(file[flipped.number, 1])
    _swap(file[swapped.number, 0], file[other.number, 0])
    file[lost.number, 1].unlink()
    file[foreign.number, 0].write_bytes(file[foreign.number, 1].read_bytes())
    another_model = file[intact.number, 0].parent.with_name("f" * 32)
    another_model.mkdir(0o700)
    (another_model / file[intact.number, 0].name).write_bytes(b"its own business")
    here.list_file.write_bytes(b"\n".join([*GARBAGE, here.list_file.read_bytes()]))
    with here.serve() as server:
        # The one that fails comes first: files are read as long as they were never seen to be slower than computing.
        for talk in (flipped, intact, cut_off, swapped, other, lost, foreign):
            known, going_on = len(talk.tokens), talk.goes_on()
            found = here.ask(server, going_on)
            assert found >= known if talk is intact else found == 0, talk
        log = server.log
        assert log.count("a line of the list of stored prefixes cannot be read") == len(GARBAGE)
        for talk, lines in ((intact, 0), (cut_off, 1), (flipped, 1), (swapped, 1), (other, 1), (lost, 0), (foreign, 1)):
            assert log.count(f"segment {file[talk.number, 0].stem} is dropped") == lines, log
    assert [path.name for path in another_model.glob(f"*{ENDING}")] == [file[intact.number, 0].name]


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


LIMIT, TOKENS = 80_000_000, 200
"""Bytes that each rank may write, and how long prompts are: 3 MB on a rank."""


def test_a_rank_killed_while_it_writes_leaves_nothing_that_is_read_wrongly(tmp_path: Path) -> None:
    """Memory has room for few prompts, so that others are written all the time."""
    settings = {"CHORUS_CACHE__DISK": str(LIMIT), "CHORUS_CACHE__MEMORY": "16MB"}
    here = place(tmp_path, "llama", settings, num_hidden_layers=2, num_key_value_heads=4, head_dim=512)
    dice = Random(7)
    with here.serve() as server:

        def lose(part: str, rank: int, talks: list[Talk], full: bool = False) -> None:
            for talk in talks:
                here.ask(server, talk)
            here.wait_until_written(talks)
            with _many_prompts(server, dice.randrange(1 << 30)):
                assert not full or eventually(lambda: here.written_bytes(rank) > 0.9 * LIMIT)
                time.sleep(0.3 * dice.random())
                _kill_while_writing(server.process_named(part), here, rank)
            assert eventually(lambda: answered(server.url) is not None), server.log
            assert eventually(lambda: not here.files(0, ASIDE) and not here.files(1, ASIDE))

        for number, (part, rank) in enumerate((("chorus.engine", 0), ("chorus.rank", 1))):
            # It may take so many prompts to meet a rank in the middle of a file that the first ones have to go.
            for attempt in range(5):
                first, second = talks = [Talk(100 * attempt + 10 * number + one, TOKENS) for one in (0, 1)]
                lose(part, rank, talks)
                if here.holds(first):
                    break
            assert here.ask(server, first.goes_on()) >= TOKENS, server.log
            assert cache(server)["restored_tokens"] >= TOKENS
            here.ask(server, second.goes_on())
        talks = [Talk(30, TOKENS), Talk(31, TOKENS)]
        lose("chorus.engine", 0, talks, full=True)
        for talk in talks:
            here.ask(server, talk.goes_on())
        assert "nothing is kept on the disk" not in server.log


@contextmanager
def _many_prompts(server: ChorusServer, seed: int) -> Iterator[None]:
    """Somebody asks one after the other, answered or not."""
    dice, enough = Random(seed), threading.Event()

    def ask() -> None:
        while not enough.is_set():
            body = {"prompt": dice.choices(range(3, VOCABULARY), k=TOKENS), "max_tokens": 2}
            with suppress(httpx.HTTPError):
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        enough.set()
        asking.join(WAIT_SECONDS)


def _kill_while_writing(process: psutil.Process, here: Place, rank: int) -> None:
    """Held first, so that it is seen to be in the middle of a file, and to be within its bytes."""

    def caught() -> bool:
        if not here.files(rank, ASIDE):
            return False
        freeze(process)
        if here.files(rank, ASIDE):
            return True
        process.resume()
        return False

    deadline = time.monotonic() + WAIT_SECONDS
    while not caught():
        assert time.monotonic() < deadline, "nothing is written"
    assert 0 < here.written_bytes(rank) <= LIMIT
    # Who watches it may have seen that it stands still, and ended it by now.
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)
