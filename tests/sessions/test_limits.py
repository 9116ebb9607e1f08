"""Limits as pure decisions: what is valid, what time counts, and which limit is reached exactly when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cayu.canonical import dumps
from cayu.clock import MICROSECOND
from cayu.events import EventType as E
from cayu.identity import ExecutionProfile
from cayu.messages import Message
from cayu.sessions import BudgetLimit, ResumeRequest, RunLimits, RunRequest, SessionView, TokenPrices, fold
from cayu.sessions.accounting import call_limit, elapsed_us, step_limit
from cayu.sessions.fold import UNVERSIONED_ACCOUNTING
from cayu.sessions.limits import ACCOUNTING
from cayu.sessions.streams import StoredRecord, StreamRow

COUNTS = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls")
NO_COUNT: tuple[Any, ...] = (True, False, 0, -1, 1.0, 1.5, "5", float("nan"), float("inf"))
NO_TIME: tuple[Any, ...] = (True, False, 0, 0.0, -1, -0.001, float("nan"), float("inf"), float("-inf"), "soon")
PRICES = TokenPrices(input_per_million=Decimal(1), output_per_million=Decimal(2))
START = 1_700_000_000_000_000
ROW = StreamRow("s", "s1", "a", "p", "m")


# What is valid.


@pytest.mark.parametrize(("name", "value"), [*itertools.product(COUNTS, NO_COUNT)])
def test_a_count_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        RunLimits(**{name: value})


@pytest.mark.parametrize("value", NO_TIME)
def test_a_time_is_a_positive_finite_number(value: Any) -> None:
    with pytest.raises(ValidationError):
        RunLimits(max_elapsed_seconds=value)


def test_limits_take_the_smallest_values_and_default_to_none() -> None:
    assert RunLimits(**dict.fromkeys(COUNTS, 1), max_elapsed_seconds=1).max_elapsed_seconds == 1
    assert RunLimits(max_elapsed_seconds=1e-6).max_elapsed_seconds == 1e-6
    assert [getattr(RunLimits(), name) for name in (*COUNTS, "max_elapsed_seconds")] == [None] * 5
    assert RunLimits().scope == "run"


@pytest.mark.parametrize("kind", [RunLimits, BudgetLimit, TokenPrices])
def test_a_misspelt_limit_is_refused(kind: type[Any]) -> None:
    valid: dict[type[Any], dict[str, Any]] = {
        RunLimits: {"max_tool_calls": 1},
        BudgetLimit: {"max_tokens": 1},
        TokenPrices: {"input_per_million": 1, "output_per_million": 1},
    }
    kind(**valid[kind])
    with pytest.raises(ValidationError, match="max_tokenz"):
        kind(**valid[kind], max_tokenz=1)


def test_a_scope_is_run_or_session() -> None:
    with pytest.raises(ValidationError):
        RunLimits(scope="forever")  # type: ignore[arg-type]


def test_limits_are_frozen() -> None:
    with pytest.raises(ValidationError):
        RunLimits().max_tool_calls = 1  # type: ignore[misc]


@pytest.mark.parametrize("value", NO_COUNT)
def test_steps_are_a_positive_integer_in_both_requests(value: Any) -> None:
    said = (Message.text("user", "go"),)
    with pytest.raises(ValidationError):
        RunRequest(agent_name="a", messages=said, max_steps=value)
    with pytest.raises(ValidationError):
        ResumeRequest(session_id="s", messages=said, max_steps=value)


@pytest.mark.parametrize("value", NO_COUNT)
def test_a_token_cap_is_a_positive_integer(value: Any) -> None:
    with pytest.raises(ValidationError):
        BudgetLimit(max_tokens=value)


@pytest.mark.parametrize("value", [True, 0, -1, "0.00", float("nan"), Decimal("NaN"), Decimal("Infinity"), "much"])
def test_a_cost_cap_is_a_positive_finite_amount(value: Any) -> None:
    with pytest.raises(ValidationError):
        BudgetLimit(max_cost=value, prices=PRICES)


@pytest.mark.parametrize("value", [True, -1, Decimal("NaN"), float("inf"), "much"])
def test_a_price_is_a_finite_amount_that_is_not_negative(value: Any) -> None:
    with pytest.raises(ValidationError):
        TokenPrices(input_per_million=value, output_per_million=1)
    with pytest.raises(ValidationError):
        TokenPrices(input_per_million=1, output_per_million=value)


@pytest.mark.parametrize("value", [True, -1, 1.5, "5"])
def test_a_reserve_is_an_integer_that_is_not_negative(value: Any) -> None:
    with pytest.raises(ValidationError):
        BudgetLimit(max_tokens=1, reserve_output_tokens=value)


def test_a_budget_limit_limits_something_and_a_cost_has_prices() -> None:
    with pytest.raises(ValidationError, match="max_tokens or max_cost"):
        BudgetLimit()
    with pytest.raises(ValidationError, match="needs prices"):
        BudgetLimit(max_cost=Decimal(1))
    assert BudgetLimit(max_cost=Decimal("0.10"), prices=PRICES).max_cost == Decimal("0.10")


@pytest.mark.parametrize("budget_id", ["", "x" * 513])
def test_a_budget_id_is_bounded(budget_id: str) -> None:
    assert BudgetLimit(budget_id="x" * 512, max_tokens=1)
    with pytest.raises(ValidationError):
        BudgetLimit(budget_id=budget_id, max_tokens=1)


@pytest.mark.parametrize("cost", ["0.1", "1234567890.0123456789", "1E+3"])
def test_a_cost_is_the_same_after_a_trip_through_the_log(cost: str) -> None:
    limit = BudgetLimit(max_cost=Decimal(cost), prices=PRICES)
    assert BudgetLimit.model_validate(limit.model_dump(mode="json", exclude_defaults=True)) == limit


# A log under the tests' control.


@dataclass
class Log:
    """Records with times; `after` moves the clock before the next one is written."""

    now: int = START
    records: list[StoredRecord] = field(default_factory=list)

    def write(self, type: str, after: float = 0.0, **payload: Any) -> Log:
        self.now += round(after * MICROSECOND)
        self.records.append(StoredRecord(len(self.records) + 1, type, self.now, dumps(payload)))
        return self

    def begin(self, type: str = E.SESSION_STARTED, after: float = 0.0, **fields: Any) -> Log:
        payload = {"run_id": "r", "max_steps": 10, "messages": [], "accounting": ACCOUNTING} | fields
        profile = {"profile": ExecutionProfile({}).as_json()} if type == E.SESSION_STARTED else {}
        return self.write(type, after, **profile, **{name: v for name, v in payload.items() if v is not None})

    def answer(self, input_tokens: int = 0, output_tokens: int = 0, calls: int = 0, after: float = 0.0) -> Log:
        asked = [{"type": "tool_call", "id": f"p{n}", "name": "act", "arguments": {}} for n in range(calls)]
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        return self.write(E.MODEL_COMPLETED, after, message={"role": "assistant", "content": asked}, usage=usage)

    def open(self, step: int, calls: int, verdict: str = "allow") -> Log:
        names = [f"r{step}.c{n}" for n in range(calls)]
        common = {"name": "act", "digest": "0" * 64, "effect": "none", "parallel": True, "verdict": verdict}
        entries = [{"tool_call_id": name, "provider_call_id": f"p{n}", **common} for n, name in enumerate(names)]
        return self.write(E.ROUND_OPENED, tool_round_id=f"r{step}", step=step, calls=entries)

    def pause(self, *calls: str) -> Log:
        for call in calls:
            self.write(E.TOOL_APPROVAL_REQUESTED, tool_call_id=call, tool_name="act", digest="0" * 64)
        return self.write(E.SESSION_INTERRUPTED, reason="awaiting_human")

    def approve(self, call: str, after: float = 0.0) -> Log:
        named = {"tool_call_id": call, "tool_name": "act", "action": f"{call}.approval", "digest": "0" * 64}
        return self.write(E.TOOL_APPROVED, after, **named)

    @property
    def view(self) -> SessionView:
        return fold(ROW, self.records)

    def seconds(self, scope: str = "run") -> float:
        return elapsed_us(self.view, self.now, RunLimits(scope=scope)) / MICROSECOND  # type: ignore[arg-type]


def asked(calls: int, **begin: Any) -> Log:
    """A run that has worked for 10 s and waits for `calls` approvals."""
    waiting = [f"r1.c{n}" for n in range(calls)]
    return Log().begin(**begin).answer(calls=calls, after=10).open(1, calls, "approval").pause(*waiting)


# Which time counts.


def test_time_counts_while_nobody_is_waited_for() -> None:
    log = Log().begin()
    log.now += 5 * MICROSECOND
    assert (log.seconds(), log.seconds("session")) == (5, 5)


@pytest.mark.requirement("A080")
def test_a_pause_counts_for_the_session_and_not_for_the_run() -> None:
    log = asked(1)
    log.now += 7200 * MICROSECOND
    assert (log.seconds(), log.seconds("session")) == (10, 7210)
    log.approve("r1.c0", after=60)
    assert (log.seconds(), log.seconds("session")) == (10, 7270)
    log.now += 3 * MICROSECOND
    assert (log.seconds(), log.seconds("session")) == (13, 7273)


@pytest.mark.requirement("A079")
def test_only_the_first_decision_ends_a_wait() -> None:
    log = asked(3).approve("r1.c1", after=3600)
    assert log.seconds() == 10
    log.approve("r1.c0", after=3600)
    assert log.seconds() == 3610
    log.approve("r1.c2", after=1)
    assert log.seconds() == 3611


def test_two_pauses_are_both_left_out() -> None:
    log = asked(1).approve("r1.c0", after=100).write(E.SESSION_RESUMED, continues=True)
    log.write(E.TOOL_STARTED, after=1, tool_call_id="r1.c0", attempt=1)
    log.write(E.TOOL_STAGED, after=1, tool_call_id="r1.c0", content="")
    log.write(E.TOOL_COMPLETED, tool_call_id="r1.c0", executed=True)
    log.write(E.ROUND_COMMITTED, tool_round_id="r1", executed=1, calls=1)
    log.answer(calls=1, after=1).open(2, 1, "approval").pause("r2.c0")
    assert log.approve("r2.c0", after=1000).seconds() == 13
    assert log.seconds("session") == 1113


def test_an_expiry_is_a_first_decision_too() -> None:
    log = asked(1).write(
        E.TOOL_APPROVAL_EXPIRED, after=50, tool_call_id="r1.c0", action="r1.c0.approval", code="approval_expired"
    )
    log.now += MICROSECOND
    assert log.seconds() == 11


def test_a_run_that_was_stopped_does_not_wait_for_a_human() -> None:
    log = Log().begin().write(E.SESSION_INTERRUPTED, after=5, reason="interrupt_requested")
    log.now += 100 * MICROSECOND
    assert log.seconds() == 105


def test_a_resume_begins_the_runs_time_and_not_the_sessions() -> None:
    log = Log().begin().write(E.SESSION_COMPLETED, after=50).begin(E.SESSION_RESUMED, after=1000)
    log.now += 2 * MICROSECOND
    assert (log.seconds(), log.seconds("session")) == (2, 1052)


@pytest.mark.requirement("A082")
@pytest.mark.parametrize(("accounting", "seconds"), [(None, 7215), (1, 7215), (2, 15), (3, 15)])
def test_a_run_keeps_the_accounting_that_its_first_event_names(accounting: int | None, seconds: int) -> None:
    log = asked(1, accounting=accounting).approve("r1.c0", after=7200)
    log.now += 5 * MICROSECOND
    assert log.seconds() == seconds
    assert log.seconds("session") == 7215


@pytest.mark.requirement("A082")
def test_a_new_run_of_an_old_session_has_the_accounting_of_its_own() -> None:
    old = asked(1, accounting=None).approve("r1.c0", after=7200).write(E.SESSION_RESUMED, continues=True)
    assert old.view.run.accounting == UNVERSIONED_ACCOUNTING
    old.write(E.TOOL_SKIPPED, tool_call_id="r1.c0", executed=False, code="limit_reached")
    old.write(E.ROUND_COMMITTED, tool_round_id="r1", executed=0, calls=1)
    old.write(E.SESSION_INTERRUPTED, reason="limit_reached").begin(E.SESSION_RESUMED, after=100)
    assert (old.view.run.accounting, old.seconds()) == (ACCOUNTING, 0)


# Which limit is reached.


def used(**fields: Any) -> Log:
    """One step that took 100 tokens in and 40 out and began three calls, all done."""
    log = Log().begin(**fields).answer(100, 40, calls=3, after=10).open(1, 3)
    for n in range(3):
        log.write(E.TOOL_STARTED, tool_call_id=f"r1.c{n}", attempt=1)
    for n in range(3):
        log.write(E.TOOL_STAGED, tool_call_id=f"r1.c{n}", content="")
    for n in range(3):
        log.write(E.TOOL_COMPLETED, tool_call_id=f"r1.c{n}", executed=True)
    return log.write(E.ROUND_COMMITTED, tool_round_id="r1", executed=3, calls=3)


@pytest.mark.parametrize(
    ("name", "spent"), [("max_input_tokens", 100), ("max_output_tokens", 40), ("max_total_tokens", 140)]
)
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_a_token_limit_is_reached_at_its_very_number(name: str, spent: int, beyond: int) -> None:
    log = used(limits={name: spent - beyond})
    assert step_limit(log.view, log.now) == (None if beyond < 0 else (name, spent - beyond))


@pytest.mark.parametrize(("steps", "reached"), [(1, True), (2, False)])
def test_a_step_limit_is_reached_at_its_very_number(steps: int, reached: bool) -> None:
    log = used(max_steps=steps)
    assert step_limit(log.view, log.now) == (("max_steps", steps) if reached else None)


@pytest.mark.parametrize(("beyond_us", "reached"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("scope", ["run", "session"])
def test_a_time_limit_is_reached_at_its_very_microsecond(beyond_us: int, reached: bool, scope: str) -> None:
    view = Log().begin(limits={"max_elapsed_seconds": 900.0, "scope": scope}).view
    now = START + 900 * MICROSECOND + beyond_us
    expected = ("max_elapsed_seconds", 900.0) if reached else None
    assert step_limit(view, now) == expected
    assert call_limit(view, now, 0) == expected


@pytest.mark.parametrize(("cap", "beginning", "reached"), [(3, 0, True), (4, 0, False), (4, 1, True), (5, 1, False)])
def test_a_call_limit_counts_calls_that_began_and_calls_that_are_about_to(
    cap: int, beginning: int, reached: bool
) -> None:
    log = used(limits={"max_tool_calls": cap})
    assert call_limit(log.view, log.now, beginning) == (("max_tool_calls", cap) if reached else None)


def test_calls_do_not_forbid_a_step_and_tokens_do_not_forbid_a_call() -> None:
    log = used(limits={"max_tool_calls": 1})
    assert step_limit(log.view, log.now) is None
    log = used(limits={"max_input_tokens": 1, "max_output_tokens": 1, "max_total_tokens": 1})
    assert call_limit(log.view, log.now, 0) is None


def test_a_replay_is_not_counted_again() -> None:
    log = Log().begin(limits={"max_tool_calls": 2}).answer(calls=1).open(1, 1)
    log.write(E.TOOL_STARTED, tool_call_id="r1.c0", attempt=1).write(E.TOOL_STARTED, tool_call_id="r1.c0", attempt=2)
    assert (log.view.tool_calls, log.view.run.tool_calls) == (1, 1)
    assert call_limit(log.view, log.now, 0) is None


@pytest.mark.parametrize(("scope", "reached"), [("run", False), ("session", True)])
@pytest.mark.parametrize("name", ["max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls"])
def test_the_scope_says_whether_earlier_runs_count(name: str, scope: str, reached: bool) -> None:
    log = used().write(E.SESSION_COMPLETED).begin(E.SESSION_RESUMED, limits={name: 3, "scope": scope})
    decide = call_limit(log.view, log.now, 0) if name == "max_tool_calls" else step_limit(log.view, log.now)
    assert decide == ((name, 3) if reached else None)


def test_steps_are_counted_per_run_in_both_scopes() -> None:
    log = used().write(E.SESSION_COMPLETED).begin(E.SESSION_RESUMED, limits={"scope": "session"}, max_steps=1)
    assert step_limit(log.view, log.now) is None


def test_no_limit_never_stops() -> None:
    log = used()
    assert step_limit(log.view, log.now + 10**15) is None
    assert call_limit(log.view, log.now + 10**15, 10**6) is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6), st.data())
def test_a_runs_time_is_all_but_the_waits_up_to_each_first_decision(
    pauses: Sequence[tuple[int, int]], data: st.DataObject
) -> None:
    log, worked, passed = Log().begin(), 0, 0
    for step, (working, waiting) in enumerate(pauses, 1):
        log.now += working
        calls = data.draw(st.integers(1, 3))
        names = [f"r{step}.c{n}" for n in range(calls)]
        log.answer(calls=calls).open(step, calls, "approval").pause(*names)
        log.now += waiting
        worked, passed = worked + working, passed + working + waiting
        assert elapsed_us(log.view, log.now, RunLimits()) == worked
        for name in data.draw(st.permutations(names)):
            log.approve(name)
            later = data.draw(st.integers(0, 10**6))
            log.now += later
            worked, passed = worked + later, passed + later
        log.write(E.SESSION_RESUMED, continues=True)
        for name in names:
            log.write(E.TOOL_SKIPPED, tool_call_id=name, executed=False, code="limit_reached")
        log.write(E.ROUND_COMMITTED, tool_round_id=f"r{step}", executed=0, calls=calls)
    assert elapsed_us(log.view, log.now, RunLimits()) == worked
    assert elapsed_us(log.view, log.now, RunLimits(scope="session")) == passed
