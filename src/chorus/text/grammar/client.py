"""The leader's side: starts the process that grammars are forked from, opens one for each request, collects masks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from chorus.config.grammar import GrammarLimits
from chorus.messages.grammar import Grammar, GrammarError, TooManyGrammars, packed
from chorus.platform.storage.disk import nameless_file
from chorus.telemetry import events
from chorus.telemetry.telling import tell
from chorus.text.grammar.link import FAILED, LENGTH, LONGEST_FAILURE, LOOKING_AT, PLACE, READY, TOKEN, read_failure

log = logging.getLogger("chorus.grammar")

Mask = np.ndarray[Any, np.dtype[np.int32]]

COMPILING_AT_ONCE = 4
"""More would only take the processor from the streams that run."""
ANSWER_SECONDS = 30.0
"""How long a process that may be starting, or choking, has to answer beyond the time to compile."""
_MASK_SHARE_SECONDS = 0.01
"""What each token gives back to a request of the time for which its masks may keep the others waiting."""


class Constraint:
    """The state of one answer under a grammar; owned by the one request it was made for.

    The next mask is computed while the forward runs that it is for. One that is late keeps the whole step waiting, so a
    request has a credit of time for that; where it is used up, the request fails alone.
    """

    def __init__(
        self,
        link: socket.socket,
        mask: Mask,
        stop_tokens: frozenset[int],
        patience: float,
        field: str,
        release: Callable[[], None],
    ) -> None:
        """`release` is called once, when it is over."""
        self._link = link
        self._mask = mask
        self._stop_tokens = stop_tokens
        self._patience = self._credit = patience
        self._field = field
        self._ready = select.poll()
        self._ready.register(link, select.POLLIN)
        self._owed = 0
        self._release = release

    def advance(self, token: int) -> None:
        """Ask for the mask of what may come after this token."""
        if token in self._stop_tokens:
            return
        with contextlib.suppress(OSError):  # it has ended: its last word is still to be read
            self._link.send(TOKEN.pack(token))
        self._owed += 1

    def mask(self, since: float) -> Mask:
        """One bit per token, 32 to a word: which may come next. Valid until the next call.

        `since` is when the step began to wait for its masks: those of all its rows are computed at the same time.
        """
        while self._owed:
            self._collect(since)
            self._owed -= 1
        return self._mask

    def close(self) -> None:
        """Ends the process that holds the grammar, whatever it is doing."""
        self._link.close()
        release, self._release = self._release, lambda: None
        release()

    def _collect(self, since: float) -> None:
        try:
            answer = self._link.recv(1)
        except BlockingIOError:
            began = time.monotonic()
            if not self._ready.poll(max(0.0, 1000 * (since + self._credit - began))):
                raise _ended(
                    f"what may come next was not known within {self._patience:g} s (engine.grammar_mask_seconds): "
                    "make it simpler",
                    self._field,
                ) from None
            self._credit -= time.monotonic() - began
            answer = self._link.recv(1)
        self._credit = min(self._patience, self._credit + _MASK_SHARE_SECONDS)
        if answer != READY:
            raise _failed(self._link.recv(LONGEST_FAILURE), self._field)


class Grammars:
    """Opens grammars for one model, on one event loop."""

    def __init__(
        self,
        model_path: Path,
        vocabulary: int,
        limits: GrammarLimits,
        most: int,
        trust_remote_code: bool = False,
    ) -> None:
        """`most` requests with grammars may be open at a time."""
        self._order = {
            "model": str(model_path),
            "vocabulary": vocabulary,
            "trust_remote_code": trust_remote_code,
            "limits": asdict(limits),
        }
        self._mask_bytes = 4 * -(-vocabulary // 32)
        self._limits = limits
        self._most = most
        self._places = threading.Semaphore(most)
        self._compiling = asyncio.Semaphore(COMPILING_AT_ONCE)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Ahead of the first request: the vocabulary takes a while to build. Started again where it has ended."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chorus.text.grammar", json.dumps({**self._order, "control": theirs.fileno()})],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        self._control.setblocking(False)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def open(self, grammar: Grammar, stop_tokens: frozenset[int], answered: Sequence[int] = ()) -> Constraint:
        """Compiled, with the mask of what may come behind what was answered before. Raises GrammarError, or
        TooManyGrammars; leaving early ends its process.
        """
        if grammar.size > self._limits.max_bytes:
            reason = (
                f"it has {grammar.size} bytes where {self._limits.max_bytes} are accepted (engine.max_grammar_bytes)"
            )
            raise GrammarError(reason, _sole_field(grammar))
        if not self._places.acquire(blocking=False):
            raise TooManyGrammars(f"{self._most} requests with grammars are open")
        try:
            async with self._compiling:
                link, mask = await self._compiled(grammar, stop_tokens, answered)
        except BaseException:
            self._places.release()
            raise
        patience, release = self._limits.mask_seconds, self._places.release
        return Constraint(link, mask, stop_tokens, patience, _sole_field(grammar), release)

    async def _compiled(
        self, grammar: Grammar, stop_tokens: frozenset[int], answered: Sequence[int]
    ) -> tuple[socket.socket, Mask]:
        link, mask = self._born(stop_tokens)
        try:
            async with asyncio.timeout(self._limits.compile_seconds + ANSWER_SECONDS):
                await _compile(link, grammar, stop_tokens, answered)
        except TimeoutError:
            link.close()
            self.close()  # it does not even say that it took too long
            raise _ended("the process that compiles grammars does not answer; it is started again") from None
        except BaseException:
            link.close()
            raise
        return link, mask

    def _born(self, stop_tokens: frozenset[int]) -> tuple[socket.socket, Mask]:
        """A link to a new child, and the memory that it will write masks to."""
        self.start()
        assert self._control is not None
        file = nameless_file(self._mask_bytes)
        link, theirs = socket.socketpair()
        with theirs:
            try:
                mask = np.frombuffer(mmap.mmap(file, self._mask_bytes, prot=mmap.PROT_READ), dtype=np.int32)
                socket.send_fds(self._control, [json.dumps(sorted(stop_tokens)).encode()], [theirs.fileno(), file])
            except OSError as error:
                link.close()
                self.close()
                raise GrammarError(f"the process that compiles grammars does not answer: {error}") from None
            finally:
                os.close(file)
        link.setblocking(False)
        return link, mask


async def _compile(link: socket.socket, grammar: Grammar, stop_tokens: frozenset[int], answered: Sequence[int]) -> None:
    """Hands the grammar over and waits for its first mask."""
    loop = asyncio.get_running_loop()
    message = packed(grammar, stop_tokens, answered)
    field = _sole_field(grammar)
    with contextlib.suppress(ConnectionError):  # it has ended: its last word is still to be read
        await loop.sock_sendall(link, LENGTH.pack(len(message)) + message)
    while (answer := await loop.sock_recv(link, 1)) == LOOKING_AT:
        (place,) = PLACE.unpack(await loop.sock_recv(link, PLACE.size))
        field = grammar.origins[place].name if place < len(grammar.origins) else ""
    if answer == FAILED:
        raise _failed(await loop.sock_recv(link, LONGEST_FAILURE), field)
    if answer != READY:
        raise _ended("the process that compiles grammars ended", field)


def _failed(last_word: bytes, field: str) -> GrammarError:
    found = read_failure(last_word)
    return (_ended if found.ended else GrammarError)(found.reason, found.field or field)


def _ended(reason: str, field: str = "") -> GrammarError:
    """A process was ended, or has died, over a grammar: that is worth knowing the next morning."""
    tell(events.GRAMMAR_ENDED, why=reason)
    return GrammarError(reason, field)


def _sole_field(grammar: Grammar) -> str:
    return grammar.origins[0].name if len(grammar.origins) == 1 else ""
