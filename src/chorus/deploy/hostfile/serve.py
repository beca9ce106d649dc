"""Ranks of a hostfile, each started by hand on its machine: the leader with an OpenAI endpoint, or one that follows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from chorus.cluster.profile.machine import usable_here
from chorus.config.engine import EngineSpec
from chorus.config.file import ConfigError
from chorus.config.front_end import ModelSettings
from chorus.config.hostfile import (
    DEFAULT_PORT,
    TUNNELS_FILE,
    BadAddress,
    HostfileError,
    address_refusal,
    rdma_refusal,
    split_address,
)
from chorus.config.sections import EngineConfig
from chorus.config.served import ModelConfig
from chorus.config.settings import DIVISION, Settings
from chorus.config.sources import LoadedSettings
from chorus.config.strategies import WITHOUT_FIGURES
from chorus.deploy.control import Control
from chorus.deploy.finding import find_aside, stored
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    Listener,
    api_settings,
    find_access,
    find_model,
    is_alone,
    keep_journal,
    listen,
    look_for_model,
    model_settings,
    run_announced,
    server_record,
    settings_of,
)
from chorus.deploy.groups.booking import Needs, needs_of
from chorus.deploy.groups.group import Loadable, Report
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.hostfile.books import HandBooks
from chorus.deploy.hostfile.places import Places
from chorus.deploy.hostfile.rendezvous import rank_addresses, wait_for_all
from chorus.deploy.local_plan import planned_ranks, rank_needs
from chorus.deploy.making import Making
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_programs, threads_of
from chorus.deploy.room import HERE
from chorus.deploy.supervisor import ProcessGroup, Program
from chorus.models import LocalModel
from chorus.models.resolve import name_elsewhere
from chorus.models.values import ProgressCallback
from chorus.planning.cuts import apportion
from chorus.planning.facts import read_facts
from chorus.platform.accelerator.mlx_import import require_mlx
from chorus.platform.memory.amounts import booked_environment
from chorus.platform.memory.ledger import Ledger, own_file
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import python
from chorus.platform.terminal import warn
from chorus.transport import catalog
from chorus.transport.auto import auto_over_machines
from chorus.transport.channel import is_private

FOR_EVER_SECONDS = 365 * 86400.0


@dataclass(frozen=True)
class HandRank:
    """One rank that is started by hand: which one, where all of them are, and what it is started with."""

    rank: int
    addresses: tuple[str, ...]
    settings: Settings
    models: tuple[str, ...]
    """Those that its own settings name, as a user writes them; of rank 0 those to serve."""


def find_rank(loaded: LoadedSettings, models: Sequence[str] = ()) -> HandRank:
    """The rank that these settings mean; raises ConfigError where they do not say which, or where the others are.

    `models` are those of the command line, where that names several.
    """
    settings = loaded.settings
    cluster, devices = settings.cluster, settings.devices
    _refuse_tunnels(cluster.hostfile)
    if not devices:
        raise ConfigError(
            "there is no hostfile: give --hostfile FILE with the addresses of all ranks, in rank order, "
            "or set MLX_DISTRIBUTED_HOSTFILE"
        )
    where = cluster.hostfile or loaded.given["devices"].place
    if refusal := address_refusal(devices):
        raise ConfigError(f"{where}: {refusal}")
    if cluster.rank is None:
        raise ConfigError(f"which of the {len(devices)} ranks is this? Give --rank, or set MLX_RANK; they count from 0")
    if cluster.rank >= len(devices):
        raise ConfigError(f"{where} lists {len(devices)} hosts, so there is no rank {cluster.rank}: ranks count from 0")
    models = tuple(models) or _named_by_settings(loaded)
    if cluster.rank == 0:
        changed = settings.engine.model_copy(update={"transport": _transport(loaded)})
        settings = settings.model_copy(update={"engine": changed})
    if cluster.rank == 0 and models:
        if named := next((entry for entry in settings.served if entry.nodes), None):
            raise ConfigError(
                f"models: {named.source}: nodes: a hostfile lists ranks, not nodes that joined: leave it out, or say "
                "engine: {ranks: N} for its first N hosts"
            )
        _refuse_strategy(loaded)
        if not is_alone(settings):
            _refuse_for_several(settings)
        if refusal := rdma_refusal(devices, settings.engine.transport):
            raise ConfigError(f"{where}: {refusal}")
        settings = settings.model_copy(update={"api": settings.api.model_copy(update=_listening(loaded))})
    return HandRank(cluster.rank, rank_addresses(devices), settings, models)


def _refuse_tunnels(hostfile: Path | None) -> None:
    if hostfile and hostfile.name == TUNNELS_FILE:
        raise HostfileError(
            "",
            f"{hostfile} holds the tunnels of LocalAI's own p2p and not rank 0, so no group can form from it: "
            "use `chorus worker p2p-mlx`, or write a hostfile with the addresses of all ranks",
        )


def _named_by_settings(loaded: LoadedSettings) -> tuple[str, ...]:
    """The models to serve. A rank that follows looks for names in its store when it is asked for them, and fetches
    nothing that its own command does not name: to it, settings name a folder or nothing.
    """
    settings = loaded.settings
    serves = settings.cluster.rank == 0 or os.path.isdir(os.path.expanduser(settings.model))
    if settings.cluster.rank == 0 and loaded.is_given("models"):
        return tuple(entry.source for entry in settings.served)
    return (settings.model,) if serves and loaded.is_given("model") else ()


def _refuse_for_several(settings: Settings) -> None:
    """What one model of a hostfile may say and several cannot all have; raises ConfigError."""
    for entry in settings.served:
        own = settings_of(settings, entry)
        if refusal := catalog.hostfile_refusal(own.engine.transport):
            raise ConfigError(f"models: {entry.source}: {refusal}")
        if own.engine.transport != catalog.AUTO and catalog.get(own.engine.transport).rdma:
            others = ", ".join(name for name in catalog.by_hand() if not catalog.get(name).rdma)
            raise ConfigError(
                f"{own.engine.transport}: ranks of a hostfile meet over RDMA at one place, for one model: name one, or "
                f"serve several over {others}"
            )
        if own.engine.ranks > len(settings.devices):
            raise ConfigError(
                f"models: {entry.source}: engine.ranks: {own.engine.ranks} ranks are asked for, and the hostfile lists "
                f"{len(settings.devices)} hosts"
            )


def _refuse_strategy(loaded: LoadedSettings) -> None:
    strategy = loaded.settings.sharding.strategy
    if loaded.is_given("sharding.strategy") and strategy not in WITHOUT_FIGURES:
        raise ConfigError(
            f"{loaded.origins['sharding.strategy']}: sharding.strategy {strategy} needs the memory and speed of all "
            "machines, and ranks that are started by hand do not know each other's: give --split with what "
            "`chorus plan` prints, or start them with `chorus up`"
        )


def _transport(loaded: LoadedSettings) -> str:
    """How tensors travel between ranks of a hostfile."""
    engine = loaded.settings.engine
    if refusal := catalog.hostfile_refusal(engine.transport):
        raise ConfigError(refusal)
    if not loaded.is_given("engine.transport"):
        return catalog.by_hand()[0]
    if engine.transport == catalog.AUTO:
        return auto_over_machines(engine.served_parallel, "no cables were looked at").transport
    return engine.transport


def _listening(loaded: LoadedSettings) -> dict[str, object]:
    """Where the API listens: at `cluster.address`, unless only `api.host` and `api.port` are given."""
    settings = loaded.settings
    try:
        host, port = split_address(settings.cluster.address)
    except BadAddress as error:
        raise ConfigError(f"{loaded.origins['cluster.address']}: --addr: {error}") from None
    own = {key: getattr(settings.api, key) for key in ("host", "port") if loaded.is_given(f"api.{key}")}
    if own and loaded.is_given("cluster.address"):
        listed = " and ".join(f"api.{key} ({loaded.origins[f'api.{key}']})" for key in own)
        warn(f"{listed} has no effect: rank 0 answers at {settings.cluster.address}")
        own = {}
    return {"host": host, "port": port or DEFAULT_PORT, **own}


def lead_with_api(place: HandRank, insecure: bool = False) -> None:
    """Serve as rank 0 until stopped; raises GaveUp when a rank does not come in time."""
    settings = place.settings
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port, "--addr")) as listener:
        keep_journal(listener)
        only = None
        if is_alone(settings):
            settings = settings_of(settings, settings.served[0])
            only = find_model(place.models[0])
            settings = divided(settings, only)
        asyncio.run(_lead(replace(place, settings=settings), only, listener, access))


def divided(settings: Settings, model: LocalModel) -> Settings:
    """The settings with the division that follows from proportions, or from how the model was cut."""
    return with_own_division(with_proportions(settings, model), model)


def with_proportions(settings: Settings, model: LocalModel) -> Settings:
    """The settings with a split that follows from the proportions, where those are what was asked for."""
    shares, engine = settings.sharding.custom_proportions, settings.engine
    if not shares or settings.sharding.strategy != "custom" or engine.split or engine.weights:
        return settings
    if engine.served_parallel != "pipeline":
        raise ConfigError("sharding.custom_proportions divides layers: for tensor parallelism give --weights")
    layers = len(read_facts(model.path, model.id).layers)
    if len(shares) > layers:
        raise ConfigError(f"sharding.custom_proportions: {len(shares)} ranks cannot share {layers} layers")
    names = [device.device_id for device in settings.devices] or [f"rank {rank}" for rank in range(len(shares))]
    split = apportion(shares, layers, names)
    return settings.model_copy(update={"engine": engine.model_copy(update={"split": split, "ranks": len(split)})})


async def _lead(place: HandRank, only: LocalModel | None, listener: Listener, access: Access) -> None:
    """`only` is the one model, where there are no others; then the settings are its own."""
    settings = place.settings
    lifeline = Lifeline()
    folder = lifeline.path.parent
    maker = ByHand(settings, place.addresses, lifeline, alone=only is not None)
    stores = stored if settings.api.any_model else None
    registry = Registry(maker, settings.load, maker.books, alone=only is not None, find_stored=stores)
    for entry in settings.served:
        registry.add(entry, maker.loadable(settings, entry, only, 0) if only else None)
    registry.want_first(registry.preloaded)
    record = server_record(folder, listener, access, only.name if only else settings.served[0].source)
    told = tuple(model.settings for model in registry.models)
    program = front_end_program(api_settings(settings, told, listener, access, record), folder)
    front_end = FrontEnd(program, lifeline, settings.api, settings.watch)
    try:
        async with access.kept():
            control = Control(record, front_end, registry)
            await run_announced(front_end, registry, control, access.url(listener))
    finally:
        lifeline.cut()


class ByHand(Making):
    """Makes groups whose leader is here and whose other ranks are places at the workers of a hostfile. What a leader
    takes is booked here, what its ranks take by their workers.
    """

    def __init__(self, settings: Settings, addresses: tuple[str, ...], lifeline: Lifeline, alone: bool) -> None:
        super().__init__(settings, lifeline, alone)
        self._addresses = addresses
        measure = partial(usable_here, settings.engine.memory_fraction)
        ledger = None if alone else Ledger(own_file(), settings.load.memory or measure)
        self.books = HandBooks(ledger, addresses[1:]) if ledger else None

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        settings = settings_of(self._settings, entry)

        def find(tell: ProgressCallback) -> Loadable:
            model = look_for_model(entry.source, tell)
            return self.loadable(divided(settings, model), entry, model, number)

        return await find_aside(find, report)

    def loadable(self, settings: Settings, entry: ModelConfig, model: LocalModel, number: int) -> Loadable:
        """A model that was found; the first ranks of the hostfile have it where its entry says how many."""
        folder, addresses = self.folder(number), self._addresses
        if entry.engine.model_fields_set & DIVISION and not self._alone:
            addresses = addresses[: settings.engine.ranks]
        many = addresses if len(addresses) > 1 else ()
        spec = engine_spec(settings, model, folder, many).model_copy(
            update={
                "model": name_elsewhere(model),
                "needs": rank_needs(settings, model, len(addresses)),
                "coordinator": settings.cluster.coordinator,
                "insecure": not all(is_private(address) for address in addresses),
                "rdma_devices": settings.rdma_devices,
                **threads_of(settings.engine.threads, _ranks_here(addresses)),
            }
        )
        needs = self._needs(settings, model, addresses) if self.books else None
        name = self.expected(entry, number).id
        programs = rank_programs(spec)[:1]  # refuses what cannot be launched before anything is booked

        def make(booked: int) -> ProcessGroup:
            folder.mkdir(mode=0o700, exist_ok=True)
            (leader,) = programs
            if needs and self.books:
                group = self.books.groups[name] = secrets.token_hex(8)
                (leader,) = rank_programs(self._within(spec, settings, model, needs, booked, group))[:1]
            own = {**settings.cluster.env, **(booked_environment(booked) if booked else {})}
            leader = replace(leader, environment={**leader.environment, **own})
            return ProcessGroup("leader", [leader], self._lifeline, ENGINE_GRACE_SECONDS, settings.watch)

        names = tuple(device.device_id for device in settings.devices)[: len(addresses)]
        return Loadable(self._told(settings, model, number), len(addresses), make, needs, names)

    def _needs(self, settings: Settings, model: LocalModel, addresses: Sequence[str]) -> Needs:
        """Of rank 0, which alone is on this machine, and of the others at their workers."""
        planned = planned_ranks(settings, model, len(addresses))
        own = needs_of(settings.model_copy(update={"engine": _one(settings)}), planned[:1], model.path)
        others = {addresses[rank.rank]: rank.needed_bytes - rank.cache_bytes for rank in planned[1:]}
        return replace(own, at=frozenset({HERE}), others=others)

    def _within(
        self, spec: EngineSpec, settings: Settings, model: LocalModel, needs: Needs, booked: int, group: str
    ) -> EngineSpec:
        """Its caches take what rank 0 has room for, and its ranks are asked for as much."""
        cache = settings.cache.model_copy(update={"memory": needs.cache_of(booked)} if booked else {})
        given = settings.model_copy(update={"cache": cache})
        asked = rank_needs(given, model, max(1, len(spec.ranks)))
        return spec.model_copy(update={"cache": cache, "needs": asked, "group": group})

    def _told(self, settings: Settings, model: LocalModel, number: int) -> ModelSettings:
        folder = self.folder(number)
        names = tuple(device.device_id for device in settings.devices)
        return model_settings(settings, model, engine_address(folder), folder, names)


def _one(settings: Settings) -> EngineConfig:
    return settings.engine.model_copy(update={"ranks": 1})


def _ranks_here(addresses: Sequence[str]) -> int:
    """Those that share the cores of rank 0's host."""
    here = addresses[0].rpartition(":")[0]
    return sum(address.rpartition(":")[0] == here for address in addresses)


