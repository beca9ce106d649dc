"""The accept loop, when the system has no files left."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

import uvicorn

from chorus.api.server.connections import Pool
from chorus.api.server.door import Door
from chorus.api.server.protocol import BoundedHttp, SharedState
from chorus.config.sections import Limits
from tests.api.scripted_engine import DEADLINE


class Exhausted(socket.socket):
    """A listening socket in a process that may open no more files, for the first few times it tries."""

    refusals = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Idle:
    ended = False

    def end(self) -> None:
        self.ended = True


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_without_files_one_is_let_go_each_time_and_others_are_let_in_later() -> None:
    async def run() -> tuple[bytes, list[bool]]:
        config = uvicorn.Config(answer, lifespan="off", ws="none", log_config=None)
        config.load()
        pool = Pool(10, 10, keys_required=False)
        idle = [Idle() for _ in range(4)]
        for connection in idle:
            pool.enter(connection)
        state = SharedState(Limits(), pool)
        with Exhausted() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            door = Door(listener, pool, lambda: BoundedHttp(config, state, {}), 1.0, None)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            said = await asyncio.wait_for(reader.read(), DEADLINE)
            writer.close()
            door.close()
        return said, [connection.ended for connection in idle]

    said, ended = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 204 ")
    assert ended == [True, True, True, False]
