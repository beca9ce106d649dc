"""Who may call: everybody on a loopback address, or whoever shows LocalAI's token where one is set."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

TOKEN_VARIABLE = "LOCALAI_GRPC_AUTH_TOKEN"


def token_interceptors(environment: Mapping[str, str]) -> list[grpc.aio.ServerInterceptor]:
    token = environment.get(TOKEN_VARIABLE, "")
    return [TokenInterceptor(token)] if token else []


class TokenInterceptor(grpc.aio.ServerInterceptor):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None or self._allowed(handler_call_details):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse_stream, handler.request_deserializer)
        return grpc.unary_unary_rpc_method_handler(_refuse, handler.request_deserializer)

    def _allowed(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata).get("authorization", "")
        return hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected)


async def _refuse(request: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"send the token of {TOKEN_VARIABLE} as `Bearer TOKEN`")


async def _refuse_stream(request: Any, context: grpc.aio.ServicerContext) -> Any:
    await _refuse(request, context)
    yield  # what makes it a stream; never reached
