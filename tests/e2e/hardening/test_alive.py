"""Alive, not just running: what stands still is replaced, what fails for good is tried once, the past is not heard."""

from __future__ import annotations

import os
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.proto import rank_pb2_grpc
from tests.cluster.harness import Process
from tests.support.server import ChorusServer
from tests.support.sockets import short
from tests.support.tiny_model import write_tiny_model

DEADLINE = 180.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("alive") / "tiny", "llama", vocab_size=512)


class Leader:
    """As a following rank sees one."""

    def __init__(self, addresses: list[str], session: int) -> None:
        self._addresses = addresses
        self._session = session
        self._rank = rank_pb2_grpc.RankStub(grpc.insecure_channel(addresses[1]))
        self._steps: queue.SimpleQueue[wire.Step] = queue.SimpleQueue()
        self._number = 0

    def load(self, model: Path) -> None:
        request = message(
            wire.LoadRequest,
            session=self._session,
            model_path=str(model),
            split=[3, 4],
            weights=[1],
            ranks=2,
            dtype="auto",
            memory_fraction=0.5,
            transport="grpc",
            parallel="pipeline",
            compression="off",
            addresses=self._addresses,
            step_timeout_seconds=DEADLINE,
        )
        for _ in self._rank.Load(request, timeout=DEADLINE, wait_for_ready=True):
            pass
        self.link = self._rank.Run(
            iter(self._steps.get, None), metadata=(("chorus-session", str(self._session)),), timeout=600
        )

    def step(self, *, decode: bool = False, **feed: Any) -> str:
        """What the rank says against it; empty: it did as it was told."""
        self._number += 1
        feeds = [message(wire.Feed, **feed)]
        self._steps.put(wire.Step(number=self._number, feeds=feeds, decode=decode, logits=decode))
        try:
            return str(next(said for said in self.link if not said.tick).error)
        except grpc.RpcError as error:
            return f"the rank is gone: {error.details()}"


def message(kind: Any, **fields: Any) -> Any:
    """With the fields that the code under test knows."""
    return kind(**{name: value for name, value in fields.items() if name in kind.DESCRIPTOR.fields_by_name})


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Process]:
    process = Process(
        "rank", ["-m", "chorus.rank", "--rank", "1", "--listen", f"unix:{short(tmp_path)}/1"], tmp_path, {}
    )
    yield process
    process.end()


def test_an_old_leaders_end_leaves_the_new_ones_sequences_alone(rank: Process, tiny: Path, tmp_path: Path) -> None:
    """Finding 14."""
    addresses = [f"unix:{short(tmp_path)}/0", f"unix:{short(tmp_path)}/1"]
    old, new = Leader(addresses, 1), Leader(addresses, 2)
    for leader in (old, new):
        leader.load(tiny)
        assert leader.step(sequence=1, tokens=[5, 6, 7], partial=True, begins=True) == ""
    old.link.cancel()
    # gRPC ends a cancelled stream with an error or without one, whichever comes first.
    rank.wait_for("leader (of before )?is gone", DEADLINE)
    assert new.step(sequence=1, tokens=[8], decode=True) == ""
    assert new.step(sequence=1, tokens=[9], decode=True) == ""


def test_a_prompt_that_a_rank_has_lost_is_an_error_and_never_goes_on_from_nothing(
    rank: Process, tiny: Path, tmp_path: Path
) -> None:
    """Finding 14, its second part."""
    leader = Leader([f"unix:{short(tmp_path)}/0", f"unix:{short(tmp_path)}/1"], 1)
    leader.load(tiny)
    assert leader.step(sequence=1, tokens=[5, 6, 7], partial=True, begins=True) == ""
    assert "sequence 2 is not known here" in leader.step(sequence=2, tokens=[8], partial=True)


def test_a_front_end_that_can_never_start_ends_the_start_with_its_reason(tiny: Path, tmp_path: Path) -> None:
    """Finding 19, its last part."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    (broken / "tokenizer.json").write_text('{"model": 1}')
    server = ChorusServer(broken, [], tmp_path)
    assert server.wait_for_exit() == 1
    assert "ready  " not in server.log, "ready was printed, and nothing would have been answered"
    assert "starting the front end again" not in server.log
    assert "tokenizer" in server.log.splitlines()[-1]


def test_a_library_that_cannot_be_loaded_is_one_clear_line(tiny: Path, tmp_path: Path) -> None:
    """Finding 19's class: what fails the same way each time is tried once."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('libmlx.so: cannot open shared object file')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    server = ChorusServer(tiny, ["--ranks", "2"], tmp_path, {"PYTHONPATH": path})
    assert server.wait_for_exit() == 1
    assert "libmlx.so: cannot open" in server.log.splitlines()[-1]
    assert "starting the ranks again" not in server.log
    assert "Traceback" not in server.log
