"""What is known of a run while its spans are open, or wait for what was timed: the run, its calls, its model steps."""

from __future__ import annotations

from asyncio import Task
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cayu.events import Event
from cayu.events import EventType as E
from cayu.observability.spans import (
    AGENT,
    CALL,
    CONVERSATION,
    EFFECT_COMPLETED,
    FINISH_REASONS,
    INPUT_TOKENS,
    MODEL,
    OPERATION,
    OUTCOME,
    OUTPUT_TOKENS,
    PUBLICATION_STARTED,
    REASON,
    STEP,
    TERMINAL_STAGED,
    TOOL,
    Attributes,
    SpanWriter,
    code_of,
    context_of,
    mark,
    nanoseconds,
)
from cayu.timing.records import ToolCallTiming, ToolRoundTiming

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

MOST_COMMITTED = 64
"""Rounds of a run that are remembered as committed."""


@dataclass(eq=False, slots=True)
class CallSpan:
    """The open `execute_tool` span of one dispatched call."""

    id: str
    span: Span
    context: Context
    started_ns: int
    ended_ns: int | None = None
    """When the call's terminal event was stored."""
    error: str | None = None
    timing: ToolCallTiming | None = None

    @property
    def is_whole(self) -> bool:
        """True when nothing more is to come."""
        return self.ended_ns is not None and self.timing is not None

    def finish(self, last_ns: int) -> None:
        """End the span at the attested completion of the effect, else with the terminal event, else at `last_ns`."""
        ended = self.ended_ns if self.ended_ns is not None else last_ns
        if self.timing is not None:
            completed = self.timing.tool_effect_completed_at
            ended = nanoseconds(completed) if completed is not None else ended
            moments = {
                EFFECT_COMPLETED: completed,
                TERMINAL_STAGED: self.timing.tool_terminal_staged_at,
                PUBLICATION_STARTED: self.timing.tool_terminal_publication_started_at,
            }
            for name, moment in moments.items():
                if moment is not None:
                    self.span.add_event(name, timestamp=nanoseconds(moment))
        mark(self.span, self.error)
        self.span.end(max(ended, self.started_ns))


