"""A model file from node to node over loopback, against `cp` to the same disk; both count until the disk has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import ServerFailed, Started, free_port
from chorus.cluster.coordinator.process import ConnectedNode, Nodes, NodesMissing
from chorus.cluster.coordinator.sources import wire_files
from chorus.cluster.transfer.share import SharedModel, share_folder
from chorus.messages.proto import agent_pb2 as wire
from chorus.security.authority import Authority

SIZE, QUICK_SIZE = 1 << 30, 128 << 20
SPEED = "copy of a model file, until it is on disk"
JOIN_SECONDS = 120.0
AGENT_PORTS = 4
CALL_SECONDS = 60.0
_MODEL = "copied"
_BLOCK = 1 << 20


def measure(run: Run) -> list[Goal]:
    size = QUICK_SIZE if run.options.quick else SIZE
    with tempfile.TemporaryDirectory(prefix="chorus-copy-") as text, asyncio.Runner() as runner:
        folder = Path(text)
        share = _write_share(folder, size)
        authority = Authority.create(folder / "authority")
        with _Agent("holder", folder, authority) as holder, _Agent("taker", folder, authority) as taker:
            stack = contextlib.AsyncExitStack()
            nodes = runner.run(stack.enter_async_context(_joined(authority, (holder.port, taker.port))))
            try:
                copied = runner.run(_Copying(folder, share, *nodes).prepared())

                def ours() -> None:
                    run.samples.add(SPEED, "MB/s", "chorus", size / 1e6 / runner.run(copied.seconds()))

                def cp() -> None:
                    # In a thread: the nodes' heartbeats are answered meanwhile.
                    seconds = runner.run(asyncio.to_thread(_cp_seconds, folder, copied.file))
                    run.samples.add(SPEED, "MB/s", "cp", size / 1e6 / seconds)

                run.interleave(ours, cp)
            finally:
                runner.run(stack.aclose())
    run.notes.append(f"{size >> 20} MiB in {tempfile.gettempdir()}, two agents on 127.0.0.1, mutual TLS 1.3")
    return [Goal(SPEED, "chorus", ">=", 0.5, against="cp")]


class _Agent(Started):
    def __init__(self, name: str, folder: Path, authority: Authority) -> None:
        self.port = _free_ports_from()
        command = [sys.executable, "-m", "chorus.cli", "join", "--token", authority.token.text]
        command += ["--listen", f"127.0.0.1:{self.port}", "--name", name, "--no-announce"]
        command += ["--log-dir", str(folder / name / "logs")]
        own = {"CHORUS_STATE": str(folder / name / "state"), "CHORUS_CACHE": str(folder / name / "cache")}
        super().__init__(name, command, own)


class _Copying:
    """What a coordinator does to have one node copy from another."""

    def __init__(self, folder: Path, share: SharedModel, holder: ConnectedNode, taker: ConnectedNode) -> None:
        self._folder, self._share, self._holder, self._taker = folder, share, holder, taker
        (self._described,) = share.files
        self.file = share.folder / self._described.name

    async def prepared(self) -> _Copying:
        """Once without counting: the first copy also loads code on both sides."""
        request = wire.OfferRequest(model=_MODEL, share=self._share.digest, files=wire_files(self._share.files))
        reply = await self._holder.stub.Offer(request, timeout=CALL_SECONDS)
        if list(reply.files) != [self._described.name]:
            raise ServerFailed(f"the holder does not offer {self.file}, it offers {list(reply.files)}")
        await self.seconds()
        return self

    async def seconds(self) -> float:
        target = self._folder / "taker" / "cache" / "copies" / self._share.digest
        await asyncio.to_thread(_same_start, self._folder, self._described.size)
        session = uuid.uuid4().hex
        source = wire.FileSource(address=_door(self._holder), files=[self._described.name])
        request = wire.SpawnRequest(
            session=session,
            rank=1,
            model=_MODEL,
            share=self._share.digest,
            files=wire_files(self._share.files),
            sources=[source],
        )
        started = time.perf_counter()
        async for progress in self._taker.stub.Spawn(request, timeout=10 * CALL_SECONDS):
            if progress.HasField("started"):
                break
        seconds = time.perf_counter() - started
        # The rank has nothing to do here: the copy is what is measured.
        await self._taker.stub.Kill(wire.KillRequest(session=session), timeout=CALL_SECONDS)
        if (target / self._described.name).stat().st_size != self._described.size:
            raise ServerFailed(f"{target} has no whole {self._described.name}")
        shutil.rmtree(target)
        return seconds


@contextlib.asynccontextmanager
async def _joined(authority: Authority, ports: tuple[int, int]) -> AsyncIterator[list[ConnectedNode]]:
    identity = authority.coordinator("benchmark")
    nodes = Nodes(authority, identity, "benchmark", [("127.0.0.1", port) for port in ports], discover=False)
    await nodes.start()
    try:
        yield await nodes.gather(2, ("holder", "taker"), JOIN_SECONDS)
    except NodesMissing as error:
        raise ServerFailed(str(error)) from None
    finally:
        await nodes.stop()


def _write_share(folder: Path, size: int) -> SharedModel:
    """Where the holder's earlier copies are; the taker has nothing."""
    aside = folder / "model"
    aside.mkdir()
    block = os.urandom(_BLOCK)
    with (aside / "model.safetensors").open("wb") as stream:
        for _ in range(size // _BLOCK):
            stream.write(block)
    found = share_folder(_MODEL, aside)
    place = folder / "holder" / "cache" / "copies" / found.digest
    place.parent.mkdir(parents=True)
    aside.rename(place)
    return share_folder(_MODEL, place)


def _cp_seconds(folder: Path, file: Path) -> float:
    target = folder / "cp"
    _same_start(folder, file.stat().st_size)
    started = time.perf_counter()
    subprocess.run(["cp", file, target], check=True)
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def _same_start(folder: Path, size: int) -> None:
    """A file of that size is written and removed first. A virtual machine gives memory that was free for some seconds
    back to its host, and touching it again is slow: whoever copies first after a pause would pay for it.
    """
    file = folder / "before"
    block = bytes(_BLOCK)
    with file.open("wb", buffering=0) as stream:
        for _ in range(size // _BLOCK):
            stream.write(block)
    file.unlink()
    os.sync()


def _free_ports_from() -> int:
    """The first of some free ports in a row: an agent uses its own and those after it."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            for port in range(first, first + AGENT_PORTS):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def _door(node: ConnectedNode) -> str:
    return f"{node.address[0]}:{node.address[1]}"


BENCHMARK = Benchmark("copy", "a model file from node to node over TLS, against cp to the same disk", measure)
