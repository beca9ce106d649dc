"""What every command that serves an API does: keys, a listening socket, the model, the front end, the ready line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from chorus.cluster import status
from chorus.cluster.servers import Server
from chorus.config.file import ConfigError
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.config.sections import AnswerOptions, ApiConfig, ApiOptions, Limits
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.deploy.control import Control
from chorus.deploy.groups.group import LOOK_EVERY_SECONDS
from chorus.deploy.groups.registry import Registry
from chorus.deploy.handover import FrontEnd
from chorus.deploy.supervisor import Kept, Supervisor
from chorus.errors import CannotListen, ChorusError
from chorus.messages.deploy import ModelRow, ModelState
from chorus.models import LocalModel, Progress, resolve
from chorus.models.parts import resolve_description
from chorus.models.servable import check_servable
from chorus.models.values import ProgressCallback, ignore_progress
from chorus.platform.accelerator.mlx_import import require_mlx
from chorus.platform.storage.files import write_if_possible
from chorus.platform.storage.paths import run_prefix, state_dir
from chorus.platform.terminal import console, shown
from chorus.security.key_file import default_key_file, load_keys
from chorus.security.key_rules import key_hash, new_key, refusal_to_listen
from chorus.security.node_folder import authority_file
from chorus.security.tls import Certificate, CertificateError
from chorus.telemetry import telling, traces

if TYPE_CHECKING:
    from chorus.security.https import OwnCertificate

ENGINE_GRACE_SECONDS = 5.0
BACKLOG = 2048


class CannotServe(ChorusError):
    """The API cannot be offered as it was asked for."""


@dataclass(frozen=True)
class Access:
    """How clients reach the API, as it was decided when the server started."""

    keys_file: Path | None = None
    """None where everybody is served, whatever keys are made later."""
    certificate: Path | None = None
    key: Path | None = None
    own: OwnCertificate | None = None
    own_key: str = field(default_factory=new_key, repr=False)
    """For commands of the user who serves, where keys are asked for; it goes with the server."""

    def url(self, listener: Listener) -> str:
        host, port = listener.place
        return f"{'https' if self.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep a certificate of our own renewed for as long as this lasts."""
        renewing = asyncio.create_task(self.own.keep_renewed()) if self.own else None
        try:
            yield
        finally:
            if renewing:
                renewing.cancel()


def find_access(settings: Settings, insecure: bool) -> Access:
    """The API's keys and certificate; raises CannotServe where they do not allow serving or its settings are wrong."""
    api = settings.api
    if settings.telemetry.otlp_endpoint and not traces.is_installed():
        raise CannotServe(f"telemetry.otlp_endpoint: {traces.REMEDY}")
    keys = load_keys(default_key_file())
    if refusal := refusal_to_listen(api.host, keys, insecure):
        raise CannotServe(refusal)
    if api.tool_parser is not None:
        _check_parser(api.tool_parser)
    return _with_certificate(api, default_key_file() if keys else None)


def _check_parser(name: str) -> None:
    from chorus.text.parsers import choose  # only for this: who serves reads no answers

    try:
        choose(None, name)
    except ValueError as error:
        raise CannotServe(f"api.tool_parser: {error}") from None


def _with_certificate(api: ApiConfig, keys_file: Path | None) -> Access:
    if api.tls_certificate and api.tls_key:
        files = api.tls_certificate.expanduser().resolve(), api.tls_key.expanduser().resolve()
        try:
            Certificate(*files)
        except CertificateError as error:
            raise CannotServe(f"api.tls_certificate: {error}") from None
        return Access(keys_file, *files)
    if not api.https:
        return Access(keys_file)
    # Whoever wants no certificate need not wait for cryptography.
    from chorus.security.https import OwnCertificate

    try:
        own = OwnCertificate((*api.hosts, api.host))
    except OSError as error:
        raise CannotServe(f"cannot make a certificate: {error}") from None
    console.print(f"clients verify this server with {authority_file()}, e.g. curl --cacert {authority_file()} …")
    return Access(keys_file, own.file, own.file, own)


class Listener:
    """The API's sockets, all of one port. They stay with the supervisor, so that a front end that restarts loses no
    connection.
    """

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = sockets

    @property
    def place(self) -> tuple[str, int]:
        """Where people are sent."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(each.fileno() for each in self._sockets)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def listen(host: str, port: int, option: str = "--port") -> Listener:
    """Open the API's port on an address; `localhost` is both of its addresses, for clients try either first.

    `option` is where the command takes another port.
    """
    try:
        if host == "localhost":
            return Listener(*_both_loopbacks(port))
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return Listener(socket.create_server(address[:2], family=family, backlog=BACKLOG))
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}; choose another with {option}") from None


def _both_loopbacks(port: int) -> list[socket.socket]:
    first = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    try:
        chosen = first.getsockname()[1]
        return [first, socket.create_server(("::1", chosen), family=socket.AF_INET6, backlog=BACKLOG)]
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # this machine has no IPv6
            return [first]
        first.close()
        raise


def find_model(name: str, for_nodes: bool = False) -> LocalModel:
    """Find a model or download what is missing of it; `for_nodes` without weights, which each node fetches itself.
    Raises an error of ours where it could not be served, before anything is fetched or started.
    """
    with shown(f"finding {name}") as report:
        return look_for_model(name, report, for_nodes)


def look_for_model(
    name: str, report: ProgressCallback = ignore_progress, for_nodes: bool = False, offline: bool | None = None
) -> LocalModel:
    """The same without a bar; `offline`: nothing is downloaded."""
    require_mlx()
    if for_nodes:
        return check_servable(resolve_description(name, report))
    return check_servable(resolve(name, progress=report, offline=offline))


def settings_of(settings: Settings, entry: ModelConfig) -> Settings:
    """The settings that hold for one model; raises ConfigError where they do not go together."""
    if not settings.models and entry.source == settings.model:
        return settings
    try:
        return settings.of(entry)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"models: {entry.source}: {where + ': ' if where else ''}{first['msg']}") from None


def is_alone(settings: Settings) -> bool:
    """Whether there is one model and will be no other: whatever ends it ends the server."""
    return len(settings.served) == 1 and not settings.api.any_model


def api_settings(
    settings: Settings,
    models: tuple[ModelSettings, ...],
    listener: Listener,
    access: Access,
    record: Server | None = None,
) -> ApiSettings:
    """What the front end is told; with the server's own record, where the owner of its models is."""
    api = settings.api
    decided = {
        "port": listener.place[1],
        "tls_certificate": access.certificate,
        "tls_key": access.key,
    }
    return ApiSettings(
        **(api.shared_with(ApiOptions) | decided),
        socket_fds=listener.descriptors,
        models=models,
        control_address=f"unix:{record.control_file}" if record else None,
        load_patience_seconds=settings.load.patience_seconds,
        keys_file=access.keys_file,
        own_key_sha256=key_hash(access.own_key) if access.keys_file else None,
        responses_file=_responses_file(api.host, api.port),
        cache_per_key=settings.cache.per_key,
        limits=Limits(**api.shared_with(Limits)),
        recovery=settings.recovery,
        log_level=settings.log.level,
        log_json=settings.log.json_lines,
        events=telling.place(),
        otlp_endpoint=settings.telemetry.otlp_endpoint,
        configuration={
            **settings.model_dump(mode="json", exclude={"log", "cluster"}),
            "cluster": settings.cluster.shown(),
        },
    )


