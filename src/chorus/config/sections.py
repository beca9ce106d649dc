"""The sections of the settings: each setting with its type, its limits and its default.

What the front end and the engine are told when they start (front_end.py, engine.py) is made of the same types, so that
a new setting is written here and where it is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from chorus.config.grammar import GrammarLimits
from chorus.config.hostfile import DEFAULT_PORT
from chorus.config.strategies import Strategy
from chorus.platform.accelerator import device
from chorus.platform.accelerator.dtype import UNPACKED, Products
from chorus.transport import catalog

HIDDEN = "***"

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _bytes_from_text(value: Any) -> Any:
    """`20GB` as people type it."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if not found or found[2].lower() not in _UNITS:
        raise ValueError("must be a number of bytes, or one with a unit, e.g. 20GB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _auto_or_number(value: Any) -> Any:
    if value == "auto":
        return value
    if not re.fullmatch(r"\s*0*[1-9]\d*\s*", str(value)):
        raise ValueError("must be auto, or a number of tokens from 1 on")
    return int(value)


ChunkSize = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_number)]
Bytes = Annotated[int, BeforeValidator(_bytes_from_text), Field(ge=0)]


class Section(BaseModel):
    """Settings that belong together: they never change, and an unknown one is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def shared_with(self, other: type[Section]) -> dict[str, Any]:
        """Those of these settings that the other section has too."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in other.model_fields}


class AnswerOptions(Section):
    """What a model is called besides its id, and how its answers are made and read."""

    aliases: tuple[str, ...] = ()
    """More names that the model is called by."""
    tool_parser: str | None = Field(default=None, min_length=1)
    """How the model writes tool calls and reasoning, where its template does not tell."""
    embeddings: bool | None = None
    """Whether /v1/embeddings is served; by default the model's files decide."""
    pooling: Literal["mean", "last"] | None = None
    """How a text's hidden states become one; by default the model's files decide."""
    max_tokens: int | None = Field(default=None, ge=1)
    """For requests that do not say how long their answer may be; by default as long as the context allows."""


