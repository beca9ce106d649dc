"""Request bodies: counted while they arrive, whatever the headers claim, then checked against a type."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from chorus.api.errors import ApiError, from_validation, invalid
from chorus.api.fields import RequestBody
from chorus.api.server.gate import record_of
from chorus.api.service import Service
from chorus.config.sections import Limits

# A client that is still writing does not read our answer, so a body a little too large is read and thrown away.
_DISCARD_FACTOR = 16

# One that does not end runs to the end of the text, so that nothing is looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)

Body = TypeVar("Body", bound=RequestBody)


async def read_request(request: Request, kind: type[Body], service: Service, *, empty: bool = False) -> Body:
    """The body, if it is one that this server takes and for a model that it serves to whoever asks; with `empty`, none
    is {}."""
    body = await read_body(request, kind, service.settings.limits, empty=empty)
    await service.look_for(body.asked_model, record_of(request.scope))
    return body


async def read_body(request: Request, kind: type[Body], limits: Limits, *, empty: bool = False) -> Body:
    """The same where it is about none of the models."""
    raw = await _read(request, limits) or (b"{}" if empty else b"")
    _check_values(raw, limits.max_body_values)
    return parse(raw, kind)


def parse(raw: bytes, kind: type[Body]) -> Body:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(
            f"The body is not valid UTF-8: byte {error.start} cannot be read.", None, "invalid_utf8"
        ) from None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise from_validation(error) from None


def _check_values(raw: bytes, limit: int) -> None:
    """Reading a body takes time by its objects and lists, up to a second for some megabytes of empty ones."""
    if raw.count(b"{") + raw.count(b"[") > limit:
        outside = _STRING.sub(b"", raw)
        if outside.count(b"{") + outside.count(b"[") > limit:
            raise ApiError(
                400, f"The body has more than the {limit} objects and lists that are accepted.", code="limit_exceeded"
            )


async def _read(request: Request, limits: Limits) -> bytes:
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            return await _counted(request, limits.max_body_bytes)
    except TimeoutError:
        seconds = f"{limits.body_timeout_seconds:g}"
        raise ApiError(408, f"The body did not arrive within {seconds} s.", code="body_timeout") from None


async def _counted(request: Request, limit: int) -> bytes:
    announced = _announced(request)
    # A client that asks first with Expect is told now and sends nothing.
    if announced > limit and (announced > limit * _DISCARD_FACTOR or "expect" in request.headers):
        raise _too_large(limit)
    chunks: list[bytes] = []
    total = 0
    try:
        async for chunk in request.stream():
            total += len(chunk)
            if total <= limit:
                chunks.append(chunk)
            elif total > limit * _DISCARD_FACTOR:
                break
    except ClientDisconnect:
        raise ApiError(499, "The client left before its body had arrived.", code="client_gone") from None
    if total > limit:
        raise _too_large(limit)
    return b"".join(chunks)


def _announced(request: Request) -> int:
    try:
        return int(request.headers.get("content-length", "0"))
    except ValueError:
        return 0


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than the {limit} bytes that are accepted.", code="body_too_large")
