"""Which work of a live round stands in which phase: each is made slow by itself, on a clock that only tests move."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runtime.support import FakePolicy, FakeTool, StoreProxy, calls, make_app, new_run, play
from timing.support import TickingClock, lasting, ns, round_of, serial, slow_store, timed_app, told, took, window

from cayu import AgentSpec, CayuApp, Event, ToolEffect
from cayu.effects import EffectOutcome
from cayu.events import EventType as E
from cayu.observability import EventSink
from cayu.providers.scripted import ScriptedModelProvider
from cayu.sessions import RunLimits
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.testing import FakeClock
from cayu.timing.phases import (
    ADMISSION,
    AUTHORIZATION,
    EFFECT_STATE,
    EXECUTION,
    PUBLICATION,
    PUBLICATION_QUEUE_WAIT,
    RESULT_PROCESSING,
    ROUND_COMMIT,
    ROUND_PHASES,
    SIBLING_WAIT,
    STAGING,
    STARTED_PERSISTENCE,
    UNATTRIBUTED,
)
from cayu.tools import (
    Reconciliation,
    ReconciliationRequest,
    ToolContext,
    ToolEffectReconciler,
    ToolOutcomeUnknown,
    ToolPolicyDecision,
    ToolResult,
)

ALLOW = ToolPolicyDecision.ALLOW


class SlowSink(EventSink):
    """Takes its time with events of one type."""

    def __init__(self, clock: FakeClock, type: str, seconds: float) -> None:
        self._clock, self._type, self._seconds = clock, type, seconds

    async def emit(self, event: Event) -> None:
        if event.type == self._type:
            self._clock.advance(self._seconds)


@dataclass
class HeldReservation(StoreProxy):
    """A store whose clock, which the limits on time are held against, answers late."""

    clock: FakeClock | None = None

    async def now(self) -> int:
        assert self.clock is not None
        self.clock.advance(0.25)
        return await self.inner.now()


class SlowReconciler(ToolEffectReconciler):
    """Knows after a second that a call has acted."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        self._clock.advance(1)
        return Reconciliation(outcome=EffectOutcome.COMPLETED)


async def unsure(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    raise ToolOutcomeUnknown


@pytest.mark.requirement("A096")
async def test_every_record_of_a_run_has_the_twelve_phases_and_absent_ones_are_zero() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t", "t"), "done"], [lasting(clock, "t", 1)])
    await play(app.run(new_run()))
    record = await round_of(app)
    for part in (record, *record.calls):
        assert tuple(phase.name for phase in part.phases) == ROUND_PHASES
        assert took(part, ADMISSION) == took(part, EFFECT_STATE) == 0
    assert told(record) == {EXECUTION: 2}


@pytest.mark.requirement("A097")
async def test_work_for_the_whole_round_is_charged_to_the_round_once() -> None:
    clock = FakeClock()
    store = slow_store(clock, open=0.25, close=0.5)
    app = timed_app(clock, [calls("t", "t"), "done"], [lasting(clock, "t", 0)], store=store)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert (took(record, STARTED_PERSISTENCE), took(record, ROUND_COMMIT)) == (ns(0.25), ns(0.5))
    assert [(took(call, STARTED_PERSISTENCE), took(call, ROUND_COMMIT)) for call in record.calls] == [(0, 0)] * 2


@pytest.mark.requirement("A097")
async def test_planning_what_is_asked_of_humans_is_charged_to_the_round_once() -> None:
    """On a clock that ticks, the round has more of `authorization` than its calls have: the plan for both."""
    clock = TickingClock()
    policy = FakePolicy(lambda request: ToolPolicyDecision.REQUIRE_APPROVAL)
    app = timed_app(clock, [calls("t", "t"), "done"], [lasting(clock, "t", 0)], policy)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert took(record, AUTHORIZATION) > sum(took(call, AUTHORIZATION) for call in record.calls) > 0
    assert took(record, ROUND_COMMIT) > 0
    assert [took(call, ROUND_COMMIT) for call in record.calls] == [0, 0]


@pytest.mark.requirement("A098")
async def test_the_policy_is_authorization_at_planning_and_again_at_dispatch() -> None:
    clock = FakeClock()

    def decide(request: Any) -> ToolPolicyDecision:
        clock.advance(0.5)
        return ALLOW

    policy = FakePolicy(decide)
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)], policy)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert len(policy.asked) == 3, "the second call is dispatched later, and its policy asked again"
    assert [took(call, AUTHORIZATION) for call in record.calls] == [ns(0.5), ns(1)]
    assert took(record, AUTHORIZATION) == ns(1.5)


