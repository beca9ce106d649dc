"""The process: a listening socket, uvicorn, and an end that always comes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import sys
from types import FrameType
from typing import cast

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from chorus.api.app import create_app
from chorus.api.served import Served
from chorus.api.server.connections import Pool
from chorus.api.server.door import Door
from chorus.api.server.protocol import BoundedHttp, SharedState
from chorus.api.service import Service
from chorus.config.front_end import FINISH, ApiSettings, ModelSettings, SettingsError
from chorus.errors import CannotListen
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.platform.process.losses import last_loss
from chorus.platform.storage.filelimit import raise_file_limit
from chorus.security.tls import Certificate, CertificateError
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.models.directory import Directory
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.telemetry.metrics.models import Metrics, ModelMetrics

log = logging.getLogger(__name__)

# After the grace, what a stream needs to say that it was cut off.
_FAREWELL_SECONDS = 3
# What libraries, logs and links to the engine keep open, and connections that are being closed.
_OWN_FILES = 128
# How often a front end that finishes looks whether all have gone.
_LOOK_SECONDS = 0.1


class Server(uvicorn.Server):
    """Streams may finish for a while after a SIGTERM; those that do not are told, then closed. After FINISH they have
    all the time that a request may take."""

    def __init__(self, config: uvicorn.Config, service: Service, certificate: Certificate | None) -> None:
        super().__init__(config)
        limits = service.settings.limits
        files = raise_file_limit(limits.max_connections + _OWN_FILES)
        most = connections_allowed(limits.max_connections, files)
        if most < limits.max_connections:
            log.warning(
                "%d connections at once, not %d: only %d files may be open", most, limits.max_connections, files
            )
        pool = Pool(most, limits.max_strangers, keys_required=service.settings.keys_file is not None)
        self._state = self.server_state = SharedState(limits, pool)
        self._service = service
        self._certificate = certificate
        self._doors: list[Door] = []
        self.servers = []
        self._told_to_stop = asyncio.Event()
        self._told_to_end = asyncio.Event()
        """To stop, or only to finish."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn's own lets in whoever comes, and counts a connection only after its handshake."""
        await self.lifespan.startup()
        if self.lifespan.should_exit or not sockets:
            sys.exit(STARTUP_FAILURE)

        def make() -> BoundedHttp:
            return BoundedHttp(self.config, self._state, self.lifespan.state)

        handshake = self._service.settings.limits.head_timeout_seconds
        self._doors = [Door(each, self._state.pool, make, handshake, self._certificate) for each in sockets]
        self.started = True

    async def main_loop(self) -> None:
        """Uvicorn's own looks ten times a second whether to stop and what time it is, most of what idling costs."""
        loop = asyncio.get_running_loop()
        # Before anybody sees that we serve: until then this signal would end the process.
        loop.add_signal_handler(FINISH, self._told_to_end.set)
        beats.enter(Phase.SERVING)
        beats.tick_with(loop)
        await self._told_to_end.wait()
        if not self._told_to_stop.is_set():
            await self._finish(self._service.settings.limits.request_timeout_seconds)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        loop = asyncio.get_running_loop()
        # A signal comes between any two steps of the loop's own thread, also while the loop sleeps.
        for told in (self._told_to_stop, self._told_to_end):
            loop.call_soon_threadsafe(told.set)

    async def _finish(self, seconds: float) -> None:
        """Somebody else accepts now: serve those that are here until they have gone, their time is up, or a stop."""
        log.info("another front end accepts now: %d running requests go on here", self._service.lifetimes.running)
        self._state.retiring = True
        self._service.lifetimes.end_watching()
        for door in self._doors:
            door.shut()
        for connection in list(self._state.connections):
            cast(BoundedHttp, connection).retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._has_clients and not self._told_to_stop.is_set():
                    await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _has_clients(self) -> bool:
        return bool(self._state.connections or self._state.tasks) or not all(door.empty for door in self._doors)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        beats.enter(Phase.ENDING)
        self._service.lifetimes.end_watching()
        grace = self._service.settings.limits.shutdown_grace_seconds
        log.info("shutting down: %d running requests have %g s to finish", self._service.lifetimes.running, grace)
        farewell = asyncio.get_running_loop().call_later(grace, self._service.lifetimes.end_all)
        for door in self._doors:
            door.close()
        try:
            await super().shutdown(sockets)
        finally:
            farewell.cancel()


def build_service(settings: ApiSettings) -> Service:
    """One model is in memory before anybody asks; of several whose owner says when each is loaded, none before it is
    needed."""
    models = settings.models
    alone = len(models) == 1 and not settings.any_model
    early = models if alone or settings.control_address is None else ()
    metrics = Metrics()

    def make(model: ModelSettings) -> Served:
        return build_served(model, settings, metrics.of(model.id))

    try:
        served = [make(model) for model in early]
    except ValueError as error:
        raise SettingsError(f"tool_parser: {error}") from None
    return Service(settings, Directory(make, models, served, ready=settings.control_address is None), metrics)


def build_served(model: ModelSettings, settings: ApiSettings, metrics: ModelMetrics) -> Served:
    tokenizer = ServedTokenizer.load(model.path, trust_remote_code=model.trust_remote_code)
    connect_seconds = settings.limits.connect_timeout_seconds
    # Where there is an owner, it says which engine serves.
    takes_over = settings.control_address is None and last_loss() is not None
    client = EngineClient(model.engine_address, connect_seconds, settings.recovery, takes_over, metrics, model.id)
    return Served(model, settings, client, tokenizer)


def build_certificate(settings: ApiSettings) -> Certificate | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        return Certificate(settings.tls_certificate, settings.tls_key)
    except CertificateError as error:
        raise SettingsError(f"tls_certificate: {error}") from None


def connections_allowed(wanted: int, files: int) -> int:
    """As many as asked for, or as there may be open files beside our own."""
    return min(wanted, max(files - _OWN_FILES, files // 2))


def build_server(service: Service) -> Server:
    config = uvicorn.Config(
        create_app(service),
        loop="uvloop",
        http=BoundedHttp,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=math.ceil(service.settings.limits.idle_timeout_seconds),
        timeout_graceful_shutdown=math.ceil(service.settings.limits.shutdown_grace_seconds) + _FAREWELL_SECONDS,
    )
    return Server(config, service, build_certificate(service.settings))


def listen(settings: ApiSettings) -> list[socket.socket]:
    """The inherited sockets, or one of our own."""
    if settings.socket_fds:
        try:
            return [socket.socket(fileno=number) for number in settings.socket_fds]
        except OSError as error:
            raise CannotListen(f"one of {settings.socket_fds} is no open socket: {error.strerror}") from None
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return [socket.create_server((settings.host, settings.port), family=family, backlog=2048)]
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise CannotListen(f"cannot listen on {where}: {error.strerror}; choose another host or port") from None


def run(settings: ApiSettings) -> None:
    """Returns after a SIGTERM or SIGINT, when all is closed."""
    listeners = listen(settings)
    server = build_server(build_service(settings))

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # Uvicorn takes these over while it serves, and at its end raises what it took; that must not kill us then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # What the libraries brought stays for good: the collector need not walk through it while streams wait.
    gc.collect()
    gc.freeze()
    server.run(sockets=listeners)
