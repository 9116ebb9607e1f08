"""Runs as OpenTelemetry traces at the other end of the wire: an OTLP/HTTP receiver on loopback gets the whole tree."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from runtime.support import FakeTool, approval, calls, make_app, new_run, play, waiting_ids

from cayu import SQLiteSessionStore
from cayu.observability.telemetry import OpenTelemetryEventSink
from cayu.tools import AlwaysRequireApprovalToolPolicy, ToolContext, ToolResult

CANARY = "canary-51c8"


@dataclass
class Receiver:
    """What has come in."""

    endpoint: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    assert scope.scope.name == "cayu"
                    found += scope.spans
        return found

    @property
    def tree(self) -> Counter[str]:
        """How often each path of names from a root occurs."""
        by_id = {span.span_id: span for span in self.spans}

        def path(span: Span) -> str:
            above = by_id[span.parent_span_id] if span.parent_span_id else None
            assert above is None or above.trace_id == span.trace_id
            return f"{path(above) if above is not None else ''}/{span.name}"

        return Counter(path(span) for span in by_id.values())


def value(attributes: list[KeyValue], key: str) -> AnyValue:
    [found] = [each.value for each in attributes if each.key == key]
    return found


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.requirement("A146", "A147", "A148")
async def test_the_tree_of_a_paused_and_approved_run_arrives_by_otlp(tmp_path: Path) -> None:
    async def look(ctx: ToolContext, args: dict[str, object]) -> ToolResult:
        return ToolResult(content=f"{CANARY} result")

    with receiving() as received:
        provider = TracerProvider(resource=Resource.create({"service.name": "lab"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=received.endpoint, timeout=5)))
        script = [calls(("look", {"x": CANARY}), ("look", {"x": CANARY})), "done"]
        async with make_app(
            SQLiteSessionStore(tmp_path / "s.db"),
            script,
            [FakeTool("look", look)],
            AlwaysRequireApprovalToolPolicy(),
            event_sinks=[OpenTelemetryEventSink(provider)],
        ) as app:
            await play(app.run(new_run()))
            for waiting in await waiting_ids(app):
                await play(app.resolve_tool_approval(approval(waiting)))
        provider.shutdown()
    assert received.tree == {
        "/invoke_agent a": 2,
        "/invoke_agent a/chat m": 2,
        "/invoke_agent a/cayu.model.preparation": 2,
        "/invoke_agent a/cayu.tool.round": 2,
        "/invoke_agent a/cayu.tool.round/cayu.tool.phases": 2,
        "/invoke_agent a/execute_tool look": 2,
        "/invoke_agent a/execute_tool look/cayu.tool.phases": 2,
    }
    by_id = {span.span_id: span for span in received.spans}
    for span in received.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        parent = by_id.get(span.parent_span_id)
        if span.name == "execute_tool look":
            at = {event.name: event.time_unix_nano for event in span.events}
            assert at["cayu.tool.effect_completed"] == span.end_time_unix_nano
            assert at["cayu.tool.terminal_staged"] > span.end_time_unix_nano
            assert at["cayu.tool.publication_started"] > span.end_time_unix_nano
        elif span.name == "cayu.tool.phases" and parent is not None and parent.name == "execute_tool look":
            assert span.end_time_unix_nano > parent.end_time_unix_nano
            [execution] = [event for event in span.events if event.name == "cayu.phase.execution"]
            assert value(list(execution.attributes), "cayu.phase.duration_seconds").double_value > 0
            assert value(list(execution.attributes), "cayu.phase.store_transaction_count").int_value == 0
    assert not [body for body in received.bodies if CANARY.encode() in body]
