"""What a leader and a rank say to each other besides the steps themselves: greeting, load, and how a step went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from chorus.messages.proto import rank_pb2

DeviceMatrix = tuple[tuple[str | tuple[str, ...] | None, ...], ...]
"""By which RDMA device, or which several, each rank reaches each other rank."""


@dataclass(frozen=True)
class Greeting:
    """What a rank says of itself first."""

    version: str = ""
    rank: int = 0
    host: str = ""
    pid: int = 0
    device: str = ""
    collective_port: int = 0
    """Kept free there for a group that the ranks may form."""
    loss_cause: str = ""
    """How the process before this one ended (platform/process/losses.py); empty: there was none."""
    loss_told: str = ""
    opens: bool = False
    """This is no rank itself: it starts one for each leader that asks for a place."""
    protocol: int = 0

    def to_wire(self) -> rank_pb2.HelloReply:
        return rank_pb2.HelloReply(**vars(self))

    @classmethod
    def from_wire(cls, message: rank_pb2.HelloReply) -> Greeting:
        return cls(*(getattr(message, field.name) for field in fields(cls)))


@dataclass(frozen=True)
class LoadRequest:
    """What the leader asks every rank to load, the same of all: each finds its own part by its rank."""

    session: int = 0
    """Drawn for this load: what comes of another one is refused."""
    group: str = ""
    """The leader's name for its group: a process that was started for another one refuses it."""
    model_path: str = ""
    """The leader's own."""
    model: str = ""
    """The model's name, for ranks that find it themselves."""
    headers: bytes = b""
    """What tells the leader's model from others (models/headers.py), for the same ranks."""
    ranks: int = 1
    split: tuple[int, ...] = ()
    """Layers of each stage, the leader's first."""
    weights: tuple[int, ...] = (1,)
    """Shares of the ranks of a stage; a single one: a rank has its stage alone."""
    parallel: str = ""
    """For logs: split and weights say it all."""
    dtype: str = "auto"
    cpu_products: str = "auto"
    """What ranks on a CPU multiply with, where no plan says it (platform/accelerator/dtype.py)."""
    pack: int = 0
    """To how many bits those pack weights that are not quantized; 0: not at all."""
    policies: tuple[str, ...] = ()
    """What each rank does with its weights, as planned; empty: each decides for itself."""
    kv_bits: int = 0
    """Keys and values in so many bits; 0: in the model's number type."""
    memory_fraction: float = 0.8
    trust_remote_code: bool = False
    transport: str = ""
    addresses: tuple[str, ...] = ()
    """Control addresses of all ranks, in rank order."""
    routes: tuple[str, ...] = ()
    """At which host each rank reaches each, row by row; empty ones: as in `addresses`."""
    ring_hosts: tuple[str, ...] = ()
    """ip:port of all ranks, in rank order, for a group of their own."""
    coordinator: str = ""
    """host:port where the ranks of such a group may meet."""
    rdma_devices: DeviceMatrix | None = None
    compression: str = ""
    step_timeout_seconds: float = 0.0
    disk_bytes: int = 0
    """What the files of each rank may take; 0: none are written."""
    disk_folder: str = ""
    """Where the ranks on the leader's machine write them; empty: in the folder for things that can be made again."""
    look_ahead: bool = False
    """A pipeline's collectives stay inside the graph, sampled tokens too."""

    def same_part(self, other: LoadRequest) -> bool:
        """Whether each rank would hold the same: only who meets whom, and under which number, may differ."""
        same_meeting = replace(
            other,
            session=self.session,
            group=self.group,
            addresses=self.addresses,
            routes=self.routes,
            ring_hosts=self.ring_hosts,
            coordinator=self.coordinator,
        )
        return self == same_meeting

    def to_wire(self) -> rank_pb2.LoadRequest:
        plain = {**vars(self), "rdma_devices": json.dumps(self.rdma_devices) if self.rdma_devices else ""}
        return rank_pb2.LoadRequest(**plain)

    @classmethod
    def from_wire(cls, message: rank_pb2.LoadRequest) -> LoadRequest:
        values = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in ("split", "weights", "policies", "addresses", "routes", "ring_hosts"):
            values[name] = tuple(values[name])
        values["cpu_products"] = message.cpu_products or cls.cpu_products  # a leader of before does not say
        rows = json.loads(message.rdma_devices) if message.rdma_devices else None
        values["rdma_devices"] = rows and tuple(tuple(_device(entry) for entry in row) for row in rows)
        return cls(**values)


