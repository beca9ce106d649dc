"""Models over the nodes of a cluster: the ranks 0 and the front end here, the other ranks started by agents."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from chorus.cluster import status
from chorus.cluster.logs import device_log
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.finding import stored
from chorus.deploy.front_end import (
    Access,
    CannotServe,
    Listener,
    api_settings,
    find_access,
    find_model,
    is_alone,
    keep_journal,
    listen,
    run_announced,
    server_record,
    settings_of,
)
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.nodes.maker import OverNodes, check_nodes
from chorus.deploy.nodes.meeting import meet
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import front_end_program
from chorus.deploy.what_if import WhatIf
from chorus.models import LocalModel
from chorus.platform.process.lifeline import Lifeline


def serve_over_nodes(
    settings: Settings, insecure: bool, options: ClusterOptions, ready_file: Path | None = None
) -> None:
    """Serve until a signal stops it; raises GaveUp when it cannot go on."""
    access = find_access(settings, insecure)
    if options.names:  # all nodes that there will be
        for entry in settings.served:
            check_nodes(entry, (options.here, *options.names))
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        keep_journal(listener)
        only = None
        if is_alone(settings):
            divided = settings_of(settings, settings.served[0])
            model = find_model(divided.model, for_nodes=True)
            only = with_own_division(divided, model), model
        try:
            asyncio.run(_serve(settings, only, listener, access, options, ready_file))
        except OSError as error:
            raise CannotServe(str(error)) from error


async def _serve(
    settings: Settings,
    only: tuple[Settings, LocalModel] | None,
    listener: Listener,
    access: Access,
    options: ClusterOptions,
    ready_file: Path | None,
) -> None:
    """`only` is the one model, where there are no others."""
    lifeline = Lifeline()
    folder = lifeline.path.parent
    entries = settings.served
    log_file = options.log_file or device_log(options.logs, options.here)
    record = server_record(
        folder, listener, access, only[1].name if only else entries[0].source, options.here, log_file
    )
    try:
        async with meet(options) as meeting:
            maker = OverNodes(settings, lifeline, meeting, options, alone=only is not None)
            registry = Registry(
                maker,
                settings.load,
                maker.books,
                alone=only is not None,
                find_stored=stored if settings.api.any_model else None,
            )
            for each in entries:
                registry.add(each, await maker.loadable(only[0], each, only[1], 0) if only else None)
            registry.want_first(registry.preloaded)
            told = tuple(model.settings for model in registry.models)
            program = front_end_program(api_settings(settings, told, listener, access, record), folder)
            front_end = FrontEnd(program, lifeline, settings.api, settings.watch)
            what_if = WhatIf(settings, registry, maker.machines)
            control = Control(record, front_end, registry, maker.replan, what_if)
            writing = asyncio.create_task(status.keep_written(meeting.nodes, time.time(), maker.views))
            try:
                async with access.kept():
                    await run_announced(front_end, registry, control, access.url(listener), ready_file)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
    finally:
        lifeline.cut()
