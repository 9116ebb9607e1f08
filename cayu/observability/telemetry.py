"""Export of runs as OpenTelemetry traces: decides when which span is written, and under which parent.

Events tell what happened, timing records tell when exactly, and the two arrive in any order. A span that a record would
make better waits for it, and a record that belongs below a span waits for that; neither waits for ever or unbounded.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from cayu.errors import InvalidInput
from cayu.events import Event
from cayu.events import EventType as E
from cayu.observability.runs import CallSpan, Run, StepSpan, step_id_of
from cayu.observability.sinks import EventSink
from cayu.observability.spans import (
    NO_PARENT,
    SpanWriter,
    code_of,
    nanoseconds,
)
from cayu.timing.records import TimingRecord, ToolRoundTiming
from cayu.tools.subagents import child_session_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

MOST_HELD = 1_000
"""Records that wait for their span; beyond that the oldest is written under the best parent that is known."""
MOST_RUNS = 1_000
"""Runs that are open, and runs that have ended and are remembered for late records; beyond that the oldest ends, or is
forgotten."""
MOST_WAITING = 10_000
"""Calls and model steps whose spans are open or wait for a record; beyond that the oldest is written as it is."""
LATE_SECONDS = 5.0
"""How long the spans of a run that has ended wait for its last records."""

_TERMINAL = frozenset({E.TOOL_COMPLETED, E.TOOL_FAILED, E.TOOL_BLOCKED, E.TOOL_SKIPPED, E.EFFECT_OUTCOME_UNKNOWN})
_BEGIN = frozenset({E.SESSION_STARTED, E.SESSION_RESUMED})
_WORK = (_TERMINAL - {E.EFFECT_OUTCOME_UNKNOWN}) | {
    *(E.MODEL_STARTED, E.MODEL_COMPLETED, E.MODEL_ERROR, E.TOOL_STARTED, E.TOOL_STAGED),
    *(E.ROUND_OPENED, E.ROUND_COMMITTED),
}
"""What only a run does: after a crash it goes on without a word."""
_OUTCOMES = {
    E.SESSION_COMPLETED: "completed",
    E.SESSION_FAILED: "failed",
    E.SESSION_INTERRUPTED: "interrupted",
}
_UNSEEN = "not_observed"
"""The outcome of a run whose end never came here."""

Waiting = CallSpan | StepSpan


class OpenTelemetryEventSink(EventSink):
    """Writes a trace per run: `invoke_agent`, with its `chat`, `execute_tool`, round and preparation spans below it.

    A paused session's run ends at the pause, and the continuation is a trace of its own with a link to it. Where a span
    is current when `run` is called, the trace goes on from that. A subagent's run stands below the call that asked for
    it. Below each `execute_tool` span `cayu.tool.phases` tells of the call's phases, with durations and store costs;
    it begins before its parent and outlasts it.

    Spans hold ids, names of registered tools, counts, durations and codes: no arguments, results, prompts, or words of
    an exception. Events carry the store's clock and timing records this machine's; bounds are as good as the two agree.

    `execute_tool` and `chat` spans are written when their record is there: at the latest 5 s after their run has ended,
    or when timing is closed. Close the application, and then shut the tracer provider down. What is held is bounded:
    1,000 records that wait for their span, 1,000 open and as many ended runs, 10,000 calls and steps. Use a sink from
    one event loop at a time.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, provider_name: str | None = None) -> None:
        """Write to a tracer provider; without one, to the global one.

        `provider_name` becomes `gen_ai.provider.name`, of which events say nothing. Pass the sink as an event sink:
        one that is given timing alone has no runs to hang it on.
        """
        if tracer_provider is not None and not callable(getattr(tracer_provider, "get_tracer", None)):
            raise InvalidInput(f"tracer_provider is an OpenTelemetry TracerProvider, not {tracer_provider!r}.")
        self._writer = SpanWriter(tracer_provider, provider_name)
        self._open: dict[str, Run] = {}
        """The runs that have not ended, by session id, the one that was heard of last at the end."""
        self._ended: dict[str, Run] = {}
        """The latest run of sessions that have none open."""
        self._held: dict[int, TimingRecord] = {}
        self._numbers = count()
        self._waiting: dict[Waiting, Run] = {}
        self._children: dict[str, Context] = {}
        """The spans of calls at work, by the id that a subagent's session has."""
        self._closed = False

    async def emit(self, event: Event) -> None:
        """Take in what happened."""
        run = self._open.pop(event.session_id, None)
        if event.type in _BEGIN or (run is None and event.type in _WORK):
            run = self._begin(event, run)
        if run is None:
            return
        self._open[event.session_id] = run
        before, run.last_ns = run.last_ns, max(run.last_ns, nanoseconds(event.timestamp))
        if event.type in (E.MODEL_STARTED, E.MODEL_COMPLETED, E.MODEL_ERROR):
            self._take_step(run, event, before)
        elif event.type in (E.ROUND_OPENED, E.ROUND_COMMITTED):
            run.take_round(event)
        elif event.type == E.TOOL_STARTED or event.type in _TERMINAL:
            self._take_call(run, event)
        elif event.type in _OUTCOMES:
            self._end(run, event)
        if self._held:
            self._release(run)

    async def emit_timing(self, record: TimingRecord) -> None:
        """Take in how long it took."""
        if self._place(record):
            return
        if self._closed:
            self._write(record, self._latest(record.session_id))
            return
        self._held[next(self._numbers)] = record
        if len(self._held) > MOST_HELD:
            oldest = self._held.pop(next(iter(self._held)))
            self._write(oldest, self._latest(oldest.session_id))

    async def close_timing(self) -> None:
        """Write what waits, under the best parents that are known; nothing waits any more."""
        self._closed = True
        for record in self._held.values():
            self._write(record, self._latest(record.session_id))
        self._held.clear()
        for item, run in list(self._waiting.items()):
            if run.ended or item.ended_ns is not None:
                self._finish(item)

    # Runs.

    def _latest(self, session_id: str) -> Run | None:
        return self._open.get(session_id) or self._ended.get(session_id)

    def _begin(self, event: Event, unfinished: Run | None) -> Run:
        """Begin a run. One that is still open was lost to another process, and its end is not told here."""
        if unfinished is not None:
            unfinished.finish(_UNSEEN)
            self._wait_for_late(unfinished)
        before = unfinished or self._ended.pop(event.session_id, None)
        if before is not None and before.before is not None:
            self._let_go(before.before)
            before.before = None
        run = Run.begin(self._writer, event, self._children.get(event.session_id), before)
        if len(self._open) >= MOST_RUNS:
            oldest = self._open.pop(next(iter(self._open)))
            oldest.finish(_UNSEEN)
            self._forget(oldest)
        return run

    def _end(self, run: Run, event: Event) -> None:
        outcome = _OUTCOMES[E(event.type)]
        reason, code = event.payload.get("reason"), event.payload.get("code")
        error = code_of(code) if outcome == "failed" else None
        run.finish(outcome, reason=None if reason is None else code_of(reason), error=error)
        del self._open[run.session_id]
        self._ended[run.session_id] = run
        if len(self._ended) > MOST_RUNS:
            self._forget(self._ended.pop(next(iter(self._ended))))
        for step in list(run.steps.values()):
            step.is_past = True
            self._settle(step)
        self._wait_for_late(run)

    def _wait_for_late(self, run: Run) -> None:
        """Let a run that has ended wait for its last records; the end of the loop ends the wait too."""
        if self._closed:
            self._let_go(run)
        elif run.calls or run.steps:
            run.late = asyncio.get_running_loop().create_task(asyncio.sleep(LATE_SECONDS), name="cayu late spans")
            run.late.add_done_callback(lambda _: self._let_go(run))

    def _let_go(self, run: Run) -> None:
        """Write what of a run waits, as it is."""
        items: list[Waiting] = [*run.calls.values(), *run.steps.values()]
        for item in items:
            self._finish(item)

    def _forget(self, run: Run) -> None:
        self._let_go(run)
        if run.before is not None:
            self._let_go(run.before)

    # Events of a run.

    def _take_step(self, run: Run, event: Event, before_ns: int) -> None:
        if event.type == E.MODEL_STARTED:
            if run.step is not None:
                run.step.is_past = True
                self._settle(run.step)
            known = run.steps.get(step_id_of(event))
            if known is not None:
                self._finish(known)
            self._wait(run.begin_step(self._writer, event, before_ns), run)
        elif run.step is not None and run.step.ended_ns is None:
            run.step.ended_ns = nanoseconds(event.timestamp)
            if event.type == E.MODEL_ERROR:
                run.step.error = code_of(event.payload.get("code"))
            else:
                run.take_answer(event)
            self._settle(run.step)

    def _take_call(self, run: Run, event: Event) -> None:
        call_id, at = event.payload.get("tool_call_id"), nanoseconds(event.timestamp)
        if not isinstance(call_id, str):
            return
        known = run.calls.get(call_id)
        if event.type == E.TOOL_STARTED:
            if known is not None:
                self._finish(known)
            call = run.begin_call(self._writer, call_id, event.tool_name or "", at)
            self._children[child_session_id(call_id)] = call.context
            self._wait(call, run)
        elif known is not None:
            known.ended_ns = at
            if event.type == E.EFFECT_OUTCOME_UNKNOWN:
                known.error = "outcome_unknown"
            else:
                known.error = None if event.type == E.TOOL_COMPLETED else code_of(event.payload.get("code"))
                self._settle(known)

    # What waits.

    def _wait(self, item: Waiting, run: Run) -> None:
        self._waiting[item] = run
        if len(self._waiting) > MOST_WAITING:
            self._finish(next(iter(self._waiting)))

    def _settle(self, item: Waiting) -> None:
        """Write a span if nothing more is to come."""
        if item in self._waiting and (item.is_whole or (self._closed and item.ended_ns is not None)):
            self._finish(item)

    def _finish(self, item: Waiting) -> None:
        run = self._waiting.pop(item)
        if isinstance(item, CallSpan):
            del run.calls[item.id]
            self._children.pop(child_session_id(item.id), None)
        else:
            del run.steps[item.id]
        item.finish(run.last_ns)
        if run.late is not None and not (run.calls or run.steps or run.late.get_loop().is_closed()):
            run.late.cancel()

    # Records.

    def _release(self, run: Run) -> None:
        """Place the records of a session that waited for this; a preparation waits for its step to be told of."""
        mine = [(number, record) for number, record in self._held.items() if record.session_id == run.session_id]
        for number, record in mine:
            is_due = run.ended or isinstance(record, ToolRoundTiming) or _is_over(record, run.last_ns)
            if is_due and self._place(record):
                del self._held[number]

    def _place(self, record: TimingRecord) -> bool:
        """Write a record where it belongs, if that is there."""
        run = self._latest(record.session_id)
        if run is None:
            return False
        if run.before is not None and _is_over(record, run.began_ns):
            run = run.before
        elif run.ended and nanoseconds(record.started_at) > run.last_ns:
            return False
        if isinstance(record, ToolRoundTiming) and not (run.ended or run.has_seen(record)):
            return False
        self._write(record, run)
        return True

    def _write(self, record: TimingRecord, run: Run | None) -> None:
        parent = NO_PARENT if run is None else run.context
        if isinstance(record, ToolRoundTiming):
            self._write_round(record, run, self._writer.round(record, parent))
            return
        self._writer.preparation(record, parent)
        if run is None or record.incomplete:
            return
        asked, step = nanoseconds(record.completed_at), run.steps.get(record.model_step_id)
        if step is not None:
            step.asked_ns = asked
            self._settle(step)
        elif not run.ended:
            run.asked[record.model_step_id] = asked
            if len(run.asked) > MOST_HELD:
                del run.asked[next(iter(run.asked))]

    def _write_round(self, record: ToolRoundTiming, run: Run | None, written: Context) -> None:
        for timing in record.calls:
            call = run.calls.get(timing.tool_call_id) if run is not None else None
            self._writer.phases(timing, written if call is None else call.context)
            if call is not None:
                call.timing = timing
                self._settle(call)
        step = run.steps.get(record.model_step_id) if run is not None else None
        if step is not None:
            step.answered_ns = nanoseconds(record.started_at)
            self._settle(step)


def _is_over(record: TimingRecord, moment_ns: int) -> bool:
    return nanoseconds(record.completed_at) <= moment_ns