@pytest.mark.requirement("A112")
async def test_a_phase_that_a_call_enters_twice_has_a_window_longer_than_its_duration() -> None:
    clock = FakeClock()

    def decide(request: Any) -> ToolPolicyDecision:
        clock.advance(0.5)
        return ALLOW

    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)], FakePolicy(decide))
    await play(app.run(new_run()))
    phase = (await round_of(app)).calls[1].phase(AUTHORIZATION)
    assert (phase.duration_seconds, window(phase)) == (1.0, 2.0), "planned at 0.5, dispatched again at 2 s"


@pytest.mark.requirement("A100")
async def test_a_reservation_that_is_held_up_is_admission() -> None:
    clock = FakeClock()
    store = HeldReservation(InMemorySessionStore(), clock=clock)
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)], store=store)
    await play(app.run(new_run(limits=RunLimits(max_elapsed_seconds=1000.0))))
    record = await round_of(app)
    assert [took(call, ADMISSION) for call in record.calls] == [ns(0.25)] * 2
    assert took(record, ADMISSION) == ns(0.5)
    assert took(record, UNATTRIBUTED) == ns(0.25), "the round's own look at the store's clock"


@pytest.mark.requirement("A100", "A101", "A104")
async def test_what_is_written_counts_in_the_phase_that_it_is_written_for(tmp_path: Path) -> None:
    tool = FakeTool("t", effect=ToolEffect.EXTERNAL, parallel_safe=False)
    app = make_app(SQLiteSessionStore(tmp_path / "s.db"), [calls("t", "t"), "done"], [tool])
    await play(app.run(new_run()))
    record = await round_of(app)
    written = {phase.name: phase.store_bytes_written for phase in record.phases}
    for name in (ADMISSION, STARTED_PERSISTENCE, EFFECT_STATE, STAGING, PUBLICATION, ROUND_COMMIT):
        assert written[name] > 0, name
    assert not any(written[name] for name in (EXECUTION, RESULT_PROCESSING, SIBLING_WAIT, PUBLICATION_QUEUE_WAIT))
    for call in record.calls:
        mine = {phase.name for phase in call.phases if phase.store_bytes_written}
        assert {EFFECT_STATE, STAGING, PUBLICATION} <= mine
        assert not mine & {ADMISSION, ROUND_COMMIT}
    assert {phase.name: phase.store_transaction_count for phase in record.phases if phase.store_transaction_count} == {
        STARTED_PERSISTENCE: 1,
        STAGING: 1,
        ROUND_COMMIT: 1,
    }, "a round of two calls takes three commits"
    await app.aclose()


@pytest.mark.requirement("A101")
async def test_the_write_of_the_starts_is_started_persistence_and_so_is_its_delivery() -> None:
    clock = FakeClock()
    store = slow_store(clock, open=0.25)
    app = timed_app(
        clock,
        [calls("t", "t"), "done"],
        [serial(clock, "t", 0)],
        store=store,
        event_sinks=[SlowSink(clock, E.TOOL_STARTED, 2)],
    )
    await play(app.run(new_run()))
    record = await round_of(app)
    assert told(record)[STARTED_PERSISTENCE] == 4.25
    assert [told(call)[STARTED_PERSISTENCE] for call in record.calls] == [2, 2], "the delivery is the call's own"


@pytest.mark.requirement("A101")
async def test_intents_are_effect_state_and_so_is_finding_out() -> None:
    clock = TickingClock()
    app = CayuApp()
    app.services.clock = clock
    app.register_provider(ScriptedModelProvider([calls("sure", "unsure"), "done"]))
    tools = [
        FakeTool("sure", effect=ToolEffect.EXTERNAL, parallel_safe=False),
        FakeTool("unsure", unsure, effect=ToolEffect.EXTERNAL, parallel_safe=False),
    ]
    app.register_agent(
        AgentSpec(name="a", model="m"), tools=tools, tool_effect_reconcilers={"unsure": SlowReconciler(clock)}
    )
    events = await play(app.run(new_run()))
    assert events[-1].type == E.SESSION_COMPLETED
    sure, found_out = (await round_of(app)).calls
    assert 0 < took(sure, EFFECT_STATE) < ns(0.001)
    assert ns(1) < took(found_out, EFFECT_STATE) < ns(1.001)


async def test_a_result_that_was_found_out_is_staged_when_the_closing_begins() -> None:
    """The first call waits for its sibling until the sibling's result is there, in whatever way it came."""
    clock = FakeClock()
    app = CayuApp()
    app.services.clock = clock
    app.register_provider(ScriptedModelProvider([calls("sure", "unsure"), "done"]))
    tools = [serial(clock, "sure", 1), FakeTool("unsure", unsure, effect=ToolEffect.EXTERNAL, parallel_safe=False)]
    app.register_agent(
        AgentSpec(name="a", model="m"), tools=tools, tool_effect_reconcilers={"unsure": SlowReconciler(clock)}
    )
    await play(app.run(new_run()))
    first, second = (await round_of(app)).calls
    assert second.tool_terminal_staged_at is not None
    assert told(first) == {EXECUTION: 1, SIBLING_WAIT: 1}
    assert told(second) == {EFFECT_STATE: 1}


