"""Why a call between our processes failed, in words for people: those of the other side, never gRPC's."""

from __future__ import annotations

import re
from typing import Protocol, runtime_checkable

import grpc
import grpc.aio

NOBODY_THERE = "nothing answers there"

_CLOSED = "the connection was closed"

_PLAIN = {
    grpc.StatusCode.OK: _CLOSED,
    grpc.StatusCode.UNAVAILABLE: _CLOSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer came in time",
    grpc.StatusCode.CANCELLED: "the call was given up",
    grpc.StatusCode.UNIMPLEMENTED: "it does not know this call: is it another release of Chorus?",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the message is larger than it takes",
}
_FAILED = "it failed on the call, and its log says why"

_OURS = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND})
"""With these gRPC itself never refuses a call."""
_NEVER_OURS = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK, None})
"""With these we never do: an exception in the other process comes as the first."""

_GRPCS_WORDS = re.compile(
    r"""(?ix)
    .*( \b(unknown|unavailable|internal): | \b(unix|ipv4|ipv6): | statuscode | errno | rst_stream | goaway )
    | ( failed\ to\ connect | socket\ closed | connection\ (reset|refused|closed|timed\ out|aborted) | recvmsg | sendmsg
      | broken\ pipe | stream\ (removed|closed) | end\ of\ tcp | keepalive | ping\ timeout | too_many_pings
      | deadline\ exceeded | (locally\ )?cancell | channel\ (is\ )?clos | method\ not\ found
      | (sent|received)\ message\ larger | exception\ (calling|iterating|(de)?serializing) | unexpected\ <class
      | endpoint | transport | dns | name\ resolution | empty\ address | connections?\ to\ all | .*handshake | ssl | tls
      | server\ (is\ )?shutting | shutdown | error\ (parsing|reading|writing|received) | peer\ name | trying\ to )
    """
)
_NOT_CONNECTED = re.compile(r"(?i)failed to connect|connections? to all|dns|name resolution|empty address|.*refused")


@runtime_checkable
class Failed(Protocol):
    """A call that failed, or its error."""

    def code(self) -> grpc.StatusCode | None: ...

    def details(self) -> str | None: ...


def own_words(failed: Failed) -> str:
    """What the other side said of it; nothing where it did not come to that."""
    code, said = failed.code(), failed.details() or ""
    return said if code in _OURS or (code not in _NEVER_OURS and not _GRPCS_WORDS.match(said)) else ""


def why_failed(failed: Failed | Exception, unsaid: str = "") -> str:
    """`unsaid` where the other side refused the call without a word, or the connection was closed: by ourselves, or
    under a stream that the other side was to send us, of which gRPC tells nothing but that it is over.
    """
    if not isinstance(failed, Failed):
        return unsaid or _CLOSED
    if said := own_words(failed):
        return said
    code, details = failed.code() or grpc.StatusCode.UNKNOWN, failed.details() or ""
    if unsaid and not details:
        return unsaid
    if code is grpc.StatusCode.UNAVAILABLE and _NOT_CONNECTED.match(details):
        return NOBODY_THERE
    return _PLAIN.get(code, _FAILED)
