"""The n-th request of a seed, the same in every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.fuzz.server import bodies, described, grammars, wire
from tests.fuzz.server.attempts import KEY, Attempt, request
from tests.fuzz.server.bodies import SAMPLES, Sample

# Schemathesis takes its time for each; beyond these, its requests come again, changed.
MOST_DESCRIBED = 1000
DESCRIBED_SHARE = 5


class Maker:
    """`attempt(index)` depends on the seed, the index and the server's description of itself, on nothing else."""

    def __init__(self, seed: int, number: int, document: Mapping[str, Any], *, keys: bool) -> None:
        self._seed = seed
        self._keys = keys
        wanted = min(MOST_DESCRIBED, number // DESCRIBED_SHARE + 1)
        self._described = described.calls(document, wanted, seed)

    def attempt(self, index: int) -> Attempt:
        rng = random.Random(f"{self._seed}/{index}")
        kinds, weights = zip(*_KINDS, strict=True)
        attempt: Attempt = rng.choices(kinds, weights)[0](self, rng)
        return attempt

    def _key(self, rng: random.Random) -> str | None:
        """Now and then none, or a wrong one."""
        if self._keys and rng.random() < 0.05:
            return rng.choice((None, "", "chorus-wrong", KEY[:-1], KEY + "x"))
        return KEY if self._keys else None

    def _post(self, rng: random.Random, kind: str, path: str, body: bytes, **manner: Any) -> Attempt:
        return Attempt(kind, (request("POST", path, body, key=self._key(rng)),), **manner)

    def _from_description(self, rng: random.Random) -> Attempt:
        method, path, body = rng.choice(self._described)
        if isinstance(body, dict) and body and rng.random() < 0.5:
            body = bodies.mutated(rng, body, rng.randint(1, 3))
        content = (
            b"" if body is None else body if isinstance(body, bytes) else bodies.written(bodies.tamed(rng, path, body))
        )
        return Attempt("described", (request(method, path, content, key=self._key(rng)),))

    def _mutated(self, rng: random.Random) -> Attempt:
        sample = rng.choice(SAMPLES)
        body = bodies.mutated(rng, sample.body, rng.choice((1, 1, 1, 2, 3)))
        # The endpoints have much in common: what is right for one may be a surprise to another.
        path = rng.choice(SAMPLES).path if rng.random() < 0.05 else sample.path
        return self._post(rng, "mutated", path, bodies.written(bodies.tamed(rng, path, body)))

    def _damaged(self, rng: random.Random) -> Attempt:
        sample = rng.choice(SAMPLES)
        return self._post(rng, "damaged", sample.path, bodies.damaged(rng, bodies.written(sample.body)))

    def _right(self, rng: random.Random) -> Attempt:
        sample = rng.choice(SAMPLES)
        return self._post(rng, "right", sample.path, bodies.written(bodies.tamed(rng, sample.path, sample.body)))

    def _grammar(self, rng: random.Random) -> Attempt:
        return self._sized(rng, "grammar", grammars.hostile(rng))

    def _large(self, rng: random.Random) -> Attempt:
        return self._sized(rng, "large", bodies.large(rng))

    def _sized(self, rng: random.Random, kind: str, sample: Sample) -> Attempt:
        return self._post(rng, kind, sample.path, bodies.written(bodies.tamed(rng, sample.path, sample.body)))

    def _left(self, rng: random.Random) -> Attempt:
        """A stream that its client leaves, before the first word or somewhere within."""
        sample = rng.choice([sample for sample in SAMPLES if sample.path in bodies.LIMITS])
        body = sample.body | {"stream": True, bodies.LIMITS[sample.path]: 200, "n": rng.choice((1, 4))}
        if sample.path not in (bodies.CHAT, bodies.COMPLETIONS):
            del body["n"]
        leave = None if rng.random() < 0.2 else rng.randint(1, 5000)
        patience = rng.uniform(0.01, 0.5) if leave is None else 5.0
        return self._post(
            rng, "left", sample.path, bodies.written(body), owed=False, leave_after=leave, patience=patience
        )

    def _got(self, rng: random.Random) -> Attempt:
        path = rng.choice(bodies.GETS)
        if rng.random() < 0.3:
            path += rng.choice(
                ("/", "/..", "?a=b", "/%2e%2e/%00", "//", "/" + "a" * 3000, "?" + "&a=1" * 2000, "#x", ";x")
            )
        method = rng.choice(("GET", "GET", "GET", "HEAD", "DELETE", "OPTIONS", "PUT"))
        return Attempt("get", (request(method, path, key=self._key(rng)),))

    def _broken(self, rng: random.Random) -> Attempt:
        return wire.broken(rng)


_KINDS: Sequence[tuple[Callable[[Maker, random.Random], Attempt], int]] = (
    (Maker._from_description, 22),
    (Maker._mutated, 28),
    (Maker._damaged, 10),
    (Maker._right, 5),
    (Maker._grammar, 6),
    (Maker._large, 4),
    (Maker._left, 8),
    (Maker._got, 5),
    (Maker._broken, 12),
)
