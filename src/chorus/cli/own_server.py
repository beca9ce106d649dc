"""Which server a command means, and how it is asked: every command that talks to one finds it here.

`--url` and `--port` go over the configuration that `chorus serve` reads in this folder, that over the servers which run
here now. A server of this user on this machine lets its commands in without a key.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx
import typer

from chorus.cluster.servers import Server, own_servers, running_servers
from chorus.config.sources import LoadedSettings, load
from chorus.errors import ChorusError
from chorus.security.node_folder import authority_file

UrlOption = Annotated[str | None, typer.Option(help="Ask the server there (the one that runs on this machine).")]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Ask the server on this port here, where there are several.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="Key of the API (OPENAI_API_KEY); your own server on this machine needs none."),
]

Found = TypeVar("Found")

KEY_VARIABLE = "OPENAI_API_KEY"
ASK_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Where to connect to what listens on every address: no certificate is for the one that means all of them."""


class ServerFailed(ChorusError):
    """No server is meant, or it does not answer as one of ours: says what to do about it."""


@dataclass(frozen=True)
class Target:
    """A server to ask: where, who named it, and what it takes to be let in."""

    url: str
    named_by: str = ""
    server: Server | None = None
    key: str | None = None
    hint: str = ""
    """What else might have been meant, for when nothing answers."""
    guessed: bool = False
    """Nobody said whether it speaks HTTP or HTTPS."""

    def __str__(self) -> str:
        return f"{self.url} ({self.named_by})" if self.named_by else self.url


def find_target(url: str | None, port: int | None, key: str | None, named_by: str = "--url") -> Target:
    """The server that a command means; raises ServerFailed where that is not one server. A key from the environment may
    be meant for somebody else's API, so it is not shown to a server that needs none.
    """
    running = running_servers()
    if url:
        given = with_scheme(url, named_by)
        server = next((each for each in running if reachable(each.url) == given), None)
        target = Target(given, named_by, server, guessed="://" not in url)
    elif port is not None:
        server = _only(here_at(running, port))
        target = Target(reachable(server.url), "", server) if server else _at("127.0.0.1", port, "--port", running)
    else:
        target = _configured(load(), own_servers(), running)
    own = target.server.key if target.server else None
    shown = key or own or os.environ.get(KEY_VARIABLE) or None
    return Target(target.url, target.named_by, target.server, shown, target.hint, target.guessed)


class Following:
    """The server that a command means, for as long as it answers; then it is found anew: it may come back elsewhere."""

    def __init__(self, url: str | None, port: int | None, key: str | None) -> None:
        self._named = url, port, key
        self._target: Target | None = None

    def ask(self, question: Callable[[Target], Found]) -> Found:
        """Raises ServerFailed."""
        target = self._target or find_target(*self._named)
        self._target = None
        found = question(target)
        self._target = target
        return found


def find_own(port: int | None) -> Server:
    """The server of this user that a command means, for what goes over its control socket or its folder."""
    running = running_servers()
    meant = here_at(running, port) if port is not None else []
    if len(meant) > 1:
        raise ServerFailed(f"two servers of yours have port {port}: {told(meant)}; end the one that is not meant first")
    found = meant[0] if meant else None
    if port is None:
        found = _configured(load(), own_servers(), running).server
    if found is None:
        where = f" on port {port}" if port is not None else ""
        if running:
            others = f"there is {told(running)}: choose it with --port"
            raise ServerFailed(f"no `chorus serve` of this state folder runs here{where}; {others}")
        raise ServerFailed(
            f"no `chorus serve` of yours runs on this machine{where}: start it first, or give -c FILE to ask by SSH"
        )
    return found


def _configured(loaded: LoadedSettings, own: Sequence[Server], running: Sequence[Server]) -> Target:
    api = loaded.settings.api
    origin = loaded.origins["api.port"]
    files = loaded.origins["devices"].partition(": ")[0] if loaded.settings.devices else ""
    cluster = f"; {files} names devices: -c {files} asks them by SSH" if files else ""
    if loaded.is_given("api.port") and api.port:
        server = _only(here_at(running, api.port))
        if server:
            return Target(reachable(server.url), "", server)
        return _at(api.host, api.port, f"api.port from {origin}", running, cluster)
    server = _only(own)
    if server:
        return Target(reachable(server.url), "", server)
    return _at(api.host, api.port or 8100, "", running, cluster)


def _at(host: str, port: int, named_by: str, running: Sequence[Server], hint: str = "") -> Target:
    others = f"; there is {told(running)}: choose it with --port" if running else ""
    return Target(_url("http", host, port), named_by, hint=f"{hint}{others}", guessed=True)


def here_at(servers: Sequence[Server], port: int) -> list[Server]:
    return [server for server in servers if server.port == port]


def _only(servers: Sequence[Server]) -> Server | None:
    """The only one, None where there is none; several are told apart by whoever asks."""
    if len(servers) > 1:
        ports = {server.port for server in servers}
        how = "--port" if len(ports) == len(servers) else "--url"
        raise ServerFailed(f"several servers of yours run here: {told(servers)}; say which with {how}")
    return servers[0] if servers else None


