"""Every metric, declared once.

Names, labels and buckets are vLLM's where the meaning is the same, with `chorus_` for its prefix, so that its boards
work here. A value is made where it happens, as a `Figure` under the metric's name: in a front end (`answers.py`,
`api/views/metrics.py`) or in a leader (`engine/figures.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


MODEL = "model_name"
RANK = "rank"
NODE = "node"
"""On which the rank is; empty on a server of one machine."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """As it is declared; a counter is written with `_total` behind it."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = (MODEL,)
    buckets: tuple[float, ...] = ()
    """Upper bounds; one without a bound follows."""
    ages: bool = False
    """It tells how old something is, which grows while nobody tells anything new."""

    @property
    def written(self) -> str:
        """The name that a query asks for; a histogram's has `_bucket`, `_sum` and `_count` behind it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Those that whoever counts gives: the names of models and nodes are the front end's to know."""
        return tuple(label for label in self.labels if label not in (MODEL, NODE))


METRICS: dict[str, Metric] = {}
"""By name, in the order in which they are told."""


def _declare(metric: Metric) -> Metric:
    METRICS[metric.name] = metric
    return metric


def _counter(name: str, told: str, *labels: str) -> Metric:
    return _declare(Metric(name, Kind.COUNTER, told, (MODEL, *labels)))


def _gauge(name: str, told: str, *labels: str, ages: bool = False) -> Metric:
    return _declare(Metric(name, Kind.GAUGE, told, (MODEL, *labels), ages=ages))


def _histogram(name: str, told: str, buckets: tuple[float, ...]) -> Metric:
    return _declare(Metric(name, Kind.HISTOGRAM, told, buckets=buckets))


FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(factor * 10**power) for power in range(6) for factor in (1, 2, 5))
"""vLLM ends at the context of its model; several models here share one scale."""
STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)

FINISHED_REASONS = ("stop", "length", "abort", "error")

# What clients ask for and get, as their front end sees it.
GENERATION_TOKENS = _counter("chorus_generation_tokens", "Tokens that were generated and sent to clients.")
PROMPT_TOKENS = _counter("chorus_prompt_tokens", "Tokens of prompts that were read, those that were cached too.")
PROMPT_TOKENS_CACHED = _counter(
    "chorus_prompt_tokens_cached",
    "Tokens of prompts that were found stored, not computed; counted when the prompt's answers have ended.",
)
REQUEST_SUCCESS = _counter(
    "chorus_request_success",
    "Answers that have ended, by how; abort: cut off by their client, a deadline or the end of the server.",
    "finished_reason",
)
REQUESTS_LOST = _counter(
    "chorus_requests_lost", "Answers that failed because their engine was lost and none came in its place."
)
FIRST_TOKEN = _histogram(
    "chorus_time_to_first_token_seconds", "From a request's arrival to its first token.", FIRST_TOKEN_SECONDS
)
INTER_TOKEN = _histogram("chorus_inter_token_latency_seconds", "Between two tokens of an answer.", TOKEN_SECONDS)
TIME_PER_TOKEN = _histogram(
    "chorus_request_time_per_output_token_seconds",
    "The mean of an answer's times between two tokens.",
    TOKEN_SECONDS,
)
E2E = _histogram(
    "chorus_e2e_request_latency_seconds", "From a request's arrival to the end of its answer.", REQUEST_SECONDS
)
QUEUE = _histogram(
    "chorus_request_queue_time_seconds", "From the engine's queue to an answer's first forward.", REQUEST_SECONDS
)
PREFILL = _histogram(
    "chorus_request_prefill_time_seconds", "From an answer's first forward to its first token.", REQUEST_SECONDS
)
DECODE = _histogram("chorus_request_decode_time_seconds", "From an answer's first token to its last.", REQUEST_SECONDS)
INFERENCE = _histogram(
    "chorus_request_inference_time_seconds", "From an answer's first forward to its last token.", REQUEST_SECONDS
)
REQUEST_PROMPT_TOKENS = _histogram("chorus_request_prompt_tokens", "Tokens of an answer's prompt.", TOKENS)
REQUEST_GENERATION_TOKENS = _histogram("chorus_request_generation_tokens", "Tokens of an answer.", TOKENS)
MOST_GENERATION_TOKENS = _histogram(
    "chorus_request_max_num_generation_tokens", "Tokens of the longest of a request's answers.", TOKENS
)
PARAMS_N = _histogram("chorus_request_params_n", "How many answers a request asks for, for each prompt.", CHOICES)
PARAMS_MAX_TOKENS = _histogram("chorus_request_params_max_tokens", "How many tokens an answer may have.", TOKENS)

# What an engine does.
RUNNING = _gauge("chorus_num_requests_running", "Requests in the engine's batches, those whose prompt is read too.")
WAITING = _gauge("chorus_num_requests_waiting", "Requests that wait: for the model, for its engine, or in its queue.")
CACHE_USAGE = _gauge(
    "chorus_kv_cache_usage_perc",
    "What running requests take of the room for caches, from 0 to 1, on the rank that has least left.",
)
STORED_BYTES = _gauge(
    "chorus_prefix_cache_bytes",
    "What stored prefixes take on the rank that has least room left; they give way to requests.",
)
PREFIX_QUERIES = _counter("chorus_prefix_cache_queries", "Tokens of prompts that were looked for among stored ones.")
PREFIX_HITS = _counter(
    "chorus_prefix_cache_hits", "Tokens of prompts that were looked for among stored ones and found."
)
PREEMPTIONS = _counter("chorus_num_preemptions", "How often a request made room for others and went on later.")
ITERATION_TOKENS = _histogram("chorus_iteration_tokens", "Tokens that were fed in a step of the engine.", STEP_TOKENS)
RECOVERIES = _counter(
    "chorus_recoveries", "How often a lost process was replaced: one rank alone, or the leader with all.", "lost"
)
LOADS = _counter("chorus_model_loads", "How often an engine has loaded the model.")
ENGINE_UP = _gauge("chorus_engine_up", "1 while the model's engine tells what it does, else 0.")

# Of each rank.
RANK_MEMORY = _gauge("chorus_rank_memory_bytes", "Memory that the rank's process holds.", RANK, NODE)
RANK_STEP = _gauge("chorus_rank_step", "The last step that the rank has finished.", RANK, NODE)
RANK_AGE = _gauge(
    "chorus_rank_heartbeat_age_seconds", "How long ago the rank last told anything.", RANK, NODE, ages=True
)
RANK_TENSORS = _counter("chorus_rank_tensor_bytes", "Tensors that the rank has passed on over gRPC.", RANK, NODE)
RANK_SENT = _counter(
    "chorus_rank_sent_bytes",
    "Tensors as the rank has sent them over gRPC: fewer bytes where they were packed.",
    RANK,
    NODE,
)
RANK_PHASE = _counter(
    "chorus_rank_phase_seconds",
    "What the rank's main thread has spent its time on: compute, wait, transport, sampling, schedule, idle.",
    RANK,
    NODE,
    "phase",
)

# Of the server.
MODEL_STATE = _gauge("chorus_model_state", "1 for the state that the model is in, 0 for the others.", "state")
BUILD = _declare(
    Metric("chorus_build_info", Kind.GAUGE, "Always 1; its label is the version that serves.", ("version",))
)
