"""`chorus models preshard`: one folder per rank, so that each machine needs only its own part of a model."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from chorus.cli.output import console, fail
from chorus.cluster.plan import Plan, PlanError
from chorus.models import ModelError, Progress, resolve
from chorus.models.preshard import write_preshard


def preshard(
    model: Annotated[str, typer.Argument(help="A folder, a Hugging Face id, a .gguf file or a catalog name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make; it must not exist or be empty.")],
    split: Annotated[
        str | None, typer.Option(help="Layers of each rank, rank 0 (the last layers) first, e.g. 20,7,3.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan as `chorus plan --json` prints it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut a model into one folder per rank, to be copied to the machine that runs it.

    Example: chorus models preshard smollm2-135m --split 20,7,3 --output ./parts
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        counts = chosen_split(split, plan)
        with Bars(*columns, console=console, transient=True) as bars:
            task = bars.add_task(f"finding {model}", total=None)

            def report(progress: Progress) -> None:
                bars.update(task, description=progress.label, completed=progress.done, total=progress.total)

            parts = write_preshard(resolve(model, progress=report), counts, output.expanduser(), report)
    except (ModelError, PlanError) as error:
        fail(escape(str(error)))
    if json:
        shown = [
            {
                "rank": part.rank,
                "path": str(part.path),
                "first_layer": part.first_layer,
                "last_layer": part.last_layer,
                "bytes": part.nbytes,
            }
            for part in parts
        ]
        typer.echo(json_format.dumps(shown, indent=2))
        return
    for part in parts:
        layers = f"layers {part.first_layer}-{part.last_layer}"
        console.print(f"rank {part.rank}: {layers}, {decimal(part.nbytes)} in {escape(str(part.path))}", soft_wrap=True)


def chosen_split(split: str | None, plan: Path | None) -> Sequence[int]:
    if (split is None) == (plan is None):
        raise PlanError("give either --split or --plan")
    if split is not None:
        try:
            return tuple(int(part) for part in split.split(","))
        except ValueError:
            raise PlanError(f"--split: expected numbers of layers like 20,7,3, got {split!r}") from None
    assert plan is not None
    try:
        made = Plan.from_json(plan.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{plan}: cannot be read: {error.strerror}") from error
    except PlanError as error:
        raise PlanError(f"{plan}: {error}") from None
    if made.parallel == "tensor":
        raise PlanError(f"{plan} divides every layer (tensor); only a pipeline can be cut into folders")
    return made.split