def told(servers: Sequence[Server]) -> str:
    return ", ".join(f"{server.model} at {reachable(server.url)}" for server in servers)


def reachable(url: str) -> str:
    """The URL by which this machine reaches what listens there."""
    parts = urlsplit(url)
    return _url(parts.scheme, parts.hostname or "", parts.port)


def _url(scheme: str, host: str, port: int | None) -> str:
    host = _ANY.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"


def with_scheme(url: str, named_by: str) -> str:
    """A URL as people give it: perhaps without its scheme, perhaps the one that clients of OpenAI take."""
    plain = url.strip().rstrip("/").removesuffix("/v1")
    whole = plain if "://" in url else f"http://{plain}"
    try:
        parts = urlsplit(whole)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ServerFailed(f"{f'{named_by} {url}'.strip()}: expected http://HOST:PORT or https://HOST:PORT")
    return whole


def ask(
    target: Target, method: str, path: str, body: dict[str, Any] | None = None, seconds: float = ASK_SECONDS
) -> dict[str, Any]:
    """What the server answers; raises ServerFailed where it answers something else or nothing."""
    try:
        answer = request(target, method, path, body, seconds)
    except httpx.HTTPError as error:
        raise ServerFailed(unanswered(target, error)) from error
    return answered(target, answer)


def answered(target: Target, answer: httpx.Response, holds: str = "") -> dict[str, Any]:
    """What stands in an answer, which has a certain key if it is one of ours."""
    if not answer.is_success:
        raise ServerFailed(refused(target, answer))
    found = _json(answer)
    if found is None or (holds and holds not in found):
        _not_chorus(target)
    return found


def request(
    target: Target, method: str, path: str, body: dict[str, Any] | None = None, seconds: float = ASK_SECONDS
) -> httpx.Response:
    """Ask over HTTP, or over HTTPS where the server speaks that and nobody said; raises httpx.HTTPError, and
    ServerFailed where nothing can be asked from here.
    """
    try:
        return _send(target, target.url, method, path, body, seconds)
    except (httpx.RemoteProtocolError, httpx.ReadError):
        if not target.guessed:
            raise
        return _send(target, target.url.replace("http:", "https:", 1), method, path, body, seconds)


def _send(
    target: Target, url: str, method: str, path: str, body: dict[str, Any] | None, seconds: float
) -> httpx.Response:
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
    # Reading certificates takes longer than most answers. A proxy is for the world outside.
    verify = trusted(target.server) if url.startswith("https:") else False
    try:
        client = httpx.Client(timeout=timeout, verify=verify, trust_env=not is_here(url))
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        # Such as a proxy of the environment that speaks SOCKS, for which httpx needs another package.
        raise ServerFailed(f"{url} cannot be asked: {error}") from None
    with client:
        return client.request(method, f"{url}{path}", json=body, headers=headers)


def is_here(url: str) -> bool:
    """Whether it is on this machine, as its address says."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def trusted(server: Server | None = None) -> ssl.SSLContext:
    """TLS that trusts the system's authorities, and the cluster's own where this machine has it. Of a server of our own
    we know the certificate: it may be for a name that clients call it by, from wherever they are.
    """
    context = ssl.create_default_context()
    if server and server.certificate and os.path.isfile(server.certificate):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(server.certificate)
    if authority_file().is_file():
        context.load_verify_locations(authority_file())
    return context


def unanswered(target: Target, error: httpx.HTTPError) -> str:
    """Why there is no answer, in one line with what to do about it."""
    text = str(error)
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return f"{target} took too long to answer: its log says what it does (`chorus logs`)"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"{target} shows a certificate that this machine does not trust: set SSL_CERT_FILE to the authority's file "
            f"(where `chorus serve --https` runs it is {authority_file()})"
        )
    if target.url.startswith("https:") and "SSL" in text:
        return f"{target} does not speak HTTPS: ask {target.url.replace('https:', 'http:', 1)} instead"
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return f"{target} does not speak HTTP: is it https? Ask {target.url.replace('http:', 'https:', 1)} with --url"
    where = f"nothing answers at {target}"
    return f"{where}: start `chorus serve` or `chorus up`, or say where it is with --port or --url{target.hint}"


def refused(target: Target, answer: httpx.Response) -> str:
    """What an answer other than 200 means to whoever typed the command."""
    if answer.status_code == 401:
        if target.key:
            return f"{target} does not know this key: `chorus keys list` there names those it knows"
        return f"{target} asks for a key: give --api-key or set {KEY_VARIABLE} (`chorus keys new NAME` there makes one)"
    message = error_message(answer)
    if message is None:
        _not_chorus(target)
    return f"{target} answered {answer.status_code}: {message}"


def _not_chorus(target: Target) -> NoReturn:
    raise ServerFailed(
        f"what answers at {target} is no Chorus server: say where yours is with --port or --url{target.hint}"
    )


def error_message(answer: httpx.Response) -> str | None:
    """What the API says went wrong, in its own words; None where it is none of ours."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _json(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
