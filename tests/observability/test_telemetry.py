"""Runs as OpenTelemetry traces: which spans there are, under which parents, between which moments."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode
from runtime.support import (
    QUICK,
    SESSION,
    FakePolicy,
    FakeTool,
    approval,
    calls,
    make_app,
    new_run,
    next_turn,
    play,
    waiting_ids,
)

from cayu import AgentSpec, CayuApp, Event, RunLimits, SQLiteSessionStore, ToolEffect
from cayu.clock import as_datetime, as_microseconds
from cayu.events import EventType as E
from cayu.observability import InMemoryEventSink, ModelStepPreparationTiming, TimingRecord, ToolRoundTiming
from cayu.observability import spans as names
from cayu.observability import telemetry as telemetry_module
from cayu.observability.telemetry import MOST_HELD, OpenTelemetryEventSink
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.sessions import InterruptSessionRequest
from cayu.testing import SlowSQLiteSessionStore
from cayu.timing.phases import PREPARATION_PHASES, ROUND_PHASES
from cayu.tools import AlwaysRequireApprovalToolPolicy, SubagentTool, ToolContext, ToolPolicyDecision, ToolResult

CANARY = "canary-7f3a"


class Traces:
    """What a sink exports."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = OpenTelemetryEventSink(self.provider, **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def only(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        [found] = [each for each in self.spans if each.context.span_id == span.parent.span_id]
        assert found.context.trace_id == span.context.trace_id
        return found

    def path(self, span: ReadableSpan | None) -> str:
        """The names from the root down to a span."""
        return "" if span is None else f"{self.path(self.parent(span))}/{span.name}"

    @property
    def tree(self) -> Counter[str]:
        """How often each path occurs."""
        return Counter(self.path(span) for span in self.spans)

    def pictures(self) -> list[Any]:
        """All that matters of all spans, in an order that does not depend on when they were written."""
        return sorted((self.path(span), *picture(span)) for span in self.spans)


def picture(span: ReadableSpan) -> tuple[Any, ...]:
    """A span's bounds, attributes and events."""
    told = [(event.name, event.timestamp, sorted(dict(event.attributes or {}).items())) for event in span.events]
    return span.start_time, span.end_time, str(span.status.status_code), attributes(span), told


def attributes(span: ReadableSpan) -> list[tuple[str, Any]]:
    return sorted(dict(span.attributes or {}).items(), key=lambda each: each[0])


