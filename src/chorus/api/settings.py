"""What a front-end process is told when it starts, as one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class SamplingDefaults(_Settings):
    """For requests that give none. None means what the protocol says: temperature 1, top_p 1, the rest off."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, ge=1)


class Limits(_Settings):
    max_body_bytes: int = Field(default=2 * 1024 * 1024, ge=1024)
    body_timeout_seconds: Seconds = 30.0
    request_timeout_seconds: Seconds = 3600.0
    max_stop_strings: int = Field(default=16, ge=1)
    max_logit_biases: int = Field(default=1024, ge=1)
    connect_timeout_seconds: Seconds = 10.0
    describe_timeout_seconds: Seconds = 2.0
    shutdown_grace_seconds: float = Field(default=10.0, ge=0)


class ApiSettings(_Settings):
    host: str = "127.0.0.1"
    port: Port = 8100
    socket_fd: int | None = Field(default=None, ge=0)
    """A listening socket inherited from the supervisor: connections wait in it while this process restarts."""
    engine_address: str
    model_id: str
    model_name: str
    aliases: tuple[str, ...] = ()
    model_path: Path
    context_length: int | None = Field(default=None, ge=1)
    """Serve less than the engine's context; it can never be more."""
    sampling: SamplingDefaults = SamplingDefaults()
    limits: Limits = Limits()
    trust_remote_code: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    configuration: dict[str, Any] = {}
    """Shown in /health as it is, so it holds nothing secret."""

    def serves(self, model: str | None) -> bool:
        return model is None or model in {"default_model", self.model_id, self.model_name, *self.aliases}


class SettingsError(Exception):
    pass


def load_settings(path: Path) -> ApiSettings:
    try:
        return ApiSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SettingsError(f"settings file {path}: {where}: {first['msg']}") from None
