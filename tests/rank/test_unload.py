"""A rank that is told to let go of its model: it waits for the next leader, or ends where it cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.proto import rank_pb2_grpc
from chorus.platform.process.exits import EXIT_LEADER_GONE
from chorus.rank.worker import Worker
from chorus.transport.channel import open_channel
from tests.support.sockets import short


@pytest.mark.parametrize("in_collective", [False, True])
def test_a_rank_without_a_collective_stays_and_one_in_it_asks_to_be_started_again(
    tmp_path: Path, in_collective: bool
) -> None:
    worker = Worker(1, f"unix:{short(tmp_path)}/rank.sock")
    worker._in_collective = in_collective
    with ThreadPoolExecutor(1) as pool, open_channel(worker.address) as channel:
        code = pool.submit(worker.serve)
        rank = rank_pb2_grpc.RankStub(channel)
        assert rank.Unload(wire.UnloadRequest(), timeout=120, wait_for_ready=True) == wire.UnloadReply()
        if not in_collective:
            assert rank.Hello(wire.HelloRequest(), timeout=120).rank == 1
            worker.stop()
        assert code.result(120) == (EXIT_LEADER_GONE if in_collective else 0)
