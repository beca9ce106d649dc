"""How commands reach the API that runs on this machine, over HTTPS where it speaks that."""

from __future__ import annotations

import ssl

import httpx

from chorus.cluster.coordinator.record import find_serving
from chorus.security.https import authority_file
from chorus.security.node_folder import state_dir

DEFAULT_URL = "http://127.0.0.1:8100"
_LOOK_SECONDS = 10.0


def base_url(given: str | None) -> str:
    """The URL that was given, that of the cluster served from here, or the usual one."""
    if given:
        return given.rstrip("/")
    if serving := find_serving(state_dir()):
        # No certificate is for the address that means all of them.
        return serving.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    try:
        httpx.get(f"{DEFAULT_URL}/health/live", timeout=_LOOK_SECONDS)
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return DEFAULT_URL.replace("http:", "https:")
    except httpx.HTTPError:
        pass
    return DEFAULT_URL


def trusted() -> ssl.SSLContext:
    """TLS that trusts the system's authorities, and the cluster's own where this machine has it."""
    context = ssl.create_default_context()
    if authority_file().is_file():
        context.load_verify_locations(authority_file())
    return context


def error_message(answer: httpx.Response) -> str:
    """What the API says went wrong, in its own words."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
