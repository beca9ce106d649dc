"""The nodes of a cluster that is being served, each beside the machine that leads them: facts, and checks on them."""

from __future__ import annotations

from dataclasses import dataclass

from chorus.cluster.doctor.finding import Check, Finding
from chorus.cluster.doctor.resources import LOW_DISK, LOW_MEMORY
from chorus.messages.protocol import PROTOCOL, misfit
from chorus.platform.sizes import size

NOTICED_SKEW = 3.0
"""Seconds by which clocks may differ before lines of logs stand in the wrong order."""
CLOCK_FIX = (
    "let the network set its clock: sudo timedatectl set-ntp true, on a Mac System Settings, General, Date & Time"
)


@dataclass(frozen=True)
class Release:
    """What a machine runs."""

    chorus: str
    python: str
    mlx: str = ""
    """Empty where nobody says."""
    mlx_lm: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of ours, by the quickest of several questions."""

    ahead: float
    error: float
    """Half of what the question took: it may have been answered at any moment of that."""

    def __str__(self) -> str:
        direction = "ahead" if self.ahead >= 0 else "behind"
        return f"{_seconds(abs(self.ahead))} {direction}, to within {_seconds(self.error)}"


@dataclass(frozen=True)
class NodeFacts:
    name: str
    address: str
    here: Release
    """What the machine runs that leads."""
    problem: str = ""
    """Why it does not answer; then nothing below is known."""
    release: Release | None = None
    clock: Clock | None = None
    """None where its agent does not tell its time: an older release."""
    most_skew: float = 86400.0
    """Seconds by which clocks may differ before a certificate that was made just now is refused."""
    round_trip: float = 0.0
    up_seconds: float = 0.0
    system: str = ""
    device: str = ""
    draining: bool = False
    memory_total: int = 0
    memory_available: int = 0
    memory_booked: int = 0
    memory_held: int = 0
    """Of what is booked, by ranks that run."""
    disk_free: int = 0
    part_bytes: int = 0
    """What its part of the model still takes of its disk at most; 0: it is there."""


def reachable(node: NodeFacts) -> Finding:
    if node.problem:
        return Finding("node", f"{node.address}: {node.problem}", "error", unreachable_fix(node.problem))
    told = [f"answers at {node.address} in {node.round_trip * 1e3:.1f} ms", node.system, node.device]
    told += [f"up for {_seconds(node.up_seconds)}"] if node.up_seconds else []
    value = ", ".join(part for part in told if part)
    if node.draining:
        return Finding(
            "node", f"{value}; draining", "warn", f"chorus drain {node.name} --undo, when it is to work again"
        )
    return Finding("node", value)


def unreachable_fix(problem: str) -> str:
    """TLS alone knows that a certificate is refused for its dates, and says so in words of its own."""
    told = problem.lower()
    if "certificate" in told and any(word in told for word in ("expired", "not yet valid", "bad certificate")):
        return f"one of the two clocks may be wrong: {CLOCK_FIX}; else join it again with the token"
    if "install a newer chorus" in told:
        return "install the same Chorus on both"
    return "see that `chorus join` runs there, that the machine is on, and that no firewall stands in between"


def clock(node: NodeFacts) -> list[Finding]:
    if node.problem:
        return []
    if node.clock is None:
        return [Finding("clock", "its agent does not tell", "ok", "")]
    value = str(node.clock)
    surely = abs(node.clock.ahead) - node.clock.error
    if surely >= node.most_skew:
        return [Finding("clock", f"{value}: certificates that are made now are refused", "error", CLOCK_FIX)]
    if surely > NOTICED_SKEW:
        return [Finding("clock", f"{value}: logs and expiry dates do not agree", "warn", CLOCK_FIX)]
    return [Finding("clock", value)]


def chorus_version(node: NodeFacts) -> list[Finding]:
    if node.release is None:
        return []
    theirs, ours = node.release, node.here
    if problem := misfit(node.name, theirs.protocol, theirs.chorus, ours.chorus, "this machine"):
        what, _, fix = problem.rpartition(": ")
        return [Finding("chorus", what, "error", fix)]
    if theirs.chorus != ours.chorus:
        fix = f"install Chorus {ours.chorus} there; until then the two work together by protocol {PROTOCOL}"
        return [Finding("chorus", f"{theirs.chorus}, this machine {ours.chorus}", "warn", fix)]
    return [Finding("chorus", theirs.chorus)]


def python(node: NodeFacts) -> list[Finding]:
    if node.release is None or not node.release.python:
        return []
    theirs, ours = node.release.python, node.here.python
    if _minor(theirs) != _minor(ours):
        fix = f"make its environment anew with Python {_minor(ours)}: wheels of packages differ between the two"
        return [Finding("python", f"{theirs}, this machine {ours}", "warn", fix)]
    return [Finding("python", theirs)]


def packages(node: NodeFacts) -> list[Finding]:
    if node.release is None or not (node.release.mlx or node.release.mlx_lm):
        return []
    pairs = [("mlx", node.release.mlx, node.here.mlx), ("mlx-lm", node.release.mlx_lm, node.here.mlx_lm)]
    found = []
    for name, theirs, ours in pairs:
        if not theirs:
            found.append(Finding(name, "not installed there", "error", f"pip install {name}=={ours} on that node"))
        elif theirs != ours:
            fix = f"pip install {name}=={ours} on that node: other versions compute other numbers, or other layers"
            found.append(Finding(name, f"{theirs}, this machine {ours}", "warn", fix))
        else:
            found.append(Finding(name, theirs))
    return found


def memory(node: NodeFacts) -> list[Finding]:
    """What is booked and not taken yet must still be there when ranks want it."""
    if node.release is None:
        return []
    value = f"{size(node.memory_available)} free of {size(node.memory_total)}, {size(node.memory_booked)} booked"
    open_part = max(0, node.memory_booked - node.memory_held)
    if open_part > node.memory_available:
        fix = "end other programs there: its ranks were promised what these have taken"
        return [Finding("memory", f"{value}, {size(open_part)} of that not taken yet", "warn", fix)]
    if node.memory_available < LOW_MEMORY:
        return [Finding("memory", value, "warn", "end other programs there, or use a node with more memory")]
    return [Finding("memory", value)]


def disk(node: NodeFacts) -> list[Finding]:
    if node.release is None:
        return []
    value = f"{size(node.disk_free)} free where models are kept"
    if node.part_bytes > node.disk_free:
        fix = "free some space there (chorus models rm), or set CHORUS_CACHE of its agent to another disk"
        return [Finding("disk", f"{value}, its part takes {size(node.part_bytes)}", "error", fix)]
    if node.disk_free < LOW_DISK:
        return [Finding("disk", value, "warn", "free some space there (chorus models rm)")]
    return [Finding("disk", value)]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


CHECKS: tuple[Check[NodeFacts], ...] = (
    Check("node", "a node that does not answer, or that drains", reachable),
    Check("clock", "a clock seconds away from this machine's, or so far that certificates are refused", clock),
    Check("chorus", "another release, or one with another protocol, which cannot work with this one", chorus_version),
    Check("python", "another Python than here", python),
    Check("mlx, mlx-lm", "other versions of MLX or mlx-lm than here", packages),
    Check("memory", "memory that is booked for ranks and was taken by others, or less than 1 GiB free", memory),
    Check("disk", "no room for its part of the model, or less than 2 GiB free", disk),
)
