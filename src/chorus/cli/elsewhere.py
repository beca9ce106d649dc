"""Commands that are done by the first host of a cluster, which a file describes: typed here, run there by SSH."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def on_its_first_host(config: Path, words: list[str], as_json: bool, seconds: float) -> None:
    """Have the cluster do what was typed here, and print what it says."""
    from chorus.cli.up import on_first_host  # SSH and what it needs take a while to import

    on_first_host(config, [*words, *(["--json"] if as_json else [])], seconds)
