"""What a front-end process is told when it starts, as one JSON document."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from chorus.config.sampling import DefaultSampling
from chorus.config.sections import ApiOptions, Limits, RecoveryConfig
from chorus.errors import ChorusError
from chorus.platform.files import read_told

FINISH = signal.SIGUSR1
"""Tells a front end that another one accepts connections now: it answers those that it has, and ends."""


class ApiSettings(ApiOptions):
    """The API's options as they were decided, its limits, and what is served behind it."""

    model_config = ConfigDict(protected_namespaces=())

    socket_fds: tuple[NonNegativeInt, ...] = ()
    """Listening sockets inherited from the supervisor: connections wait in them while this process restarts."""
    engine_address: str
    model_id: str
    model_name: str
    model_path: Path
    context_length: int | None = Field(default=None, ge=1)
    """Serve less than the engine's context; it can never be more."""
    sampling: DefaultSampling = DefaultSampling()
    limits: Limits = Limits()
    recovery: RecoveryConfig = RecoveryConfig()
    trust_remote_code: bool = False
    keys_file: Path | None = None
    """Where the API keys are, read again when it changes; without one, everybody who can connect is served."""
    own_key_sha256: str | None = None
    """Of the key that commands of the user who serves have; counted and limited by nobody."""
    cache_per_key: bool = False
    """Each key's requests share what is kept of their prompts among themselves only."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    rank_names: tuple[str, ...] = ()
    """What those who serve are called, in the order of ranks, as far as the coordinator does not tell: by the
    configuration's device ids, or their hosts. Where nobody has told, a rank is called by its host."""
    status_file: Path | None = None
    """Where a coordinator writes what it knows of its nodes, for /cluster/status."""
    failure_file: Path | None = None
    """Where to leave the reason when the front end cannot start."""
    responses_file: Path | None = None
    """Where /v1/responses keeps what can be continued; None: in memory."""
    configuration: dict[str, Any] = Field(default_factory=dict)
    """Shown in /health as it is, so it holds nothing secret."""

    @model_validator(mode="after")
    def _https_never_without_a_certificate(self) -> Self:
        """Whoever asked for HTTPS is never served in plain text instead."""
        if self.https and self.tls_certificate is None:
            raise ValueError("https needs tls_certificate and tls_key")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return self.model_id, self.model_name, *self.aliases

    def serves(self, model: str | None) -> bool:
        return model is None or model in {"default_model", *self.names}


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
