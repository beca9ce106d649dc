"""What sequences begin with and what they leave behind: between the scheduler, which knows who runs, and the index,
which knows what is stored. Every change is an operation for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from chorus.engine.prefix.index import WORTH_A_CUT, Hit, PrefixIndex
from chorus.engine.prefix.tree import common
from chorus.engine.room import Use
from chorus.engine.scheduling.sequences import Sequence as Stream
from chorus.messages.rank import Erase, Operation, Store

WORTH_WAITING = 64
"""A request waits for another one's prompt to be read where it saves at least so many tokens."""

MAX_CONVERSATIONS = 4096
"""That are counted."""


class Running(Protocol):
    """Those who run, as far as it matters here."""

    filling: list[Stream]
    """Whose prompts are being read."""

    def live(self) -> Use:
        """What their caches take."""
        ...


class Reuse:
    def __init__(self, index: PrefixIndex, running: Running, clock: Callable[[], float]) -> None:
        self.index = index
        self._running = running
        self._clock = clock
        self._conversations: dict[str, float] = {}

    @property
    def off(self) -> str:
        """Why nothing is kept; empty where it is."""
        return self.index.keeping.refusal

    @property
    def conversations(self) -> int:
        """How many are pinned. May be asked from another thread."""
        now = self._clock()
        return sum(until > now for until in list(self._conversations.values()))

    def clear(self) -> list[Operation]:
        operations = self.index.clear()
        if self.index.disk:
            self.index.disk.clear()
            operations.append(Erase())
        return operations

    # Before a sequence begins.

    def hit(self, sequence: Stream) -> Hit:
        if not sequence.kept:
            return Hit()
        now = self.index.version, sequence.position
        if sequence.hit is None or sequence.hit[0] != now:
            tokens = (*sequence.request.prompt, *sequence.output)
            sequence.hit = now, self.index.find(sequence.request.scope, tokens)
        return sequence.hit[1]

    def wait(self, sequence: Stream) -> tuple[bool, list[Operation]]:
        """Whether it should wait for what others compute or a disk brings, and what is to be done for that."""
        if not sequence.kept or self.off:
            return False, []
        waits, operations = self._wait_for_another(sequence)
        if waits:
            return True, operations
        waits, more = self._wait_for_disk(sequence)
        return waits, [*operations, *more]

    def _wait_for_another(self, sequence: Stream) -> tuple[bool, list[Operation]]:
        """For a prompt that is being read and begins as this one's, for longer than what is stored: it is read once."""
        anywhere = self.index.keeping.anywhere
        for other in self._running.filling:
            shared = self._in_common(sequence, other)
            if shared < WORTH_WAITING or not other.prompt_left:
                continue
            if shared - self.hit(sequence).length < WORTH_WAITING:
                continue
            if shared > other.fed:
                # Whose prompt is the same begins with the other's logits, if that is all that can be kept.
                if anywhere or other.request.prompt != sequence.request.prompt:
                    other.stops.add(shared)
                return True, []
            if anywhere and other.present:
                return False, self.store(other, other.filling[: other.fed])
        return False, []

    def _in_common(self, sequence: Stream, other: Stream) -> int:
        """How many tokens both begin with; at least one of this sequence's own is left."""
        if not other.kept or other.request.scope != sequence.request.scope:
            return 0
        if other.number not in sequence.in_common:
            own = sequence.request.prompt
            sequence.in_common[other.number] = min(len(own) - 1, common(own, other.request.prompt, 0))
        return sequence.in_common[other.number]

    def _wait_for_disk(self, sequence: Stream) -> tuple[bool, list[Operation]]:
        """For files that bring its prompt further than memory does."""
        disk = self.index.disk
        if disk is None:
            return False, []
        operations: list[Operation] = []
        if sequence.files is None:
            sequence.files = disk.find(sequence.request.scope, sequence.filling, self.hit(sequence).length)
            wanted = Use(sum(len(file.tokens) for file in sequence.files), len(sequence.files))
            operations += self.index.make_room(self._running.live() + wanted)
            if not self.index.room.holds(self._running.live() + self.index.use + wanted):
                sequence.files = []
            operations += self.index.restore(sequence.files)
        return any(map(disk.reading_now, sequence.files)), operations

    # When it begins, while it runs, and before it ends.

    def begin(self, sequence: Stream) -> tuple[Hit, list[Operation]]:
        """With what is stored of its prompt, wherever it ends."""
        hit, index = self.hit(sequence), self.index
        operations: list[Operation] = []
        if hit.length:
            operations.append(index.fork(sequence.number, hit, sequence.pinned))
            sequence.present = True
        if sequence.cached is None and sequence.kept:
            index.counts.prompt_tokens += len(sequence.request.prompt)
            index.counts.cached_tokens += min(hit.length, len(sequence.request.prompt))
        sequence.begin(hit.length)
        if sequence.kept and not self.off and not index.keeping.anywhere:
            cuts = (*sequence.request.needed_cuts, *parting(hit.cut, sequence.request.cuts))
            sequence.stops |= {cut for cut in cuts if hit.length < cut < len(sequence.filling)}
        if sequence.request.conversation:
            self._pin(sequence.request.conversation)
        return hit, operations

    def _pin(self, conversation: str) -> None:
        self._conversations.pop(conversation, None)
        self._conversations[conversation] = self._clock() + self.index.limits.pin_seconds
        if len(self._conversations) > MAX_CONVERSATIONS:
            del self._conversations[next(iter(self._conversations))]

    def store(
        self, sequence: Stream, tokens: Sequence[int], *, state: bool = False, logits: bool = False
    ) -> list[Operation]:
        """Keep what it has fed so far, for others, where there is room beside those who run."""
        if not sequence.kept or self.off:
            return []
        request, live = sequence.request, self._running.live()
        wanted = self.index.wanted(request.scope, tokens)
        if operations := self.index.make_room(live + wanted):
            # What had to go may have been the beginning of this: then more is wanted than before.
            wanted = self.index.wanted(request.scope, tokens)
        if not self.index.room.holds(live + self.index.use + wanted):
            return operations
        stored = self.index.store(
            request.scope, tokens, sequence.number, state=state, logits=logits, pinned=sequence.pinned
        )
        new = (op.stop - op.start for op in stored if isinstance(op, Store) and op.start < len(request.prompt))
        sequence.stored = min(len(request.prompt), sequence.stored + sum(new))
        return [*operations, *stored]

    def keep_answer(self, sequence: Stream, end: tuple[int, ...] = ()) -> list[Operation]:
        """Before its cache goes: what it holds behind the prompt, as far as the tokens are known; `end` was drawn last
        and is no part of the answer.
        """
        if sequence.answer_kept or not sequence.present:
            return []
        sequence.answer_kept = True
        known = (*sequence.request.prompt, *sequence.output, *end)
        whole = sequence.length <= len(known)
        if not whole and not self.index.keeping.anywhere:
            return []
        return self.store(sequence, known[: sequence.length], state=whole)

    def prompt_read(self, sequence: Stream) -> None:
        """Its first token is there: how long a token of its prompt took is what files are measured against."""
        if self.index.disk and sequence.first_forward is not None and sequence.first_token is not None:
            read = len(sequence.filling) - (sequence.cached or 0)
            self.index.disk.computing.note(sequence.first_token - sequence.first_forward, read)

    def files_done(
        self, rank: int, saved: Iterable[str], restored: Iterable[str], failed: Iterable[str]
    ) -> list[Operation]:
        """What a rank says became of files that it was to write or to read."""
        disk, now, operations = self.index.disk, self._clock(), list[Operation]()
        if disk is None:
            return operations
        for key, ok in [*((key, True) for key in (*saved, *restored)), *((key, False) for key in failed)]:
            asked = disk.answer(rank, key, ok, now)
            if asked and asked.segment:
                operations += self.index.placed(asked)
        return operations


def parting(seen: int | None, cuts: Sequence[int]) -> tuple[int, ...]:
    """Where to stop for a state, when two requests were seen to part: at the last cut before that place, since they may
    share a few words behind it by chance, and at the place itself where more than a few are shared.
    """
    if seen is None:
        return ()
    cut = max((cut for cut in cuts if cut <= seen), default=0)
    return (cut,) if seen - cut < WORTH_A_CUT else (cut, seen)
