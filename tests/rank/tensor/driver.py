"""One rank of the parity test: `mpirun -n N python -m tests.rank.tensor.driver REPORT REFERENCES [LABEL…]`.

What the whole models say is made beforehand, without MPI: a rank that waits for another keeps a core busy.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chorus import platform
from chorus.rank.upstream import lean

platform.prepare(1)
lean.install()

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_lm.models.switch_layers import SwitchLinear  # noqa: E402

from chorus.messages.rank import Drop, Feed, Step  # noqa: E402
from chorus.rank.pipeline.stage import Stage, layer_count  # noqa: E402
from chorus.rank.products import worth  # noqa: E402
from chorus.rank.products.convert import lay_out_products, pack_products  # noqa: E402
from chorus.rank.products.usable import usable  # noqa: E402
from chorus.rank.runner import Runner  # noqa: E402
from chorus.rank.tensor import divide, parts  # noqa: E402
from chorus.rank.tensor.cuts import Cut, take  # noqa: E402
from chorus.rank.tensor.divide import TensorPlan, from_leader, shard_model  # noqa: E402
from chorus.rank.upstream.weights import dequantize  # noqa: E402
from tests.rank.tensor.cases import BFLOAT16_TOLERANCE, Case, cases  # noqa: E402
from tests.rank.tensor.spoken import Spoken, is_free, load, reference_file  # noqa: E402
from tests.support import device_thread  # noqa: E402
from tests.support.architectures.build import build_config, instantiate  # noqa: E402

device_thread.keep_from_interrupting()

PROMPTS = {1: [7, 3, 11, 250, 42, 9, 130, 77, 5], 2: [19, 4, 300, 8, 8], 3: [100, 2, 45, 6, 260, 31, 12]}
CHUNK = 5
MARGIN = 1e-3
"""Of the reference's two best tokens: below it, rounding may choose either."""

Choose = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Outcome:
    name: str
    label: str
    format: str
    fault: str | None
    seconds: float
    error: str | None = None
    largest: float = 0.0
    """Of the differences between two rows of logits, in terms of the reference's length."""
    typical: float = 0.0
    """The median of them."""
    noise: float = 0.0
    """What the number format alone does to the whole model's logits; asked for only where the typical one is large."""
    tokens: int = 0
    wrong_tokens: int = 0


def converse(stage: Stage, choose: Choose) -> list[Spoken]:
    """Prompts in chunks, decoding alone, two joins and a leave."""
    runner = Runner(stage)
    spoken: list[Spoken] = []
    latest: dict[int, mx.array] = {}
    number = 0

    def step(made: Step, tokens: mx.array | None = None) -> None:
        outputs = runner.run(made, tokens)
        if made.logits:
            spoken.append(Spoken(made.sequences, outputs[0]))
            chosen = choose(outputs[0])
            latest.update({sequence: chosen[row : row + 1] for row, sequence in enumerate(made.sequences)})
            mx.eval(chosen, outputs)
        else:
            mx.eval(outputs)

    def prefill(sequence: int) -> None:
        nonlocal number
        prompt = PROMPTS[sequence]
        for start in range(0, len(prompt), CHUNK):
            number += 1
            feed = Feed(sequence, tuple(prompt[start : start + CHUNK]), begins=not start)
            step(Step(number, feeds=(feed,), logits=start + CHUNK >= len(prompt)))

    def decode(sequences: list[int], count: int, leaving: tuple[Drop, ...] = ()) -> None:
        nonlocal number
        for turn in range(count):
            number += 1
            tokens = mx.stack([latest[sequence] for sequence in sequences])
            feeds = tuple(Feed(sequence, ()) for sequence in sequences)
            step(Step(number, leaving if turn == 0 else (), feeds, decode=True, logits=True), tokens)

    batch: list[int] = []
    for sequence, turns in ((1, 2), (2, 1), (3, 1)):
        prefill(sequence)
        if not stage.batches:
            decode([sequence], turns, (Drop(batch[-1]),) if batch else ())
            batch = [sequence]
        else:
            batch.append(sequence)
            decode(batch, turns)
    if stage.batches:
        decode([2, 3], 2, (Drop(1),))
    return spoken


