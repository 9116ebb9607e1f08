"""The recovery plan of every call: its state, effect, attempt and registration, running or being interrupted."""

from __future__ import annotations

import itertools

import pytest

from cayu.effects import ToolEffect
from cayu.sessions import CallState, CallView, RoundState, RoundView, SessionStatus, SessionView
from cayu.sessions.recovery import CallRecovery, Registrations
from cayu.sessions.recovery import plan_recovery as plan
from cayu.sessions.streams import StreamRow

WITH_T = Registrations(tools=frozenset({"t"}))
ROW = StreamRow(id="s", instance_id="i", agent_name="a", provider_name="p", model="m")

# What does not depend on the effect, on the attempt or on an interruption.
BY_STATE = {
    "proposed": "close_unexecuted",
    "awaiting_approval": "keep",
    "awaiting_input": "keep",
    "approved": "close_unexecuted",
    "denied": "keep",
    "expired": "keep",
    "unknown": "await",
    "staged": "keep",
    "completed": "keep",
    "failed": "keep",
    "blocked": "keep",
    "skipped": "keep",
}
# A call that began: (effect, attempt) -> while the session goes on; while it is being interrupted.
STARTED = {
    ("none", 1): ("replay", "fail"),
    ("none", 2): ("fail", "fail"),
    ("idempotent", 1): ("replay", "mark_unknown"),
    ("idempotent", 2): ("mark_unknown", "mark_unknown"),
    ("external", 1): ("mark_unknown", "mark_unknown"),
    ("external", 2): ("mark_unknown", "mark_unknown"),
}


def call(state: str, effect: str = "none", attempt: int = 1, **fields: object) -> CallView:
    made = CallView("c", "p", "t", {}, "d", "d", ToolEffect(effect), True, "allow", state=CallState(state))
    made.attempt = attempt
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def session(*calls: CallView, stopping: bool = False) -> SessionView:
    status = SessionStatus.INTERRUPTING if stopping else SessionStatus.RUNNING
    for index, each in enumerate(calls):
        each.id = f"c{index}"
    return SessionView(ROW, status=status, rounds=[RoundView("r", 1, list(calls))] if calls else [])


def test_the_tables_name_every_state_effect_and_attempt() -> None:
    assert {*BY_STATE, "started"} == {str(state) for state in CallState}
    assert set(STARTED) == set(itertools.product([str(effect) for effect in ToolEffect], (1, 2)))


@pytest.mark.parametrize("state", [*BY_STATE, "started"])
def test_each_call(state: str) -> None:
    attempts = (1, 2) if state == "started" else (0, 1, 2)
    for effect, attempt, stopping in itertools.product(("none", "idempotent", "external"), attempts, (False, True)):
        expected = BY_STATE.get(state) or STARTED[effect, attempt][stopping]
        found = plan(session(call(state, effect, attempt), stopping=stopping), WITH_T)
        assert found.calls == (("c0", CallRecovery(expected)),), (effect, attempt, stopping)


@pytest.mark.parametrize("effect, attempt", STARTED)
def test_a_tool_that_is_gone_is_not_replayed(effect: str, attempt: int) -> None:
    found = plan(session(call("started", effect, attempt)), Registrations(tools=frozenset({"other"})))
    assert found.calls[0][1] == ("fail" if effect == "none" else "mark_unknown")


@pytest.mark.parametrize("state", ["proposed", "approved"])
def test_a_refusal_that_is_decided_is_kept(state: str) -> None:
    assert plan(session(call(state, code="policy_denied")), WITH_T).calls[0][1] == CallRecovery.KEEP


def test_a_whole_round_in_model_order() -> None:
    view = session(call("staged"), call("started"), call("started", "external"), call("proposed"), call("unknown"))
    found = plan(view, WITH_T)
    assert found.session_id == "s"
    assert [str(each) for _, each in found.calls] == ["keep", "replay", "mark_unknown", "close_unexecuted", "await"]
    assert found.of(CallRecovery.REPLAY) == ("c1",)
    assert found.of(CallRecovery.FAIL) == ()


@pytest.mark.parametrize("stopping", [False, True])
def test_without_an_open_round_only_the_step_is_repeated(stopping: bool) -> None:
    assert plan(session(stopping=stopping), Registrations()).calls == ()
    committed = session(call("completed"), stopping=stopping)
    committed.rounds[-1].state = RoundState.COMMITTED
    assert plan(committed, Registrations()).calls == ()
