"""Models on this machine: all their ranks and their front end are processes of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from chorus.cluster import status
from chorus.config.front_end import ModelSettings
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    CannotServe,
    Listener,
    api_settings,
    find_access,
    find_model,
    listen,
    look_for_model,
    model_settings,
    run_announced,
    server_record,
    settings_of,
)
from chorus.deploy.groups.booking import needs_of
from chorus.deploy.groups.group import Loadable, Report
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.local_plan import budget_of, local_plan
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_addresses, rank_programs
from chorus.deploy.supervisor import ProcessGroup
from chorus.models import LocalModel, ModelError, PullProgress
from chorus.models.resolve import split_hub_id, stored_model
from chorus.platform.files import write_if_possible
from chorus.platform.ledger import Ledger, own_file
from chorus.platform.process.lifeline import Lifeline
from chorus.security.node_folder import own_name

Result = TypeVar("Result")


def serve_here(
    settings: Settings, insecure: bool, environment: Mapping[str, str], ready_file: Path | None = None
) -> None:
    """Serve until a signal stops it; raises GaveUp when it cannot go on."""
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        only = None
        if _is_alone(settings):
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
            maker.ledger,
            alone=only is not None,
            find_stored=_stored if settings.api.any_model else None,
        )
        entries = settings.served
        models = [registry.add(each, maker.loadable(*only, 0) if only else None) for each in entries]
        registry.want_first(
            model
            for model in models
            if only or (model is models[0] or model.entry.pin if model.entry.preload is None else model.entry.preload)
        )
        record = server_record(folder, listener, access, entries[0].source)
        told = api_settings(settings, tuple(model.settings for model in models), listener, access, record)
        front_end = FrontEnd(front_end_program(told, folder), lifeline, settings.api, settings.watch)
        control = Control(record, front_end, registry)
        async with access.kept():
            await run_announced(front_end, registry, control, access.url(listener), ready_file)
    finally:
        lifeline.cut()


def _is_alone(settings: Settings) -> bool:
    """Whether there is one model and will be no other: whatever ends it ends the server."""
    return len(settings.served) == 1 and not settings.api.any_model


def _stored(name: str) -> ModelConfig | None:
    """A model that this machine has under a name that a client said."""
    try:
        return ModelConfig(source=stored_model(name).name)
    except ModelError:
        return None


class Here:
    """Makes groups whose ranks are all on this machine, and books its memory for them."""

    def __init__(self, settings: Settings, lifeline: Lifeline) -> None:
        self._settings = settings
        self._lifeline = lifeline
        self._alone = _is_alone(settings)
        budget = budget_of(settings)
        if budget is None and not self._alone:
            raise CannotServe(
                "how much memory this GPU has for several models is not known: give it as load.memory, or measure it "
                "once with `chorus plan`"
            )
        self.ledger = None if budget is None else Ledger(own_file(), budget)

    def folder(self, number: int) -> Path:
        """Of one model's processes; one that is alone has that of the server."""
        parent = self._lifeline.path.parent
        return parent if self._alone else parent / str(number)

    def expected(self, entry: ModelConfig, number: int) -> ModelSettings:
        settings = settings_of(self._settings, entry)
        if not entry.source.endswith(".gguf"):  # it may have to be imported first
            with contextlib.suppress(ModelError):
                return self._told(settings, look_for_model(entry.source, offline=True), number)
        hub = split_hub_id(entry.source)
        name = hub[0] if hub else Path(entry.source).name.removesuffix(".gguf")
        return self._told(settings, LocalModel(entry.source, name, self.folder(number) / "missing"), number)

    async def find(self, entry: ModelConfig, number: int, report: Report) -> Loadable:
        settings = settings_of(self._settings, entry)
        loop = asyncio.get_running_loop()

        def tell(progress: PullProgress) -> None:
            loop.call_soon_threadsafe(report, progress)

        def find() -> Loadable:
            model = look_for_model(entry.source, tell)
            return self.loadable(with_own_division(settings, model), model, number)

        return await _in_thread(find)

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

    def clear(self, number: int) -> None:
        if not self._alone:
            shutil.rmtree(self.folder(number), ignore_errors=True)

    def _told(self, settings: Settings, model: LocalModel, number: int) -> ModelSettings:
        folder = self.folder(number)
        return model_settings(settings, model, engine_address(folder), folder)


async def _in_thread(work: Callable[[], Result]) -> Result:
    """In a thread that a server which ends does not wait for: a download takes its time."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        if not done.done():
            act()

    def run() -> None:
        try:
            result = work()
            act = lambda: done.set_result(result)  # noqa: E731
        except Exception as error:
            reason = error
            act = lambda: done.set_exception(reason)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, act)

    threading.Thread(target=run, name="find", daemon=True).start()
    return await done
