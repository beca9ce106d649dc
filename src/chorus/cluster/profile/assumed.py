"""What was assumed of a link when a model was divided, to be compared with what the link does later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chorus.platform.network.links import KINDS, Kind


@dataclass(frozen=True)
class AssumedLink:
    """The way from one machine to another that ranks use, as it was when they were given their parts."""

    sender: str
    receiver: str
    """Ids of nodes."""
    ip: str
    """Where the receiver is reached."""
    kind: Kind = ""
    round_trip: float = 0.0
    """Seconds; 0: it was not tried."""
    bandwidth: float | None = None
    """Bytes per second; None where nothing was assumed that can be measured, as of RDMA."""
    measured: bool = False
    """Whether the bandwidth was; else it is what such links usually have."""

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.sender, self.receiver))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> AssumedLink | None:
        """What a coordinator of another release wrote may be something else: None."""
        try:
            sender, receiver, ip = (str(told[name])[:200] for name in ("sender", "receiver", "ip"))
            kind: Kind = next((each for each in KINDS if each == told.get("kind")), "")
            round_trip, bandwidth = float(told["round_trip"]), told["bandwidth"]
            fine = math.isfinite(round_trip) and (bandwidth is None or math.isfinite(float(bandwidth)))
            speed, measured = bandwidth and float(bandwidth), bool(told.get("measured"))
            return cls(sender, receiver, ip, kind, round_trip, speed, measured) if fine else None
        except (KeyError, TypeError, ValueError):
            return None
