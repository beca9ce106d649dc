"""Grammars as a leader has them, for tests that have no event loop: the real processes, one call."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path

from chorus.config.grammar import GrammarLimits
from chorus.messages.grammar import Grammar
from chorus.text.grammar.client import Constraint, Grammars

DEADLINE = 120.0


class GrammarHost:
    """`with GrammarHost(model, 512) as host: constraint = host.open(grammar, stops)`."""

    def __init__(self, model: Path, vocabulary: int, limits: GrammarLimits | None = None, most: int = 64) -> None:
        self.grammars = Grammars(model, vocabulary, limits or GrammarLimits(), most)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def pid(self) -> int:
        """Of the process that grammars are forked from."""
        assert self.grammars.pid is not None
        return self.grammars.pid

    def begin(self, grammar: Grammar, stop_tokens: frozenset[int]) -> Future[Constraint]:
        return asyncio.run_coroutine_threadsafe(self.grammars.open(grammar, stop_tokens), self._loop)

    def open(self, grammar: Grammar, stop_tokens: frozenset[int]) -> Constraint:
        return self.begin(grammar, stop_tokens).result(DEADLINE)

    def __enter__(self) -> GrammarHost:
        self._thread.start()
        self.grammars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self.grammars.close()