async def test_a_call_whose_outcome_is_not_known_has_staged_nothing() -> None:
    clock = FakeClock()
    tools = [
        FakeTool("unsure", unsure, effect=ToolEffect.EXTERNAL, parallel_safe=False),
        serial(clock, "sure", 1),
    ]
    app = timed_app(clock, [calls("unsure", "sure"), "done"], tools)
    events = await play(app.run(new_run()))
    assert events[-1].payload["reason"] == "manual_recovery"
    record = await round_of(app)
    assert record.incomplete
    unknown, ran = record.calls
    assert ran.tool_terminal_staged_at is not None
    assert (unknown.tool_terminal_staged_at, told(unknown)) == (None, {})


@pytest.mark.requirement("A102")
async def test_execution_is_the_tools_own_time() -> None:
    clock = FakeClock()
    store = slow_store(clock, open=1, stage=1, close=1)
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 0.05)], store=store)
    await play(app.run(new_run()))
    record = await round_of(app)
    [call] = record.calls
    assert took(record, EXECUTION) == took(call, EXECUTION) == ns(0.05)
    assert call.tool_effect_completed_at == call.phase(EXECUTION).last_completed_at


@pytest.mark.requirement("A102")
async def test_a_tool_that_sleeps_50_ms_executes_for_50_ms() -> None:
    async def sleeps(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(0.05)
        return ToolResult(content="slept")

    app = make_app(None, [calls("t"), "done"], [FakeTool("t", sleeps)])
    await play(app.run(new_run()))
    record = await round_of(app)
    seconds = record.phase(EXECUTION).duration_seconds
    assert 0.0499 <= seconds <= record.duration_seconds


@pytest.mark.requirement("A104")
async def test_making_a_result_what_is_kept_is_result_processing() -> None:
    clock = FakeClock()
    read: list[str] = []

    class Wordy(Exception):
        def __str__(self) -> str:
            clock.advance(0.25)
            read.append("read")
            return "many words"

    async def raises(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.advance(1)
        raise Wordy

    app = timed_app(clock, [calls("t"), "done"], [FakeTool("t", raises)])
    await play(app.run(new_run()))
    record = await round_of(app)
    assert read, "the words of the exception are what the model reads"
    assert told(record) == told(record.calls[0]) == {EXECUTION: 1, RESULT_PROCESSING: 0.25 * len(read)}


@pytest.mark.requirement("A104")
async def test_the_write_of_a_result_is_staging_of_its_call_and_so_is_its_delivery() -> None:
    clock = FakeClock()
    app = timed_app(
        clock,
        [calls("t", "t"), "done"],
        [serial(clock, "t", 0)],
        store=slow_store(clock, stage=0.5),
        event_sinks=[SlowSink(clock, E.TOOL_STAGED, 2)],
    )
    await play(app.run(new_run()))
    record = await round_of(app)
    assert [took(call, STAGING) for call in record.calls] == [ns(2.5), ns(2)], "the last one is written with the close"
    assert took(record, STAGING) == ns(4.5)
    first = record.calls[0]
    assert first.tool_terminal_staged_at is not None
    assert first.tool_effect_completed_at is not None
    assert (first.tool_terminal_staged_at - first.tool_effect_completed_at).total_seconds() == 0.5


@pytest.mark.requirement("A104")
async def test_the_delivery_of_a_calls_end_is_its_publication() -> None:
    clock = FakeClock()
    sink = SlowSink(clock, E.TOOL_COMPLETED, 2)
    app = timed_app(clock, [calls("t", "t"), "done"], [lasting(clock, "t", 0)], event_sinks=[sink])
    await play(app.run(new_run()))
    record = await round_of(app)
    assert told(record) == {PUBLICATION: 4}
    assert [told(call) for call in record.calls] == [{PUBLICATION: 2}] * 2


@pytest.mark.requirement("A110")
@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_the_wall_clock_may_be_moved_while_a_tool_runs(jump: float) -> None:
    clock = FakeClock()

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.advance(1)
        clock.jump(jump)
        clock.advance(1)
        return ToolResult(content="done")

    app = timed_app(clock, [calls("t"), "done"], [FakeTool("t", work)])
    await play(app.run(new_run()))
    record = await round_of(app)
    assert told(record) == {EXECUTION: 2}
    assert record.duration_seconds == (record.completed_at - record.started_at).total_seconds() == 2
    assert window(record.phase(EXECUTION)) == 2
