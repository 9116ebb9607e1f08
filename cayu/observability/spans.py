"""The spans in which OpenTelemetry sees a run: their names, attributes and bounds. No content ever enters one.

Names are those of the GenAI semantic conventions where they have one, and begin with `cayu.` where they have none.
Moments are integer nanoseconds since 1970, as the API wants them. What is known of a run is kept in `runs`, and when a
span is written is decided in `telemetry`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from cayu.clock import as_microseconds
from cayu.timing.records import ModelStepPreparationTiming, RuntimePhaseTiming, ToolCallTiming, ToolRoundTiming

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, StatusCode
except ImportError as missing:
    raise ImportError(
        "OpenTelemetryEventSink needs the OpenTelemetry API. Install it with: pip install 'cayu-lab[otel]'",
        name=missing.name,
    ) from missing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
CALL = "gen_ai.tool.call.id"
ERROR = "error.type"

ROUND_SPAN = "cayu.tool.round"
PREPARATION_SPAN = "cayu.model.preparation"
PHASES_SPAN = "cayu.tool.phases"

EFFECT_COMPLETED = "cayu.tool.effect_completed"
TERMINAL_STAGED = "cayu.tool.terminal_staged"
PUBLICATION_STARTED = "cayu.tool.publication_started"

ROUND = "cayu.tool.round.id"
STEP = "cayu.model.step.id"
DURATION = "cayu.duration_seconds"
INCOMPLETE = "cayu.incomplete"
OUTCOME = "cayu.run.outcome"
REASON = "cayu.run.reason"

OTHER = "_OTHER"
"""What the conventions write for an error that has no name of its own."""
PHASE_MEASURES = (
    *("duration_seconds", "store_transaction_count", "store_lock_wait_seconds"),
    *("store_execution_seconds", "store_commit_seconds", "store_bytes_written"),
)
"""What a phase's span event carries, each as `cayu.phase.<name>`."""

NANOSECONDS_IN_MICROSECOND = 1000
"""In a microsecond."""
_CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")

Attributes = dict[str, "AttributeValue"]


def nanoseconds(moment: datetime) -> int:
    """Return an aware moment as nanoseconds since 1970."""
    return as_microseconds(moment) * NANOSECONDS_IN_MICROSECOND


def code_of(value: object) -> str:
    """Return a code as it is, and `_OTHER` for whatever does not look like one: a provider may say anything."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else OTHER


class SpanWriter:
    """Starts and writes spans with one tracer."""

    def __init__(self, tracer_provider: TracerProvider | None, provider_name: str | None) -> None:
        self._tracer = trace.get_tracer("cayu", tracer_provider=tracer_provider)
        self.provider: Attributes = {PROVIDER: provider_name} if provider_name else {}
        """What the spans of runs and of model steps say of their provider."""

    def start(
        self,
        name: str,
        parent: Context | None,
        at_ns: int,
        attributes: Attributes,
        *,
        outgoing: bool = False,
        after: Span | None = None,
    ) -> Span:
        """Start a span; without a parent it is one of whatever span is current.

        `outgoing` is a request to another system, and `after` the span of which this one's work is the continuation.
        """
        kind = SpanKind.CLIENT if outgoing else SpanKind.INTERNAL
        links = () if after is None else (Link(after.get_span_context()),)
        return self._tracer.start_span(name, parent, kind, attributes, links, at_ns)

    def preparation(self, record: ModelStepPreparationTiming, parent: Context) -> None:
        """Write the span of a step's preparation."""
        attributes: Attributes = {
            CONVERSATION: record.session_id,
            STEP: record.model_step_id,
            DURATION: record.duration_seconds,
            INCOMPLETE: record.incomplete,
        }
        if record.after_tool_round_id is not None:
            attributes["cayu.tool.round.before.id"] = record.after_tool_round_id
        span = self.start(PREPARATION_SPAN, parent, nanoseconds(record.started_at), attributes)
        _add_phases(span, record.phases)
        span.end(nanoseconds(record.completed_at))

    def round(self, record: ToolRoundTiming, parent: Context) -> Context:
        """Write the span of an attempt at a round, and return it as a parent."""
        attributes: Attributes = {
            CONVERSATION: record.session_id,
            ROUND: record.tool_round_id,
            STEP: record.model_step_id,
            "cayu.model.attempt.id": record.model_attempt_id,
            DURATION: record.duration_seconds,
            INCOMPLETE: record.incomplete,
            "cayu.tool.round.recovered": record.recovered,
            "cayu.tool.round.calls": len(record.calls),
            "cayu.tool.round.calls_truncated": record.calls_truncated,
        }
        span = self.start(ROUND_SPAN, parent, nanoseconds(record.started_at), attributes)
        _add_phases(span, record.phases)
        span.end(nanoseconds(record.completed_at))
        return context_of(span)

    def phases(self, call: ToolCallTiming, parent: Context) -> None:
        """Write what was observed of a call, from its first phase to its last; nothing if nothing was."""
        began = [nanoseconds(phase.first_started_at) for phase in call.phases if phase.first_started_at is not None]
        ended = [nanoseconds(phase.last_completed_at) for phase in call.phases if phase.last_completed_at is not None]
        if not began or not ended:
            return
        attributes: Attributes = {
            CONVERSATION: call.session_id,
            ROUND: call.tool_round_id,
            CALL: call.tool_call_id,
        }
        if call.tool_name is not None:
            attributes[TOOL] = call.tool_name
        span = self.start(PHASES_SPAN, parent, min(began), attributes)
        _add_phases(span, call.phases)
        span.end(max(ended))


def context_of(span: Span) -> Context:
    """Return a span as a parent: its ids and no more, so that what it holds can be let go."""
    return trace.set_span_in_context(NonRecordingSpan(span.get_span_context()), NO_PARENT)


NO_PARENT = Context()
"""For spans that have no known parent: not even the current one, which belongs to somebody else's work."""


def _add_phases(span: Span, phases: tuple[RuntimePhaseTiming, ...]) -> None:
    """Add an event for each phase that was entered, at its first entry."""
    for phase in phases:
        if phase.first_started_at is not None:
            attributes = {f"cayu.phase.{name}": getattr(phase, name) for name in PHASE_MEASURES}
            attributes["cayu.phase.name"] = phase.name
            span.add_event(f"cayu.phase.{phase.name}", attributes, nanoseconds(phase.first_started_at))


def mark(span: Span, error: str | None) -> None:
    """Note the code of an error, if there was one."""
    if error is not None:
        span.set_attribute(ERROR, error)
        span.set_status(StatusCode.ERROR)
