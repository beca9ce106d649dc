"""A real server with more models than fit, told what to do over its control socket by a front end of the test's own."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import grpc.aio
import psutil
import pytest

from chorus.cluster.servers import running_servers
from chorus.messages.deploy import Demand, ModelRow, ModelState, Table, report_to_wire, table_from_wire
from chorus.messages.proto import control_pb2 as wire
from chorus.messages.proto.control_pb2_grpc import ControlStub
from tests.support.server import ChorusServer, running
from tests.support.sockets import short
from tests.support.tiny_model import write_tiny_model

DEADLINE = 120.0
MB = 10**6
RESERVE_MB, CACHE_MB, BUDGET_MB = 200, 16, 560
"""Two of them fit beside each other, and a third does not."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = short(tmp_path_factory.mktemp("several"))
    for seed, name in enumerate(("one", "two", "broken")):
        write_tiny_model(folder / name, "llama", seed=seed, vocab_size=512, max_position_embeddings=1024)
    config = json.loads((folder / "broken" / "config.json").read_text())
    (folder / "broken" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    tree = {
        "models": [str(folder / name) for name in ("one", "two", "broken")],
        "engine": {"context": 512, "reserve_mb": RESERVE_MB},
        "cache": {"memory": f"{CACHE_MB}MB"},
        "load": {"memory": f"{BUDGET_MB}MB"},
    }
    (folder / "chorus.json").write_text(json.dumps(tree))
    arguments = ["-c", str(folder / "chorus.json")]
    with ChorusServer(None, arguments, folder, {"CHORUS_STATE": str(folder / "state")}) as started:
        yield started


class FrontEnd:
    """Attends, and says of every table at once that it routes by it."""

    def __init__(self, stub: ControlStub) -> None:
        self.stub = stub
        self.demands: dict[str, Demand] = {}
        self.table = Table(0, ())
        self._call = stub.Attend()
        self._writing = asyncio.Lock()
        """Both the story and the reader tell, and gRPC takes one message at a time."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._call:
            self.table = table_from_wire(message)
            await self.tell()

    async def tell(self, **demands: Demand) -> None:
        self.demands |= demands
        async with self._writing:
            await self._call.write(report_to_wire(self.table.version, self.demands.values()))

    def row(self, name: str) -> ModelRow:
        return next(row for row in self.table.models if row.id == name)

    async def until(self, true: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not true():
                if self._reading.done():
                    self._reading.result()
                await asyncio.sleep(0.02)

    async def until_it_is(self, name: str, state: ModelState) -> ModelRow:
        await self.until(lambda: self.table.models and self.row(name).state is state)
        return self.row(name)

    def close(self) -> None:
        self._reading.cancel()
        self._call.cancel()


def engines(server: ChorusServer) -> set[psutil.Process]:
    return set(running(server.processes(), "chorus.engine"))


def test_models_are_loaded_swapped_and_unloaded_and_fail_alone(
    server: ChorusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_STATE", str(server.log_file.parent / "state"))
    (control,) = (each.control_file for each in running_servers() if each.url == server.url)

    async def act() -> None:
        async with grpc.aio.insecure_channel(f"unix:{control}") as channel:
            front = FrontEnd(ControlStub(channel))
            try:
                await story(server, front)
            finally:
                front.close()

    asyncio.run(act())


async def story(server: ChorusServer, front: FrontEnd) -> None:
    first = await front.until_it_is("one", ModelState.READY)
    assert [row.state for row in front.table.models[1:]] == [ModelState.UNLOADED] * 2
    assert RESERVE_MB * MB < first.booked_bytes < BUDGET_MB * MB / 2
    one = engines(server)
    assert len(one) == 1

    # Loaded beside the first when it is asked for.
    await front.tell(two=Demand("two", waiting=1))
    await front.until_it_is("two", ModelState.READY)
    await front.tell(two=Demand("two", running=1))
    (killed,) = engines(server) - one

    # A group recovers alone.
    killed.send_signal(signal.SIGKILL)
    await front.until(lambda: len(engines(server) - {killed}) == 2)
    assert engines(server) > one
    assert "two: engine ended with SIGKILL" in server.log
    two = engines(server) - one

    # A third has no room: the idle one goes, its processes with it. It fails, and nobody else does.
    await front.tell(broken=Demand("broken", waiting=1))
    await front.until_it_is("one", ModelState.UNLOADED)
    assert not any(process.is_running() for process in one)
    failed = await front.until_it_is("broken", ModelState.FAILED)
    assert failed.detail
    await front.tell(broken=Demand("broken"))
    assert engines(server) >= two
    assert front.row("two").state is ModelState.READY

    # Loaded again by a command; what another one unloads ends after its last request.
    reply = await front.stub.Load(wire.LoadRequest(name="one"), timeout=DEADLINE)
    assert reply.id == "one"
    again = await front.until_it_is("one", ModelState.READY)
    assert again.loads == 2
    told = await front.stub.Unload(wire.UnloadRequest(name="two"), timeout=DEADLINE)
    assert told.told == "two is unloaded when 1 running requests are over"
    await front.until_it_is("two", ModelState.DRAINING)
    assert engines(server) >= two
    await front.tell(two=Demand("two", served=1))
    await front.until_it_is("two", ModelState.UNLOADED)
    assert not any(process.is_running() for process in two)

    with pytest.raises(grpc.aio.AioRpcError, match="did you mean 'two'") as unknown:
        await front.stub.Load(wire.LoadRequest(name="twoo"), timeout=DEADLINE)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
