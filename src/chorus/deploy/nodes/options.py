"""How a server meets its nodes, and what holds for every rank of its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chorus.cluster.coordinator.process import Address
from chorus.deploy.nodes.cables import Matrix
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.security.node_folder import DOOR_PORT, own_name


@dataclass(frozen=True)
class ClusterOptions:
    peers: tuple[Address, ...] = ()
    hints: tuple[Address, ...] = ()
    """Where nodes may be met too; nobody need be there."""
    nodes: int | None = None
    """How many nodes besides this machine; None means those that are named, or those that are found."""
    here: str = field(default_factory=own_name)
    """What this machine is called, which leads."""
    names: tuple[str, ...] = ()
    """Names of the nodes in rank order, where that matters."""
    leader_port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    host: str = "0.0.0.0"
    port: int = DOOR_PORT
    discover: bool = True
    logs: Path = Path("logs")
    log_file: Path | None = None
    """Where a copy of all that is printed goes; None: logs has what this process itself says."""
    start_timeout_seconds: float = 600.0
    nodes_choose_transport: bool = False
    """Where this side has no preference, the one that all nodes were started with holds."""
    coordinator: str | None = None
    """host:port where ranks meet, for transports that need one place for it; None: it is found."""
    rdma_devices: Matrix | None = None
    """Over RDMA: which device each rank reaches each other rank by; None: the cables between the machines tell."""
    threads: int | None = None
    """CPU threads of each rank; None: what its node has."""
    timing: WatchTimes = DEFAULTS
    replan_by_itself: bool = False
    """When a node comes that makes the model much faster."""
