"""Random conversations over token ids: what clients do with a history, without any text. Pure; all follows from a seed.

A conversation is a generator: it gives what is asked next, several requests where they are asked together, and takes
their answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from random import Random

from chorus.messages.engine import Request, Sampling
from tests.support.teacher import Answer

ANSWER, END = 1, 2
"""The tokens by which a template opens an answer and closes it."""
FIRST_WORD = 3


@dataclass(frozen=True)
class Ask:
    request: Request
    """Its id is given when it is submitted."""
    pause: int = 0
    """Turns of the engine that pass before it is submitted."""
    cancel_after_tokens: int | None = None
    cancel_after_turns: int | None = None


Conversation = Generator[list[Ask], list[Answer], None]


@dataclass(frozen=True)
class World:
    """What the conversations of a sitting have in common."""

    vocabulary: int
    context: int
    systems: tuple[tuple[int, ...], ...]
    answers: bool
    """Whether the engine goes on with answers that were begun before."""

    @staticmethod
    def drawn(random: Random, vocabulary: int, context: int, answers: bool) -> World:
        def words(count: int) -> tuple[int, ...]:
            return tuple(random.randrange(FIRST_WORD, vocabulary) for _ in range(count))

        # Past 256 tokens a cache grows for the second time.
        sizes = (0, 5, 20, 45, 45, 90, 262)
        common = words(262)
        # Some begin alike and part under way.
        systems = tuple(common[:size] if random.random() < 0.5 else words(size) for size in sizes)
        return World(vocabulary, context, systems, answers)


@dataclass
class Speaker:
    """Holds one conversation."""

    world: World
    random: Random
    scope: str = ""
    conversation: str = ""
    system: tuple[int, ...] = ()
    history: tuple[int, ...] = ()
    last_turn: int = 0
    """Where the last user message begins."""
    asked: list[Answer] = field(default_factory=list)

    def talk(self) -> Conversation:
        for _ in range(self.random.randint(1, 4)):
            kinds = {self._say: 4, self._together: 2, self._branch: 2, self._cancel: 2}
            if self.asked:
                kinds |= {self._again: 2, self._edit: 2, self._prefix: 2, self._go_on: 2 if self.world.answers else 0}
            kind: Callable[[], Conversation] = self.random.choices(list(kinds), list(kinds.values()))[0]
            yield from kind()

    def _say(self) -> Conversation:
        """A new message, and its answer into the history."""
        prompt = self._prompt()
        if prompt:
            yield from self._ask(self._new(prompt))
            self._remember(self.asked[-1])

    def _together(self) -> Conversation:
        """The same prompt at the same time, or nearly."""
        prompt = self._prompt()
        if prompt:
            pauses = [self.random.choice((0, 0, 3)) for _ in range(self.random.randint(2, 3))]
            yield from self._ask(*(replace(self._new(prompt), pause=pause) for pause in pauses))
            self._remember(self.random.choice(self.asked[-len(pauses) :]))

    def _branch(self) -> Conversation:
        """Two different messages behind one history."""
        prompts = [prompt for _ in range(2) if (prompt := self._prompt())]
        if prompts:
            yield from self._ask(*(replace(self._new(p), pause=self.random.choice((0, 0, 8))) for p in prompts))
            self._remember(self.random.choice(self.asked[-len(prompts) :]))

    def _cancel(self) -> Conversation:
        """Given up under way; what was received stays in the history, or the same is asked again."""
        prompt = self._prompt()
        if not prompt:
            return
        ask = self._new(prompt)
        if self.random.random() < 0.6:
            ask = replace(ask, cancel_after_tokens=self.random.randint(1, 12))
        else:
            ask = replace(ask, cancel_after_turns=self.random.randint(0, 10))
        yield from self._ask(ask)
        if self.random.random() < 0.5:
            self._remember(self.asked[-1])
        else:
            yield from self._ask(self._new(prompt))

    def _again(self) -> Conversation:
        """An earlier prompt, token for token."""
        yield from self._ask(self._new(self.random.choice(self.asked).request.prompt))

    def _edit(self) -> Conversation:
        """The last user message is replaced by another one."""
        self.history = self.history[: self.last_turn]
        yield from self._say()

    def _prefix(self) -> Conversation:
        """Some part of what was read before, cut anywhere."""
        read = self.random.choice(self.asked).read
        yield from self._ask(self._new(read[: self.random.randint(1, len(read))]))

    def _go_on(self) -> Conversation:
        """An answer is asked for again behind its first tokens, as after a loss."""
        before = self.random.choice(self.asked)
        longest = before.request.max_tokens - 1
        answered = before.output[: self.random.randint(0, longest)]
        yield from self._ask(Ask(replace(before.request, answered=answered)))

    def _ask(self, *asks: Ask) -> Conversation:
        self.asked += yield [replace(ask, pause=ask.pause + self.random.choice((0, 0, 2, 25))) for ask in asks]

    def _prompt(self) -> tuple[int, ...]:
        """History, a new message and the opening of the answer; nothing where the context has no room for them."""
        message = self._words(self.random.choice((1, 3, 8, 8, 20, 20, 50)))
        self.last_turn = len(self.history)
        prompt = (*self.history, *message, ANSWER)
        return prompt if len(prompt) + 16 <= self.world.context else ()

    def _remember(self, answer: Answer) -> None:
        """As the next prompt shows it: as it was, closed, or written differently at its end."""
        tokens = answer.output
        form = self.random.random()
        if form < 0.3:
            tokens = (*tokens, END)
        elif form < 0.5:
            tokens = (*tokens[:-2], *self._words(2))
        self.history = (*answer.request.prompt, *tokens)

    def _new(self, prompt: tuple[int, ...]) -> Ask:
        random = self.random
        room = self.world.context - len(prompt)
        most = min(room, random.choice((1, 4, 8, 16, 40)))
        cuts, needed = self._cuts(len(prompt))
        stops = frozenset(self._words(6)) if random.random() < 0.3 else frozenset[int]()
        return Ask(
            Request(
                "",
                prompt,
                max(1, most),
                stop_tokens=stops,
                sampling=self._sampling(),
                logprobs=0 if random.random() < 0.7 else None,
                cuts=cuts,
                needed_cuts=needed,
                scope=self.scope,
                conversation=self.conversation,
                pinned=random.random() < 0.1,
                uncached=random.random() < 0.05,
            )
        )

    def _cuts(self, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a front end that knows its template would send: all of it, some of it or nothing."""
        known = {len(self.system), self.last_turn, length - 1}
        cuts = sorted(cut for cut in known if 0 < cut < length and self.random.random() < 0.7)
        needed = [cut for cut in cuts if self.random.random() < 0.4]
        return tuple(cuts), tuple(needed)

    def _sampling(self) -> Sampling:
        random = self.random
        kind = random.random()
        if kind < 0.4:
            return Sampling()
        drawn = Sampling(temperature=random.choice((0.7, 1.0)), seed=random.randrange(1 << 40))
        if kind < 0.8:
            return drawn
        return replace(drawn, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3)

    def _words(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(FIRST_WORD, self.world.vocabulary) for _ in range(count))


def conversation(world: World, random: Random) -> Conversation:
    system = random.choice(world.systems)
    scope = random.choice(("", "", "", "somebody", "somebody else"))
    name = random.choice(("", "", f"conversation {random.randrange(4)}"))
    return Speaker(world, random, scope, name, system, system).talk()


class Beginnings:
    """How much of a prompt others have sent to the engine, by scope: more than that cannot have been stored."""

    def __init__(self) -> None:
        self._readers: defaultdict[int, set[str]] = defaultdict(set)
        """Of every beginning, by its hash: the requests that had it. Two tell all that is asked."""

    def add(self, request: Request, read: Sequence[int]) -> None:
        if not request.uncached:
            for key in self._keys(request, read):
                if len(self._readers[key]) < 2:
                    self._readers[key].add(request.id)

    def of_others(self, request: Request) -> int:
        if request.uncached:
            return 0
        return sum(
            1 for _ in takewhile(lambda key: self._readers[key] - {request.id}, self._keys(request, request.prompt))
        )

    @staticmethod
    def _keys(request: Request, read: Sequence[int]) -> list[int]:
        return list(accumulate(read, lambda key, token: hash((key, token)), initial=hash(request.scope)))[1:]
