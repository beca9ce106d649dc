"""Models that are looked for while a server runs, whatever makes their groups then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chorus.config.served import ModelConfig
from chorus.deploy.front_end import look_for_model
from chorus.deploy.groups.aside import in_thread
from chorus.deploy.groups.group import Report
from chorus.models import LocalModel, ModelError, Progress
from chorus.models.resolve import split_hub_id, stored_model
from chorus.models.values import ProgressCallback

Result = TypeVar("Result")


def stored(name: str) -> ModelConfig | None:
    """A model that this machine has under a name that a client said."""
    try:
        return ModelConfig(source=stored_model(name).name)
    except ModelError:
        return None


def expected(source: str, folder: Path) -> LocalModel:
    """A model before anybody has looked for it; what is not here yet would be in the folder."""
    if not source.endswith(".gguf"):  # it may have to be imported first
        with contextlib.suppress(ModelError):
            return look_for_model(source, offline=True)
    hub = split_hub_id(source)
    name = hub[0] if hub else Path(source).name.removesuffix(".gguf")
    return LocalModel(source, name, folder / "missing")


async def find_aside(work: Callable[[ProgressCallback], Result], report: Report) -> Result:
    """In a thread that a server which ends does not wait for, while the server is told how far it is."""
    loop = asyncio.get_running_loop()

    def tell(progress: Progress) -> None:
        loop.call_soon_threadsafe(report, progress)

    return await in_thread(lambda: work(tell))