def of(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def moments(span: ReadableSpan) -> dict[str, int]:
    return {event.name: event.timestamp for event in span.events}


def ns(moment: datetime | None) -> int:
    assert moment is not None
    return as_microseconds(moment) * 1000


@dataclass
class News:
    """What one application told its sinks: events in their order, and records in theirs."""

    events: list[Event] = field(default_factory=list)
    records: list[TimingRecord] = field(default_factory=list)

    @property
    def rounds(self) -> list[ToolRoundTiming]:
        return [record for record in self.records if isinstance(record, ToolRoundTiming)]

    @property
    def preparations(self) -> list[ModelStepPreparationTiming]:
        return [record for record in self.records if isinstance(record, ModelStepPreparationTiming)]


async def told(traces: Traces, news: Iterable[Event | TimingRecord]) -> Traces:
    """Tell a sink all of it."""
    for each in news:
        await (traces.sink.emit(each) if isinstance(each, Event) else traces.sink.emit_timing(each))
    return traces


def changed(event: Event, **fields: Any) -> Event:
    """The same event but for some fields."""
    return Event(**{**event.model_dump(), **fields})


def elsewhere(record: ToolRoundTiming, session_id: str) -> ToolRoundTiming:
    """The same record in another session."""
    own = tuple(call.model_copy(update={"session_id": session_id}) for call in record.calls)
    return record.model_copy(update={"session_id": session_id, "calls": own})


@asynccontextmanager
async def observed(traces: Traces, *args: Any, **options: Any) -> AsyncIterator[tuple[CayuApp, News]]:
    """An application that tells the traces' sink, and keeps what it told."""
    kept = InMemoryEventSink()
    async with make_app(*args, event_sinks=[kept, traces.sink], **options) as app:
        yield app, News(kept.events, kept.timings)


async def slowly(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(0.01)
    return ToolResult(content="slow")


async def news_of(shape: str) -> News:
    """What a real run tells: one round of two calls, or two rounds with a pause in the first."""
    kept = InMemoryEventSink()
    policy = AlwaysRequireApprovalToolPolicy() if shape == "approved" else None
    tools = [FakeTool("look", slowly, parallel_safe=shape != "serial"), FakeTool("send", slowly)]
    batches = [calls("look", "send"), calls("send"), "done"] if shape == "serial" else [calls("look", "send"), "done"]
    async with make_app(None, batches, tools, policy, event_sinks=[kept]) as app:
        await play(app.run(new_run()))
        for waiting in await waiting_ids(app):
            await asyncio.sleep(0.002)
            await play(app.resolve_tool_approval(approval(waiting)))
        await app.flush_runtime_timing()
    return News(kept.events, kept.timings)


# The tree of real runs.


@pytest.mark.requirement("A146")
async def test_a_run_is_one_trace_of_its_steps_rounds_preparations_and_calls() -> None:
    traces = Traces(provider_name="scripted")
    tools = [FakeTool("look", parallel_safe=False), FakeTool("send", parallel_safe=False)]
    batches = [calls("look", "send"), calls("send"), "done"]
    async with observed(traces, None, batches, tools) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
        assert traces.tree == {
            "/invoke_agent a": 1,
            "/invoke_agent a/chat m": 3,
            "/invoke_agent a/cayu.model.preparation": 3,
            "/invoke_agent a/cayu.tool.round": 2,
            "/invoke_agent a/execute_tool look": 1,
            "/invoke_agent a/execute_tool send": 2,
            "/invoke_agent a/execute_tool look/cayu.tool.phases": 1,
            "/invoke_agent a/execute_tool send/cayu.tool.phases": 2,
        }
        for records, name in ((news.rounds, "cayu.tool.round"), (news.preparations, "cayu.model.preparation")):
            bounds = [(ns(record.started_at), ns(record.completed_at)) for record in records]
            assert [(span.start_time, span.end_time) for span in traces.named(name)] == bounds
    assert len({span.context.trace_id for span in traces.spans}) == 1


@pytest.mark.requirement("A146")
async def test_each_phases_span_stands_under_the_span_of_its_own_call() -> None:
    traces = Traces()
    async with observed(traces, None, [calls("look", "look", "look"), "done"], [FakeTool("look", slowly)]) as (app, _):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    phases = traces.named("cayu.tool.phases")
    assert len({of(span, names.CALL) for span in phases}) == 3
    for span in phases:
        parent = traces.parent(span)
        assert parent is not None
        assert (parent.name, of(parent, names.CALL)) == ("execute_tool look", of(span, names.CALL))


async def test_attributes_are_those_of_the_conventions() -> None:
    traces = Traces(provider_name="scripted")
    answer = [
        *calls("look"),
        ModelStreamEvent.completed("tool_calls", usage={"input_tokens": 7, "output_tokens": 3}),
    ]
    final = [
        ModelStreamEvent.text_delta("done"),
        ModelStreamEvent.completed("stop", usage={"input_tokens": 20, "output_tokens": 5}),
    ]
    async with observed(traces, None, [answer, final], [FakeTool("look")]) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    agent, tool = traces.only("invoke_agent a"), traces.only("execute_tool look")
    first, last = traces.named("chat m")
    shared = {gen_ai.GEN_AI_PROVIDER_NAME: "scripted", gen_ai.GEN_AI_AGENT_NAME: "a"}
    shared |= {gen_ai.GEN_AI_CONVERSATION_ID: SESSION, gen_ai.GEN_AI_REQUEST_MODEL: "m"}
    assert dict(agent.attributes or {}) == shared | {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.INVOKE_AGENT.value,
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: 27,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: 8,
        "cayu.run.outcome": "completed",
    }
    [round_record] = news.rounds
    assert dict(first.attributes or {}) == shared | {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.CHAT.value,
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: 7,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: 3,
        gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: ("tool_calls",),
        "cayu.model.step.id": round_record.model_step_id,
    }
    assert of(last, gen_ai.GEN_AI_RESPONSE_FINISH_REASONS) == ("stop",)
    assert dict(tool.attributes or {}) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.EXECUTE_TOOL.value,
        gen_ai.GEN_AI_TOOL_NAME: "look",
        gen_ai.GEN_AI_TOOL_CALL_ID: round_record.calls[0].tool_call_id,
        gen_ai.GEN_AI_CONVERSATION_ID: SESSION,
    }
    assert [span.kind for span in (agent, first, tool)] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]


async def test_a_chat_span_runs_from_the_request_to_the_answer() -> None:
    traces = Traces()
    async with observed(traces, None, [calls("look"), "done"], [FakeTool("look")]) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    first, last = traces.named("chat m")
    asked = [ns(record.completed_at) for record in news.preparations]
    assert (first.start_time, first.end_time) == (asked[0], ns(news.rounds[0].started_at))
    completed = [event for event in news.events if event.type == E.MODEL_COMPLETED]
    assert (last.start_time, last.end_time) == (asked[1], max(asked[1], ns(completed[1].timestamp)))


async def test_without_timing_a_chat_span_lies_between_the_commits_around_it() -> None:
    news = await news_of("parallel")
    traces = await told(Traces(), news.events)
    await traces.sink.close_timing()
    first, last = traces.named("chat m")
    at = {event.type: ns(event.timestamp) for event in news.events}
    answered = [ns(event.timestamp) for event in news.events if event.type == E.MODEL_COMPLETED]
    assert (first.start_time, first.end_time) == (at[E.SESSION_STARTED], answered[0])
    assert (last.start_time, last.end_time) == (at[E.ROUND_COMMITTED], answered[1])
    for span in (traces.only("execute_tool look"), traces.only("execute_tool send")):
        assert span.end_time == at[E.TOOL_COMPLETED]
        assert not span.events


