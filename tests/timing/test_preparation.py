"""The preparation of a model step: from the last round's commit in the same claim to the request to the provider."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime.support import QUICK, SESSION, StoreProxy, approval, calls, new_run, next_turn, play, types_of, waiting_ids
from timing.support import (
    TickingClock,
    consume,
    lasted,
    lasting,
    ns,
    rounds_of,
    steps_of,
    timed_app,
    told,
    took,
)

from cayu import AgentSpec, CayuApp
from cayu.budgets import BudgetLimit
from cayu.clock import as_datetime
from cayu.events import EventType as E
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.providers.scripted import ScriptedModelProvider
from cayu.runtime import drive
from cayu.runtime.log import build_event
from cayu.sessions import InterruptSessionRequest, RunLimits
from cayu.sessions.streams import StoredRecord, StreamRow, Unit
from cayu.storage import InMemorySessionStore
from cayu.testing import FakeClock
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt
from cayu.timing.phases import (
    CONTEXT_POLICY,
    COUNTING,
    HANDOFF,
    PREPARATION,
    PREPARATION_PHASES,
    RECALL,
)
from cayu.timing.session import SessionTiming
from cayu.tools import AlwaysRequireApprovalToolPolicy

BUDGET = (BudgetLimit(budget_id="account", max_tokens=1_000_000),)


def step_sum(record: Any) -> int:
    return sum(took(record, name) for name in PREPARATION_PHASES)


def asked_at(clock: FakeClock, seen: list[int], answer: list[ModelStreamEvent] | str) -> Any:
    """A batch that notes when the provider was asked."""

    def batch(request: ModelRequest) -> list[ModelStreamEvent] | str:
        seen.append(clock.now_us())
        clock.advance(7)
        return answer

    return batch


# Where it begins and ends.


@pytest.mark.requirement("A122")
async def test_a_preparation_spans_the_last_rounds_commit_and_the_request_to_the_provider() -> None:
    clock, seen = FakeClock(), list[int]()
    script = [asked_at(clock, seen, calls("t")), asked_at(clock, seen, calls("t")), asked_at(clock, seen, "done")]
    app = timed_app(clock, script, [lasting(clock, "t", 1)])
    await consume(app.run(new_run()), clock, 0.5)
    steps, rounds = await steps_of(app), list(reversed(await rounds_of(app)))
    assert [step.completed_at for step in steps] == [as_datetime(moment) for moment in seen]
    assert [step.started_at for step in steps[1:]] == [record.completed_at for record in rounds]
    assert [step.after_tool_round_id for step in steps] == [None, *(record.tool_round_id for record in rounds)]
    instance = (await app.get_session(SESSION)).instance_id
    assert [step.model_step_id for step in steps] == [f"{instance}.m{number}" for number in (1, 2, 3)]
    assert [record.model_step_id for record in rounds] == [f"{instance}.m{number}" for number in (1, 2)]
    assert not any(step.incomplete for step in steps)


@pytest.mark.requirement("A122")
async def test_a_commit_of_another_run_epoch_is_not_where_it_begins() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), calls("t"), "done"], [lasting(clock, "t", 1)])
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=1))))
    first_epoch = len(await steps_of(app))
    clock.advance(9)
    await play(app.resume(next_turn()))
    first = (await steps_of(app))[first_epoch]
    assert (first.after_tool_round_id, told(first)) == (None, {})
    assert first.started_at > (await rounds_of(app))[-1].completed_at


@pytest.mark.requirement("A122")
async def test_an_application_that_goes_on_in_another_session_hands_nothing_over() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    for name in ("one", "other"):
        await play(app.run(new_run(name)))
        first, second = await steps_of(app, name)
        assert first.after_tool_round_id is None
        assert second.after_tool_round_id == (await rounds_of(app, name))[0].tool_round_id


# Its phases.


@pytest.mark.requirement("A123")
async def test_handoff_is_the_consumers_time_with_the_rounds_last_events() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    events = await consume(app.run(new_run()), clock, 2)
    _, second = await steps_of(app)
    types = types_of(events)
    last = types.index(E.ROUND_COMMITTED) - types.index(E.TOOL_STAGED) + 1
    assert told(second) == {HANDOFF: 2 * last}
    assert lasted(second) == ns(2 * last)


@pytest.mark.requirement("A123")
async def test_handoff_is_the_way_back_to_the_next_step_as_well() -> None:
    clock = TickingClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    await play(app.run(new_run()))
    first, second = await steps_of(app)
    assert took(first, HANDOFF) == 0
    assert 0 < took(second, HANDOFF) < ns(0.001)
    assert second.phase(HANDOFF).first_started_at == second.started_at


class SlowCounter(ScriptedModelProvider):
    """Counts for half a second."""

    def __init__(self, clock: FakeClock, *args: Any) -> None:
        super().__init__(*args)
        self._clock = clock

    async def count_input_tokens(self, request: ModelRequest) -> int:
        self._clock.advance(0.5)
        return 10


@pytest.mark.requirement("A124")
async def test_context_and_counting_are_measured_apart_and_preparation_is_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, made = FakeClock(), drive.model_request

    def slow_context(*args: Any) -> ModelRequest:
        clock.advance(0.25)
        return made(*args)

    async def slow_reservation(unit: Unit) -> None:
        if any(record.type == E.BUDGET_RESERVED for record in unit.records):
            clock.advance(4)

    monkeypatch.setattr(drive, "model_request", slow_context)
    app = CayuApp(session_store=StoreProxy(InMemorySessionStore(), before=slow_reservation))  # type: ignore[arg-type]
    app.services.clock = clock
    app.register_provider(SlowCounter(clock, [calls("t"), "done"]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[lasting(clock, "t", 1)])
    events = await consume(app.run(new_run(budget_limits=BUDGET)), clock, 2, lambda e: e.type == E.ROUND_COMMITTED)
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    first, second = await steps_of(app)
    assert told(first) == {CONTEXT_POLICY: 0.25, COUNTING: 0.5, PREPARATION: 4}
    assert told(second) == {HANDOFF: 2, CONTEXT_POLICY: 0.25, COUNTING: 0.5, PREPARATION: 4}
    assert step_sum(second) == lasted(second)


@pytest.mark.requirement("A124")
async def test_the_phases_of_a_step_add_up_apart_from_the_consumers_time() -> None:
    clock = TickingClock()
    app = CayuApp()
    app.services.clock = clock
    app.register_provider(SlowCounter(clock, [calls("t"), "done"]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[lasting(clock, "t", 1)])
    await consume(app.run(new_run(budget_limits=BUDGET)), clock, 3, lambda e: e.type == E.MODEL_STARTED)
    for step in await steps_of(app):
        assert lasted(step) - step_sum(step) == ns(3) + 1000, "the start is durable before the provider is asked"
        assert took(step, CONTEXT_POLICY) > 0
        assert took(step, PREPARATION) > 0


@pytest.mark.requirement("A124")
def test_recall_is_measured_apart() -> None:
    clock, kept = FakeClock(), list[Attempt]()
    timing = SessionTiming(clock, 128, kept.append)
    timing.attach("s", "i")
    timing.begin_step(1)
    clock.advance(0.5)
    with timing.within(CONTEXT_POLICY, None):
        clock.advance(1)
        with timing.within(RECALL, None):
            clock.advance(2)
        clock.advance(4)
    with timing.within(COUNTING, None):
        clock.advance(8)
    timing.asked()
    [attempt] = kept
    assert told(record_of(attempt)) == {CONTEXT_POLICY: 5, RECALL: 2, COUNTING: 8, PREPARATION: 0.5}
    with timing.within(RECALL, None):
        clock.advance(1)
    assert record_of(attempt).duration_seconds == 15.5


# A commit is used once.


def committed_round(timing: SessionTiming, clock: FakeClock, step: int) -> str:
    """Play a round to its commit; return its id."""
    timing.begin_round(f"i.r{step}", step)
    clock.advance(1)
    row = StreamRow("s", "i", "a", "p", "m")
    timing.delivered([build_event(row, StoredRecord(1, E.ROUND_COMMITTED, 0, b"{}"))])
    return f"i.r{step}"


@pytest.mark.requirement("A125")
def test_a_commit_serves_one_handoff() -> None:
    """A repair of structured output asks again with no round in between: it starts at its own preparation."""
    clock, kept = FakeClock(), list[Attempt]()
    timing = SessionTiming(clock, 128, kept.append)
    timing.attach("s", "i")
    opened = committed_round(timing, clock, 1)
    clock.advance(2)
    for _ in range(2):
        timing.begin_step(2)
        clock.advance(0.5)
        timing.asked()
        clock.advance(4)
    _, served, repair = map(record_of, kept)
    assert told(served) == {HANDOFF: 2, PREPARATION: 0.5}
    assert told(repair) == {PREPARATION: 0.5}
    assert (kept[1].round_id, kept[2].round_id) == (opened, None)
    assert repair.started_at > served.completed_at


@pytest.mark.requirement("A125")
async def test_the_first_step_starts_at_its_own_preparation() -> None:
    clock = FakeClock()
    app = timed_app(clock)
    await consume(app.run(new_run()), clock, 2)
    [step] = await steps_of(app)
    assert (step.after_tool_round_id, step.phase(HANDOFF).first_started_at, lasted(step)) == (None, None, 0)


async def test_a_step_that_asks_nobody_is_incomplete() -> None:
    """Its budget is spent: the commit it comes after is used up all the same."""
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    limits = (BudgetLimit(budget_id="account", max_tokens=4500),)
    events = await play(app.run(new_run(budget_limits=limits)))
    assert E.SESSION_LIMIT_REACHED in types_of(events)
    steps = await steps_of(app)
    assert steps[-1].incomplete
    assert not any(step.incomplete for step in steps[:-1])


async def test_a_step_that_the_number_of_steps_forbids_is_incomplete() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    await play(app.run(new_run(max_steps=1)))
    assert [step.incomplete for step in await steps_of(app)] == [False, True]


async def test_a_pause_is_no_commit_of_a_round() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], AlwaysRequireApprovalToolPolicy())
    await play(app.run(new_run()))
    assert len(await steps_of(app)) == 1
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    assert [step.after_tool_round_id is None for step in await steps_of(app)] == [True, False]


class HangingCounter(ScriptedModelProvider):
    """Counts without end, or fails at it."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(["done"])
        self.entered, self._error = asyncio.Event(), error

    async def count_input_tokens(self, request: ModelRequest) -> int:
        self.entered.set()
        if self._error is not None:
            raise self._error
        await asyncio.sleep(30)
        return 0


@pytest.mark.parametrize("error", [None, ValueError("no count")], ids=["interrupted", "failed"])
async def test_a_step_that_is_stopped_while_it_counts_is_incomplete(error: Exception | None) -> None:
    provider = HangingCounter(error)
    app = CayuApp(config=QUICK)
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"))
    running = asyncio.create_task(play(app.run(new_run(budget_limits=BUDGET))))
    await provider.entered.wait()
    if error is None:
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await running
    [step] = await steps_of(app)
    assert (step.incomplete, await rounds_of(app)) == (True, ())
    assert took(step, COUNTING) > 0