def greedy(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def chosen_by(case: Case) -> Choose:
    return greedy if is_free(case) else scripted


def scripted(logits: mx.array) -> mx.array:
    """The same tokens whatever the model says, where rounding would send two greedy runs apart."""
    return mx.arange(logits.shape[0], dtype=mx.int32) * 7 + 21


@functools.lru_cache(maxsize=1)
def _weights(config: str) -> list[tuple[str, mx.array]]:
    found: list[tuple[str, mx.array]] = tree_flatten(build_config(json.loads(config)).parameters())
    return found


def made(case: Case) -> nn.Module:
    """The same weights in every format."""
    model = instantiate(case.config, 0, mx.float32)
    model.update(tree_unflatten(_weights(json.dumps(case.config))))
    if case.format == "bfloat16":
        model.set_dtype(mx.bfloat16)
    if case.format not in ("float32", "laid out"):
        fits = getattr(model, "quant_predicate", None) or (lambda path, module: True)
        nn.quantize(
            model, class_predicate=lambda path, module: fits(path, module) and _quantization(case, path, module)
        )
        mx.eval(model.parameters())
    return model


def _quantization(case: Case, path: str, module: nn.Module) -> bool | dict[str, int]:
    if not hasattr(module, "to_quantized") or module.weight.shape[-1] % case.group_size:
        return False
    if case.format == "bfloat16":
        # A CPU has no half-precision product for experts that are not packed.
        return {"group_size": 32, "bits": 8} if isinstance(module, SwitchLinear) else False
    if case.format == "mixed" and "down_proj" in path:
        return {"group_size": 32, "bits": 8}
    return {"group_size": case.group_size, "bits": 4}


def whole(case: Case) -> list[Spoken]:
    model = made(case)
    if case.format == "packed":
        pack(model)
    return converse(Stage(model, 0, layer_count(model)), chosen_by(case))


def pack(model: nn.Module) -> None:
    assert usable()
    pack_products(model, tied_head=True)


def run(case: Case, group: mx.distributed.Group, references: Path) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(case.name, case.label, case.format, case.fault, 0.0)
    model = made(case)
    try:
        if case.fault is None:
            divide.check(case.config, group.size(), case.weights)
        divided(case, model, group)
        if case.format == "unpacked":
            dequantize(model, mx.float32)
            assert not any("scales" in module for _, module in model.named_modules())
        if case.format == "packed":
            pack(model)
        if case.format == "laid out":
            assert usable()
            assert lay_out_products(model, head_only=False)
    except divide.SplitError as error:
        return replace(outcome, error=f"{type(error).__name__}: {error}")
    choose = chosen_by(case)
    spoken = converse(
        Stage(model, 0, layer_count(model)), lambda logits: from_leader(choose(logits), group, after=[logits])
    )
    if group.rank() == 0:
        reference = load(reference_file(references, case))
        outcome = compared(outcome, spoken, reference, is_free(case))
        if case.format == "bfloat16" and outcome.typical > BFLOAT16_TOLERANCE:
            outcome = replace(outcome, noise=compared(outcome, reference, exactly(case, choose), free=False).typical)
    return replace(outcome, seconds=round(time.monotonic() - began, 2))


def exactly(case: Case, choose: Choose) -> list[Spoken]:
    """The whole model on the same weights in float32."""
    model = made(case)
    model.set_dtype(mx.float32)
    return converse(Stage(model, 0, layer_count(model)), choose)


def divided(case: Case, model: nn.Module, group: mx.distributed.Group) -> None:
    """Divide the model, wrongly where the case asks for it."""
    plan = TensorPlan(group.rank(), case.weights)
    if case.fault == "biases on every rank":
        original = parts.RankShare.adds_biases
        parts.RankShare.adds_biases = True  # type: ignore[assignment]
        shard_model(model, case.config, plan, group)
        parts.RankShare.adds_biases = original  # type: ignore[method-assign]
    elif case.fault is not None:
        wrong = {"shifted columns": "layers.2.self_attn.o_proj.weight", "foreign rows": "layers.2.mlp.up_proj.weight"}
        victim = wrong[case.fault]

        def read(path: str, array: mx.array, cut: Cut) -> mx.array:
            return take(mx.roll(array, 1, cut.axis) if path.endswith(victim) else array, cut)

        shard_model(model, case.config, plan, group, read=read)
    else:
        shard_model(model, case.config, plan, group)


def compared(outcome: Outcome, ours: list[Spoken], reference: list[Spoken], free: bool) -> Outcome:
    """`free`: the tokens were the models' own, so that sequences that once differed cannot be compared further."""
    differences: list[float] = []
    wrong = 0
    apart: set[int] = set()
    for mine, right in zip(ours, reference, strict=True):
        for row, sequence in enumerate(right.sequences):
            if sequence in apart:
                continue
            own, expected = mine.logits[row].astype(mx.float32), right.logits[row].astype(mx.float32)
            differences.append((mx.linalg.norm(own - expected) / mx.linalg.norm(expected)).item())
            if mx.argmax(own).item() != mx.argmax(expected).item():
                second, best = mx.sort(expected)[-2:].tolist()
                wrong += best - second > MARGIN
                if free:
                    apart.add(sequence)
    return replace(
        outcome,
        largest=max(differences),
        typical=statistics.median(differences),
        tokens=len(differences),
        wrong_tokens=wrong,
    )


def main() -> None:
    report, references, *wanted = sys.argv[1:]
    divide.VOCABULARY_PAYS_FROM = 0
    worth.LEAST = 0
    group = mx.distributed.init(strict=True, backend="mpi")
    chosen = [case for case in cases(group.size()) if not wanted or case.label in wanted]
    outcomes: list[dict[str, Any]] = [asdict(run(case, group, Path(references))) for case in chosen]
    if group.rank() == 0:
        Path(report).write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
