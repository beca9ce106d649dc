"""Every text architecture of the installed mlx-lm, in stages and whole: the logits are the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as memoize
from functools import partial
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from chorus.planning.split import SplitError
from chorus.rank.cache import caches
from chorus.rank.cache.caches import CacheError
from chorus.rank.pipeline.stage import Stage, check_boundaries, layer_count
from tests.rank.pipeline.programs import COLUMNS, PROGRAMS, History, Machine, Program, Row
from tests.support.architectures import ARCHITECTURES, UNSUPPORTED, build, text_modules
from tests.support.questions import ask

TRUE_WITHIN = 1e-3
"""The unsharded model can do a column when its logits are those of one forward over all tokens, but for rounding."""

EXACT, ALIKE, REFUSED, CANNOT, BROKEN = "=", "(=)", "refused", "-", "BROKEN"


@dataclass(frozen=True)
class Outcome:
    mark: str
    """EXACT; ALIKE where the unsharded model is wrong and the stages equal it; REFUSED by every stage; CANNOT where the
    unsharded model fails; BROKEN.
    """
    note: str = ""


@dataclass(frozen=True)
class Parity:
    module: str
    layers: int
    one_stage_off: float
    """How far the logits of the model as one stage are from those of the model itself."""
    batches: bool
    """What the stage says about itself."""
    columns: dict[str, Outcome]
    unsplittable: str = ""

    @property
    def passes(self) -> bool:
        return not self.unsplittable and all(outcome.mark != BROKEN for outcome in self.columns.values())


def splits(layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two stages and three, uneven, as the layer numbers where they begin and end."""
    return (0, 2, layers), (0, layers - 4, layers - 1, layers)


def staged(model: nn.Module, edges: Sequence[int]) -> list[Stage]:
    return [Stage(clone(model), first, last) for first, last in pairwise(edges)]


def clone(model: nn.Module) -> nn.Module:
    """A module tree of its own around the same arrays: a stage changes the tree it is given."""
    known: dict[int, Any] = {}

    def note(value: Any) -> None:
        if isinstance(value, mx.array):
            known[id(value)] = value
        elif isinstance(value, dict):
            for item in (*value.values(), *getattr(value, "__dict__", {}).values()):
                note(item)
        elif isinstance(value, list | tuple):
            for item in value:
                note(item)

    note(model)
    return copy.deepcopy(model, known)


@memoize
def parity(name: str) -> Parity:
    model = build(name)
    layers = layer_count(model)
    two, three = splits(layers)
    whole = staged(model, (0, layers))
    measured = partial(Parity, name, layers, one_stage_off(model, whole[0]), whole[0].batches)
    try:
        check_boundaries(ARCHITECTURES[name], two[1:-1])
    except SplitError as error:
        with pytest.raises(SplitError):
            staged(model, two)
        return measured({}, unsplittable=str(error))
    in_two, in_three = staged(model, two), staged(model, three)
    truth = Truth(model)
    outcomes = [
        compare(program, whole, [in_two, in_three] if program.crosses else [in_three], truth) for program in PROGRAMS
    ]
    return measured({column: outcome for columns in outcomes for column, outcome in columns.items()})


def one_stage_off(model: nn.Module, stage: Stage) -> float:
    tokens = mx.array([[5, 17, 99, 3, 42], [7, 81, 23, 11, 90]])
    got = stage.forward(tokens, stage.new_cache())[0]
    return distance(got, model(tokens, cache=caches.fresh(model))[:, -1])


def compare(program: Program, whole: list[Stage], sharded: list[list[Stage]], truth: Truth) -> dict[str, Outcome]:
    wanted = run(program, whole)
    got = [run(program, stages) for stages in sharded]
    if isinstance(wanted, CacheError):
        same = all(isinstance(rows, CacheError) for rows in got)
        outcome = Outcome(REFUSED, str(wanted)) if same else Outcome(BROKEN, "only the whole model refuses")
        return dict.fromkeys(program.columns, outcome)
    if isinstance(wanted, Exception):
        return dict.fromkeys(program.columns, Outcome(CANNOT, f"unsharded: {type(wanted).__name__}: {wanted}"))
    return {column: judge(wanted[column], [of(column, rows) for rows in got], truth) for column in program.columns}


def judge(wanted: list[Row], got: list[list[Row] | Exception], truth: Truth) -> Outcome:
    if notes := [note for rows in got if (note := difference(wanted, rows))]:
        return Outcome(BROKEN, "; ".join(notes))
    off = truth.distance(wanted)
    if not off <= TRUE_WITHIN:
        return Outcome(ALIKE, f"unsharded: off by {off:.1e} from one forward over the same tokens")
    return Outcome(EXACT)


def of(column: str, rows: dict[str, list[Row]] | Exception) -> list[Row] | Exception:
    return rows if isinstance(rows, Exception) else rows[column]


def run(program: Program, stages: list[Stage]) -> dict[str, list[Row]] | Exception:
    """The rows of each column; upstream fails in its own ways for some architectures, so any error is an answer."""
    machine = Machine(stages)
    try:
        program.run(machine)
    except Exception as error:
        return error
    return machine.rows


