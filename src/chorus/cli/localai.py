"""`chorus localai`: the backend that LocalAI starts, or connects to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.output import fail
from chorus.config.hostfile import BACKENDS
from chorus.localai.launch import lead
from chorus.transport import catalog


def localai(
    addr: Annotated[str, typer.Option(help="HOST:PORT that LocalAI connects to.")] = "localhost:50051",
    backend: Annotated[
        str | None, typer.Option(help=f"How ranks exchange tensors: {', '.join(sorted(set(BACKENDS.values())))}.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Addresses of all ranks, in rank order (JSON).")] = None,
    rank: Annotated[int, typer.Option(min=0, help="0: the others are `chorus worker mlx-distributed`.")] = 0,
    coordinator: Annotated[
        str | None, typer.Option(help=f"{catalog.over_rdma().name}: HOST:PORT of rank 0 where the ranks meet.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a token.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models whose options ask for it run their own Python.")
    ] = False,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Serve LocalAI's backend protocol; the model and its options come from LocalAI.

    Example: chorus localai --addr 127.0.0.1:50051
    """
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if worker or rank:
        command = f"chorus worker mlx-distributed --hostfile {hostfile or 'hosts.json'} --rank {rank or 'N'}"
        fail(f"this command is rank 0, which LocalAI talks to: start the others with {command}")
    lead(addr, backend, hostfile, coordinator, insecure, trust_remote_code)