async def test_a_paused_run_ends_at_the_pause_and_its_continuation_is_a_linked_trace() -> None:
    traces = Traces()
    async with observed(
        traces, None, [calls("look"), "done"], [FakeTool("look")], AlwaysRequireApprovalToolPolicy()
    ) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
        [paused] = traces.named("invoke_agent a")
        assert (of(paused, names.OUTCOME), of(paused, names.REASON)) == ("interrupted", "awaiting_human")
        assert traces.tree["/invoke_agent a/cayu.tool.round/cayu.tool.phases"] == 1
        assert traces.tree["/invoke_agent a/chat m"] == 1
        [waiting] = await waiting_ids(app)
        await play(app.resolve_tool_approval(approval(waiting)))
        await app.flush_runtime_timing()
        turning = (E.SESSION_INTERRUPTED, E.SESSION_RESUMED)
        pause, resumed = (ns(event.timestamp) for event in news.events if event.type in turning)
    assert paused.end_time == pause
    first, second = traces.named("invoke_agent a")
    assert second.start_time == resumed
    assert (first.context.trace_id != second.context.trace_id, second.parent) == (True, None)
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert traces.parent(traces.only("execute_tool look")) is second
    by_run = [traces.parent(span) for span in traces.named("cayu.tool.round")]
    assert by_run == [first, second]
    assert [of(span, names.INCOMPLETE) for span in traces.named("cayu.tool.round")] == [True, False]


async def test_a_call_that_is_refused_has_no_span_and_an_invented_name_appears_nowhere() -> None:
    traces = Traces()
    policy = FakePolicy(
        lambda asked: ToolPolicyDecision.DENY if asked.tool_name == "send" else ToolPolicyDecision.ALLOW
    )
    tools = [FakeTool("look"), FakeTool("send")]
    async with observed(traces, None, [calls("look", "send", CANARY), "done"], tools, policy) as (app, _):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
        assert traces.tree["/invoke_agent a/execute_tool look/cayu.tool.phases"] == 1
        assert traces.tree["/invoke_agent a/cayu.tool.round/cayu.tool.phases"] == 2
        assert not traces.named("execute_tool send")
    assert CANARY not in everything(traces)


