"""A collector of traces on loopback: what is sent to it by OTLP over HTTP, as it was meant."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

DEADLINE = 120.0


@dataclass(frozen=True)
class SeenSpan:
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    begin: int
    end: int
    failed: bool
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


class Collector(ThreadingHTTPServer):
    """`with Collector() as collector: … collector.url … collector.trees()`"""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[SeenSpan] = []
        self.paths: list[str] = []
        self.came = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def wait_for(self, trace_id: str) -> list[SeenSpan]:
        """The spans of a trace, its root first, once that is there: it is sent last, with or after its parts."""
        deadline = time.monotonic() + DEADLINE
        with self.came:
            while True:
                found = [span for span in self.spans if span.trace_id == trace_id]
                if roots := [span for span in found if span.kind == WireSpan.SPAN_KIND_SERVER]:
                    return [*roots, *sorted((s for s in found if s not in roots), key=lambda span: span.begin)]
                assert self.came.wait(deadline - time.monotonic()), f"no root of {trace_id} came: {self.spans}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        told = ExportTraceServiceRequest.FromString(body)
        with self.server.came:
            self.server.paths.append(self.path)
            for part in told.resource_spans:
                resource = _values(part.resource.attributes)
                self.server.spans += [_seen(span, resource) for scope in part.scope_spans for span in scope.spans]
            self.server.came.notify_all()
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def _seen(span: WireSpan, resource: Mapping[str, Any]) -> SeenSpan:
    return SeenSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == Status.STATUS_CODE_ERROR,
        _values(span.attributes),
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found
