"""The processes that serve one model on this machine, as programs for the supervisor."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from chorus.config.engine import EngineSpec
from chorus.config.front_end import ApiSettings
from chorus.config.sections import EngineOptions
from chorus.config.settings import Settings
from chorus.deploy.supervisor import LEADER, Program
from chorus.errors import ChorusError
from chorus.models import LocalModel
from chorus.planning.layout import check_transport, shape
from chorus.planning.split import SplitError
from chorus.platform.cpu import cores
from chorus.platform.process.restarts import python
from chorus.telemetry import telling
from chorus.transport import catalog
from chorus.transport.auto import choose_transport
from chorus.transport.launch import Launch, NotInstalled


class CannotLaunch(ChorusError):
    """Something that launching needs is not installed: names it and the fix."""


def rank_addresses(folder: Path, ranks: int) -> tuple[str, ...]:
    """Ranks of one machine meet on Unix sockets: no port to choose, nobody else can connect."""
    return tuple(f"unix:{folder}/rank{rank}.sock" for rank in range(ranks)) if ranks > 1 else ()


def engine_address(folder: Path) -> str:
    return f"unix:{folder}/engine.sock"


def engine_spec(settings: Settings, model: LocalModel, folder: Path, ranks: tuple[str, ...]) -> EngineSpec:
    engine = settings.engine
    decided = {
        **threads_of(engine.threads, engine.ranks),
        "step_log": engine.step_log and engine.step_log.resolve(),
    }
    return EngineSpec(
        **(engine.shared_with(EngineOptions) | decided),
        address=engine_address(folder),
        group=secrets.token_hex(8),
        model_path=model.path,
        ranks=ranks,
        parallel=engine.served_parallel,
        split=engine.split,
        weights=engine.weights,
        transport=choose_transport(engine.transport, engine.served_parallel),
        coordinator=settings.cluster.coordinator,
        cache=settings.cache,
        failure_file=folder / "failure",
        log_level=settings.log.level,
        log_json=settings.log.json_lines,
        events=telling.place(model.id),
    )


def threads_of(given: int | None, ranks: int) -> dict[str, int | None]:
    """CPU threads of each of so many ranks on this machine, and how many the leader may try."""
    if given:
        return {"threads": given, "most_threads": None}
    usable = cores.usable_cores()
    return {"threads": cores.threads_per_rank(usable, ranks), "most_threads": cores.most_threads(usable, ranks)}


def rank_programs(spec: EngineSpec) -> list[Program]:
    """One process a rank, the leader first; or one program that starts them all, where the transport has one."""
    if spec.parallel == "hybrid":
        _check_hybrid(spec)
    transport = catalog.get(spec.transport)
    leader = Program(
        LEADER,
        python("-m", "chorus.engine", "-"),
        failure_file=spec.failure_file,
        told=spec.model_dump_json(),
        restarts=transport.restarts if spec.ranks else None,
        alone=not transport.collective,
    )
    followers = [_follower(spec, rank, address) for rank, address in enumerate(spec.ranks) if rank]
    if transport.launcher and followers:
        return [_started_by(transport.launcher, [leader, *followers])]
    return [leader, *followers]


# Large requests are taken from the system and given back to it: otherwise glibc keeps the largest that each thread had.
_GIVES_MEMORY_BACK = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 10),
}


def front_end_program(settings: ApiSettings, folder: Path) -> Program:
    failure_file = folder / "front-end-failure"
    decided = {
        "failure_file": failure_file,
        "responses_file": settings.responses_file or folder / "responses.sqlite",
    }
    told = settings.model_copy(update=decided)
    return Program(
        "front end",
        python("-m", "chorus.api", "--settings", "-"),
        descriptors=settings.socket_fds,
        environment=_GIVES_MEMORY_BACK,
        failure_file=failure_file,
        told=told.model_dump_json(),
    )


def _check_hybrid(spec: EngineSpec) -> None:
    """Refuse before anything is started what the ranks themselves would refuse much later."""
    try:
        check_transport(spec.parallel, spec.transport)
        shape(spec.parallel, max(1, len(spec.ranks)), spec.split, spec.weights)
    except SplitError as error:
        raise CannotLaunch(str(error)) from None
    if not all(address.startswith("unix:") for address in spec.ranks):
        raise CannotLaunch(
            f"--parallel hybrid runs over {spec.transport}, which starts all ranks on one machine: over several "
            "machines use --parallel pipeline or tensor"
        )


def _follower(spec: EngineSpec, rank: int, address: str) -> Program:
    command = ["-m", "chorus.rank", "--rank", str(rank), "--listen", address, "--log-level", spec.log_level]
    if spec.threads:
        command += ["--threads", str(spec.threads)]
    if spec.log_json:
        command.append("--log-json")
    failure_file = spec.failure_file and spec.failure_file.with_name(f"failure-{rank}")
    if failure_file:
        command += ["--failure-file", str(failure_file)]
    alone = not catalog.get(spec.transport).collective
    return Program(f"rank {rank}", python(*command), failure_file=failure_file, alone=alone)


def _started_by(launcher: str, programs: Sequence[Program]) -> Program:
    try:
        launch: Launch = catalog.resolve(launcher)([program.arguments for program in programs])
    except NotInstalled as error:
        raise CannotLaunch(str(error)) from None
    leader = programs[0]
    return Program(
        launch.name,
        launch.command,
        launch.environment,
        failure_file=leader.failure_file,
        told=leader.told,
        processes=len(programs),
    )
