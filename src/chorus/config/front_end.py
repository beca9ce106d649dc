"""What a front-end process is told when it starts, as one JSON document."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from chorus.config.sampling import DefaultSampling
from chorus.config.sections import AnswerOptions, ApiOptions, Limits, RecoveryConfig
from chorus.errors import ChorusError
from chorus.platform.storage.files import read_told
from chorus.telemetry.telling import Place

FINISH = signal.SIGUSR1
"""Tells a front end that another one accepts connections now: it answers those that it has, and ends."""


class ModelSettings(AnswerOptions):
    """One model: what it is called, where its files and its engine are, how its answers are read."""

    engine_address: str
    id: str
    name: str
    """The last part of the id."""
    path: Path
    context_length: int | None = Field(default=None, ge=1)
    """Serve less than the engine's context; it can never be more."""
    sampling: DefaultSampling = DefaultSampling()
    trust_remote_code: bool = False
    rank_names: tuple[str, ...] = ()
    """What those who serve are called, in the order of ranks, as far as the coordinator does not tell: by the
    configuration's device ids, or their hosts. Where nobody has told, a rank is called by its host."""
    status_file: Path | None = None
    """Where a coordinator writes what it knows of its nodes, for /cluster/status."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that it is called by, each once: an alias may well be the short name, and the short name the id."""
        return tuple(dict.fromkeys((self.id, self.name, *self.aliases)))


class ApiSettings(ApiOptions):
    """The API's options as they were decided, its limits, and what is served behind it."""

    socket_fds: tuple[NonNegativeInt, ...] = ()
    """Listening sockets inherited from the supervisor: connections wait in them while this process restarts."""
    models: tuple[ModelSettings, ...] = Field(min_length=1)
    """Those that are known when it starts; the first is what a request without a name means."""
    control_address: str | None = None
    """Where the owner of all groups tells which models there are, and hears which are asked for; without one, `models`
    are all there will be, and each has its engine."""
    load_patience_seconds: float = Field(default=300, gt=0)
    limits: Limits = Limits()
    recovery: RecoveryConfig = RecoveryConfig()
    keys_file: Path | None = None
    """Where the API keys are, read again when it changes; without one, everybody who can connect is served."""
    own_key_sha256: str | None = None
    """Of the key that commands of the user who serves have; counted and limited by nobody."""
    cache_per_key: bool = False
    """Each key's requests share what is kept of their prompts among themselves only."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    failure_file: Path | None = None
    """Where to leave the reason when the front end cannot start."""
    responses_file: Path | None = None
    """Where /v1/responses keeps what can be continued; None: in memory."""
    otlp_endpoint: str | None = None
    """A collector of traces; None: where OpenTelemetry's own variables say, or nowhere."""
    events: Place | None = None
    """The journal that it shows, and where it tells what happens; None: there is none."""
    configuration: dict[str, Any] = Field(default_factory=dict)
    """Shown in /health as it is, so it holds nothing secret."""

    @model_validator(mode="after")
    def _https_never_without_a_certificate(self) -> Self:
        """Whoever asked for HTTPS is never served in plain text instead."""
        if self.https and self.tls_certificate is None:
            raise ValueError("https needs tls_certificate and tls_key")
        return self


class SettingsError(ChorusError):
    """What the front end was told cannot be read, or is not right."""


def read_settings(path: str) -> ApiSettings:
    """From a file, or from standard input for `-`."""
    try:
        return ApiSettings.model_validate_json(read_told(path))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SettingsError(f"settings file {path}: {where}: {first['msg']}") from None
