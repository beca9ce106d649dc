"""One model on this machine: all its ranks and its front end are processes of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from chorus.cluster import status
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    Listener,
    api_settings,
    find_access,
    find_model,
    listen,
    model_settings,
    run_announced,
    server_record,
)
from chorus.deploy.handover import FrontEnd
from chorus.deploy.local_plan import local_plan
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_addresses, rank_programs
from chorus.deploy.supervisor import ProcessGroup, Supervisor
from chorus.models import LocalModel
from chorus.platform.files import write_if_possible
from chorus.platform.process.lifeline import Lifeline


def serve_here(
    settings: Settings, insecure: bool, environment: Mapping[str, str], ready_file: Path | None = None
) -> None:
    """Serve until a signal stops it; raises GaveUp when it cannot go on."""
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        model = find_model(settings.model)
        divided = with_own_division(settings, model)
        os.environ.update({**settings.cluster.env, **environment})
        asyncio.run(_serve(divided, model, listener, access, ready_file))


async def _serve(
    settings: Settings, model: LocalModel, listener: Listener, access: Access, ready_file: Path | None
) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    address = engine_address(folder)
    made = local_plan(settings, model)
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update=made.division)})
    write_if_possible(folder / status.FILE_NAME, json.dumps({"plan": made.shown}).encode(), "the plan is not shown")
    spec = engine_spec(settings, model, folder, rank_addresses(folder, settings.engine.ranks))
    spec = spec.model_copy(update={"policies": made.policies})
    served = model_settings(settings, model, address, folder)
    program = front_end_program(api_settings(settings, (served,), listener, access), folder)
    front_end = FrontEnd(program, lifeline, settings.api, settings.watch)
    ranks = ProcessGroup("ranks", rank_programs(spec), lifeline, ENGINE_GRACE_SECONDS, settings.watch)
    supervisor = Supervisor(ranks, front_end)
    control = Control(server_record(folder, listener, access, model), front_end)
    try:
        async with access.kept():
            await run_announced(supervisor, control, address, model, access.url(listener), ready_file)
    finally:
        lifeline.cut()
