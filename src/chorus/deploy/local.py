"""Models on this machine: all their ranks and their front end are processes of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from chorus.cluster import status
from chorus.config.front_end import ModelSettings
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.finding import find_aside, stored
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    CannotServe,
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
from chorus.deploy.groups.booking import OneMachine, needs_of
from chorus.deploy.groups.group import Loadable, Report
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.local_plan import budget_of, local_plan
from chorus.deploy.making import Making
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_addresses, rank_programs
from chorus.deploy.supervisor import ProcessGroup
from chorus.deploy.what_if import WhatIf, this_machine
from chorus.models import LocalModel
from chorus.models.values import ProgressCallback
from chorus.planning.nodes import Machines
from chorus.platform.memory.ledger import Ledger, own_file
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.storage.files import write_if_possible
from chorus.security.node_folder import own_name


def serve_here(
    settings: Settings, insecure: bool, environment: Mapping[str, str], ready_file: Path | None = None
) -> None:
    """Serve until a signal stops it; raises GaveUp when it cannot go on."""
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        keep_journal(listener)
        only = None
        if is_alone(settings):
            divided = settings_of(settings, settings.served[0])
            model = find_model(divided.model)
            only = with_own_division(divided, model), model
        os.environ.update({**settings.cluster.env, **environment})
        asyncio.run(_serve(settings, only, listener, access, ready_file))


async def _serve(
    settings: Settings,
    only: tuple[Settings, LocalModel] | None,
    listener: Listener,
    access: Access,
    ready_file: Path | None,
) -> None:
    """`only` is the one model, where there are no others."""
    lifeline = Lifeline()
    folder = lifeline.path.parent
    try:
        maker = Here(settings, lifeline)
        registry = Registry(
            maker,
            settings.load,
            OneMachine(maker.ledger) if maker.ledger else None,
            alone=only is not None,
            find_stored=stored if settings.api.any_model else None,
        )
        entries = settings.served
        models = [registry.add(each, maker.loadable(*only, 0) if only else None) for each in entries]
        registry.want_first(registry.preloaded)
        record = server_record(folder, listener, access, entries[0].source)
        told = api_settings(settings, tuple(model.settings for model in models), listener, access, record)
        front_end = FrontEnd(front_end_program(told, folder), lifeline, settings.api, settings.watch)

        async def machines() -> Machines:
            room = await asyncio.to_thread(maker.ledger.budget) if maker.ledger else None
            return await asyncio.to_thread(this_machine, settings, own_name(), room)

        control = Control(record, front_end, registry, what_if=WhatIf(settings, registry, machines))
        async with access.kept():
            await run_announced(front_end, registry, control, access.url(listener), ready_file)
    finally:
        lifeline.cut()


class Here(Making):
    """Makes groups whose ranks are all on this machine, and books its memory for them."""

    def __init__(self, settings: Settings, lifeline: Lifeline) -> None:
        super().__init__(settings, lifeline, is_alone(settings))
        budget = budget_of(settings)
        if budget is None and not self._alone:
            raise CannotServe(
                "how much memory this GPU has for several models is not known: give it as load.memory, or measure it "
                "once with `chorus plan`"
            )
        self.ledger = None if budget is None else Ledger(own_file(), budget)

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        settings = settings_of(self._settings, entry)

        def find(tell: ProgressCallback) -> Loadable:
            model = look_for_model(entry.source, tell)
            return self.loadable(with_own_division(settings, model), model, number)

        return await find_aside(find, report)

    def loadable(self, settings: Settings, model: LocalModel, number: int) -> Loadable:
        """A model that was found; raises an error of ours where it cannot be divided as the settings say."""
        folder = self.folder(number)
        made = local_plan(settings, model, self.ledger.budget() if self.ledger and not self._alone else None)
        settings = settings.model_copy(update={"engine": settings.engine.model_copy(update=made.division)})
        spec = engine_spec(settings, model, folder, rank_addresses(folder, settings.engine.ranks))
        spec = spec.model_copy(update={"policies": made.policies})
        needs = needs_of(settings, made.ranks, model.path) if self.ledger else None
        rank_programs(spec)  # refuses what cannot be launched before anything is booked

        def make(booked: int) -> ProcessGroup:
            folder.mkdir(mode=0o700, exist_ok=True)
            shown = json.dumps({"plan": made.shown}).encode()
            write_if_possible(folder / status.FILE_NAME, shown, "the plan is not shown")
            # A model that is alone finds out itself what it leaves of its memory.
            known = None if self._alone else needs
            cache = {"memory": known.cache_of(booked)} if known and booked else {}
            programs = rank_programs(spec.model_copy(update={"cache": settings.cache.model_copy(update=cache)}))
            return ProcessGroup("ranks", programs, self._lifeline, ENGINE_GRACE_SECONDS, settings.watch)

        return Loadable(self._told(settings, model, number), settings.engine.ranks, make, needs, (own_name(),))

    def _told(self, settings: Settings, model: LocalModel, number: int) -> ModelSettings:
        folder = self.folder(number)
        return model_settings(settings, model, engine_address(folder), folder)
