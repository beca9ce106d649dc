"""`chorus localai`: the backend that LocalAI starts, or connects to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.output import fail
from chorus.config.hostfile import BACKENDS
from chorus.localai.launch import lead
from chorus.transport import catalog


def localai(
    addr: Annotated[
        str | None,
        typer.Option(help="HOST:PORT that LocalAI connects to (MLX_DISTRIBUTED_ADDR, else localhost:50051)."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    backend: Annotated[
        str | None, typer.Option(help=f"How ranks exchange tensors: {', '.join(sorted(set(BACKENDS.values())))}.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Addresses of all ranks, in rank order (JSON).")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="0: the others are `chorus worker mlx-distributed`.")] = None,
    coordinator: Annotated[
        str | None, typer.Option(help=f"{catalog.over_rdma().name}: HOST:PORT of rank 0 where the ranks meet.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a token.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models whose options ask for it run their own Python.")
    ] = False,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Serve LocalAI's backend protocol; the model and its options come from LocalAI, the rest from the settings.

    Example: chorus localai --addr 127.0.0.1:50051
    """
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if worker and not rank:
        fail("this command is rank 0: start the others with chorus worker mlx-distributed --hostfile FILE --rank N")
    if config:
        os.environ["CHORUS_CONFIG"] = str(config.resolve())  # for every model that LocalAI loads
    lead(addr, backend, hostfile, coordinator, insecure, trust_remote_code, rank=rank)
