"""The traces of a front end: one tree of spans for each request, told when it is over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Scope

import chorus
from chorus.api.errors import SERVING_ERRORS, ApiError, from_serving
from chorus.api.nodes import NodeNames
from chorus.api.server.gate import Record, record_of
from chorus.api.usage import Outcome
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.generation import AnswerEnd
from chorus.serving.requests.request import GenerationRequest
from chorus.telemetry.spans import (
    OWN,
    Attribute,
    ChoiceTimes,
    RankPart,
    answer_attributes,
    parts_of,
    request_attributes,
)
from chorus.telemetry.traces import NoTraces, Root, Traces, is_asked_for

log = logging.getLogger(__name__)


def open_traces(settings: ApiSettings, nodes: NodeNames) -> RequestTraces | None:
    """None where nobody asks for traces, or they cannot be sent."""
    if not is_asked_for(settings.otlp_endpoint):
        return None
    try:
        return RequestTraces(Traces(settings.otlp_endpoint, chorus.__version__), (settings.host, settings.port), nodes)
    except NoTraces as error:
        log.warning("no traces are sent: %s", error)
        return None


@contextmanager
def traced(
    traces: RequestTraces | None,
    scope: Scope,
    model: ModelSettings,
    operation: str,
    asked: Mapping[str, Attribute | None],
) -> Iterator[RequestTrace | None]:
    """Around the answering of a request; None where no traces are sent."""
    if traces is None:
        yield None
        return
    trace = traces.begin(record_of(scope), Headers(scope=scope), model, operation, asked)
    try:
        yield trace
    except BaseException as error:
        trace.broke(error)
        raise
    finally:
        trace.over()


class RequestTraces:
    """Of all requests of this front end."""

    def __init__(self, traces: Traces, server: tuple[str, int], nodes: NodeNames) -> None:
        self._traces = traces
        self._server = server
        self._nodes = nodes

    def begin(
        self,
        record: Record,
        headers: Mapping[str, str],
        model: ModelSettings,
        operation: str,
        asked: Mapping[str, Attribute | None],
    ) -> RequestTrace:
        self._nodes.look_beside(model)
        attributes = request_attributes(operation, model.id, self._server, asked)
        begin = time.time() - record.elapsed()
        root = self._traces.begin(f"{operation} {model.id}", begin, attributes, headers)
        record.trace = root.header
        record.log_fields["trace_id"] = root.trace_id
        return RequestTrace(root, begin, record, model, lambda: self._nodes.known(model.id))

    async def close(self) -> None:
        await asyncio.to_thread(self._traces.close)


class RequestTrace:
    """Of one request: what came of it, gathered until it is over."""

    def __init__(
        self, root: Root, begin: float, record: Record, model: ModelSettings, names: Callable[[], Mapping[int, str]]
    ) -> None:
        self._root = root
        self._begin = begin
        self._record = record
        self._model = model
        self._names = names
        self._choices: list[ChoiceTimes] = []
        self._ranks: Sequence[pb.RankDescription] = ()
        self._attributes: dict[str, Attribute] = {}
        self._error: str | None = None

    def ended(self, end: AnswerEnd) -> None:
        """One of its answers is complete, now."""
        timing, usage = end.timing, end.usage
        self._choices.append(
            ChoiceTimes(
                end.choice,
                time.time(),
                timing.queue_seconds,
                timing.prompt_seconds,
                timing.generation_seconds,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
            )
        )

    def answered(self, outcome: Outcome, ends: Sequence[AnswerEnd], ranks: Sequence[pb.RankDescription]) -> None:
        """All of it is, by these ranks."""
        usage, self._ranks = outcome.usage, ranks
        self._attributes |= answer_attributes(
            self._model.id,
            [end.reason for end in ends],
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            outcome.performance.time_to_first_token_seconds,
        )

    def read(self, input_tokens: int) -> None:
        """It has no answer in tokens."""
        self._attributes |= {"gen_ai.response.model": self._model.id, "gen_ai.usage.input_tokens": input_tokens}

    def failed(self, kind: str) -> None:
        """The first reason stands."""
        self._error = self._error or kind

    def broke(self, error: BaseException) -> None:
        """Nothing was said to its client so far: whoever meets the error does that."""
        told = from_serving(error) if isinstance(error, SERVING_ERRORS) else error
        if isinstance(told, ApiError):
            self._attributes["http.response.status_code"] = told.status
        self.failed(told.kind if isinstance(told, ApiError) else type(told).__name__)

    def over(self) -> None:
        names = self._names()
        took_part = [_part(rank, names.get(rank.rank, rank.host)) for rank in self._ranks]
        parts = [part for times in self._choices for part in parts_of(times, took_part, self._begin)]
        if (status := self._record.status) is not None:
            self._attributes["http.response.status_code"] = status
        self._attributes[f"{OWN}request_id"] = self._record.request_id
        self._root.end(time.time(), self._attributes, parts, self._error)


def asked_of(request: GenerationRequest, stream: bool) -> dict[str, Attribute | None]:
    """The parameters of a request, by their names in the conventions; never its texts."""
    sampling = request.sampling
    return {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        # Collectors take signed numbers, engines unsigned ones.
        "seed": (sampling.seed if sampling.seed < 2**63 else sampling.seed - 2**64) if request.seeded else None,
        "choice.count": request.choices_per_prompt if request.choices_per_prompt > 1 else None,
        "stream": stream,
    }


def _part(rank: pb.RankDescription, node: str) -> RankPart:
    # The engine names the layer behind its last one.
    return RankPart(rank.rank, node, rank.host, rank.device, rank.first_layer, rank.last_layer - 1)