def difference(wanted: list[Row], got: list[Row] | Exception) -> str:
    """Empty when all rows are equal, bit for bit."""
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got}"
    assert [past for past, _ in wanted] == [past for past, _ in got]
    ours, theirs = (mx.stack([row for _, row in rows]) for rows in (got, wanted))
    return "" if mx.array_equal(ours, theirs).item() else f"off by {distance(ours, theirs):.1e}"


def distance(got: mx.array, wanted: mx.array) -> float:
    """The largest difference; where both are minus infinity (a token ruled out) there is none."""
    return mx.where(got == wanted, 0.0, mx.abs(got - wanted)).max().item()


class Truth:
    """Logits from single forwards of the untouched model over whole sequences."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[History, mx.array] = {}

    def distance(self, rows: list[Row]) -> float:
        for past in sorted((past for past, _ in rows), key=len, reverse=True):
            if past not in self._known:
                self._learn(past)
        wanted = mx.stack([self._known[past] for past, _ in rows])
        return distance(mx.stack([row for _, row in rows]), wanted)

    def _learn(self, tokens: History) -> None:
        logits = self._model(mx.array([tokens]), cache=caches.fresh(self._model))[0].astype(mx.float32)
        for end in range(1, len(tokens) + 1):
            self._known.setdefault(tokens[:end], logits[end - 1])


MEASURED = [name for name in text_modules() if name not in UNSUPPORTED]


@pytest.mark.parametrize("name", MEASURED)
def test_an_architecture_in_stages_answers_every_question(name: str) -> None:
    result = parity(name)
    ask(
        partial(stages_give_the_logits_of_the_whole_model, result),
        partial(one_stage_gives_the_logits_of_the_model_itself, result),
        partial(a_stage_says_itself_whether_batches_are_right, result),
        partial(where_batches_are_right_prompts_may_begin_together, result),
    )


def stages_give_the_logits_of_the_whole_model(result: Parity) -> None:
    assert result.passes or result.unsplittable, {
        column: outcome.note for column, outcome in result.columns.items() if outcome.mark == BROKEN
    }


def one_stage_gives_the_logits_of_the_model_itself(result: Parity) -> None:
    assert result.one_stage_off <= 1e-5


def a_stage_says_itself_whether_batches_are_right(result: Parity) -> None:
    # Where a sequence alone is not right either, nothing can be said about its batches.
    if not result.unsplittable and result.columns["window"].mark == EXACT:
        assert result.batches == (result.columns["batch"].mark == EXACT)


def where_batches_are_right_prompts_may_begin_together(result: Parity) -> None:
    if not result.unsplittable and result.batches and result.columns["window"].mark == EXACT:
        assert result.columns["together"].mark == EXACT, result.columns["together"].note


# One for each way in which a layer depends on a cache it does not own: positions, windows, padding, an offset that is
# handed to all layers, a mask made as an array.
GHOST_READERS = ["gpt2", "olmo3", "gemma3_text", "llama", "qwen3_next", "bailing_hybrid", "deepseek_v3", "ministral3"]


@pytest.mark.parametrize("name", GHOST_READERS)
def test_ghosts_that_do_not_advance_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    layers = layer_count(model)
    monkeypatch.setattr(caches, "advance_ghost", lambda entry, batch, count: None)
    whole, sharded = staged(model, (0, layers)), staged(model, splits(layers)[1])
    assert any(is_wrong(run(program, whole), run(program, sharded)) for program in PROGRAMS)


def is_wrong(wanted: dict[str, list[Row]] | Exception, got: dict[str, list[Row]] | Exception) -> bool:
    if isinstance(wanted, Exception):
        return False
    return any(difference(rows, of(column, got)) for column, rows in wanted.items())


def test_at_least_110_modules_pass_and_the_rest_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    results = [parity(name) for name in MEASURED]
    with capsys.disabled():
        print(table(results))
    assert sum(result.passes for result in results) >= 110
    assert set(text_modules()) == {result.module for result in results} | set(UNSUPPORTED)


def table(results: list[Parity]) -> str:
    lines = ["", f"{'module':22}{'layers':>7}  " + "".join(f"{column:>9}" for column in COLUMNS)]
    notes: dict[str, list[str]] = {}
    for result in results:
        cells = "".join(f"{outcome.mark:>9}" for outcome in result.columns.values())
        lines.append(f"{result.module:22}{result.layers:7}  {cells or result.unsplittable}")
        for column, outcome in result.columns.items():
            if outcome.note:
                notes.setdefault(f"{column} {outcome.mark}: {outcome.note}", []).append(result.module)
    lines += [f"{'':22}{name}: not run here, {reason}" for name, reason in UNSUPPORTED.items()]
    lines += ["", *(f"{note}: {', '.join(modules)}" for note, modules in sorted(notes.items()))]
    passing = sum(result.passes for result in results)
    refused = sum(bool(result.unsplittable) for result in results)
    broken = len(results) - passing - refused
    lines += [
        "",
        f"{passing} modules pass, {refused} cannot be split, {broken} broken, {len(UNSUPPORTED)} not run here",
    ]
    return "\n".join(lines)