def follow(place: HandRank, start_timeout: float | None = None) -> None:
    """Be there for leaders until stopped; raises RanksMissing when others do not come in time, None: never.

    It waits for its leader as a service waits for clients: LocalAI's may come when the first model is asked for.
    """
    require_mlx()
    if not is_private(place.addresses[place.rank]):
        warn(
            "no token, so this link is plain text: whoever reaches the port can run models of this machine's store or "
            "of its --model, and nothing else; `chorus join` has TLS"
        )
    folders = [find_model(name).path for name in place.models]
    asyncio.run(_follow(place, folders, start_timeout))


async def _follow(place: HandRank, folders: Sequence[Path], start_timeout: float | None) -> None:
    rank, addresses, settings = place.rank, place.addresses, place.settings
    program = Program(f"rank {rank}", rank_command(place, folders), settings.cluster.env)
    ledger = Ledger(own_file(), partial(usable_here, settings.engine.memory_fraction))
    places = Places(rank, addresses[rank], program, ledger, settings.watch)
    others = {number: address for number, address in enumerate(addresses) if number != rank}
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    meeting = asyncio.create_task(wait_for_all(others, start_timeout))
    stop = asyncio.create_task(stopped.wait())
    try:
        await places.open()
        await asyncio.wait([meeting, stop], return_when=asyncio.FIRST_COMPLETED)
        if meeting.done():
            meeting.result()
            await stop
    finally:
        for task in (meeting, stop):
            task.cancel()
        await asyncio.gather(meeting, stop, return_exceptions=True)
        await places.close()


def rank_command(place: HandRank, folders: Sequence[Path]) -> Sequence[str]:
    """A rank that still lacks what differs between leaders (places.py)."""
    engine, log = place.settings.engine, place.settings.log
    command = ["-m", "chorus.rank", "--rank", str(place.rank), "--own-store", "--insecure"]
    command += ["--log-level", log.level]
    command += [word for folder in folders for word in ("--own-model", str(folder))]
    command += ["--log-json"] if log.json_lines else []
    command += ["--threads", str(engine.threads)] if engine.threads else []
    command += ["--trust-remote-code"] if engine.trust_remote_code else []
    return python(*command)