def model_settings(
    settings: Settings, model: LocalModel, address: str, folder: Path, rank_names: tuple[str, ...] = ()
) -> ModelSettings:
    """What front ends are told of a model whose group has this folder; the settings are those of the model."""
    names = {"aliases": tuple(dict.fromkeys((model.name, *settings.api.aliases)))}
    return ModelSettings(
        **(settings.api.shared_with(AnswerOptions) | names),
        engine_address=address,
        id=model.id,
        name=model.id.rpartition("/")[2],
        path=model.path,
        sampling=settings.sampling,
        trust_remote_code=settings.engine.trust_remote_code,
        rank_names=rank_names,
        status_file=folder / status.FILE_NAME,
    )


def _responses_file(host: str, port: int) -> Path | None:
    """Of the server at this address, whichever model it serves; None where the port is any free one, so that the next
    server would not find it."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", host)
    name = f"{run_prefix()}{plain}-{port}.sqlite"
    return (state_dir() / "responses" / name).absolute() if port else None


def server_record(
    folder: Path,
    listener: Listener,
    access: Access,
    model: str,
    name: str | None = None,
    log_file: Path | None = None,
) -> Server:
    """What other commands of this user are to know of this server; a name is for one over nodes."""
    return Server(
        str(folder),
        access.url(listener),
        model,
        str(state_dir().resolve()),
        certificate=str(access.certificate) if access.certificate else None,
        key=access.own_key if access.keys_file else None,
        name=name,
        log_file=str(log_file.absolute()) if log_file else None,
    )


def load_progress(row: ModelRow, label: str = "") -> Progress:
    """How far a load is: in bytes while some move, then as the share that its engine tells."""
    told = label + row.detail
    if row.total_bytes > row.loaded_bytes:
        return Progress(told, row.loaded_bytes, row.total_bytes)
    return Progress.of_share(told, row.progress)


async def announce(registry: Registry, url: str, front_end_serves: Callable[[], bool], ready_file: Path | None) -> None:
    """Show the load until a request would be answered, then where. The supervisor ends it where that never comes."""
    with shown("starting the engine") as report:
        while not (registry.settled and front_end_serves()):
            table = registry.table
            moving = [row for row in table.models if row.state in (ModelState.WAITING, ModelState.LOADING)]
            if moving:
                label = f"{moving[0].id}: " if len(table.models) > 1 else ""
                report(load_progress(moving[0], label))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await registry.newer(table.version)
    first, *others = registry.models
    more = f" and {len(others)} more" if others else ""
    console.print(f"[bold green]ready[/]  {first.id}{more}  at  [bold]{url}/v1[/]  (Ctrl-C stops it)")
    if ready_file:
        told = f"ready  {first.id}{more}  at  {url}/v1\n"
        write_if_possible(ready_file, told.encode(), "whoever waits for this server does not see that it is ready")


def keep_journal(listener: Listener) -> None:
    """From now on what happens to this server is written down, also by the processes that it starts."""
    host, port = listener.place
    telling.keep_journal(f"{host}:{port}")


async def run_announced(
    front_end: FrontEnd, registry: Registry, control: Control, url: str, ready_file: Path | None = None
) -> None:
    """Run until a signal stops it or it gives up, do what commands ask for, and show how the load proceeds."""
    # The front end goes first: it can tell its clients while the engines still answer.
    supervisor = Supervisor(registry, Kept(front_end))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup wants it
        loop.add_signal_handler(signal.SIGHUP, supervisor.stop if _has_terminal() else control.hang_up)
    announcer: list[asyncio.Task[None]] = []

    def begin() -> None:
        announcer.append(asyncio.create_task(announce(registry, url, lambda: front_end.serves, ready_file)))

    try:
        with telling.from_begin_to_end(url, ", ".join(model.id for model in registry.models)):
            async with control.offered():
                await supervisor.run(begin)
    finally:
        for task in announcer:
            task.cancel()
        await asyncio.gather(*announcer, return_exceptions=True)


def _has_terminal() -> bool:
    """Whether somebody may close the window in which this process runs: that too is told by SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
