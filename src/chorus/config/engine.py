"""Everything an engine leader must know to start, handed over by the supervisor as one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from chorus.config.grammar import GrammarLimits
from chorus.platform import device
from chorus.transport import catalog

Dtype = Literal["auto", "float32", "bfloat16", "float16", "stored"]


class EngineSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    """Where front ends reach the engine, e.g. unix:/run/…/engine.sock."""
    model_path: Path
    model: str = ""
    """The model's name, for ranks that must find it in their own store."""
    identity: Path | None = None
    """Folder with this node's certificate: ranks on other nodes are met by mutual TLS."""
    insecure: bool = False
    """Meet ranks on other nodes in plain text."""
    ranks: tuple[str, ...] = ()
    """Control addresses of all ranks, in rank order, ours first; empty when this process is the only rank. Those of a
    cluster's members say who is there: ID@HOST:PORT.
    """
    parallel: Literal["pipeline", "tensor", "hybrid"] = "pipeline"
    """hybrid: stages of equally many ranks that divide their stage's layers among them."""
    split: tuple[int, ...] | None = None
    """Layers of each stage, the leader's first; None: as even as can be."""
    weights: tuple[int, ...] | None = None
    """Shares of the ranks of a stage (tensor: of all ranks), in rank order; None: equal ones."""
    transport: catalog.Name = catalog.DEFAULT
    compression: Literal["auto", "off", "on"] = "auto"
    """Of activations, where the transport can pack them, without loss; auto: only where the link is slow enough."""
    coordinator: str | None = None
    """host:port where the ranks meet, for transports that need one place for it; None: this host, a free port."""
    rdma_devices: tuple[tuple[str | tuple[str, ...] | None, ...], ...] | None = None
    """Over RDMA: which device, or which several, each rank reaches each other rank by."""
    start_timeout_seconds: float = Field(default=600, gt=0)
    step_timeout_seconds: float = Field(default=120, gt=0)
    threads: int | None = Field(default=None, ge=1)
    dtype: Dtype = "auto"
    policies: tuple[str, ...] = ()
    """What each rank does with its weights, as planned, in rank order (platform/dtype.py); empty: each decides for
    itself.
    """
    memory_fraction: float = Field(default=0.8, gt=0, le=1)
    context: int | None = Field(default=None, ge=1)
    max_batch: int = Field(default=32, ge=1)
    max_queue: int = Field(default=256, ge=1)
    prefill_chunk: int = Field(default_factory=device.prefill_chunk, ge=1)
    lanes: int | None = Field(default=None, ge=1)
    """Into how many batches a pipeline's streams are divided; None: as measured when the engine starts."""
    grammars: GrammarLimits = GrammarLimits()
    trust_remote_code: bool = False
    step_log: Path | None = None
    failure_file: Path | None = None
    """Where to leave the reason when the engine cannot start."""
    log_level: str = "info"
    log_json: bool = False
