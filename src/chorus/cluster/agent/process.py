"""The one process that every node runs: it joins the cluster, and starts and ends ranks for its coordinator.

It needs nobody to be there first. Without a certificate it waits, announced, until an authority with the same token
knocks or answers; with one it serves, whatever coordinators come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from chorus.cluster.agent import peers as agent_peers
from chorus.cluster.agent.door import AgentDoor
from chorus.cluster.agent.peers import CARDS, Registry
from chorus.cluster.agent.ranks import Ranks
from chorus.cluster.agent.service import AgentService, NodeFacts, serve_control
from chorus.cluster.discovery import Announcer, address_changes, own_addresses
from chorus.cluster.logs import copied_output, device_log
from chorus.cluster.transfer.share import FILES, FileServer
from chorus.errors import ChorusError
from chorus.platform.accelerator.mlx_import import require_mlx
from chorus.platform.memory.ledger import own_file
from chorus.platform.network import failures
from chorus.platform.process.looks import Looks
from chorus.platform.process.output import RotatingLog
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.storage.filelimit import raise_file_limit
from chorus.platform.storage.files import write_if_possible
from chorus.security import enrol, handshake
from chorus.security.authority import Authority, NoAuthority
from chorus.security.enrol import Card
from chorus.security.identity import Identity, own_id, stranger_server_context
from chorus.security.member import NODE
from chorus.security.node_folder import RANK_PORTS, private_folder
from chorus.security.token import Token

log = logging.getLogger("chorus.agent")

PROTOCOLS = [handshake.PROTOCOL, CARDS, FILES]
"""What an agent's door answers to."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
HOUSEKEEPING_SECONDS = 1.0
"""How often an agent looks at what no event tells: leases, certificates."""


class AgentCannotRun(ChorusError):
    """The agent cannot start as it was asked to: says why and what to do."""


@dataclass(frozen=True)
class AgentOptions:
    name: str
    state: Path
    logs: Path
    host: str = "0.0.0.0"
    port: int = 0
    token: Token | None = None
    peers: tuple[tuple[str, int], ...] = ()
    announce: bool = True
    rank_port: int | None = None
    backend: str = ""
    timing: WatchTimes = DEFAULTS
    """For nodes that call this one."""
    ready_file: Path | None = None
    """Written when the door is open: whoever started the agent waits for it."""
    log_name: str = ""
    """What its log is called by; empty: by its name."""
    lock: bool = True
    """False for the door that a coordinator opens beside an agent of the same machine: it does not own its process."""