async def test_a_failed_run_and_a_failed_call_say_so_with_codes() -> None:
    traces = Traces()

    async def fail(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise ValueError(CANARY)

    broken = [ModelStreamEvent(kind="error", payload={"code": f"{CANARY} and more words"})]
    async with observed(traces, None, [calls("look"), broken], [FakeTool("look", fail)]) as (app, _):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    agent, tool = traces.only("invoke_agent a"), traces.only("execute_tool look")
    _, chat = traces.named("chat m")
    assert [span.status.status_code for span in (agent, tool, chat)] == [StatusCode.ERROR] * 3
    assert [of(span, error_attributes.ERROR_TYPE) for span in (agent, tool, chat)] == [
        *("provider_failed", "raised"),
        error_attributes.ErrorTypeValues.OTHER.value,
    ]
    assert of(agent, names.OUTCOME) == "failed"
    assert [span.status.description for span in traces.spans] == [None] * len(traces.spans)
    assert CANARY not in everything(traces)


@pytest.mark.parametrize("external", [False, True])
async def test_an_interrupted_run_exports_its_cut_off_call(external: bool) -> None:
    traces = Traces()

    async def forever(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    tool = FakeTool("look", forever, effect=ToolEffect.EXTERNAL if external else ToolEffect.NONE)
    async with observed(traces, None, [calls("look"), "done"], [tool], config=QUICK) as (app, news):
        running = asyncio.create_task(play(app.run(new_run())))
        await tool.entered.wait()
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
        await running
        await app.flush_runtime_timing()
        span = traces.only("execute_tool look")
    agent = traces.only("invoke_agent a")
    assert of(agent, names.OUTCOME) == "interrupted"
    assert of(span, names.ERROR) == ("outcome_unknown" if external else "lost")
    assert span.end_time == agent.end_time == ns(news.events[-1].timestamp)
    assert traces.tree["/invoke_agent a/execute_tool look/cayu.tool.phases"] == 1
    assert of(traces.only("cayu.tool.round"), names.INCOMPLETE) is True


async def test_the_trace_goes_on_from_the_span_that_is_current() -> None:
    traces = Traces()
    async with observed(traces, None) as (app, _):
        with traces.provider.get_tracer("caller").start_as_current_span("request"):
            await play(app.run(new_run()))
        await app.flush_runtime_timing()
    assert traces.tree == {
        "/request": 1,
        "/request/invoke_agent a": 1,
        "/request/invoke_agent a/chat m": 1,
        "/request/invoke_agent a/cayu.model.preparation": 1,
    }


async def test_a_subagents_run_stands_below_the_call_that_asked_for_it() -> None:
    traces = Traces()

    def script(request: Any) -> Any:
        return [ModelStreamEvent.tool_call("ask_b", {"task": "do"}, "p")] if request.model == "boss" else "child"

    app = CayuApp(event_sinks=[traces.sink])
    app.register_provider(ScriptedModelProvider([script, "done"]))
    app.register_agent(AgentSpec(name="a", model="boss"), tools=[SubagentTool("b")])
    app.register_agent(AgentSpec(name="b", model="worker"))
    async with app:
        await play(app.run(new_run()))
    assert traces.tree["/invoke_agent a/execute_tool ask_b/invoke_agent b/chat worker"] == 1
    assert traces.tree["/invoke_agent a/execute_tool ask_b/cayu.tool.phases"] == 1


async def test_a_session_that_goes_on_after_a_crash_has_a_trace_though_nothing_begins_it() -> None:
    """A recovery writes neither `session.started` nor `session.resumed`, and prepares a step before it tells of any."""
    news = await news_of("serial")
    first = next(index for index, event in enumerate(news.events) if event.type == E.ROUND_COMMITTED)
    left = news.events[first + 1 :]
    assert left[0].type == E.MODEL_STARTED
    traces = await told(Traces(), news.preparations[1:2])
    assert not traces.spans
    await told(traces, [*left, *news.rounds[1:], *news.preparations[2:]])
    assert traces.tree["/invoke_agent a/cayu.model.preparation"] == 2
    assert traces.tree["/invoke_agent a/execute_tool send/cayu.tool.phases"] == 1


# Bounds and costs.


@pytest.mark.requirement("A147")
async def test_a_phases_span_outlasts_its_parent_and_tells_times_and_costs(tmp_path: Path) -> None:
    traces = Traces()
    store = SlowSQLiteSessionStore(tmp_path / "slow.db", commit_seconds=0.02)
    tools = [FakeTool("look", slowly, parallel_safe=False), FakeTool("send", slowly, parallel_safe=False)]
    async with observed(traces, store, [calls("look", "send"), "done"], tools) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    [record] = news.rounds
    for timing, tool, span in zip(
        record.calls,
        (traces.only("execute_tool look"), traces.only("execute_tool send")),
        traces.named("cayu.tool.phases"),
        strict=True,
    ):
        seen = [phase for phase in timing.phases if phase.first_started_at is not None]
        assert span.start_time == min(ns(phase.first_started_at) for phase in seen)
        assert span.end_time == max(ns(phase.last_completed_at) for phase in seen)
        assert span.start_time < (tool.start_time or 0)
        assert span.end_time > (tool.end_time or 0)
        assert [event.name for event in span.events] == [f"cayu.phase.{phase.name}" for phase in seen]
        for event, phase in zip(span.events, seen, strict=True):
            assert event.timestamp == ns(phase.first_started_at)
            assert dict(event.attributes or {}) == {
                "cayu.phase.name": phase.name,
                "cayu.phase.duration_seconds": phase.duration_seconds,
                "cayu.phase.store_transaction_count": phase.store_transaction_count,
                "cayu.phase.store_lock_wait_seconds": phase.store_lock_wait_seconds,
                "cayu.phase.store_execution_seconds": phase.store_execution_seconds,
                "cayu.phase.store_commit_seconds": phase.store_commit_seconds,
                "cayu.phase.store_bytes_written": phase.store_bytes_written,
            }
    staging = [event for event in traces.named("cayu.tool.phases")[0].events if event.name == "cayu.phase.staging"]
    assert [(event.attributes or {})["cayu.phase.store_commit_seconds"] >= 0.02 for event in staging] == [True]  # type: ignore[operator]


async def test_rounds_and_preparations_tell_their_own_phases() -> None:
    news = await news_of("parallel")
    traces = await told(Traces(), [*news.events, *news.records])
    for record, span, known in (
        (news.rounds[0], traces.only("cayu.tool.round"), ROUND_PHASES),
        (news.preparations[1], traces.named("cayu.model.preparation")[1], PREPARATION_PHASES),
    ):
        seen = [phase for phase in record.phases if phase.first_started_at is not None]
        assert {phase.name for phase in seen} <= set(known)
        assert moments(span) == {f"cayu.phase.{phase.name}": ns(phase.first_started_at) for phase in seen}
        assert len(seen) > 2


async def test_a_call_of_which_nothing_was_observed_has_no_phases_span() -> None:
    news = await news_of("parallel")
    [record] = news.rounds
    bare = [phase.model_copy(update={"first_started_at": None, "last_completed_at": None}) for phase in record.phases]
    first, second = record.calls
    unseen = record.model_copy(update={"calls": (first.model_copy(update={"phases": tuple(bare)}), second)})
    traces = await told(Traces(), [*news.events, unseen])
    assert len(traces.named("cayu.tool.phases")) == 1


@pytest.mark.requirement("A148")
async def test_a_tool_span_ends_with_the_effect_and_tells_of_what_came_after_it(tmp_path: Path) -> None:
    traces = Traces()
    store = SlowSQLiteSessionStore(tmp_path / "slow.db", commit_seconds=0.02)
    tools = [FakeTool("look", slowly), FakeTool("send", slowly)]
    async with observed(traces, store, [calls("look", "send"), "done"], tools) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    [record] = news.rounds
    started = {event.tool_name: ns(event.timestamp) for event in news.events if event.type == E.TOOL_STARTED}
    ended = {event.tool_name: ns(event.timestamp) for event in news.events if event.type == E.TOOL_COMPLETED}
    for timing in record.calls:
        span = traces.only(f"execute_tool {timing.tool_name}")
        completed = ns(timing.tool_effect_completed_at)
        assert (span.start_time, span.end_time) == (started[timing.tool_name], completed)
        assert moments(span) == {
            "cayu.tool.effect_completed": completed,
            "cayu.tool.terminal_staged": ns(timing.tool_terminal_staged_at),
            "cayu.tool.publication_started": ns(timing.tool_terminal_publication_started_at),
        }
        assert completed < moments(span)["cayu.tool.terminal_staged"]
        assert completed < moments(span)["cayu.tool.publication_started"]
        assert completed < ended[timing.tool_name]


@pytest.mark.requirement("A148")
@pytest.mark.parametrize("ending", ["limit", "interrupted"])
async def test_it_does_so_for_a_round_whose_record_comes_after_the_session_has_ended(ending: str) -> None:
    """The commit that closes the round ends the session too, and its record is made after that."""
    traces = Traces()
    entered = asyncio.Event()

    async def second(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        entered.set()
        await asyncio.sleep(0 if ending == "limit" else 60)
        return ToolResult(content="second")

    tools = [FakeTool("look", slowly), FakeTool("send", second, parallel_safe=False)]
    limits = RunLimits(max_tool_calls=1) if ending == "limit" else RunLimits()
    async with observed(traces, None, [calls("look", "send"), "done"], tools, config=QUICK) as (app, news):
        running = asyncio.create_task(play(app.run(new_run(limits=limits))))
        if ending == "interrupted":
            await entered.wait()
            await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
        await running
        await app.flush_runtime_timing()
        assert of(traces.only("invoke_agent a"), names.OUTCOME) == "interrupted"
        span = traces.only("execute_tool look")
        completed = ns(news.rounds[0].calls[0].tool_effect_completed_at)
    assert span.end_time == completed
    assert set(moments(span)) == {names.EFFECT_COMPLETED, names.TERMINAL_STAGED, names.PUBLICATION_STARTED}


# Orders.


def merged(news: News, seed: int) -> list[Event | TimingRecord]:
    """The events in their order, with the records anywhere between them in any order.

    A continuation's records come at the earliest with the continuation: an open run takes what preparations come.
    """
    chance = random.Random(seed)
    records = list(news.records)
    chance.shuffle(records)
    order: list[Event | TimingRecord] = list(news.events)
    for record in records:
        resumed = [each for each in order if isinstance(each, Event) and each.type == E.SESSION_RESUMED]
        is_later = bool(resumed) and record.completed_at > resumed[0].timestamp
        order.insert(chance.randrange(order.index(resumed[0]) + 1 if is_later else 0, len(order) + 1), record)
    return order


@pytest.mark.requirement("A149")
@pytest.mark.parametrize("shape", ["serial", "parallel", "approved"])
async def test_the_trace_is_the_same_in_whatever_order_the_news_arrive(shape: str) -> None:
    news = await news_of(shape)
    usual = await told(Traces(), [*news.events, *news.records])
    reversed_ = await told(Traces(), [*reversed(news.records), *news.events])
    assert len(usual.spans) > 8
    assert {span.name for span in usual.spans if span.parent is None} == {"invoke_agent a"}
    assert reversed_.pictures() == usual.pictures()
    for seed in range(30):
        traces = await told(Traces(), merged(news, seed))
        assert traces.pictures() == usual.pictures(), seed


@pytest.mark.requirement("A149")
async def test_a_record_waits_for_the_span_of_its_call() -> None:
    news = await news_of("parallel")
    before = [event for event in news.events if event.type in (E.SESSION_STARTED, E.MODEL_STARTED, E.MODEL_COMPLETED)]
    started = [event for event in news.events if event.type == E.TOOL_STARTED]
    traces = await told(Traces(), [*before[:3], news.rounds[0], started[0]])
    assert not traces.named("cayu.tool.round")
    await told(traces, started[1:])
    assert len(traces.named("cayu.tool.round")) == 1
    assert len(traces.named("cayu.tool.phases")) == 2
    assert not traces.named("execute_tool look")
    await told(traces, [event for event in news.events if event.type == E.TOOL_COMPLETED])
    assert set(moments(traces.only("execute_tool look"))) >= {names.EFFECT_COMPLETED}


@pytest.mark.requirement("A149")
async def test_a_record_waits_until_the_session_ends() -> None:
    news = await news_of("parallel")
    silent = [event for event in news.events if event.type not in (E.TOOL_STARTED, E.ROUND_COMMITTED)]
    traces = await told(Traces(), [silent[0], news.rounds[0], *silent[1:-1]])
    assert not traces.named("cayu.tool.round")
    await told(traces, silent[-1:])
    assert traces.tree["/invoke_agent a/cayu.tool.round/cayu.tool.phases"] == 2


@pytest.mark.requirement("A149")
async def test_no_more_than_a_thousand_records_wait() -> None:
    news = await news_of("parallel")
    unknown = [elsewhere(news.rounds[0], f"s{n}") for n in range(MOST_HELD)]
    traces = await told(Traces(), unknown)
    assert not traces.spans
    await told(traces, [news.rounds[0]])
    assert [of(span, names.CONVERSATION) for span in traces.named("cayu.tool.round")] == ["s0"]
    begun = changed(news.events[0], session_id="s1")
    await told(traces, [begun, elsewhere(news.rounds[0], "other")])
    assert [of(span, names.CONVERSATION) for span in traces.named("cayu.tool.round")] == ["s0", "s1"]
    assert [span.parent is None for span in traces.named("cayu.tool.round")] == [True, False]
    await traces.sink.close_timing()
    assert len(traces.named("cayu.tool.round")) == MOST_HELD + 2


@pytest.mark.requirement("A150")
async def test_closing_exports_what_is_held_under_the_best_parent_that_is_known() -> None:
    news = await news_of("parallel")
    [record] = news.rounds
    stranger = elsewhere(record, "unheard of")
    one_started = [event for event in news.events if event.type in (E.SESSION_STARTED, E.TOOL_STARTED)][:2]
    traces = await told(Traces(), [*one_started, record, stranger])
    assert not traces.spans
    await traces.sink.close_timing()
    known, unknown = sorted(traces.named("cayu.tool.round"), key=lambda span: span.parent is None)
    assert known.parent is not None
    assert unknown.parent is None
    phases = traces.named("cayu.tool.phases")
    below = Counter((of(span, names.CONVERSATION), span.parent.span_id) for span in phases if span.parent)
    assert below[SESSION, known.context.span_id] == 1
    assert below["unheard of", unknown.context.span_id] == 2
    assert sum(below.values()) == 4
    late = await told(traces, [elsewhere(record, "later still")])
    assert len(late.named("cayu.tool.round")) == 3
    await told(traces, [event for event in news.events if event.type == E.TOOL_COMPLETED])
    assert len(traces.named("execute_tool look")) == 1


@pytest.mark.requirement("A150")
async def test_the_application_closes_the_timing_of_its_sinks() -> None:
    traces = Traces()
    async with observed(traces, None, [calls("look"), "done"], [FakeTool("look")]) as (app, news):
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
        await traces.sink.emit_timing(elsewhere(news.rounds[0], "unheard of"))
        assert len(traces.named("cayu.tool.round")) == 1
        await app.close_runtime_timing()
        assert len(traces.named("cayu.tool.round")) == 2


@pytest.mark.requirement("A151")
async def test_a_call_whose_tool_span_never_comes_stays_under_its_round() -> None:
    news = await news_of("parallel")
    lost = [event for event in news.events if not (event.type == E.TOOL_STARTED and event.tool_name == "send")]
    for order in ([*lost, *news.records], [*news.records, *lost]):
        traces = await told(Traces(), order)
        assert traces.tree["/invoke_agent a/cayu.tool.round/cayu.tool.phases"] == 1
        assert traces.tree["/invoke_agent a/execute_tool look/cayu.tool.phases"] == 1
        assert not traces.named("execute_tool send")
        assert {span.name for span in traces.spans if span.parent is None} == {"invoke_agent a"}


async def test_a_record_with_a_refused_call_waits_no_longer_than_for_the_rounds_receipt() -> None:
    kept = InMemoryEventSink()
    async with make_app(None, [calls("look", "no such tool"), "done"], [FakeTool("look")], event_sinks=[kept]) as app:
        await play(app.run(new_run()))
        await app.flush_runtime_timing()
    news = News(kept.events, kept.timings)
    receipt = next(index for index, event in enumerate(news.events) if event.type == E.ROUND_COMMITTED)
    traces = await told(Traces(), [news.rounds[0], *news.events[:receipt]])
    assert not traces.spans
    await told(traces, [news.events[receipt]])
    assert {span.name for span in traces.spans} == {"cayu.tool.round", "cayu.tool.phases", "execute_tool look"}


async def test_an_effect_that_seems_older_than_its_start_takes_no_time() -> None:
    """The start is told by the store's clock, and the effect by this machine's."""
    news = await news_of("parallel")
    start = next(event.timestamp for event in news.events if event.type == E.TOOL_STARTED)
    early = {"tool_effect_completed_at": start - timedelta(seconds=1)}
    ahead = tuple(call.model_copy(update=early) for call in news.rounds[0].calls)
    traces = await told(Traces(), [*news.events, news.rounds[0].model_copy(update={"calls": ahead})])
    span = traces.only("execute_tool look")
    assert span.start_time == span.end_time == ns(start)


async def test_a_preparation_that_asked_nobody_does_not_begin_a_chat() -> None:
    news = await news_of("parallel")
    gone = news.preparations[0].model_copy(update={"incomplete": True})
    traces = await told(Traces(), [news.events[0], gone, *news.events[1:]])
    await traces.sink.close_timing()
    assert traces.named("chat m")[0].start_time == ns(news.events[0].timestamp)


async def test_a_step_without_a_round_is_written_when_the_next_one_begins() -> None:
    news = await news_of("parallel")
    begin, started, completed = news.events[:3]
    assert (started.type, completed.type) == (E.MODEL_STARTED, E.MODEL_COMPLETED)
    following = changed(started, payload={**started.payload, "step": 2})
    traces = await told(Traces(), [begin, news.preparations[0], started, completed])
    assert not traces.named("chat m")
    await told(traces, [following])
    assert len(traces.named("chat m")) == 1


# Bounds in time and memory.


async def test_without_records_the_spans_of_calls_are_written_when_the_wait_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry_module, "LATE_SECONDS", 0.01)
    news = await news_of("parallel")
    traces = await told(Traces(), news.events)
    assert {span.name for span in traces.spans} == {"invoke_agent a"}
    await asyncio.sleep(0.05)
    assert Counter(span.name for span in traces.spans)["chat m"] == 2
    assert len(traces.spans) == 5


def test_the_end_of_the_loop_is_the_end_of_the_wait() -> None:
    traces = Traces()

    async def run() -> None:
        await told(traces, (await news_of("parallel")).events)
        assert {span.name for span in traces.spans} == {"invoke_agent a"}

    asyncio.run(run())
    assert len(traces.spans) == 5


async def test_after_closing_nothing_waits() -> None:
    news = await news_of("parallel")
    traces = Traces()
    await traces.sink.close_timing()
    await told(traces, news.events)
    assert len(traces.spans) == 5
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "cayu late spans"]


async def test_closing_writes_the_calls_of_an_open_run_that_have_ended_and_afterwards_each_as_it_ends() -> None:
    news = await news_of("parallel")
    started = [event for event in news.events if event.type in (E.SESSION_STARTED, E.TOOL_STARTED)]
    first, second = (event for event in news.events if event.type == E.TOOL_COMPLETED)
    traces = await told(Traces(), [*started, first])
    assert not traces.spans
    await traces.sink.close_timing()
    assert [span.name for span in traces.spans] == [f"execute_tool {first.tool_name}"]
    await told(traces, [second])
    assert len(traces.spans) == 2


async def test_nothing_waits_for_a_run_whose_records_are_all_there() -> None:
    news = await news_of("parallel")
    traces = await told(Traces(), news.events)
    [late] = [task for task in asyncio.all_tasks() if task.get_name() == "cayu late spans"]
    await told(traces, news.records)
    await asyncio.wait([late], timeout=1)
    assert late.cancelled()


async def test_of_a_session_with_many_runs_only_the_last_two_are_remembered() -> None:
    news, traces = await news_of("parallel"), Traces()
    for n in range(4):
        later = timedelta(seconds=n)
        kind = {"type": E.SESSION_RESUMED} if n else {}
        moved = [changed(event, timestamp=event.timestamp + later) for event in news.events]
        await told(traces, [changed(moved[0], **kind), *moved[1:]])
    latest = traces.sink._ended[SESSION]
    assert latest.before is not None
    assert latest.before.before is None
    assert set(traces.sink._waiting.values()) == {latest, latest.before}
    assert len(traces.named("execute_tool look")) == 2


async def test_preparations_of_steps_that_nothing_tells_of_are_bounded() -> None:
    news = await news_of("parallel")
    traces = await told(Traces(), news.events[:1])
    asked = [news.preparations[0].model_copy(update={"model_step_id": f"m{n}"}) for n in range(MOST_HELD + 5)]
    await told(traces, asked)
    assert len(traces.sink._open[SESSION].asked) == MOST_HELD
    assert len(traces.spans) == len(asked)


async def test_runs_that_never_end_and_calls_that_never_do_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "MOST_RUNS", 10)
    monkeypatch.setattr(telemetry_module, "MOST_WAITING", 25)
    news = await news_of("parallel")
    unended, traces = news.events[:-1], Traces()
    for n in range(50):
        await told(traces, [changed(event, session_id=f"s{n}") for event in unended])
    sink = traces.sink
    assert [len(kept) for kept in (sink._open, sink._ended, sink._waiting)] == [10, 0, 25]
    assert len(sink._children) <= 25
    agents = traces.named("invoke_agent a")
    assert sorted(of(span, names.CONVERSATION) for span in agents) == sorted(f"s{n}" for n in range(40))
    assert {of(span, names.OUTCOME) for span in agents} == {"not_observed"}
    for n in range(50):
        await told(traces, [changed(event, session_id=f"t{n}") for event in news.events])
    assert [len(kept) for kept in (sink._open, sink._ended)] == [9, 10]
    assert len(sink._waiting) <= 25


