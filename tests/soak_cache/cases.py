"""What is tried: tiny models of every kind of cache, over pipelines and tensor ranks, under changing settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.support.architectures import ARCHITECTURES, Config
from tests.support.tiny_model import override

KINDS = {
    "plain": "qwen2",
    "rotating": "gemma3_text",
    "chunked": "llama4",
    "recurrent": "mamba2",
    "hybrid": "qwen3_5",
    "hybrid with both in a layer": "falcon_h1",
}
TENSOR = ("qwen2", "gemma3_text", "qwen3_5")
SITTING = 25
"""Conversations that one load of a group holds."""
WINDOW_NAMES = ("sliding_window", "attention_chunk_size")
"""How configurations call what bounds a layer's reach."""


@dataclass(frozen=True)
class Case:
    architecture: str
    ranks: int
    tensor: bool = False

    @property
    def name(self) -> str:
        return f"{self.architecture}-{'tensor' if self.tensor else 'pipeline'}-{self.ranks}"

    @staticmethod
    def named(name: str) -> Case:
        """Any architecture may be named, whether it belongs to the matrix or not."""
        found = re.fullmatch(r"(\w[\w-]*?)-(tensor|pipeline)-(\d)", name)
        if not found or found[1] not in ARCHITECTURES:
            raise ValueError(f"{name!r} is no case: write ARCHITECTURE-pipeline-RANKS or ARCHITECTURE-tensor-RANKS")
        return Case(found[1], int(found[3]), found[2] == "tensor")


MATRIX = (
    *(Case(architecture, ranks) for architecture in KINDS.values() for ranks in (1, 2, 3)),
    *(Case(architecture, 2, tensor=True) for architecture in TENSOR),
)


@dataclass(frozen=True)
class Sitting:
    """Conversations that are held at the same time and one behind the other with one load of a group. Everything about
    it follows from the seed, the case and the number.
    """

    case: Case
    seed: int
    number: int
    conversations: int

    def random(self, *what: object) -> Random:
        return Random("/".join(map(str, (self.seed, self.case.name, self.number, *what))))

    @property
    def command(self) -> str:
        """Repeats it alone."""
        return (
            f"python -m tests.soak_cache --case {self.case.name} --seed {self.seed} --sitting {self.number} "
            f"--conversations {self.conversations}"
        )


@dataclass(frozen=True)
class Settings:
    window: int
    prefill_chunk: int
    max_batch: int
    lanes: int
    tokens_of_memory: int | None
    """For how many tokens there is memory, of streams and stored ones together; None: for all."""
    at_once: int
    """How many conversations are held at the same time."""

    def config(self, architecture: str) -> Config:
        given = ARCHITECTURES[architecture]
        return override(given, {name: self.window for name in WINDOW_NAMES if _has(given, name)})


def settings_of(sitting: Sitting) -> Settings:
    random = sitting.random("settings")
    return Settings(
        window=random.choice((6, 24)),
        prefill_chunk=random.choice((8, 16, 16, 64)),
        max_batch=random.choice((3, 8)),
        lanes=1 if sitting.case.tensor else random.randint(1, sitting.case.ranks),
        tokens_of_memory=random.choice((None, None, 500, 900)),
        at_once=random.randint(3, 6),
    )


def of_each(cases: Sequence[Case], seed: int, conversations: int) -> list[Sitting]:
    """So many conversations of every case."""
    return [
        Sitting(case, seed, number, min(SITTING, conversations - number * SITTING))
        for number in range(-(-conversations // SITTING))
        for case in cases
    ]


def in_all(cases: Sequence[Case], seed: int, conversations: int, fewest: int = 4) -> list[Sitting]:
    """So many conversations drawn from all cases: one sitting of each, or of as many different ones as can be."""
    drawn = list(cases)
    Random(seed).shuffle(drawn)
    # One of every kind comes before the second of any.
    seen: dict[object, int] = {}
    order = []
    for case in drawn:
        kind = "tensor" if case.tensor else case.architecture
        seen[kind] = seen.get(kind, 0) + 1
        order.append((seen[kind], case))
    chosen = [case for _, case in sorted(order, key=lambda entry: entry[0])][: max(1, conversations // fewest)]
    share, more = divmod(conversations, len(chosen))
    return [Sitting(case, seed, 0, share + (number < more)) for number, case in enumerate(chosen)]


def _has(config: Config, name: str) -> bool:
    return name in config or name in config.get("text_config", {})
