"""`chorus localai`: the backend that LocalAI starts, or connects to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.output import fail
from chorus.config.hostfile import BACKENDS
from chorus.config.sources import load, use_cache_dir
from chorus.deploy.by_hand import find_rank, follow
from chorus.localai.launch import lead
from chorus.localai.plan import HOSTFILE_VARIABLE
from chorus.platform.process import logs
from chorus.transport import catalog


def localai(
    addr: Annotated[str, typer.Option(help="HOST:PORT that LocalAI connects to.")] = "localhost:50051",
    worker: Annotated[bool, typer.Option("--worker", help="Be one of the other ranks instead.")] = False,
    backend: Annotated[
        str | None, typer.Option(help=f"How ranks exchange tensors: {', '.join(sorted(set(BACKENDS.values())))}.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Addresses of all ranks, in rank order (JSON).")] = None,
    rank: Annotated[int, typer.Option(min=0, help="This machine's place in the hostfile; 0 serves LocalAI.")] = 0,
    coordinator: Annotated[
        str | None, typer.Option(help=f"{catalog.over_rdma().name}: HOST:PORT of rank 0 where the ranks meet.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a token.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models whose options ask for it run their own Python.")
    ] = False,
) -> None:
    """Serve LocalAI's backend protocol; the model and its options come from LocalAI.

    Example: chorus localai --addr 127.0.0.1:50051
    """
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if worker or rank:
        _follow(hostfile, rank, trust_remote_code)
    else:
        lead(addr, backend, hostfile, coordinator, insecure, trust_remote_code)


def _follow(hostfile: Path | None, rank: int, trust_remote_code: bool) -> None:
    """Run one of the other ranks; how tensors travel is the leader's to say."""
    if not hostfile and not os.environ.get(HOSTFILE_VARIABLE):
        fail("--worker needs --hostfile: the addresses of all ranks, in rank order")
    if rank == 0:
        fail("--worker needs --rank from 1 on: rank 0 is what LocalAI talks to, without --worker")
    place = {"hostfile": str(hostfile) if hostfile else None, "rank": rank}
    loaded = load(None, {"cluster": place, "engine": {"trust_remote_code": trust_remote_code or None}})
    logs.setup(loaded.settings.log.level, loaded.settings.log.json_lines)
    use_cache_dir(loaded.settings)
    follow(find_rank(loaded))
