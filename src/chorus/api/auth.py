"""Who may call: API keys, what each of them may do, how often and how much at once."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

from chorus.api.errors import ApiError
from chorus.api.server.gate import Record
from chorus.api.server.protocol import SCOPE_KEY
from chorus.api.server.wanted import is_shell
from chorus.security.key_file import LiveKeys
from chorus.security.key_rules import ADMIN, ApiKey, key_hash
from chorus.telemetry import events
from chorus.telemetry.telling import tell

# Probes of load balancers and supervisors carry no key.
_OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})

# They cost nothing, and whoever has all that its key may have open must be able to end some of it.
_UNCOUNTED_PATHS = frozenset({"/requests/cancel"})

_COMMANDS = "commands-of-this-user"
"""How the log calls those who show the server's own key."""

Clock = Callable[[], float]


def presented_key(headers: Headers) -> str | None:
    """OpenAI's clients send a bearer token, Anthropic's x-api-key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def find_key(keys: Sequence[ApiKey], presented: str) -> ApiKey | None:
    """Looks at every key in full, so that the time it takes tells nothing."""
    digest = key_hash(presented)
    found = None
    for key in keys:
        if hmac.compare_digest(key.sha256, digest):
            found = key
    return found


@dataclass
class Meter:
    """How much of its allowance a key has left: a bucket that refills evenly over the minute, and open requests."""

    key: ApiKey
    clock: Clock = time.monotonic
    running: int = 0
    _allowance: float = field(init=False)
    _looked: float = field(init=False)

    def __post_init__(self) -> None:
        self._allowance = float(self.key.requests_per_minute or 0)
        self._looked = self.clock()

    def enter(self) -> None:
        limit = self.key.max_concurrent
        if limit is not None and self.running >= limit:
            raise _too_many(f"This key may have {limit} requests open at once.", "concurrency_limit_exceeded", 1)
        self._draw()
        self.running += 1

    def leave(self) -> None:
        self.running -= 1

    def _draw(self) -> None:
        per_minute = self.key.requests_per_minute
        if per_minute is None:
            return
        now = self.clock()
        self._allowance = min(per_minute, self._allowance + (now - self._looked) * per_minute / 60)
        self._looked = now
        if self._allowance < 1:
            wait = math.ceil((1 - self._allowance) * 60 / per_minute)
            raise _too_many(f"This key may send {per_minute} requests a minute.", "rate_limit_exceeded", wait)
        self._allowance -= 1


class KeyGuard:
    """Lets pass who shows a key. Only requests that cost something are counted. `own_sha256` is of a key that stands in
    no file of keys: the one for commands of the user who serves.
    """

    def __init__(self, keys: LiveKeys, own_sha256: str | None = None) -> None:
        self._live = keys
        self._own = (Meter(ApiKey(id=_COMMANDS, sha256=own_sha256, scopes=ADMIN)),) if own_sha256 else ()
        self._keys: tuple[ApiKey, ...] = ()
        self._meters: dict[str, Meter] = {}

    def admit(self, scope: Scope, record: Record) -> Callable[[], None] | None:
        meter = self._meter(scope)
        if meter is None:
            return None
        record.owner, record.may_admin, record.models = meter.key.id, meter.key.may_admin, meter.key.models
        if scope["method"] != "POST" or scope["path"] in _UNCOUNTED_PATHS:
            return None
        meter.enter()
        return meter.leave

    def _meter(self, scope: Scope) -> Meter | None:
        self._look_again()
        headers = Headers(scope=scope)
        presented = presented_key(headers)
        meter = None if presented is None else self._meter_of(presented)
        scope[SCOPE_KEY].known(by_key=meter is not None)
        if meter is not None:
            return meter
        if scope["path"] in _OPEN_PATHS or is_shell(scope["path"], headers):
            return None
        if presented is None:
            raise _unknown("An API key is needed: send it as a bearer token or as x-api-key.", "missing_api_key")
        raise _unknown("The API key is not known here.", "invalid_api_key")

    def _meter_of(self, presented: str) -> Meter | None:
        key = find_key(self._keys, presented)
        if key is not None:
            return self._meters[key.id]
        return next((own for own in self._own if find_key((own.key,), presented)), None)

    def _look_again(self) -> None:
        """A key that stays keeps its counts, also where its limits were changed."""
        keys = self._live.current()
        if keys is not self._keys:
            meters = {key.id: self._meters.get(key.id) or Meter(key) for key in keys}
            for key in keys:
                meters[key.id].key = key
            self._keys, self._meters = keys, meters


def require_admin(record: Record) -> None:
    """For routes that change something for everybody who is served."""
    if not record.may_admin:
        raise ApiError(
            403,
            f"The key {record.owner!r} may use models and do no more: this takes one that was made with "
            "`chorus keys new NAME --admin`.",
            type="permission_error",
            code="admin_required",
        )


def _unknown(message: str, code: str) -> ApiError:
    tell(events.KEY_REFUSED, why=message)
    error = ApiError(401, message, code=code)
    error.headers["www-authenticate"] = "Bearer"
    return error


def _too_many(message: str, code: str, retry_after: int) -> ApiError:
    return ApiError(429, message, type="rate_limit_error", code=code, retry_after=retry_after)
