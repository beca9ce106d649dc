"""`chorus models preshard`: one folder per rank, so that each machine needs only its own part of a model."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape

from chorus.cli.output import console
from chorus.models import resolve
from chorus.models.preshard.folder import Division
from chorus.models.preshard.write import RankFolder, write_preshard
from chorus.models.values import LocalModel, ProgressCallback
from chorus.planning.plan import Plan, PlanError
from chorus.platform.terminal import shown


def preshard(
    model: Annotated[str, typer.Argument(help="A folder, a Hugging Face id, a .gguf file or a catalog name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make; it must not exist or be empty.")],
    split: Annotated[
        str | None, typer.Option(help="Layers of each rank, rank 0 (the last layers) first, e.g. 20,7,3.")
    ] = None,
    parallel: Annotated[
        str | None, typer.Option(help="pipeline: runs of layers; tensor: slices of all layers.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Tensor parallel: each rank's share, rank 0 first, e.g. 2,1.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan as `chorus plan --json` prints it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut a model into one folder per rank, to be copied to the machine that runs it.

    `chorus serve ./parts` then starts from them.

    Example: chorus models preshard smollm2-135m --split 20,7,3 --output ./parts
    """
    division = chosen_division(parallel, split, weights, plan)
    with shown(f"finding {model}") as report:
        parts = write_parts(resolve(model, progress=report), division, output.expanduser(), report)
    if json:
        listed = [
            {
                "rank": part.rank,
                "path": str(part.path),
                "first_layer": part.first_layer,
                "last_layer": part.last_layer,
                "bytes": part.nbytes,
            }
            for part in parts
        ]
        typer.echo(json_format.dumps(listed, indent=2))
        return
    for part in parts:
        layers = f"layers {part.first_layer}-{part.last_layer}"
        if division.parallel == "tensor":
            layers = f"{division.parts[part.rank]} of {sum(division.parts)} parts of {layers}"
        console.print(f"rank {part.rank}: {layers}, {decimal(part.nbytes)} in {escape(str(part.path))}", soft_wrap=True)


def write_parts(model: LocalModel, division: Division, output: Path, report: ProgressCallback) -> list[RankFolder]:
    if division.parallel == "pipeline":
        return write_preshard(model, division.parts, output, report)
    # Slicing needs MLX, which takes a while to import.
    from chorus.rank.tensor.preshard import write_sliced_preshard

    return write_sliced_preshard(model, division.parts, output, report)


def chosen_division(parallel: str | None, split: str | None, weights: str | None, plan: Path | None) -> Division:
    if sum(given is not None for given in (split, weights, plan)) != 1:
        raise PlanError("give one of --split, --weights and --plan")
    if parallel not in (None, "pipeline", "tensor"):
        raise PlanError(f"--parallel: expected pipeline or tensor, got {parallel!r}")
    division = _planned(plan) if plan else Division.of(_numbers("--split", split), _numbers("--weights", weights))
    if parallel not in (None, division.parallel):
        raise PlanError(f"{division} is for --parallel {division.parallel}, not {parallel}")
    return division


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    try:
        numbers = None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PlanError(f"{option}: expected numbers like 20,7,3, got {text!r}") from None
    if numbers is not None and min(numbers) < 1:
        raise PlanError(f"{option} {text}: every rank needs at least 1")
    return numbers


def _planned(file: Path) -> Division:
    try:
        made = Plan.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from None
    if made.parallel == "hybrid":
        raise PlanError(f"{file}: a hybrid has no parts to cut: plan for pipeline or tensor, or serve the model itself")
    return Division.of(None, made.split) if made.parallel == "tensor" else Division.of(made.split, None)
