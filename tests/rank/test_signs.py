"""What a rank's service threads do while its main thread may be stuck: tick, and leave when they are asked to."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.proto import rank_pb2_grpc
from chorus.platform.process.timing import WatchTimes
from chorus.rank.worker import Worker
from chorus.transport.channel import open_channel
from chorus.transport.grpc_link import session_metadata
from tests.support.sockets import short

OFTEN = WatchTimes(tick_seconds=0.01)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[rank_pb2_grpc.RankStub]:
    worker = Worker(1, f"unix:{short(tmp_path)}/rank.sock")
    with ThreadPoolExecutor(1) as pool, open_channel(worker.address) as channel:
        code = pool.submit(worker.serve)
        stub = rank_pb2_grpc.RankStub(channel)
        stub.Hello(wire.HelloRequest(), timeout=120, wait_for_ready=True)
        yield stub
        worker.stop()
        assert code.result(120) == 0


def test_a_rank_with_nothing_to_say_ticks_as_often_as_its_leader_asks_for(rank: rank_pb2_grpc.RankStub) -> None:
    steps: queue.SimpleQueue[wire.Step | None] = queue.SimpleQueue()
    link = rank.Run(iter(steps.get, None), metadata=(*session_metadata(4), *OFTEN.metadata()), timeout=120)
    assert [(said.tick, said.number) for said in (next(link) for _ in range(3))] == [(True, 0)] * 3
    steps.put(wire.Step(number=9))
    answer = next(said for said in link if not said.tick)
    assert (answer.number, answer.error) == (9, "rank 1 follows another leader now")
    assert next(link).tick
    steps.put(None)
    assert all(said.tick for said in link), "and it ends"


@pytest.mark.parametrize("session", [0, 7])
def test_a_rank_does_not_leave_for_anybody_but_its_own_leader(rank: rank_pb2_grpc.RankStub, session: int) -> None:
    with pytest.raises(grpc.RpcError, match="rank 1 follows another leader now"):
        rank.Leave(wire.LeaveRequest(session=session), timeout=120)
    assert rank.Hello(wire.HelloRequest(), timeout=120).rank == 1
