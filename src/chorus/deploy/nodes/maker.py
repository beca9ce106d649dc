"""Models over the nodes of a cluster: each a group with its leader here, all of them over the same nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from chorus.cluster import status
from chorus.cluster.coordinator.process import NodesMissing
from chorus.cluster.profile.machine import ProfileError, profile, usable_here
from chorus.config.file import ConfigError
from chorus.config.front_end import ModelSettings
from chorus.config.served import ModelConfig
from chorus.config.settings import DIVISION, Settings
from chorus.deploy.finding import find_aside
from chorus.deploy.front_end import ENGINE_GRACE_SECONDS, look_for_model, model_settings, settings_of
from chorus.deploy.groups.group import Loadable, Report
from chorus.deploy.making import Making
from chorus.deploy.nodes.books import NodeBooks
from chorus.deploy.nodes.group import ClusterGroup, Wanted
from chorus.deploy.nodes.meeting import Meeting
from chorus.deploy.nodes.model import SpreadModel
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.nodes.what_if import machines_now
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec
from chorus.deploy.room import HERE
from chorus.deploy.supervisor import CannotStartNow, GaveUp, ProcessGroup
from chorus.errors import ChorusError
from chorus.messages.deploy import nearest_name
from chorus.models import LocalModel, Progress
from chorus.planning.nodes import Machines
from chorus.platform.cpu import cores
from chorus.platform.memory.ledger import Ledger, own_file
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.terminal import console
from chorus.transport import catalog


class OverNodes(Making):
    """Makes groups over nodes, and books what they take: of nodes by their agents, of this machine in its ledger."""

    def __init__(
        self, settings: Settings, lifeline: Lifeline, meeting: Meeting, options: ClusterOptions, alone: bool
    ) -> None:
        """`alone`: there is one model, whose leader finds out itself what this machine has left."""
        super().__init__(settings, lifeline, alone)
        self._meeting = meeting
        self._options = options
        self._models: dict[int, SpreadModel] = {}
        self._shown = ""
        self._meets = asyncio.Lock()
        self._met = False
        measure = partial(usable_here, settings.engine.memory_fraction)
        self._ledger = None if alone else Ledger(own_file(), settings.load.memory or measure)
        self.books = NodeBooks(meeting.nodes, self._ledger, self._groups) if self._ledger else None

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        settings = settings_of(self._settings, entry)
        report(Progress("waiting for nodes", 0, None))
        await self.meet()
        model = await find_aside(lambda tell: look_for_model(entry.source, tell, for_nodes=True), report)
        return await self.loadable(with_own_division(settings, model), entry, model, number)

    async def meet(self) -> None:
        """Wait for the nodes, once: later loads use those that are there. Raises GaveUp."""
        options = self._options
        async with self._meets:
            if self._met:
                return
            try:
                await self._meeting.nodes.gather(options.nodes, options.names, options.start_timeout_seconds)
                # What this machine has is known once it was measured, as plans need it too.
                await asyncio.to_thread(profile, cores.threads_per_rank(cores.usable_cores(), 1))
            except (NodesMissing, ProfileError) as error:
                raise GaveUp(str(error)) from None
            self._met = True

    async def loadable(self, settings: Settings, entry: ModelConfig, model: LocalModel, number: int) -> Loadable:
        """A model that was found; raises an error of ours where it cannot be served over these nodes."""
        folder = self.folder(number)
        # One rank to a machine: none of them shares its cores with another.
        one = settings.model_copy(update={"engine": settings.engine.model_copy(update={"ranks": 1})})
        if entry.nodes:
            await self.meet()
            there = (node.name for node in self._meeting.nodes.present)
            check_nodes(entry, (self._options.here, *self._options.names, *there))
        label = "" if self._alone else f"{model.id}: "
        spread = await SpreadModel.prepared(
            settings,
            model,
            self._meeting,
            self._options_of(settings, number),
            lambda ranks: engine_spec(one, model, folder, ranks),
            self._ledger,
            lambda detail: self._report(label + detail),
        )
        wanted = self._wanted(settings, entry)
        needs = None
        if self.books:
            room = await asyncio.to_thread(self.books.room)
            at = frozenset({HERE, *wanted.names}) if wanted.only else None
            needs = replace(spread.least(sum(room.budget.values())), at=at)

        def make(booked: int) -> ProcessGroup:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._models[number] = spread
            return spread.start(wanted, self._lifeline, ENGINE_GRACE_SECONDS, booked)

        return Loadable(self._told(settings, model, number), settings.engine.ranks, make, needs)

    async def machines(self) -> Machines:
        """As they are now, for plans with more of them; raises NotPlanned."""
        room = await asyncio.to_thread(self._ledger.budget) if self._ledger else None
        held = sum(group.held_bytes for group in self._groups())
        return await machines_now(self._settings, self._options.here, room, held, self._meeting.nodes.present)

    def clear(self, number: int) -> None:
        if spread := self._models.pop(number, None):
            spread.ended()
        super().clear(number)
        if not self._alone and number >= len(self._settings.served):
            self._status_file(number).unlink(missing_ok=True)

    async def replan(self) -> str:
        """Plan all that is loaded anew, one model after the other; answers who serves then."""
        loaded = self._groups()
        if not loaded:
            raise CannotStartNow("no model is loaded: the next load is planned with the nodes that are there")
        told, failed = [], []
        # One that is just being started is planned with the nodes that are there anyway.
        for group in [group for group in loaded if group.serves] or loaded:
            label = "" if self._alone else f"{group.model}: "
            try:
                told.append(label + await group.replan())
            except ChorusError as error:
                failed.append(f"{label}{error}")
        if failed:
            raise CannotStartNow("; ".join([*failed, *told]))
        return "; ".join(told)

    def views(self) -> Iterator[status.View]:
        """What is written of the nodes, for front ends and commands: in the server's own folder, and with the plan of
        each model in a file of its own.
        """
        if not self._alone:
            yield status.View(self._lifeline.path.parent / status.FILE_NAME)
        for number in dict.fromkeys((*range(len(self._settings.served)), *self._models)):
            spread = self._models.get(number)
            if spread and (group := spread.group):
                yield status.View(self._status_file(number), spread.predicted, group.notice, group.session)
            else:
                yield status.View(self._status_file(number), session="")

    def _status_file(self, number: int) -> Path:
        parent = self._lifeline.path.parent
        return parent / status.FILE_NAME if self._alone else parent / f"{number}-{status.FILE_NAME}"

    def _groups(self) -> list[ClusterGroup]:
        return [spread.group for spread in list(self._models.values()) if spread.group]

    def _told(self, settings: Settings, model: LocalModel, number: int) -> ModelSettings:
        folder = self.folder(number)
        told = model_settings(settings, model, engine_address(folder), folder, (self._options.here,))
        return told.model_copy(update={"status_file": self._status_file(number)})

    def _report(self, detail: str) -> None:
        if detail != self._shown:
            self._shown = detail
            console.print(f"[dim]{detail}[/]")

    def _options_of(self, settings: Settings, number: int) -> ClusterOptions:
        """What holds for one model: what it says itself, and of what there is once only the first has it."""
        engine, options = settings.engine, self._options
        own = replace(
            options,
            threads=engine.threads,
            start_timeout_seconds=engine.start_timeout_seconds,
            nodes_choose_transport=engine.transport == catalog.AUTO,
        )
        return replace(own, leader_port=None, coordinator=None) if number else own

    def _wanted(self, settings: Settings, entry: ModelConfig) -> Wanted:
        options, met = self._options, not self._alone or bool(entry.nodes)
        ranks = settings.engine.ranks - 1 if entry.engine.model_fields_set & DIVISION else None
        if entry.nodes:
            others = tuple(name for name in entry.nodes if name != options.here)
            return Wanted(ranks if others else 0, others, only=True, met=met)
        return Wanted(options.nodes if ranks is None else ranks, options.names, met=met)


def check_nodes(entry: ModelConfig, known: Collection[str]) -> None:
    """Refuse names of nodes that nobody has; raises ConfigError."""
    for name in entry.nodes:
        if name not in known:
            near = nearest_name(name, known)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(
                f"models: {entry.source}: nodes: there is no node {name!r}{hint} "
                f"(there are {', '.join(sorted(set(known)))})"
            )
