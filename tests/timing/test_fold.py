"""Phases from marks: what nests, overlaps, comes back or stays open, and where costs and bytes are counted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import TypeAdapter
from timing.support import lasted, ns, told, took, window

from cayu.events import EventType as E
from cayu.observability import ModelStepPreparationTiming, ToolRoundTiming
from cayu.testing import FakeClock
from cayu.testing.clocks import START
from cayu.timing.costs import StoreCost
from cayu.timing.fold import record_of
from cayu.timing.marks import STAGED, WROTE, Attempt, CallLine
from cayu.timing.phases import (
    AUTHORIZATION,
    CONSUMER,
    CONTEXT_POLICY,
    COUNTING,
    EXECUTION,
    HANDOFF,
    PREPARATION,
    PREPARATION_PHASES,
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
from cayu.timing.records import AnyTimingRecord


def begun(clock: FakeClock, *calls: str) -> Attempt:
    """An attempt at a round of these calls, whose tools are called like them."""
    attempt = Attempt(clock, ("s", "i"), 1, "i.r1", is_round=True)
    attempt.calls = [(call, call) for call in calls]
    return attempt


def step(clock: FakeClock, after: str | None = None) -> Attempt:
    return Attempt(clock, ("s", "i"), 2, after, is_round=False)


def round_record(attempt: Attempt) -> ToolRoundTiming:
    attempt.close()
    record = record_of(attempt)
    assert isinstance(record, ToolRoundTiming)
    return record


def step_record(attempt: Attempt) -> ModelStepPreparationTiming:
    attempt.close()
    record = record_of(attempt)
    assert isinstance(record, ModelStepPreparationTiming)
    return record


def spent(line: Attempt | CallLine, transactions: int, bytes_written: int = 0) -> StoreCost:
    """A unit of work that has begun in the present phase of a line, and what it has cost up to now."""
    cost = line.measure()
    assert cost is not None
    cost.transactions += transactions
    cost.bytes_written += bytes_written
    return cost


# Time.


@pytest.mark.requirement("A110")
def test_a_nested_phase_is_taken_out_of_the_one_around_it() -> None:
    clock = FakeClock()
    attempt = begun(clock, "c")
    clock.advance(1)
    with attempt.enter(STAGING, "c"):
        clock.advance(2)
        with attempt.enter(PUBLICATION, "c"):
            clock.advance(4)
            with attempt.enter(ROUND_COMMIT):
                clock.advance(8)
            clock.advance(16)
        clock.advance(32)
    clock.advance(64)
    record = round_record(attempt)
    assert told(record) == {STAGING: 34, PUBLICATION: 20, ROUND_COMMIT: 8, UNATTRIBUTED: 65}
    assert told(record.calls[0]) == {STAGING: 34, PUBLICATION: 20}
    assert record.duration_seconds == 127
    assert window(record.phase(STAGING)) == 62
    assert window(record.phase(PUBLICATION)) == 28


@pytest.mark.requirement("A112")
def test_the_window_of_a_phase_that_comes_back_is_longer_than_its_duration() -> None:
    clock = FakeClock()
    attempt = begun(clock)
    clock.advance(1)
    for _ in range(2):
        with attempt.enter(AUTHORIZATION):
            clock.advance(0.5)
        clock.advance(3)
    phase = round_record(attempt).phase(AUTHORIZATION)
    assert phase.duration_seconds == 1.0
    assert phase.first_started_at == START + timedelta(seconds=1)
    assert phase.last_completed_at == START + timedelta(seconds=5)


def test_parallel_lines_overlap_and_the_remainder_runs_only_while_nobody_is_in_a_phase() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a", "b")
    clock.advance(1)
    a, b = attempt.call_line("a", None), attempt.call_line("b", None)
    with a.within(EXECUTION):
        clock.advance(2)
        with b.within(EXECUTION):
            clock.advance(4)
        clock.advance(8)
        with attempt.enter(STAGING, "b"):
            clock.advance(16)
    clock.advance(32)
    record = round_record(attempt)
    assert told(record) == {EXECUTION: 30 + 4, STAGING: 16, UNATTRIBUTED: 33}
    assert [told(call) for call in record.calls] == [{EXECUTION: 30}, {EXECUTION: 4, STAGING: 16}]
    assert record.duration_seconds == 63
    assert window(record.phase(EXECUTION)) == 30


def test_a_line_that_is_open_at_the_end_counts_up_to_the_end() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a", "b")
    a = attempt.call_line("a", None)
    a.within(EXECUTION)
    clock.advance(1)
    attempt.enter(STAGING, "b")
    clock.advance(2)
    attempt.enter(PUBLICATION, "b")
    clock.advance(4)
    record = round_record(attempt)
    assert told(record) == {EXECUTION: 7, STAGING: 2, PUBLICATION: 4}
    assert window(record.phase(STAGING)) == 6, "the phase around the one that is entered has not ended before"
    assert record.phase(EXECUTION).last_completed_at == record.completed_at


def test_what_comes_after_the_end_is_not_looked_at() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    line = attempt.call_line("a", None)
    line.within(EXECUTION)
    clock.advance(1)
    attempt.close()
    clock.advance(5)
    line.__exit__(None, None, None)
    with line.within(RESULT_PROCESSING):
        clock.advance(5)
    attempt.note(STAGED, "a")
    record = record_of(attempt)
    assert isinstance(record, ToolRoundTiming)
    assert told(record) == {EXECUTION: 1}
    assert (record.duration_seconds, record.calls[0].tool_terminal_staged_at) == (1, None)
    assert record.calls[0].tool_effect_completed_at is None


def test_what_work_costs_that_begins_after_the_end_is_not_counted() -> None:
    """A tool that does not mind being cancelled goes on; what it does then is in no phase that was observed."""
    clock = FakeClock()
    attempt = begun(clock, "a")
    line = attempt.call_line("a", None)
    line.within(EXECUTION)
    spent(line, 1).end()
    attempt.close()
    assert line.measure() is None
    late = StoreCost()
    late.transactions = 5
    line.take(late)
    record = record_of(attempt)
    assert record.phase(EXECUTION).store_transaction_count == 1


@pytest.mark.requirement("A110")
@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_the_wall_clock_may_be_moved_meanwhile(jump: float) -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    with attempt.enter(AUTHORIZATION, "a"):
        clock.advance(1)
        clock.jump(jump)
        clock.advance(1)
    clock.advance(0.5)
    record = round_record(attempt)
    assert told(record) == {AUTHORIZATION: 2, UNATTRIBUTED: 0.5}
    assert record.started_at == START
    assert record.completed_at == START + timedelta(seconds=2.5)
    assert window(record.phase(AUTHORIZATION)) == 2


def test_what_nobody_entered_is_zero_and_has_no_bounds() -> None:
    clock = FakeClock()
    record = round_record(begun(clock, "a"))
    for phase in (*record.phases, *record.calls[0].phases):
        assert (phase.duration_seconds, phase.first_started_at, phase.last_completed_at) == (0, None, None)
        costs = {name: value for name, value in phase.model_dump().items() if name.startswith("store_")}
        assert (len(costs), any(costs.values())) == (5, False)


@pytest.mark.requirement("A096")
def test_a_record_and_each_call_of_it_have_the_same_twelve_phases() -> None:
    names = [
        *("authorization", "admission", "started_persistence", "effect_state", "execution", "result_processing"),
        *("staging", "sibling_wait", "publication_queue_wait", "publication", "round_commit", "unattributed"),
    ]
    record = round_record(begun(FakeClock(), "a", "b"))
    assert [phase.name for phase in record.phases] == names == list(ROUND_PHASES)
    assert all([phase.name for phase in call.phases] == names for call in record.calls)


@pytest.mark.requirement("A111")
def test_the_consumer_has_time_of_its_own() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    with attempt.enter(STAGING, "a"):
        clock.advance(1)
        with attempt.enter(CONSUMER):
            clock.advance(10)
        clock.advance(1)
    record = round_record(attempt)
    assert told(record) == {STAGING: 2}
    assert record.duration_seconds == 12
    assert window(record.phase(STAGING)) == 12


@pytest.mark.requirement("A115")
def test_a_continuation_has_no_remainder() -> None:
    clock = FakeClock()
    attempt = begun(clock)
    attempt.continued = True
    clock.advance(3)
    with attempt.enter(ROUND_COMMIT):
        clock.advance(1)
    cost = attempt.measure()
    cost.transactions += 1
    record = round_record(attempt)
    assert told(record) == {ROUND_COMMIT: 1}
    assert record.duration_seconds == 4
    assert record.phase(UNATTRIBUTED).store_transaction_count == 0


# The two waits.


@pytest.mark.requirement("A105", "A106")
def test_the_waits_run_between_stages_and_publications() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a", "b", "c")
    for call, seconds in (("b", 1), ("a", 2), ("c", 4)):
        clock.advance(seconds)
        attempt.note(STAGED, call)
    clock.advance(8)
    for call in ("a", "b", "c"):
        with attempt.enter(PUBLICATION, call):
            clock.advance(1)
    record = round_record(attempt)
    waits = [(took(call, SIBLING_WAIT), took(call, PUBLICATION_QUEUE_WAIT)) for call in record.calls]
    assert waits == [(ns(4), ns(8)), (ns(6), ns(9)), (0, ns(10))]
    assert took(record, SIBLING_WAIT) == ns(10), "the round has the sum of its calls' waits"
    first = record.calls[0]
    assert first.phase(SIBLING_WAIT).first_started_at == first.tool_terminal_staged_at
    assert first.phase(PUBLICATION_QUEUE_WAIT).last_completed_at == first.tool_terminal_publication_started_at


def test_a_call_is_staged_once() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    attempt.note(STAGED, "a")
    clock.advance(1)
    attempt.note(STAGED, "a")
    record = round_record(attempt)
    assert record.calls[0].tool_terminal_staged_at == START
    assert took(record, SIBLING_WAIT) == 0


def test_a_call_that_was_not_staged_here_does_not_wait() -> None:
    clock = FakeClock()
    attempt = begun(clock, "kept", "refused")
    clock.advance(1)
    attempt.note(STAGED, "kept")
    clock.advance(1)
    with attempt.enter(PUBLICATION, "refused"):
        clock.advance(1)
    record = round_record(attempt)
    assert told(record.calls[1]) == {PUBLICATION: 1}
    assert told(record.calls[0]) == {}


# Costs and bytes.


def test_a_unit_counts_where_it_was_begun() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    with attempt.enter(STARTED_PERSISTENCE):
        late = spent(attempt, 1)
        with attempt.enter(STAGING, "a"):
            late.transactions += 2
            late.end()
            spent(attempt, 4).end()
        spent(attempt, 8).end()
    spent(attempt, 16).end()
    record = round_record(attempt)
    counts = {phase.name: phase.store_transaction_count for phase in record.phases if phase.store_transaction_count}
    assert counts == {STARTED_PERSISTENCE: 1 + 2 + 8, STAGING: 4, UNATTRIBUTED: 16}
    assert record.calls[0].phase(STAGING).store_transaction_count == 4


def test_units_at_the_same_time_have_accounts_of_their_own() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    line = attempt.call_line("a", None)
    with line.within(EXECUTION):
        one, other = spent(line, 1), spent(line, 2)
        assert one is not other
        other.end()
        assert spent(line, 4) is other, "one that nobody uses any more is used again"
    with line.within(RESULT_PROCESSING):
        spent(line, 8)
    record = round_record(attempt)
    assert record.phase(EXECUTION).store_transaction_count == 7
    assert record.calls[0].phase(RESULT_PROCESSING).store_transaction_count == 8


def test_a_call_line_outside_its_phases_is_charged_nothing() -> None:
    attempt = begun(FakeClock(), "a")
    line = attempt.call_line("a", None)
    spent(line, 1)
    assert not any(phase.store_transaction_count for phase in round_record(attempt).phases)


def test_the_call_that_runs_a_session_is_charged_too() -> None:
    clock = FakeClock()
    outer = begun(clock, "boss")
    boss = outer.call_line("boss", None)
    with boss.within(EXECUTION):
        inner = begun(clock, "a")
        line = inner.call_line("a", boss)
        with line.within(EXECUTION):
            spent(line, 3, 7).end()
    for attempt, name in ((outer, "boss"), (inner, "a")):
        phase = round_record(attempt).phase(EXECUTION)
        assert (phase.store_transaction_count, phase.store_bytes_written) == (3, 7), name


def test_bytes_go_to_the_phase_of_their_event() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a", "b")
    with attempt.enter(STAGING, "a"):
        spent(attempt, 1, 1000)
        attempt.note(WROTE, [E.TOOL_STAGED, "a", 100, E.TOOL_STARTED, "b", 200, E.SESSION_RESUMED, None, 300])
    record = round_record(attempt)
    assert record.phase(STAGING).store_bytes_written == 800, "its own event, one of no phase, and what is no event"
    assert record.phase(STARTED_PERSISTENCE).store_bytes_written == 200
    assert record.calls[0].phase(STAGING).store_bytes_written == 800
    assert record.calls[1].phase(STARTED_PERSISTENCE).store_bytes_written == 200
    assert record.phase(STAGING).store_transaction_count == 1, "only bytes move"


def test_the_bytes_of_all_phases_are_those_that_were_written() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    with attempt.enter(ROUND_COMMIT):
        spent(attempt, 1, 1000)
        attempt.note(WROTE, [E.TOOL_STAGED, "a", 10, E.TOOL_COMPLETED, "a", 20, E.ROUND_COMMITTED, None, 30])
    record = round_record(attempt)
    assert sum(phase.store_bytes_written for phase in record.phases) == 1000
    assert {phase.name: phase.store_bytes_written for phase in record.calls[0].phases if phase.store_bytes_written} == {
        STAGING: 10,
        PUBLICATION: 20,
    }


# Preparations and records.


@pytest.mark.requirement("A122")
def test_a_preparation_begins_with_the_commit_it_comes_after() -> None:
    clock = FakeClock()
    committed = clock.monotonic_ns()
    clock.advance(3)
    attempt = step(clock, "i.r1")
    attempt.begun_ns = committed
    with attempt.enter(CONTEXT_POLICY):
        clock.advance(1)
    clock.advance(0.25)
    with attempt.enter(COUNTING):
        clock.advance(2)
    clock.advance(0.5)
    record = step_record(attempt)
    assert told(record) == {HANDOFF: 3, CONTEXT_POLICY: 1, COUNTING: 2, PREPARATION: 0.75}
    assert (record.started_at, lasted(record)) == (START, ns(6.75))
    assert [phase.name for phase in record.phases] == list(PREPARATION_PHASES)
    assert (record.model_step_id, record.after_tool_round_id) == ("i.m2", "i.r1")


def test_a_record_is_made_once_and_reads_back_from_its_json() -> None:
    clock = FakeClock()
    attempt = begun(clock, "a")
    attempt.call_line("a", None).within(EXECUTION)
    clock.advance(1 / 3)
    read: TypeAdapter[ToolRoundTiming | ModelStepPreparationTiming] = TypeAdapter(AnyTimingRecord)
    for record in (round_record(attempt), step_record(step(clock))):
        assert read.validate_json(record.model_dump_json()) == record
    assert record_of(attempt) is record_of(attempt)
    assert round_record(attempt).model_attempt_id == "i.m1.a1"