class Agent:
    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        self._halt = threading.Event()
        self.ready = asyncio.Event()
        self.files = FileServer()
        self._control: grpc.aio.Server | None = None
        self._control_port = 0
        self._identity: Identity | None = None
        self._authority: Authority | None = None
        self._enrolled = asyncio.Event()
        self._enrolling = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.node_id = ""
        self.registry = Registry(self._own_card, options.timing)
        self._door: AgentDoor | None = None

    @property
    def port(self) -> int:
        assert self._door is not None, "the agent is not running"
        return self._door.port

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop`; leaves no process and no socket behind."""
        options = self._options
        self._loop = asyncio.get_running_loop()
        private_folder(options.state)
        with contextlib.ExitStack() as cleanup:
            lock = cleanup.enter_context(only_agent(options.state)) if options.lock else None
            self.node_id = own_id(options.state / "identity")
            self._authority = find_authority(options.state)
            self._identity = self._find_identity()
            if self._identity is None and options.token is None:
                raise AgentCannotRun(
                    "this node belongs to no cluster yet, or its certificate is too old: give the token, chorus join "
                    "--token-file FILE, or --token - to type it"
                )
            self._door = cleanup.enter_context(contextlib.closing(AgentDoor(options.host, options.port)))
            if lock is not None:
                _say_where(lock, options.host, self._door.port)
            log_file = device_log(options.logs, options.log_name or options.name)
            output = cleanup.enter_context(contextlib.closing(RotatingLog(log_file)))
            cleanup.enter_context(copied_output(output) if options.lock else _logged_to(output))
            announcer = Announcer(self.node_id, self._door.port, options.host) if options.announce else None
            ranks = Ranks(options.host, self._rank_ports(), output, own_file(options.state))
            await ranks.look()
            work = asyncio.create_task(self._live(ranks, announcer, output))
            watching = asyncio.create_task(ranks.watch())
            stopped = asyncio.create_task(self._stopping.wait())
            try:
                done, _ = await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
                if work in done:
                    work.result()
            finally:
                self._halt.set()
                for task in (work, watching, stopped):
                    task.cancel()
                await asyncio.gather(work, watching, stopped, return_exceptions=True)
                await ranks.close()
                if announcer:
                    await announcer.stop()

    async def _live(self, ranks: Ranks, announcer: Announcer | None, output: RotatingLog) -> None:
        options, door = self._options, self._door
        assert door is not None
        peers = asyncio.create_task(self._keep_peers()) if options.peers else None
        service: AgentService | None = None
        watching: asyncio.Task[None] | None = None
        try:
            if self._identity is None:
                assert options.token is not None
                self._open_to_strangers(door)
                self._say_ready(f"waiting on {door.host}:{door.port} to be let into a cluster")
                if announcer:
                    await announcer.tell(options.name, "", options.token.tag)
                await self._enrolled.wait()
            identity = self._identity
            assert identity is not None
            facts = NodeFacts(
                options.name,
                door.port,
                output.path,
                options.rank_port,
                options.backend,
                addresses=await asyncio.to_thread(own_addresses, options.host),
            )
            watching = asyncio.create_task(_follow_addresses(facts, options.host))
            service = AgentService(facts, ranks, identity, self.files)
            shown = identity.certificate
            wanted = options.port + 1 if options.port else 0
            self._control, self._control_port = await serve_control(service, identity, options.host, wanted)
            self._open_to_members(door, identity)
            if announcer:
                await announcer.tell(identity.member.name, identity.cluster, "")
            self._say_ready(f"{identity.member.name} is in the cluster, on {door.host}:{door.port}")
            self.ready.set()
            looks = Looks(time.monotonic(), HOUSEKEEPING_SECONDS)
            while True:
                await asyncio.sleep(HOUSEKEEPING_SECONDS)
                await ranks.end_forgotten(looks.look(time.monotonic(), HOUSEKEEPING_SECONDS))
                if self._authority:
                    with contextlib.suppress(OSError):  # a full disk: the next time may be better
                        self._authority.keep(identity)
                # Those who are connected stay; the certificate before is good for months to come.
                if identity.certificate != shown and not service.watchers:
                    log.info("showing the new certificate from now on")
                    shown = identity.certificate
                    self._open_to_members(door, identity)
                    await self._control.stop(grace=0.5)
                    self._control, _ = await serve_control(service, identity, options.host, self._control_port)
                if identity.ran_out:
                    raise AgentCannotRun("the certificate ran out and no coordinator came to renew it: join again")
        finally:
            if service:
                service.close()
            if self._control:
                await self._control.stop(grace=0.5)
            tasks = [task for task in (peers, watching) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _say_ready(self, line: str) -> None:
        log.info("%s", line)
        if file := self._options.ready_file:
            write_if_possible(file, f"{line}\n".encode(), "whoever waits for this agent does not see that it is ready")

    def _find_identity(self) -> Identity | None:
        options, folder = self._options, self._options.state / "identity"
        if self._authority:
            return self._authority.identity(folder, options.name, NODE)
        identity = Identity.find(folder)
        if identity and options.token and identity.token_tag != options.token.tag:
            log.info("the token is of another cluster, or was rotated: joining again")
            identity.forget()
            return None
        if options.token and not options.token.authority:
            log.warning(
                "this token does not name its authority, and whoever knows it could pose as one: "
                "`chorus token show` there prints one that does"
            )
        return identity

    def _rank_ports(self) -> range:
        first = self._options.port + 2
        return range(first, first + RANK_PORTS) if self._options.port else range(0)

    def _card(self) -> Card:
        assert self._door is not None
        return Card(self._door.port, self._control_port)

    def _own_card(self) -> tuple[Card, Identity]:
        assert self._identity is not None, "only members are shown a card"
        return self._card(), self._identity

    def _open_to_strangers(self, door: AgentDoor) -> None:
        """Let the door answer who joins: only the holder of the token gets past the first message."""
        folder = self._options.state / "identity"
        context = stranger_server_context(folder, PROTOCOLS)
        certificate = ssl.PEM_cert_to_DER_cert(_certificate_part((folder / "stranger.pem").read_text()))
        token = self._options.token
        assert token is not None

        def joined(connection: ssl.SSLSocket, host: str) -> None:
            handshake.answer(connection, certificate, {"token": token.key})
            with self._enrolling:
                if self._identity is None:
                    self._joined(enrol.apply(connection, token, folder, self._options.name), host)

        door.set(context, None, joined, {})
        door.start()

    def _open_to_members(self, door: AgentDoor, identity: Identity) -> None:
        certificate = ssl.PEM_cert_to_DER_cert(identity.certificate.decode())
        authority = self._authority

        def admit(connection: ssl.SSLSocket, host: str) -> None:
            assert authority is not None
            handshake.answer(connection, certificate, {"token": authority.token.key})
            enrol.admit(connection, authority)

        members = {CARDS: self.registry.serve, FILES: self.files.serve}
        door.set(identity.server_context(PROTOCOLS), identity, admit if authority else None, members)
        door.start()

    def _joined(self, identity: Identity, host: str) -> None:
        """Take a new identity into use; called on a thread of the door or of the one that dials."""
        log.info("%s let us into its cluster", host)
        self._identity = identity
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._enrolled.set)

    async def _keep_peers(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(self._keep_peer, peer) for peer in self._options.peers))

    def _keep_peer(self, address: tuple[str, int]) -> None:
        """Join at a peer if this node has no identity, then stay connected to it until the agent stops."""
        tries, told = 0, ""
        token, folder = self._options.token, self._options.state / "identity"
        while not self._halt.is_set():
            try:
                identity = self._identity
                if identity is None:
                    assert token is not None
                    with self._enrolling:
                        if self._identity is None:
                            joined = enrol.dial_as_candidate(address, token, folder, self._options.name)
                            self._joined(joined, address[0])
                elif self.ready.is_set():
                    agent_peers.stay(address, identity, self._card(), self._halt)
                    tries = 0
            except (OSError, handshake.JoinRefused) as error:
                why = failures.reason(error) if isinstance(error, OSError) else str(error)
                if why != told:
                    told = why
                    log.warning("cannot reach %s:%d yet: %s (still trying; is a firewall in between?)", *address, why)
            self._halt.wait(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1


async def _follow_addresses(facts: NodeFacts, host: str) -> None:
    async for found in address_changes(host, facts.addresses):
        facts.addresses = found


def run_agent(options: AgentOptions) -> None:
    """Run an agent until a signal stops it; raises AgentCannotRun, or NoMlx where it could run no rank."""
    require_mlx()
    raise_file_limit()

    async def run() -> None:
        agent = Agent(options)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        await agent.run()

    try:
        asyncio.run(run())
    except OSError as error:
        raise AgentCannotRun(str(error)) from error


def find_authority(state: Path) -> Authority | None:
    try:
        return Authority(state / "authority")
    except NoAuthority:
        return None


@contextlib.contextmanager
def only_agent(state: Path) -> Iterator[int]:
    """One agent per machine: the lock goes with the process that holds it."""
    lock = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(lock, 4096, 0))
            raise AgentCannotRun(f"an agent runs here already (process {holder}): stop it first") from None
        yield lock
    finally:
        os.close(lock)


def _say_where(lock: int, host: str, port: int) -> None:
    """Write into the lock who holds it and where its door is, for whoever finds it taken."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "door": [host, port]}).encode(), 0)
    except OSError as error:
        log.warning("cannot write down where this agent listens: %s", error.strerror)


def _holder(content: bytes) -> str:
    try:
        return str(json.loads(content)["pid"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


class _ToFile(logging.Handler):
    def __init__(self, output: RotatingLog) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.write(f"{self.format(record)}\n".encode(errors="replace"))


@contextlib.contextmanager
def _logged_to(output: RotatingLog) -> Iterator[None]:
    """The agent's own lines go where its ranks' lines go, in the same form as on the screen."""
    handler = _ToFile(output)
    root = logging.getLogger()
    if root.handlers and root.handlers[0].formatter:
        handler.setFormatter(root.handlers[0].formatter)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _certificate_part(pem: str) -> str:
    return pem[pem.index("-----BEGIN CERTIFICATE-----") :]
