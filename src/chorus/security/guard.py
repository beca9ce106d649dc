"""Refuses gRPC calls of expelled members, ends those that are under way, and takes steering from coordinators only.

TLS has already refused whoever holds no certificate of this cluster. A refused member is told nothing: its call ends as
if the connection had been closed; our log has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from chorus.security.member import COORDINATOR, Member, NotTrusted

if TYPE_CHECKING:
    from chorus.security.identity import Identity

log = logging.getLogger("chorus.trust")

Context = Any
"""grpc.ServicerContext or its asyncio twin: both know the peer's certificate."""


def caller(identity: Identity, context: Context, needs_coordinator: bool) -> Member:
    """Who is calling; raises NotTrusted when they may not."""
    certificates = context.auth_context().get("x509_pem_cert")
    if not certificates:
        raise NotTrusted("there is no certificate on the connection")
    member = identity.check(certificates[0])
    if needs_coordinator and member.role != COORDINATOR:
        raise NotTrusted(f"{member.name} is no coordinator")
    return member


class MemberGuard(grpc.ServerInterceptor):
    """For the synchronous servers of ranks. Services named in `steering` answer to coordinators only."""

    def __init__(self, identity: Identity, steering: tuple[str, ...]) -> None:
        self._identity = identity
        self._steering = steering

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        needs_coordinator = method.removeprefix("/").partition("/")[0] in self._steering

        def guarded(behaviour: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
            def call(request: Any, context: Context) -> Any:
                try:
                    member = caller(self._identity, context, needs_coordinator)
                except NotTrusted as refusal:
                    log.warning("refused %s from %s: %s", method, context.peer(), refusal)
                    context.abort(grpc.StatusCode.UNAVAILABLE, "")
                    raise  # not reached
                ended = self._identity.lines.add(member.node_id, context.cancel)
                if not context.add_callback(ended):
                    ended()
                return behaviour(request, context)

            return call

        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        behaviours = {kind: guarded(getattr(handler, kind)) for kind in kinds if getattr(handler, kind)}
        return handler._replace(**behaviours)
