"""Spans on their way to a collector, by OTLP over HTTP: from a thread of their own, in bounded numbers.

OpenTelemetry's SDK is an extra, and is imported only where a collector is named.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chorus.errors import ChorusError
from chorus.telemetry.spans import Attribute, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

log = logging.getLogger("chorus.traces")

SERVICE = "chorus"
REMEDY = (
    "traces need OpenTelemetry's SDK: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http "
    "(or Chorus with its extra [otel])"
)
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MOST_WAITING = 4096
"""Spans that wait to be sent; what comes beyond is dropped."""
_SEND_SECONDS = 10
_CLOSE_SECONDS = 3.0
_LONGEST_STATE = 512
_PATH = "/v1/traces"


class NoTraces(ChorusError):
    """Traces were asked for and cannot be sent: says what is missing."""


def is_installed() -> bool:
    try:
        return all(map(importlib.util.find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        return False


def is_asked_for(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether spans are to be sent: by our setting, or by OpenTelemetry's own variables."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = endpoint or any(environment.get(name, "").strip() for name in ENDPOINT_VARIABLES)
    return bool(named) and (endpoint is not None or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "otlp")


class Traces:
    """Sends spans to one collector."""

    def __init__(self, endpoint: str | None, version: str, environment: Mapping[str, str] = os.environ) -> None:
        """Without an endpoint it is where OpenTelemetry's own variables say; raises NoTraces."""
        if not is_installed():
            raise NoTraces(REMEDY)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint and _traces_at(endpoint), timeout=_SEND_SECONDS)
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes over these.
        named = {"service.name": environment.get("OTEL_SERVICE_NAME", "").strip() or SERVICE}
        resource = Resource.create({**named, "service.version": version})
        # Ending with the interpreter would wait for a collector that does not answer.
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_told_of(exporter), max_queue_size=_MOST_WAITING))
        self._tracer: Tracer = self._provider.get_tracer("chorus", version)
        # What it says of a collector that is not there, we say once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def begin(self, name: str, begin: float, attributes: Mapping[str, Attribute], headers: Mapping[str, str]) -> Root:
        """The root of a request's tree: below the span that its client has named, if it has."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        if len(carrier.get("tracestate", "")) > _LONGEST_STATE:
            del carrier["tracestate"]
        parent = TraceContextTextMapPropagator().extract(carrier)
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, attributes=dict(attributes), start_time=_nanoseconds(begin)
        )
        return Root(self._tracer, span)

    def close(self) -> None:
        """Send what waits, within a bounded time."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class Root:
    """The span of a request that runs."""

    def __init__(self, tracer: Tracer, span: Any) -> None:
        self._tracer = tracer
        self._span = span
        context = span.get_span_context()
        self.trace_id = f"{context.trace_id:032x}"
        self.header = f"00-{self.trace_id}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        """By which others can name this span."""

    def end(
        self, moment: float, attributes: Mapping[str, Attribute], parts: Sequence[Span] = (), error: str | None = None
    ) -> None:
        """With all that happened in it; `error` is its kind, where it failed."""
        if not self._span.is_recording():
            return
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(self._span)
        for part in parts:
            self._add(part, context)
        self._span.end(_nanoseconds(moment))

    def _add(self, part: Span, context: Any) -> None:
        begin, end = _nanoseconds(part.begin), _nanoseconds(part.end)
        self._tracer.start_span(part.name, context, attributes=dict(part.attributes), start_time=begin).end(end)


def _nanoseconds(moment: float) -> int:
    return int(moment * 1e9)


def _traces_at(endpoint: str) -> str:
    """Collectors are named by their address; one path of it takes traces."""
    return endpoint if endpoint.rstrip("/").endswith(_PATH) else endpoint.rstrip("/") + _PATH


def _told_of(exporter: SpanExporter) -> SpanExporter:
    """An exporter that says once that nothing arrives, and once that it does again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Told(SpanExporter):
        lost = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = exporter.export(spans)
            if result is SpanExportResult.SUCCESS and self.lost:
                log.info("traces arrive again; %d spans were lost", self.lost)
                self.lost = 0
            elif result is not SpanExportResult.SUCCESS:
                if not self.lost:
                    log.warning("traces do not arrive: is a collector there that takes OTLP over HTTP?")
                self.lost += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Told()