@dataclass(eq=False, slots=True)
class StepSpan:
    """What becomes the `chat` span of one model step, once its bounds are known."""

    id: str
    writer: SpanWriter
    parent: Context
    common: Attributes
    model: str
    after_ns: int
    """When the commit before the step was stored: the step did not begin earlier."""
    started_ns: int
    """When `model.started` was stored, which is mostly with the answer."""
    asked_ns: int | None = None
    """When the provider was asked, by the timing of the step's preparation."""
    answered_ns: int | None = None
    """When the answer was there, by the timing of the round that it asked for."""
    ended_ns: int | None = None
    """When the answer, or that there is none, was stored."""
    has_round: bool = False
    is_past: bool = False
    """True when a round of it would have been seen by now."""
    error: str | None = None
    answer: Attributes = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True when nothing more is to come."""
        answered = self.answered_ns is not None or (self.is_past and not self.has_round)
        return self.ended_ns is not None and self.asked_ns is not None and answered

    def finish(self, last_ns: int) -> None:
        """Write the span with the best bounds that were observed."""
        ended = self.ended_ns if self.ended_ns is not None else last_ns
        started = self.asked_ns
        if started is None:
            started = self.started_ns if self.started_ns < ended else self.after_ns
        if self.answered_ns is not None:
            ended = min(ended, self.answered_ns)
        attributes = {**self.common, OPERATION: "chat", STEP: self.id, **self.answer}
        if self.model:
            attributes[MODEL] = self.model
        span = self.writer.start(f"chat {self.model}".rstrip(), self.parent, started, attributes, outgoing=True)
        mark(span, self.error)
        span.end(max(started, ended))


@dataclass(eq=False, slots=True)
class Run:
    """One run of a session under its agent span; a pause ends it, and the continuation is another one."""

    session_id: str
    span: Span
    context: Context
    common: Attributes
    """What the spans of its model steps say of it too."""
    began_ns: int
    last_ns: int
    """When the latest event was stored."""
    before: Run | None = None
    """The session's run before this one, whose records may still come."""
    ended: bool = False
    calls: dict[str, CallSpan] = field(default_factory=dict)
    """The calls that wait for their end or for their record, by id."""
    steps: dict[str, StepSpan] = field(default_factory=dict)
    """The model steps that do, by id."""
    step: StepSpan | None = None
    """The latest model step."""
    asked: dict[str, int] = field(default_factory=dict)
    """When the provider was asked in steps that no event has told of yet."""
    committed: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_COMMITTED))
    """The rounds that were committed last: all of their calls that ever began were seen."""
    tokens: dict[str, int] = field(default_factory=dict)
    late: Task[None] | None = None
    """Runs while records of a run that has ended may still come."""

    @classmethod
    def begin(cls, writer: SpanWriter, event: Event, parent: Context | None, before: Run | None) -> Run:
        """Begin a run with its first event; its span is linked to that of the session's run before."""
        at = nanoseconds(event.timestamp)
        common = {**writer.provider, AGENT: event.agent_name, CONVERSATION: event.session_id}
        attributes = {**common, OPERATION: "invoke_agent"}
        name = f"invoke_agent {event.agent_name}"
        span = writer.start(name, parent, at, attributes, after=before.span if before else None)
        return cls(event.session_id, span, context_of(span), common, began_ns=at, last_ns=at, before=before)

    def begin_call(self, writer: SpanWriter, call_id: str, tool_name: str, at_ns: int) -> CallSpan:
        """Begin the span of a call that is being dispatched; its tool is a registered one."""
        attributes: Attributes = {
            OPERATION: "execute_tool",
            TOOL: tool_name,
            CALL: call_id,
            CONVERSATION: self.session_id,
        }
        span = writer.start(f"execute_tool {tool_name}".rstrip(), self.context, at_ns, attributes)
        call = self.calls[call_id] = CallSpan(call_id, span, context_of(span), at_ns)
        return call

    def begin_step(self, writer: SpanWriter, event: Event, after_ns: int) -> StepSpan:
        """Begin a model step with its `model.started`; what came before was stored at `after_ns`."""
        model = event.payload.get("model")
        model = model if isinstance(model, str) else ""
        if model:
            self.span.set_attribute(MODEL, model)
        step_id = step_id_of(event)
        step = StepSpan(
            *(step_id, writer, self.context, self.common, model),
            after_ns=after_ns,
            started_ns=nanoseconds(event.timestamp),
            asked_ns=self.asked.pop(step_id, None),
        )
        self.step = self.steps[step_id] = step
        return step

    def take_answer(self, event: Event) -> None:
        """Take in what the latest step's answer was like."""
        if self.step is None:
            return
        self.step.answer[FINISH_REASONS] = (code_of(event.payload.get("finish_reason")),)
        usage = event.payload.get("usage")
        for name, key in ((INPUT_TOKENS, "input_tokens"), (OUTPUT_TOKENS, "output_tokens")):
            tokens = usage.get(key) if isinstance(usage, dict) else None
            if type(tokens) is int:
                self.step.answer[name] = tokens
                self.tokens[name] = self.tokens.get(name, 0) + tokens

    def take_round(self, event: Event) -> None:
        """Take in that a round was opened or committed."""
        round_id = event.payload.get("tool_round_id")
        if event.type == E.ROUND_COMMITTED and isinstance(round_id, str):
            self.committed.append(round_id)
        elif event.type == E.ROUND_OPENED and self.step is not None:
            self.step.has_round = True

    def has_seen(self, record: ToolRoundTiming) -> bool:
        """True when each call of a round has its span, or never will: a round's receipt comes after all starts."""
        return record.tool_round_id in self.committed or all(call.tool_call_id in self.calls for call in record.calls)

    def finish(self, outcome: str, *, reason: str | None = None, error: str | None = None) -> None:
        """End the agent span where its latest event was stored."""
        self.ended = True
        self.span.set_attribute(OUTCOME, outcome)
        if reason is not None:
            self.span.set_attribute(REASON, reason)
        for name, count in self.tokens.items():
            self.span.set_attribute(name, count)
        mark(self.span, error)
        self.span.end(self.last_ns)


def step_id_of(event: Event) -> str:
    """Return the id that timing records give the step which a `model.started` tells of."""
    instance_id, _, _ = event.id.rpartition(".")
    return f"{instance_id}.m{event.payload.get('step')}"
