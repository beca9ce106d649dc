"""`python -m benchmarks.crowd PORT NUMBER`: strangers that say nothing, say little at a time or leave, and come back.

They come from several addresses of loopback, where this machine has more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import sys

from benchmarks.servers import Started, peer_module_environment, wait_for_line

EVERYBODY_CAME = "everybody came"
BACK_AFTER_SECONDS = 1.0
DRIP_SECONDS = 1.0
ADDRESSES = 16


class Crowd(Started):
    """Leaving the block ends them all."""

    def __init__(self, port: int, number: int) -> None:
        command = [sys.executable, "-m", "benchmarks.crowd", str(port), str(number)]
        super().__init__("strangers", command, peer_module_environment())

    def _wait_until_ready(self) -> None:
        wait_for_line(self, EVERYBODY_CAME)


class Stranger:
    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self.came = asyncio.Event()

    async def come_again_and_again(self) -> None:
        act = (self._say_nothing, self._drip, self._leave)[self._number % 3]
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=self._address())
                self.came.set()
                try:
                    await act(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(BACK_AFTER_SECONDS * (0.5 + random.random()))

    def _address(self) -> tuple[str, int] | None:
        return (f"127.0.0.{2 + self._number % ADDRESSES}", 0) if sys.platform == "linux" else None

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def _drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-drip: "
        while not writer.transport.is_closing() and not reader.at_eof():
            writer.write(head[:1] or b"y")
            head = head[1:]
            await asyncio.sleep(DRIP_SECONDS)

    async def _leave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """At once."""


async def gather(port: int, number: int) -> None:
    strangers = [Stranger(port, n) for n in range(number)]
    async with asyncio.TaskGroup() as tasks:
        for stranger in strangers:
            tasks.create_task(stranger.come_again_and_again())
        for stranger in strangers:
            await stranger.came.wait()
        print(EVERYBODY_CAME, flush=True)


def main() -> int:
    port, number = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(gather(port, number))
    return 0


if __name__ == "__main__":
    sys.exit(main())
