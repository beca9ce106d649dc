"""The sampled tokens of an engine come from a script; all else is computed. On PYTHONPATH of one test's processes only.

The folder that SCRIPTED_TOKENS names holds `script.json`; the processes write there what they were given:
`requests.jsonl`, the prompt of every request with the number of its sequence, and from every rank `fed-….jsonl`, the
prompt tokens that each of its steps brought.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["SCRIPTED_TOKENS"])
PROGRAMS = ("chorus.engine", "chorus.rank")


def append(file: str, entry: object) -> None:
    with (FOLDER / file).open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


@cache
def script() -> dict[str, Any]:
    return json.loads((FOLDER / "script.json").read_text())  # type: ignore[no-any-return]


@cache
def answer(prompt: tuple[int, ...]) -> list[int]:
    """The prompt holds the answers before this one, each behind `turn`, and the beginning of this one."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(script()["tokenizer"])
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    place = text.count(script()["turn"]) - 1
    told = next((talk["answers"] for talk in script()["talks"] if all(part in text for part in talk["shows"])), ())
    said = told[place] if place < len(told) else script()["aside"]
    return [*tokenizer.encode(said, add_special_tokens=False).ids, tokenizer.token_to_id(script()["end"])]


def sampling(module: ModuleType) -> None:
    sample = module.Sampler.sample

    @wraps(sample)
    def scripted(self: Any, logits: Any, draws: Sequence[Any]) -> Any:
        tokens = sample(self, logits, draws)
        for row, draw in enumerate(draws):
            # What the engine tries before it is ready is one token again and again, and not in the script.
            said = answer(tuple(draw.prompt)) if len(set(draw.prompt)) > 1 else []
            # With look-ahead one more is sampled behind the end, and thrown away.
            if len(draw.output) < len(said):
                tokens[row] = said[len(draw.output)]
        return tokens

    module.Sampler.sample = scripted  # type: ignore[attr-defined]


def scheduler(module: ModuleType) -> None:
    submit = module.Scheduler.submit
    accepted = 0

    @wraps(submit)
    def noting(self: Any, request: Any, *more: Any) -> Any:
        nonlocal accepted
        refused = submit(self, request, *more)
        if refused is None:
            accepted += 1
            append("requests.jsonl", {"sequence": accepted, "prompt": request.prompt})
        return refused

    module.Scheduler.submit = noting  # type: ignore[attr-defined]


def runner(module: ModuleType) -> None:
    run = module.Runner.run

    @wraps(run)
    def noting(self: Any, step: Any, *more: Any) -> Any:
        if fed := [[feed.sequence, feed.tokens] for feed in step.feeds if not step.decode or feed.partial]:
            append(f"fed-{os.getpid()}.jsonl", fed)
        return run(self, step, *more)

    module.Runner.run = noting  # type: ignore[attr-defined]


CHANGED = {
    "chorus.engine.sampling": sampling,
    "chorus.engine.scheduling.scheduler": scheduler,
    "chorus.rank.runner": runner,
}


if any(program in sys.orig_argv for program in PROGRAMS):
    runpy.run_path(str(Path(__file__).parents[2] / "changed_modules.py"))["install"](CHANGED)
