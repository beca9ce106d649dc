"""The small process that a leader's grammars are forked from: it holds llguidance and the vocabulary, and one thread.

A request's link is also its child's lifeline: when the leader closes it, or is gone, the child is killed. When a child
ends by itself, its link is told why, and nobody else notices.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from dataclasses import dataclass

import psutil
from llguidance import LLTokenizer

from chorus.config.grammar import TOGETHER, GrammarLimits
from chorus.messages.grammar import GrammarError
from chorus.text.grammar.child import live
from chorus.text.grammar.link import failure
from chorus.text.grammar.vocabulary import Vocabularies

_LOOK_SECONDS = 0.1
"""How often the memory of children is looked at."""
_LONGEST_ORDER = 4096


@dataclass
class Child:
    link: socket.socket
    process: psutil.Process
    born_with: int
    """Bytes that it shares with this process."""
    killed_for: str = ""

    def grown(self) -> int:
        try:
            return int(self.process.memory_info().rss) - self.born_with
        except psutil.Error:
            return 0


class Nursery:
    def __init__(self, control: socket.socket, vocabularies: Vocabularies, limits: GrammarLimits) -> None:
        self._control = control
        self._vocabularies = vocabularies
        self._limits = limits
        self._children: dict[int, Child] = {}
        self._links: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        # A child's end interrupts the wait for orders.
        self._ended, waker = os.pipe()
        for end in (self._ended, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._poll.register(self._ended, select.POLLIN)
        self._looked = 0.0

    def run(self) -> None:
        """Until the leader is gone."""
        while True:
            for descriptor, _ in self._poll.poll(1000 * _LOOK_SECONDS if self._children else None):
                if descriptor == self._control.fileno():
                    if not self._take_order():
                        return
                elif descriptor == self._ended:
                    os.read(self._ended, 4096)
                elif pid := self._links.get(descriptor):
                    self._kill(pid, "its request is over")
            self._watch_memory()
            self._reap()

    def close(self) -> None:
        for pid in self._children:
            self._kill(pid, "the leader is gone")

    def _take_order(self) -> bool:
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST_ORDER, 2)
        except ConnectionError:
            return False
        if len(descriptors) != 2:
            return False
        link, mask_file = socket.socket(fileno=descriptors[0]), descriptors[1]
        try:
            self._fork(link, mask_file, self._vocabularies.ending_with(frozenset(json.loads(order))))
        except GrammarError as error:
            _tell(link, str(error))
            link.close()
        except OSError as error:
            _tell(link, f"no process could be started for it: {error.strerror}")
            link.close()
        finally:
            os.close(mask_file)
        return True

    def _fork(self, link: socket.socket, mask_file: int, vocabulary: LLTokenizer) -> None:
        born_with = int(psutil.Process().memory_info().rss)
        pid = os.fork()
        if pid == 0:
            try:
                self._forget_everybody()
                live(link, mask_file, vocabulary, self._limits)
            finally:
                os._exit(1)  # whatever happens, there is one nursery
        self._children[pid] = Child(link, psutil.Process(pid), born_with)
        self._links[link.fileno()] = pid
        self._poll.register(link, select.POLLHUP)  # Linux always tells of a hang-up, macOS only where it is asked for

    def _forget_everybody(self) -> None:
        """In a child: the links of others are not its to hold open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for child in self._children.values():
            child.link.close()

    def _watch_memory(self) -> None:
        """For systems that set no limit, and for all children together."""
        if time.monotonic() < self._looked + _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        most = self._limits.memory_mb << 20
        grown = {pid: child.grown() for pid, child in self._children.items()}
        for pid, size in grown.items():
            if size > most:
                self._kill(pid, self._too_much_memory())
        if sum(grown.values()) > TOGETHER * most:
            largest = max(grown, key=lambda pid: grown[pid])
            self._kill(
                largest,
                f"the grammars of all requests need more than {TOGETHER * self._limits.memory_mb} MB together "
                f"({TOGETHER} x engine.grammar_memory_mb), and this one needs most",
            )

    def _kill(self, pid: int, reason: str) -> None:
        child = self._children[pid]
        child.killed_for = child.killed_for or reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            self._poll.unregister(child.link)
            del self._links[child.link.fileno()]
            if reason := child.killed_for or self._cause(os.waitstatus_to_exitcode(status)):
                _tell(child.link, reason, ended=True)
            child.link.close()

    def _cause(self, code: int) -> str:
        match -code:
            case 0:
                return ""
            case signal.SIGALRM:
                return (
                    f"it is not compiled after {self._limits.compile_seconds:g} s (engine.grammar_compile_seconds): "
                    "make it simpler"
                )
            case signal.SIGABRT:
                return self._too_much_memory()
            case signal.SIGSEGV | signal.SIGBUS:
                return "it is nested too deeply, or its rules refer to each other in too long a chain"
            case _:
                return f"the process that held it ended (code {code})"

    def _too_much_memory(self) -> str:
        return f"it needs more than {self._limits.memory_mb} MB (engine.grammar_memory_mb): make it simpler"


def _tell(link: socket.socket, reason: str, ended: bool = False) -> None:
    with contextlib.suppress(OSError):
        link.send(failure(reason, ended=ended))
