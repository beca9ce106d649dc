"""What an engine leader is told when it starts, as one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from chorus.config.sections import CacheConfig, EngineOptions
from chorus.telemetry.telling import Place
from chorus.transport import catalog


class EngineSpec(EngineOptions):
    """The engine's options, how the model is divided now that it is decided, and where everything is."""

    address: str
    """Where front ends reach the engine, e.g. unix:/run/…/engine.sock."""
    model_path: Path
    model: str = ""
    """The model's name, for ranks that must find it in their own store."""
    identity: Path | None = None
    """Folder with this node's certificate: ranks on other nodes are met by mutual TLS."""
    insecure: bool = False
    """Meet ranks on other nodes in plain text."""
    group: str = ""
    """What the group is called, the same when its leader is started again: workers keep a process for each."""
    needs: tuple[int, ...] = ()
    """What the part of each rank takes in all, its cache and reserve too, as planned; empty: nobody knows."""
    ranks: tuple[str, ...] = ()
    """Control addresses of all ranks, in rank order, ours first; empty when this process is the only rank. Those of a
    cluster's members say who is there: ID@HOST:PORT.
    """
    routes: tuple[str, ...] = ()
    """At which host each rank reaches each, row by row; empty ones: as in `ranks`."""
    parallel: Literal["pipeline", "tensor", "hybrid"] = "pipeline"
    """hybrid: stages of equally many ranks that divide their stage's layers among them."""
    split: tuple[int, ...] | None = None
    """Layers of each stage, the leader's first; None: as even as can be."""
    weights: tuple[int, ...] | None = None
    """Shares of the ranks of a stage (tensor: of all ranks), in rank order; None: equal ones."""
    transport: catalog.Name = catalog.DEFAULT
    coordinator: str | None = None
    """host:port where the ranks meet, for transports that need one place for it; None: this host, a free port."""
    rdma_devices: tuple[tuple[str | tuple[str, ...] | None, ...], ...] | None = None
    """Over RDMA: which device, or which several, each rank reaches each other rank by."""
    policies: tuple[str, ...] = ()
    """What each rank does with its weights, as planned, in rank order (platform/accelerator/dtype.py); empty: each
    decides for itself.
    """
    most_threads: int | None = None
    """Rank 0 tries up to so many threads; None: it has `threads`, untried."""
    cache: CacheConfig = CacheConfig()
    failure_file: Path | None = None
    """Where to leave the reason when the engine cannot start."""
    log_level: str = "info"
    log_json: bool = False
    events: Place | None = None
    """Where it tells what happens to its ranks; None: nowhere."""

    @property
    def disk_bytes(self) -> int:
        """What each rank may write of what it computed."""
        return self.cache.disk if self.cache.enabled else 0