async def test_a_run_that_was_lost_to_another_process_ends_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "LATE_SECONDS", 0.01)
    news = await news_of("parallel")
    resumed = changed(
        news.events[0], type=E.SESSION_RESUMED, timestamp=news.events[-1].timestamp + timedelta(seconds=1)
    )
    traces = await told(Traces(), [*news.events[:-3], resumed])
    lost = traces.only("invoke_agent a")
    assert (of(lost, names.OUTCOME), lost.end_time) == ("not_observed", ns(news.events[-4].timestamp))
    await told(traces, news.records)
    assert traces.tree["/invoke_agent a/cayu.tool.round"] == 1
    assert len(traces.named("invoke_agent a")) == 1
    another = await told(Traces(), [*news.events[:-3], resumed])
    await asyncio.sleep(0.05)
    assert Counter(span.name for span in another.spans)["execute_tool look"] == 1


async def test_odd_events_make_no_trouble() -> None:
    traces = Traces()
    odd: list[dict[str, Any]] = [
        {},
        {"tool_call_id": 7, "step": "x", "model": 3, "usage": 5, "code": ["x"], "tool_round_id": {}, "reason": 4},
        {"tool_call_id": None, "usage": {"input_tokens": True, "output_tokens": "9"}, "finish_reason": {}},
    ]
    at = as_datetime(1_700_000_000_000_000)
    kinds = [*E, "some.later.type"]
    for kind in kinds + kinds[::-1]:
        for payload in odd:
            for sequence in (None, 1):
                named = {"id": "odd", "type": kind, "session_id": SESSION, "agent_name": ""}
                await traces.sink.emit(Event(**named, sequence=sequence, timestamp=at, payload=payload))
    await traces.sink.close_timing()
    assert {span.name for span in traces.spans} <= {"invoke_agent ", "chat"}
    assert not any(isinstance(value, list | dict) for span in traces.spans for _, value in attributes(span))


