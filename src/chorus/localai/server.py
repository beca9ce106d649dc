"""The process LocalAI starts: a listening address, the service on it, and an end that always comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from chorus.errors import CannotListen
from chorus.localai.access import token_interceptors
from chorus.localai.loading import EngineLauncher, Models
from chorus.localai.parent_watch import parent_gone, watch_seconds
from chorus.localai.plan import Tree
from chorus.localai.service import BackendService
from chorus.messages.proto import localai_pb2_grpc
from chorus.platform.storage.paths import check_socket_path
from chorus.telemetry import telling

log = logging.getLogger(__name__)

MESSAGE_BYTES = 50 * 1024 * 1024
GOODBYE_SECONDS = 1.0
"""How long running requests may go on after a SIGTERM; with the ranks' own grace it makes less than five seconds."""
WORKERS_VARIABLE = "PYTHON_GRPC_MAX_WORKERS"


@dataclass(frozen=True)
class ServerSettings:
    address: str
    flags: Tree = field(default_factory=dict)
    """What the command line says about hostfile and transport, as a tree of settings."""
    trust_remote_code: bool = False
    """Whether a model may run its own Python when its options ask for that."""


async def serve(settings: ServerSettings, launch: EngineLauncher, environment: Mapping[str, str] | None = None) -> None:
    """Runs until SIGTERM, SIGINT or the end of the parent process, and leaves no process behind."""
    environment = os.environ if environment is None else environment
    parent = os.getppid()
    _note_workers(environment)
    models = Models(settings.flags, launch, settings.trust_remote_code)
    server = grpc.aio.server(
        interceptors=token_interceptors(environment),
        options=[
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ],
    )
    localai_pb2_grpc.add_BackendServicer_to_server(BackendService(models), server)
    check_socket_path(settings.address)
    try:
        server.add_insecure_port(settings.address)
    except RuntimeError:
        raise CannotListen(f"cannot listen on {settings.address}: it is in use or not ours; choose another") from None
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    watches: list[asyncio.Task[Any]] = [asyncio.create_task(stopping.wait())]
    if (seconds := watch_seconds(environment)) is not None:
        watches.append(asyncio.create_task(parent_gone(seconds, parent)))
    telling.keep_journal(settings.address)
    with telling.from_begin_to_end(settings.address, "what LocalAI loads"):
        await server.start()
        log.info("the LocalAI backend listens on %s", settings.address)
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
            await server.stop(GOODBYE_SECONDS)
            await models.free()
            log.info("the LocalAI backend has stopped")


def _note_workers(environment: Mapping[str, str]) -> None:
    """LocalAI bounds other backends by threads; here requests share a batch, and the engine bounds that."""
    if workers := environment.get(WORKERS_VARIABLE):
        log.info(
            "%s=%s: requests are batched by the engine and need no threads of their own", WORKERS_VARIABLE, workers
        )
