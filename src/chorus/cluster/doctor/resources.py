"""What this machine has for a model, and what stands in its way: checks on `Facts`."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from chorus.cluster.doctor.facts import Facts, Folder
from chorus.cluster.doctor.finding import Check, Finding
from chorus.cluster.doctor.probe import Probe
from chorus.platform.memory.mac import GIB
from chorus.platform.sizes import size

LOW_DISK = 2 * GIB
LOW_MEMORY = GIB
LOW_STATE = 64 << 20
"""What logs, the ledger and sockets need at least."""
FEW_FILES = 1024
LEFT_TO_A_MAC = 4 * GIB
"""What a Mac needs beside what its GPU may hold: with less it freezes."""
MUCH_SWAP = 0.05
"""Of the memory: what has been swapped out and nobody asks for harms nobody, up to here."""
WAITED = 10.0
"""Percent of the last minute."""
CERTIFICATE_SECONDS = 30 * 86400.0
"""It is renewed when a third of its life is over: so late, no coordinator has come by for months."""


def configuration(facts: Facts) -> list[Finding]:
    if facts.configuration:
        return [Finding("configuration", facts.configuration, "warn", "chorus config check")]
    return []


def processor_cores(facts: Facts) -> Finding:
    physical, logical = facts.cores_physical or "unknown", facts.cores_logical or "unknown"
    value = f"{facts.cores_usable} to use ({physical} physical, {logical} logical)"
    if facts.cores_usable < 2:
        fix = "give this container or machine two cores or more: rank and front end take turns on one"
        return Finding("cores", value, "warn", fix)
    return Finding("cores", value)


def main_memory(facts: Facts) -> Finding:
    value = f"{size(facts.memory_available)} free of {size(facts.memory_total)}"
    if facts.memory_available < LOW_MEMORY:
        return Finding("memory", value, "warn", "end other programs or choose a small model")
    return Finding("memory", value)


def memory_limit(facts: Facts) -> Finding:
    limit = facts.container
    if limit is None:
        return Finding("container limit", "none")
    value = f"{size(limit.limit)}, {size(limit.used)} of it used"
    if limit.limit - limit.used < LOW_MEMORY:
        fix = "raise it (docker run --memory, MemoryMax= of the service): what goes above it is killed"
        return Finding("container limit", value, "warn", fix)
    return Finding("container limit", value)


def swap(facts: Facts) -> Finding:
    if facts.swap_used > MUCH_SWAP * facts.memory_total:
        fix = "end other programs or choose a smaller model: one that is swapped out answers many times slower"
        return Finding("swap", f"{size(facts.swap_used)} are swapped out", "warn", fix)
    return Finding("swap", f"{size(facts.swap_used)} used")


def pressure(facts: Facts) -> Finding:
    name = "memory pressure"
    if facts.pressure is None:
        return Finding(name, "the system does not say")
    value = f"{facts.pressure:.0f} % of the last minute somebody waited for memory"
    if facts.pressure >= WAITED:
        return Finding(name, value, "warn", "end other programs, choose a smaller model or a shorter context")
    return Finding(name, value)


def memory_kills(facts: Facts) -> Finding:
    name = "killed for memory"
    if facts.memory_kills:
        one = facts.memory_kills == 1
        value = f"the kernel has ended {facts.memory_kills} process{'' if one else 'es'} for want of memory here"
        fix = "if it was a rank (`chorus logs`): a smaller model, a shorter context, or a lower engine.memory_fraction"
        return Finding(name, value, "warn", fix)
    return Finding(name, "nobody")


def device_memory(facts: Facts) -> list[Finding]:
    if facts.backend == "cpu" or not isinstance(facts.probe, Probe):
        return []
    probe = facts.probe
    name = "Metal working set" if facts.backend == "metal" else "GPU memory"
    value = f"{size(probe.device_available)} free of {size(probe.device_total)}"
    if probe.device_available < LOW_MEMORY:
        who = "nvidia-smi" if facts.backend == "cuda" else "Activity Monitor"
        return [Finding(name, value, "warn", f"end other programs that use the GPU: {who} shows them")]
    return [Finding(name, value)]


def wired_limit(facts: Facts) -> list[Finding]:
    """macOS keeps this many megabytes at most for the GPU; 0 is its own choice, about three quarters."""
    if facts.backend != "metal":
        return []
    name, told = "GPU wired limit", facts.wired_limit
    if told is None or not told.isdigit():
        return [Finding(name, "unknown", "warn", "needs macOS 15 or newer")]
    if int(told) == 0:
        return [Finding(name, "macOS default")]
    if (int(told) << 20) > facts.memory_total - LEFT_TO_A_MAC:
        most = max(0, facts.memory_total - LEFT_TO_A_MAC) >> 20
        fix = f"leave this Mac 4 GiB, or it freezes: sudo sysctl iogpu.wired_limit_mb={most}"
        return [Finding(name, f"{int(told)} MB of {facts.memory_total >> 20}", "warn", fix)]
    return [Finding(name, f"{int(told)} MB")]


def model_folder(facts: Facts) -> Finding:
    fix = "free some space, or set CHORUS_CACHE to another disk"
    return _folder("model cache", facts.models, LOW_DISK, fix, "make it writable, or set CHORUS_CACHE to another")


def state_folder(facts: Facts) -> Finding:
    """Where it cannot be written, no memory can be booked and no certificate kept."""
    found, low = facts.state, "free some space, or set CHORUS_STATE to another disk"
    return _folder("state folder", found, LOW_STATE, low, "set CHORUS_STATE to a short path that only you may write to")


def _folder(name: str, found: Folder, low: int, low_fix: str, problem_fix: str) -> Finding:
    if found.problem:
        return Finding(name, f"{found.path}: {found.problem}", "error", problem_fix)
    if found.flaw:
        return Finding(name, f"{found.path}: {found.flaw}", "warn", problem_fix)
    value = f"{size(found.free)} free at {found.path}"
    return Finding(name, value, "warn", low_fix) if found.free < low else Finding(name, value)


def downloads(facts: Facts) -> Finding:
    name, left = "unfinished downloads", facts.unfinished
    if not left:
        return Finding(name, "none")
    value = f"{len(left)} take {size(sum(taken for _, taken in left))}: {left[0][0]}"
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    fix = "load or pull that model again, which goes on where it stopped; or delete them"
    return Finding(name, value + more, "warn", fix)


def bookings(facts: Facts) -> Iterator[Finding]:
    name = "bookings"
    if isinstance(facts.bookings, str):
        yield Finding(name, facts.bookings, "error", "end what holds it, or set CHORUS_STATE to another folder")
        return
    for each in facts.bookings:
        if each.stopped:
            value = f"{each.what} has {size(each.amount)} booked, and its process {each.pid} is stopped"
            yield Finding(name, value, "warn", f"let it go on (kill -CONT {each.pid}) or end it (kill -9 {each.pid})")
    sum_of_all = sum(each.amount for each in facts.bookings)
    value = f"{size(sum_of_all)} for {len(facts.bookings)}" if facts.bookings else "none"
    if sum_of_all > facts.memory_total:
        yield Finding(name, f"{value}, more than this machine has", "warn", "chorus ps, then chorus unload one of them")
    else:
        yield Finding(name, value)


def open_files(facts: Facts) -> Finding:
    soft, hard = facts.open_files
    value = f"{_limit(soft)}, at most {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:  # the other limit we raise ourselves
        return Finding("open files", value, "warn", "ulimit -n 4096, or ask whoever runs this machine for more")
    return Finding("open files", value)


def ports(facts: Facts) -> Iterator[Finding]:
    for port in facts.ports:
        name, value = f"{port.what} port", str(port.number)
        if port.holder and not port.ours:
            fix = f"end {port.holder} that listens there, or choose another port with {port.option}"
            yield Finding(name, f"{value}, taken by {port.holder}", "warn", fix)
        else:
            yield Finding(name, f"{value}, {port.holder or 'free'}")


def clock(facts: Facts) -> Finding:
    if facts.clock_kept is None:
        return Finding("clock", "the system does not say who sets it")
    if not facts.clock_kept:
        fix = "sudo timedatectl set-ntp true: nodes whose clocks differ refuse each other's certificates"
        return Finding("clock", "not set by the network", "warn", fix)
    return Finding("clock", "set by the network")


def certificate(facts: Facts) -> list[Finding]:
    """Only a node has one."""
    name, left = "certificate", facts.certificate_seconds
    if left is None:
        return []
    if left <= 0:
        fix = "join again with the cluster's token: chorus join --token -"
        return [Finding(name, f"ran out {-left / 86400:.0f} days ago", "error", fix)]
    value = f"good for {left / 86400:.0f} days"
    if left < CERTIFICATE_SECONDS:
        return [Finding(name, value, "warn", "let `chorus join` run while the cluster is served: it is renewed then")]
    return [Finding(name, value)]


def hugging_face(facts: Facts) -> Finding:
    """Whether models can be downloaded; without, everything else still works."""
    name, rest = "Hugging Face", "models that are here already, folders and .gguf files still work"
    if facts.hub_off:
        fix = f"unset {' '.join(facts.hub_off)} to download from Hugging Face"
        return Finding(name, f"offline, as {' and '.join(facts.hub_off)} says: {rest}", "ok", fix)
    if facts.hub_obstacle:
        fix = "check the network and its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror"
        return Finding(name, f"offline, {facts.hub_url} cannot be reached ({facts.hub_obstacle}): {rest}", "warn", fix)
    return Finding(name, f"online, {facts.hub_url} answers")


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else f"{value:,}"


CHECKS: tuple[Check[Facts], ...] = (
    Check("configuration", "settings that cannot be read", configuration),
    Check("cores", "a single core for everything", processor_cores),
    Check("memory", "less than 1 GiB free", main_memory),
    Check("container limit", "a container or a service with less than 1 GiB left of its limit", memory_limit),
    Check("swap", "more than a twentieth of the memory swapped out", swap),
    Check("memory pressure", "programs that wait for memory a tenth of the time, or a Mac that says so", pressure),
    Check("killed for memory", "processes that the kernel has ended for want of memory", memory_kills),
    Check("device memory", "less than 1 GiB free on the GPU", device_memory),
    Check("GPU wired limit", "a limit that macOS does not tell, or that leaves a Mac less than 4 GiB", wired_limit),
    Check(
        "model cache", "less than 2 GiB free where models are kept, or a folder that cannot be written", model_folder
    ),
    Check(
        "state folder",
        "a state folder that is full, not writable, not ours alone, or too long for sockets",
        state_folder,
    ),
    Check("unfinished downloads", "downloads and copies that were cut off and take room", downloads),
    Check(
        "bookings",
        "memory booked by a stopped process, more than there is, or in a ledger that nobody can use",
        bookings,
    ),
    Check("open files", "a limit that allows too few connections", open_files),
    Check("ports", "another program at the port of the API or of the agent", ports),
    Check("clock", "a clock that the network does not set", clock),
    Check("certificate", "a node's certificate that ran out, or that nobody has renewed for months", certificate),
    Check("Hugging Face", "a hub, or a mirror, that cannot be reached", hugging_face),
)
