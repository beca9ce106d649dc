"""What a front-end process is told when it starts, as one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chorus.platform.files import read_told

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
    max_body_values: int = Field(default=65_536, ge=64)
    """Objects and lists in one body: what is small in bytes can be large once it is read."""
    max_messages: int = Field(default=4096, ge=1)
    """Messages or items of one conversation."""
    max_stop_strings: int = Field(default=16, ge=1)
    max_stop_characters: int = Field(default=1024, ge=1)
    """In each of them."""
    max_logit_biases: int = Field(default=1024, ge=1)
    max_choices: int = Field(default=64, ge=1)
    """Answers to one request: its prompts times its n."""
    max_logprobs: int = Field(default=131_072, ge=1)
    """Log probabilities of one request: its choices times their tokens times the candidates of each."""
    max_tools: int = Field(default=256, ge=1)
    max_tools_characters: int = Field(default=1024 * 1024, ge=1024)
    """Of all tools together, about as long as they are written as JSON."""
    max_grammar_characters: int = Field(default=256 * 1024, ge=1024)
    """Of a grammar, or of one schema as JSON."""
    max_schema_values: int = Field(default=16_384, ge=64)
    """Objects in one schema, with all that each of them refers to."""
    max_nesting: int = Field(default=64, ge=8, le=190)
    """Levels of a schema, of template arguments and of the arguments of a call; and references in a row. The parser of
    bodies ends at 200."""
    max_inputs: int = Field(default=2048, ge=1)
    """Texts in one embeddings request."""
    max_detokenize_tokens: int = Field(default=262_144, ge=1)
    max_preparing: int = Field(default=64, ge=1)
    """Large requests that may wait to be rendered and tokenized."""
    max_stored_responses: int = Field(default=1000, ge=0)
    max_stored_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """What /v1/responses keeps in memory for previous_response_id; the oldest goes first."""
    keep_alive_seconds: Seconds = 15.0
    connect_timeout_seconds: Seconds = 10.0
    describe_timeout_seconds: Seconds = 2.0
    shutdown_grace_seconds: float = Field(default=10.0, ge=0)
    max_connections: int = Field(default=1024, ge=16)
    max_strangers: int = Field(default=256, ge=16)
    """Connections that have not shown a key, where one is asked for."""
    head_timeout_seconds: Seconds = 10.0
    idle_timeout_seconds: Seconds = 75.0
    write_timeout_seconds: Seconds = 60.0
    """How long a client may leave what waits for it unread."""


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
    keys_file: Path | None = None
    """Where the API keys are, read again when it changes; without one, everybody who can connect is served."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    """HTTPS where both are given; read again when they change."""
    hosts: tuple[str, ...] = ()
    """More names that this server is called by, or * for any; looked at where no key is asked for."""
    cors_origins: tuple[str, ...] = ()
    """Web pages from these origins may call the API; none by default."""
    tool_parser: str | None = None
    """How the model writes tool calls and reasoning, where its template does not tell."""
    embeddings: bool | None = None
    """Whether /v1/embeddings is served; by default the model's files decide."""
    pooling: Literal["mean", "last"] | None = None
    """How a text's hidden states become one; by default the model's files decide."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    status_file: Path | None = None
    """Where a coordinator writes what it knows of its nodes, for /cluster/status."""
    failure_file: Path | None = None
    """Where to leave the reason when the front end cannot start."""
    configuration: dict[str, Any] = {}
    """Shown in /health as it is, so it holds nothing secret."""

    def serves(self, model: str | None) -> bool:
        return model is None or model in {"default_model", self.model_id, self.model_name, *self.aliases}


class SettingsError(Exception):
    pass


def load_settings(path: str) -> ApiSettings:
    """From a file, or from standard input for `-`."""
    try:
        return ApiSettings.model_validate_json(read_told(path))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SettingsError(f"settings file {path}: {where}: {first['msg']}") from None
