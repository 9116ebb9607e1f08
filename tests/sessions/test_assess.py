"""What stands in the way of a session, in every combination: status, open round, registrations, owner, cascade."""

from __future__ import annotations

import itertools

import pytest

from cayu.effects import ToolEffect
from cayu.sessions import CallState, CallView, RoundState, RoundView, SessionStatus, SessionView
from cayu.sessions.plans import BlockerCode, RecoveryAction
from cayu.sessions.recovery import Assessment, Registrations, assess
from cayu.sessions.streams import StreamRow

ROW = StreamRow(id="s", instance_id="i", agent_name="a", provider_name="p", model="m")
Code, Action = BlockerCode, RecoveryAction
FITTING = {
    "fits": Registrations(tools=frozenset({"t"})),
    "reconciles": Registrations(tools=frozenset({"t"}), reconciled=frozenset({"t"})),
    "gone": Registrations(available=False),
    "changed": Registrations(tools=frozenset({"t"}), compatible=False),
    "changed, reconciles": Registrations(tools=frozenset({"t"}), reconciled=frozenset({"t"}), compatible=False),
}
AT_WORK = ("running", "interrupting")

# Calls of the open round as (state, effect), with the blockers of a session by its status, when all fits.
UNKNOWN = frozenset({Code.TOOL_EFFECT_OUTCOME_UNKNOWN})
WAITS = frozenset({Code.TOOL_EFFECT_CONTINUATION_REQUIRED})
APPROVAL, ANSWER = frozenset({Code.TOOL_APPROVAL_REQUIRED}), frozenset({Code.USER_INPUT_REQUIRED})
NOTHING: frozenset[BlockerCode] = frozenset()
ROUNDS: dict[tuple[tuple[str, str], ...], dict[str, frozenset[BlockerCode]]] = {
    (("proposed", "external"),): {"running": NOTHING, "interrupting": NOTHING, "rest": WAITS},
    (("approved", "external"),): {"running": NOTHING, "interrupting": NOTHING, "rest": WAITS},
    (("staged", "external"),): {"running": NOTHING, "interrupting": NOTHING, "rest": WAITS},
    (("denied", "none"),): {"running": NOTHING, "interrupting": NOTHING, "rest": WAITS},
    (("started", "none"),): {"running": NOTHING, "interrupting": NOTHING, "rest": WAITS},
    (("started", "idempotent"),): {"running": NOTHING, "interrupting": UNKNOWN, "rest": WAITS},
    (("started", "external"),): {"running": UNKNOWN, "interrupting": UNKNOWN, "rest": UNKNOWN},
    (("unknown", "external"),): {"running": UNKNOWN, "interrupting": UNKNOWN, "rest": UNKNOWN},
    (("unknown", "external"), ("staged", "none")): {"running": UNKNOWN, "interrupting": UNKNOWN, "rest": UNKNOWN},
    (("awaiting_approval", "external"),): dict.fromkeys(("running", "interrupting", "rest"), APPROVAL),
    (("awaiting_input", "none"),): dict.fromkeys(("running", "interrupting", "rest"), ANSWER),
    (("awaiting_approval", "none"), ("awaiting_input", "none")): dict.fromkeys(
        ("running", "interrupting", "rest"), APPROVAL | ANSWER
    ),
    (("awaiting_approval", "none"), ("unknown", "external")): dict.fromkeys(
        ("running", "interrupting", "rest"), APPROVAL | UNKNOWN
    ),
}  # fmt: skip


def session(status: str, calls: tuple[tuple[str, str], ...] = (), *, asking: bool = False) -> SessionView:
    made = [
        CallView(f"c{n}", "p", "t", {}, "d", "d", ToolEffect(effect), True, "allow", state=CallState(state), attempt=1)
        for n, (state, effect) in enumerate(calls)
    ]
    rounds = [RoundView("r", 1, made)] if made else []
    return SessionView(ROW, status=SessionStatus(status), rounds=rounds, model_in_flight=asking)


def registered(name: str) -> frozenset[BlockerCode]:
    if name == "gone":
        return frozenset({Code.REGISTRATION_UNAVAILABLE})
    return frozenset({Code.REGISTRATION_INCOMPATIBLE}) if name.startswith("changed") else NOTHING