def ranks_here(addresses: Sequence[str]) -> int:
    """How many ranks share a machine, and its memory: those that meet on sockets of it."""
    return max(1, sum(address.startswith("unix:") for address in addresses))


def _device(entry: str | list[str] | None) -> str | tuple[str, ...] | None:
    return tuple(entry) if isinstance(entry, list) else entry


@dataclass(frozen=True)
class Loaded:
    """What a rank holds once it has loaded."""

    first_layer: int = 0
    last_layer: int = 0
    """The first one that it does not hold."""
    weight_bytes: int = 0
    dtype: str = ""
    batches: bool = False
    form: str = ""
    """In which weights are multiplied (platform/accelerator/dtype.py); empty: as MLX does."""
    threads: int = 0
    """Of the CPU."""
    disk: bool = False
    """It can write files."""
    files: tuple[str, ...] = ()
    """Names of what an earlier load of the same part has left on disk there."""


@dataclass(frozen=True)
class LoadProgress:
    done_bytes: int
    total_bytes: int
    loaded: Loaded | None = None
    """In the last one only."""

    def to_wire(self) -> rank_pb2.LoadProgress:
        loaded = rank_pb2.Loaded(**vars(self.loaded)) if self.loaded else None
        return rank_pb2.LoadProgress(done_bytes=self.done_bytes, total_bytes=self.total_bytes, loaded=loaded)

    @classmethod
    def from_wire(cls, message: rank_pb2.LoadProgress) -> LoadProgress:
        loaded = None
        if message.HasField("loaded"):
            loaded = Loaded(**_values(message.loaded, Loaded))
        return cls(message.done_bytes, message.total_bytes, loaded)


@dataclass(frozen=True, slots=True)
class Status:
    """How a rank stands after a step."""

    number: int
    error: str = ""
    """The step failed there, and with it the group."""
    cause: str = ""
    """Whom that may be blamed on (platform/process/losses.py)."""
    tick: bool = False
    """Only a sign of life: no step was finished, and nothing else is said."""
    memory_bytes: int = 0
    cache_bytes_per_token: int = 0
    """What a token of a sequence costs there."""
    free_bytes: int = 0
    """What the rank may still take."""
    tensor_bytes: int = 0
    """Passed on to the next stage so far."""
    sent_bytes: int = 0
    """The same as sent: fewer where frames were packed."""
    state_bytes: int = 0
    """What the windows and recurrent states of a sequence take there at most."""
    growing_layers: int = 0
    """How many of the layers there keep something of every token."""
    stored_bytes: int = 0
    """What stored segments take there."""
    saved: tuple[str, ...] = ()
    """Names of files that were written since the last step."""
    restored: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Files that could not be written or read, or made room for others, and are gone."""
    disk_bytes: int = 0
    phase_seconds: tuple[float, ...] = ()
    """What its main thread did with its time so far (telemetry/phases.py)."""
    waited_seconds: tuple[float, ...] = ()
    """Of its waits, for each rank."""

    def to_wire(self) -> rank_pb2.Done:
        return rank_pb2.Done(**{figure.name: getattr(self, figure.name) for figure in fields(self)})

    @classmethod
    def from_wire(cls, message: rank_pb2.Done) -> Status:
        return cls(**_values(message, cls))


def _values(message: Any, kind: type[Any]) -> dict[str, Any]:
    """What a message says of a dataclass whose fields are called as on the wire."""

    def plain(value: Any) -> Any:
        return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

    return {field.name: plain(getattr(message, field.name)) for field in fields(kind)}