async def test_odd_orders_make_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """Any subset of the news in any order, some of them twice, ends every span once."""
    news = await news_of("approved")
    everything_told: list[Event | TimingRecord] = [*news.events, *news.records]
    with caplog.at_level(logging.WARNING):
        for seed in range(100):
            chance = random.Random(seed)
            traces = await told(Traces(), chance.choices(everything_told, k=chance.randrange(60)))
            await traces.sink.close_timing()
            assert not traces.sink._held
            assert all(not run.ended for run in traces.sink._waiting.values())
            ids = [span.context.span_id for span in traces.spans]
            assert len(ids) == len(set(ids))
            assert all((span.end_time or 0) >= (span.start_time or 0) for span in traces.spans), seed
    assert not caplog.records


# Content.


def everything(traces: Traces) -> str:
    """All that was exported, as text."""
    return "\n".join(span.to_json() for span in traces.spans)


@pytest.mark.requirement("A146")
async def test_no_content_enters_a_span(tmp_path: Path) -> None:
    traces = Traces()

    async def fail(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise ValueError(f"{CANARY} exception")

    async def answer(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        return ToolResult(content=f"{CANARY} result", structured={"a": CANARY})

    tools = [FakeTool("look", answer), FakeTool("send", fail)]
    script = [
        [ModelStreamEvent.text_delta(CANARY), *calls(("look", {"x": CANARY}), ("send", {"y": CANARY}), CANARY)],
        [ModelStreamEvent.text_delta(CANARY), ModelStreamEvent.completed(f"{CANARY} and words")],
    ]
    kept = InMemoryEventSink()
    app = CayuApp(session_store=SQLiteSessionStore(tmp_path / "s.db"), event_sinks=[kept, traces.sink])
    app.register_provider(ScriptedModelProvider(script))
    app.register_agent(AgentSpec(name="a", model="m", system_prompt=CANARY), tools=tools)
    async with app:
        await play(app.run(new_run(title=CANARY, labels={"l": CANARY}, metadata={"m": CANARY})))
        await play(app.resume(next_turn(metadata={"m": CANARY})))
    assert CANARY in str(kept.events)
    assert len(traces.named("cayu.tool.phases")) == 3
    assert CANARY not in everything(traces)


# The library.


@pytest.mark.parametrize("module", ["cayu.observability.telemetry", "cayu.observability.spans"])
def test_without_the_library_the_error_says_what_to_install(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("telemetry", "runs", "spans"):
        monkeypatch.delitem(sys.modules, f"cayu.observability.{name}", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'cayu-lab\[otel\]'"):
        import_module(module)


async def test_without_a_provider_it_uses_the_global_one() -> None:
    """Nobody has set one, so there is nothing to see, and nothing fails."""
    news = await news_of("parallel")
    sink = OpenTelemetryEventSink()
    for event in news.events:
        await sink.emit(event)
    for record in news.records:
        await sink.emit_timing(record)
    await sink.close_timing()
    assert not sink._waiting