@pytest.mark.parametrize("calls", ROUNDS, ids=lambda calls: "+".join("/".join(call) for call in calls))
def test_every_round_in_every_status_under_every_registration(calls: tuple[tuple[str, str], ...]) -> None:
    for status, name in itertools.product(SessionStatus, FITTING):
        hold_of_a_round(calls, status, name)


def hold_of_a_round(calls: tuple[tuple[str, str], ...], status: str, name: str) -> None:
    by_status = ROUNDS[calls]
    expected = by_status.get(status, by_status["rest"])
    if name == "gone" and calls == (("started", "idempotent"),):
        expected = UNKNOWN  # a tool that is not here replays nothing
    to_settle = expected >= UNKNOWN
    if name.endswith("reconciles"):
        expected -= UNKNOWN
    if registered(name):
        expected -= WAITS  # a resume would not close it here
    found = assess(session(status, calls), FITTING[name])
    assert frozenset(found.blockers) == expected | registered(name), (status, name)
    assert len(found.blockers) == len(set(found.blockers))
    assert found.action is (Action.LEAVE_INTACT if found.blockers else Action.AUTOMATIC_REPAIR)
    assert bool(found.unknown) is to_settle  # an operator may settle also what a reconciler will be asked about


@pytest.mark.parametrize("status", SessionStatus)
def test_every_status_without_an_open_round(status: str) -> None:
    for name, asking in itertools.product(FITTING, (False, True)):
        hold_of_a_step(status, name, asking)


def hold_of_a_step(status: str, name: str, asking: bool) -> None:
    found = assess(session(status, asking=asking), FITTING[name])
    if status not in AT_WORK:
        assert found == Assessment(Action.LEAVE_INTACT)
        return
    lost = frozenset({Code.MODEL_EFFECT_OUTCOME_UNKNOWN}) if asking else NOTHING
    assert frozenset(found.blockers) == lost | registered(name)
    by_itself = {"running": Action.AUTOMATIC_REPAIR, "interrupting": Action.TERMINALIZE_ZERO_WORK}[status]
    assert found.action is (Action.LEAVE_INTACT if found.blockers else by_itself)
    assert found.unknown == ()


@pytest.mark.parametrize("owner", [Code.ACTIVE_EXECUTION_OWNER, Code.ACTIVE_RECOVERY_CLAIM])
@pytest.mark.parametrize(
    "status, calls, valid", [*itertools.product(SessionStatus, [(), (("unknown", "external"),)], [True, False])]
)
def test_an_owner_is_all_that_is_said_of_a_session_in_hand(
    status: str, calls: tuple[tuple[str, str], ...], valid: bool, owner: BlockerCode
) -> None:
    found = assess(session(status, calls), FITTING["gone"], owner=owner, cascade_is_valid=valid)
    at_rest = status not in AT_WORK and not calls
    assert found == Assessment(Action.LEAVE_INTACT, () if at_rest else (owner,))


@pytest.mark.parametrize("status, calls", [*itertools.product(SessionStatus, [(), (("unknown", "external"),)])])
def test_a_marker_of_another_tree_is_all_that_is_said(status: str, calls: tuple[tuple[str, str], ...]) -> None:
    found = assess(session(status, calls), FITTING["gone"], cascade_is_valid=False)
    at_rest = status not in AT_WORK and not calls
    assert found == Assessment(Action.LEAVE_INTACT, () if at_rest else (Code.INVALID_CASCADE_MARKER,))


def test_a_committed_round_is_no_open_one() -> None:
    view = session("running", (("completed", "external"),))
    view.rounds[-1].state = RoundState.COMMITTED
    assert assess(view, FITTING["fits"]) == Assessment(Action.AUTOMATIC_REPAIR)


def test_one_call_without_a_reconciler_is_enough_to_need_an_operator() -> None:
    view = session("interrupted", (("unknown", "external"), ("unknown", "idempotent"), ("staged", "none")))
    assert view.open_round is not None
    view.open_round.calls[0].name = "asked"
    found = assess(view, Registrations(tools=frozenset({"asked", "t"}), reconciled=frozenset({"asked"})))
    assert found.blockers == (Code.TOOL_EFFECT_OUTCOME_UNKNOWN,)
    assert found.unknown == ("c0", "c1")
    reconciled = assess(view, Registrations(tools=frozenset({"asked", "t"}), reconciled=frozenset({"asked", "t"})))
    assert reconciled == Assessment(Action.AUTOMATIC_REPAIR, unknown=("c0", "c1"))
