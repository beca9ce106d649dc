"""One request's grammar: compiled and followed by a process of its own, which nobody misses when it ends.

It reads the grammar from its link, with what was answered under it before, then a token at a time; it answers each with
one byte when the mask of what may come next lies in shared memory. What ends it early (memory, stack, time) is told by
the process that it was forked from.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import threading
from collections.abc import Sequence
from typing import NoReturn

from llguidance import LLMatcher, LLTokenizer

from chorus.config.grammar import GrammarLimits
from chorus.messages.grammar import Grammar, GrammarError, unpacked
from chorus.platform.process.confine import be_expendable
from chorus.text.grammar.forms import llguidance_form, one_line
from chorus.text.grammar.link import LENGTH, READY, TOKEN, failure, looking_at

STACK_BYTES = 256 << 20
"""llguidance recurses with the grammar; untouched, a stack costs nothing."""


def live(link: socket.socket, mask_file: int, vocabulary: LLTokenizer, limits: GrammarLimits) -> NoReturn:
    """The whole life of a child that was just forked."""
    try:
        confine(limits)
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=follow, args=(link, mask_file, vocabulary))
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def confine(limits: GrammarLimits) -> None:
    """So that this process ends when it takes too much memory or time, without a word on the leader's screen."""
    be_expendable(STACK_BYTES + (limits.memory_mb << 20))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.compile_seconds)


def follow(link: socket.socket, mask_file: int, vocabulary: LLTokenizer) -> None:
    try:
        (length,) = LENGTH.unpack(_read(link, LENGTH.size))
        grammar, stop_tokens, answered = unpacked(_read(link, length))
        masks = Masks(compiled(grammar, vocabulary, link), mask_file, vocabulary.vocab_size, stop_tokens)
        masks.begin(answered)
        signal.setitimer(signal.ITIMER_REAL, 0)
        link.sendall(READY)
        while True:
            masks.take(*TOKEN.unpack(_read(link, TOKEN.size)))
            link.sendall(READY)
    except EOFError:
        return
    except GrammarError as error:
        link.sendall(failure(str(error), error.field))
    except (ValueError, MemoryError, RecursionError) as error:
        link.sendall(failure(one_line(str(error) or type(error).__name__)))


def compiled(grammar: Grammar, vocabulary: LLTokenizer, link: socket.socket) -> LLMatcher:
    """Where several things the client sent are in it, each is looked at first, so that the wrong one can be named."""
    if len(grammar.origins) > 1:
        for place, origin in enumerate(grammar.origins):
            link.sendall(looking_at(place))
            if problem := LLMatcher.validate_grammar(llguidance_form(origin.kind, origin.source)):
                raise GrammarError(one_line(problem), origin.name)
        link.sendall(looking_at(len(grammar.origins)))
    matcher = LLMatcher(vocabulary, llguidance_form(grammar.kind, grammar.source, grammar.parts), log_level=0)
    if matcher.is_error():
        raise GrammarError(one_line(matcher.get_error()))
    return matcher


class Masks:
    """One bit per token, 32 to a word: which may come next."""

    def __init__(self, matcher: LLMatcher, file: int, vocabulary: int, stop_tokens: frozenset[int]) -> None:
        size = 4 * -(-vocabulary // 32)
        self._matcher = matcher
        self._stop_tokens = [token for token in stop_tokens if token < vocabulary]
        memory = mmap.mmap(file, size)
        self._bytes = (ctypes.c_uint8 * size).from_buffer(memory)

    def begin(self, answered: Sequence[int]) -> None:
        """Behind what an engine before this one has drawn under the same grammar."""
        for place, token in enumerate(answered):
            if not self._matcher.is_stopped() and not self._matcher.consume_token(token):
                raise GrammarError(f"it does not allow token {place} of what was answered before")
        self.fill()

    def take(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
        self.fill()

    def fill(self) -> None:
        self._raise_error()
        if self._matcher.is_stopped():
            ctypes.memset(self._bytes, 0, len(self._bytes))
            self._allow_stop_tokens()
            return
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(self._bytes), len(self._bytes))
        self._raise_error()
        if self._matcher.is_accepting():
            self._allow_stop_tokens()

    def _allow_stop_tokens(self) -> None:
        for token in self._stop_tokens:
            self._bytes[token // 8] |= 1 << (token % 8)

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(one_line(self._matcher.get_error()))


def _read(link: socket.socket, length: int) -> bytes:
    read = bytearray()
    while len(read) < length:
        part = link.recv(length - len(read))
        if not part:
            raise EOFError
        read += part
    return bytes(read)