class ApiOptions(Section):
    """Where the API is offered, and to whom."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8100, ge=0, le=65535)
    hosts: tuple[str, ...] = ()
    """More names that this server is called by, or * for any; looked at where no key is asked for."""
    cors_origins: tuple[str, ...] = ()
    """Web pages from these origins may call the API; none by default."""
    https: bool = False
    """With a certificate of our own making where none is given."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    """HTTPS where both are given; read again when they change."""
    client_rules: bool = True
    """What real clients send in ever new forms is given one form, so that prompts which mean the same are the same."""
    any_model: bool = False
    """Also serve, by its name, every model that this machine has."""

    @field_validator("hosts")
    @classmethod
    def _hosts_without_ports(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not re.fullmatch(r"\*|[^\s/:]+|[0-9a-fA-F:.]+", host):
                raise ValueError(f"{host} is no host: expected a name or an address without scheme or port, or *")
        return hosts

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        return self

    @field_validator("cors_origins")
    @classmethod
    def _origins_as_browsers_send_them(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ValueError(f"{origin} is no origin: expected scheme://host[:port] without a path, or *")
        return origins


class Limits(Section):
    """How much one request, one client or all of them together may take of the front end."""

    max_body_bytes: int = Field(default=4 << 20, ge=1024)
    max_body_values: int = Field(default=65_536, ge=64)
    """Objects and lists in one body: what is small in bytes can be large once it is read."""
    max_messages: int = Field(default=4096, ge=1)
    """Messages or items of one conversation."""
    max_choices: int = Field(default=64, ge=1)
    """Answers to one request: its prompts times its n."""
    max_logprobs: int = Field(default=131_072, ge=1)
    """Log probabilities of one request: its choices times their tokens times the candidates of each."""
    max_tools: int = Field(default=256, ge=1)
    max_tools_characters: int = Field(default=1 << 20, ge=1024)
    """Of all tools together, about as long as they are written as JSON."""
    max_grammar_characters: int = Field(default=256 << 10, ge=1024)
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
    max_stop_strings: int = Field(default=16, ge=1)
    max_stop_characters: int = Field(default=1024, ge=1)
    """In each stop string."""
    max_logit_biases: int = Field(default=1024, ge=1)
    max_stored_responses: int = Field(default=1000, ge=0)
    max_stored_bytes: int = Field(default=64 << 20, ge=0)
    """What /v1/responses keeps for previous_response_id; the one unused longest goes first."""
    max_remembered_answers: int = Field(default=4096, ge=0)
    max_remembered_bytes: int = Field(default=64 << 20, ge=0)
    """Tokens of prompts and their answers, four bytes each, kept for the request that sends the answer back; the one
    that was used last stays longest."""
    body_timeout_seconds: float = Field(default=30, gt=0)
    request_timeout_seconds: float = Field(default=600, gt=0)
    keep_alive_seconds: float = Field(default=15, gt=0)
    connect_timeout_seconds: float = Field(default=10, gt=0)
    describe_timeout_seconds: float = Field(default=10, gt=0)
    shutdown_grace_seconds: float = Field(default=5, ge=0, le=600)
    max_connections: int = Field(default=1024, ge=16)
    max_strangers: int = Field(default=256, ge=16)
    """Connections that have not shown a key, where one is asked for."""
    head_timeout_seconds: float = Field(default=10, gt=0)
    idle_timeout_seconds: float = Field(default=75, gt=0)
    write_timeout_seconds: float = Field(default=60, gt=0)
    """How long a client may leave what waits for it unread."""


# Pydantic lists the fields of the last base first.
class ApiConfig(Limits, AnswerOptions, ApiOptions):
    """The section `api`: where and to whom, then what holds for every model that does not say otherwise (the aliases
    are the first model's), then the limits."""


class AskedDivision(Section):
    """How a model is divided among ranks, as it was asked for: much of it may be left open."""

    ranks: int = Field(default=1, ge=1)
    parallel: Literal["auto", "pipeline", "tensor", "hybrid", "single"] = "auto"
    split: tuple[int, ...] | None = None
    weights: tuple[int, ...] | None = None
    transport: catalog.Choice = catalog.AUTO

    @property
    def served_parallel(self) -> Literal["pipeline", "tensor", "hybrid"]:
        """What ranks are started for: where it was left open, weights mean tensor and anything else a pipeline. Who
        chooses RDMA and says no more wants every machine on every token: that is what such a link is for.
        """
        if self.parallel == "auto":
            over_rdma = self.transport == catalog.over_rdma().name and not self.split
            return "tensor" if self.weights or over_rdma else "pipeline"
        return "pipeline" if self.parallel == "single" else self.parallel

    @field_validator("split", "weights", mode="before")
    @classmethod
    def _numbers_from_text(cls, value: Any) -> Any:
        """`20,7,3` as people type it; a lone number reaches us as one."""
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            raise ValueError("must be numbers separated by commas, e.g. 20,7,3") from None

    @field_validator("split")
    @classmethod
    def _every_rank_has_layers(cls, split: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if split is not None and (not split or any(count < 1 for count in split)):
            raise ValueError(f"split {_commas(split)}: every rank needs at least 1 layer")
        return split

    @model_validator(mode="after")
    def _split_fits_ranks(self) -> Self:
        if self.parallel == "hybrid":  # so many stages of so many ranks: what fits is said where they are started
            if self.split and self.weights and "ranks" not in self.model_fields_set:
                object.__setattr__(self, "ranks", len(self.split) * len(self.weights))
            return self
        division = self.split or self.weights
        if division is not None and "ranks" not in self.model_fields_set:
            object.__setattr__(self, "ranks", len(division))  # a division says how many ranks there are
        if self.split is not None and self.ranks != len(self.split):
            raise ValueError(f"split {_commas(self.split)} has {len(self.split)} entries for {self.ranks} ranks")
        return self


class EngineOptions(Section):
    """What holds for the planner, the leader and every rank as it was set, however the model is divided."""

    compression: Literal["auto", "off", "on"] = "auto"
    """Of activations, where the transport can pack them, without loss; auto: only where the link is slow enough."""
    threads: int | None = Field(default=None, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16", "stored"] = "auto"
    cpu_products: Products = "auto"
    """What CPU ranks multiply with; auto: packed weights where the model is quantized and `dtype` is auto; others laid
    out once for ONNX Runtime where that pays, which blas leaves to MLX."""
    pack: Literal[4, 8] | None = None
    """To how many bits CPU ranks pack the weights of a model that is not quantized; None: not at all."""
    memory_fraction: float = Field(default=0.8, gt=0, le=1)
    reserve_mb: int = Field(default=512, ge=0)
    context: int | None = Field(default=None, ge=1)
    max_batch: int = Field(default=32, ge=1)
    max_queue: int = Field(default=256, ge=1)
    prefill_chunk: ChunkSize = "auto"
    """Prompt tokens in one forward; auto: by what they take, so that streams pause no longer than `max_pause_ms`."""
    max_pause_ms: int = Field(default=100, ge=1)
    """How long a running stream may wait for prompts between two of its tokens."""
    lanes: int | None = Field(default=None, ge=1)
    """Into how many batches a pipeline's streams are divided; None: as measured when the engine starts."""
    grammar_memory_mb: int = Field(default=GrammarLimits.memory_mb, ge=16)
    grammar_compile_seconds: float = Field(default=GrammarLimits.compile_seconds, gt=0)
    grammar_mask_seconds: float = Field(default=GrammarLimits.mask_seconds, gt=0)
    max_grammar_bytes: int = Field(default=GrammarLimits.max_bytes, ge=1024)
    kv_bits: Literal[4, 8] | None = None
    """Keys and values in so many bits; None: in the model's number type."""
    trust_remote_code: bool = False
    step_log: Path | None = None
    start_timeout_seconds: float = Field(default=600, gt=0)
    step_timeout_seconds: float | None = Field(default=None, gt=0)
    """How long a step may take before the rank that is behind is taken for stuck; None: by what steps took so far."""

    @model_validator(mode="after")
    def _packs_what_it_multiplies(self) -> Self:
        if self.pack and self.cpu_products in UNPACKED:
            told = f"pack {self.pack} is for packed products, and cpu_products is {self.cpu_products}"
            raise ValueError(f"{told}: leave one out")
        return self

    @property
    def planned_chunk(self) -> int:
        """How many prompt tokens a plan takes for one forward."""
        return device.prefill_chunk() if self.prefill_chunk == "auto" else self.prefill_chunk

    @property
    def grammars(self) -> GrammarLimits:
        return GrammarLimits(
            memory_mb=self.grammar_memory_mb,
            compile_seconds=self.grammar_compile_seconds,
            mask_seconds=self.grammar_mask_seconds,
            max_bytes=self.max_grammar_bytes,
        )


class EngineConfig(EngineOptions, AskedDivision):
    """The section `engine`: the division, then the options."""


class CacheConfig(Section):
    """The section `cache`: what is kept of prompts and answers, for the next request that begins as they do."""

    enabled: bool = True
    memory: Bytes | None = None
    """Of each rank, for streams and stored prefixes together; None: what the model leaves of its memory."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Of all stored prefixes together; None: as many as memory holds."""
    max_entries: int | None = Field(default=None, ge=1)
    """Segments of stored prefixes; None: as many as memory holds."""
    per_key: bool = False
    """Requests share what is stored only with those of the same API key: how soon an answer begins must not tell one
    what another has asked.
    """
    pin_minutes: float = Field(default=60, ge=0)
    """How long a conversation that named itself is kept before others, counted from its last request."""
    disk: Bytes = 0
    """Of each rank's disk, for what memory has no room for; 0: nothing is written."""
    disk_folder: Path | None = None
    """None: in the folder for things that can be made again."""


class RecoveryConfig(Section):
    """The section `recovery`: what happens to running requests when a process that serves them is lost."""

    patience_seconds: float = Field(default=180, gt=0)
    """How long requests wait for the next engine while nothing of it moves."""
    replan: Literal["ask", "auto"] = "ask"
    """When a node comes that is not used: say what it would bring, or use it by itself where that pays."""


class TelemetryConfig(Section):
    """The section `telemetry`: what is told to other programs."""

    otlp_endpoint: str | None = Field(default=None, pattern=r"https?://[^\s]+")
    """A collector that takes OpenTelemetry's traces over HTTP, e.g. http://127.0.0.1:4318; without one none are sent,
    unless OTEL_EXPORTER_OTLP_ENDPOINT names it."""

    # Of the section and not of the field: an error of a field shows its value.
    @model_validator(mode="after")
    def _endpoint_without_secrets(self) -> Self:
        if re.search("[@?#]", self.otlp_endpoint or ""):
            told = "settings are shown to whoever has a key, so otlp_endpoint takes no user, password or query"
            raise ValueError(f"{told}: credentials go into OTEL_EXPORTER_OTLP_HEADERS")
        return self


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json_lines: bool = False


class Capabilities(Section):
    """What a device offers, where it cannot be asked. Given rates go over those estimated from `gpu_cores`."""

    memory_gb: float | None = Field(default=None, gt=0)
    gpu_cores: int | None = Field(default=None, ge=1)
    backend: Literal["metal", "cuda", "cpu"] = "metal"
    tflops: float | None = Field(default=None, gt=0)
    bandwidth_gbs: float | None = Field(default=None, gt=0)


class DeviceConfig(Section):
    device_id: str = Field(min_length=1)
    hostname: str | None
    """None only for the hosts of a bare RDMA matrix, which find each other through the coordinator."""
    port: int = Field(default=DEFAULT_PORT, ge=1, le=65535)
    role: Literal["coordinator", "worker"] = "worker"
    capabilities: Capabilities = Capabilities()
    ssh: str | None = None
    python: str = Field(default="python3", min_length=1)
    """The interpreter to use there, with everything Chorus needs."""
    addresses: tuple[str, ...] = ()
    rdma: tuple[str | tuple[str, ...] | None, ...] = ()


class ShardingConfig(Section):
    strategy: Strategy = "auto"
    custom_proportions: tuple[float, ...] | None = None

    @field_validator("custom_proportions")
    @classmethod
    def _proportions_of_a_whole(cls, shares: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if not shares:
            return None
        if any(share <= 0 for share in shares):
            raise ValueError("every proportion must be above 0")
        if abs(sum(shares) - 1) > 0.01:
            raise ValueError(f"the proportions must add up to 1 and add up to {sum(shares):g}")
        return shares


class ClusterConfig(Section):
    hostfile: Path | None = None
    rank: int | None = Field(default=None, ge=0)
    address: str = f"localhost:{DEFAULT_PORT}"
    coordinator: str | None = None
    env: dict[str, str] = {}

    def shown(self) -> dict[str, Any]:
        """For people and their screens: variables may hold tokens, so their names alone."""
        return {**self.model_dump(mode="json"), "env": dict.fromkeys(self.env, HIDDEN)}


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
