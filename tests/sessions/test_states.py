"""Every state machine against a table of its own: each state with each event either moves as told or is refused."""

from __future__ import annotations

import itertools
from copy import deepcopy

import pytest

from cayu.errors import IllegalTransition
from cayu.events import EventType
from cayu.sessions.states import CALL, EFFECT, MACHINES, ROUND, SESSION, Machine
from cayu.sessions.streams import Record, StreamRow, Take, Unit
from cayu.storage.memory import InMemorySessionStore

Moves = dict[str, dict[str, str]]

WORK = [
    "model.started",
    "model.completed",
    "model.error",
    "tool.round.opened",
    "tool.round.committed",
    "session.limit_reached",
    "tool.call.approval_requested",
    "session.awaiting_user_input",
    "tool.call.started",
    "tool.call.staged",
    "tool.call.completed",
    "tool.call.failed",
    "tool.call.blocked",
    "tool.effect.intent_recorded",
    "tool.effect.outcome_unknown",
    "tool.call.skipped",
    "tool.effect.reconciled",
    "recovery.plan.item.executed",
    "budget.reserved",
    "budget.reconciled",
    "budget.limit_reached",
    "session.interruption_cascade_completed",
    "session.interruption_cascade_failed",
    "memory.recall.completed",
    "memory.recall.failed",
    "memory.exposure.recorded",
]
PROFILE = ["session.execution_profile.decided", "session.execution_profile.rejected"]
ENDS = {"session.completed": "completed", "session.failed": "failed", "session.interrupted": "interrupted"}
DECISIONS = [
    "tool.call.approved",
    "tool.call.approval_denied",
    "tool.call.approval_expired",
    "tool.call.staged",
    "tool.effect.reconciled",
    "recovery.plan.item.executed",
]


def stays(state: str, events: list[str]) -> dict[str, str]:
    return dict.fromkeys(events, state)


SESSION_MOVES: Moves = {
    "pending": {"session.started": "running"},
    "running": ENDS | {"session.interrupt_requested": "interrupting"} | stays("running", WORK + PROFILE),
    "interrupting": ENDS | stays("interrupting", ["session.interrupt_requested", *WORK, *PROFILE]),
    "completed": {"session.resumed": "running"} | stays("completed", PROFILE),
    "failed": {"session.resumed": "running"} | stays("failed", PROFILE + DECISIONS[-2:]),
    "interrupted": {"session.resumed": "running"} | stays("interrupted", PROFILE + DECISIONS),
}
ROUND_MOVES: Moves = {"open": {"tool.round.committed": "committed"}, "committed": {}}
CALL_MOVES: Moves = {
    "proposed": {
        "tool.call.approval_requested": "awaiting_approval",
        "session.awaiting_user_input": "awaiting_input",
        "tool.call.started": "started",
        "tool.call.blocked": "blocked",
        "tool.call.skipped": "skipped",
        "tool.call.failed": "failed",
    },
    "awaiting_approval": {
        "tool.call.approved": "approved",
        "tool.call.approval_denied": "denied",
        "tool.call.approval_expired": "expired",
    },
    "awaiting_input": {"tool.call.staged": "staged", "tool.call.approval_expired": "expired"},
    "approved": {
        "tool.call.started": "started",
        "tool.call.blocked": "blocked",
        "tool.call.skipped": "skipped",
        "tool.call.failed": "failed",
    },
    "denied": {"tool.call.blocked": "blocked"},
    "expired": {"tool.call.blocked": "blocked"},
    "started": {
        "tool.call.started": "started",
        "tool.effect.intent_recorded": "started",
        "tool.call.staged": "staged",
        "tool.effect.outcome_unknown": "unknown",
    },
    "unknown": {"tool.effect.reconciled": "staged"},
    "staged": {"tool.call.completed": "completed", "tool.call.failed": "failed"},
    "completed": {},
    "failed": {},
    "blocked": {},
    "skipped": {},
}
EFFECT_MOVES: Moves = {
    "started": {
        "tool.call.started": "started",
        "tool.call.completed": "completed",
        "tool.call.failed": "failed",
        "tool.effect.outcome_unknown": "unknown",
    },
    "unknown": {"tool.call.completed": "completed", "tool.call.failed": "failed"},
    "completed": {},
    "failed": {},
}
EXPECTED = [(SESSION, SESSION_MOVES), (ROUND, ROUND_MOVES), (CALL, CALL_MOVES), (EFFECT, EFFECT_MOVES)]
EVENTS = [*(str(event) for event in EventType), "an.event.of.tomorrow"]
CASES = [(machine, moves, state) for machine, moves in EXPECTED for state in moves]


def test_the_tables_name_every_machine_and_every_state() -> None:
    assert [machine for machine, _ in EXPECTED] == list(MACHINES)
    for machine, moves in EXPECTED:
        assert set(machine.table) == set(moves)


@pytest.mark.parametrize("machine, moves, state", CASES, ids=lambda value: getattr(value, "name", str(value)[:20]))
def test_each_event_moves_as_told_or_is_refused(machine: Machine, moves: Moves, state: str) -> None:
    before = deepcopy({key: dict(row) for key, row in machine.table.items()})
    for event in EVENTS:
        expected = moves[state].get(event)
        if expected is not None:
            assert machine.advance(state, event, "s") == expected, event
            continue
        with pytest.raises(IllegalTransition) as caught:
            machine.advance(state, event, "s")
        told = caught.value
        assert (told.session_id, told.machine, told.state, told.event) == ("s", machine.name, state, event)
        assert event in str(told)
    assert {key: dict(row) for key, row in machine.table.items()} == before


def test_a_state_that_does_not_exist_admits_nothing() -> None:
    for machine, event in itertools.product(MACHINES, EVENTS):
        with pytest.raises(IllegalTransition):
            machine.advance("no such state", event)


@pytest.mark.parametrize("machine, moves", EXPECTED, ids=[machine.name for machine in MACHINES])
def test_the_diagram_lists_exactly_the_moves(machine: Machine, moves: Moves) -> None:
    header, *lines = machine.diagram().splitlines()
    assert header == "stateDiagram-v2"
    expected = [f"    {state} --> {after}: {event}" for state, row in moves.items() for event, after in row.items()]
    assert sorted(lines) == sorted(line for line in expected if line.split()[0] != line.split()[2].rstrip(":"))


ROADS = {
    "running": ["session.started"],
    "interrupting": ["session.started", "session.interrupt_requested"],
    "completed": ["session.started", "session.completed"],
    "failed": ["session.started", "session.failed"],
    "interrupted": ["session.started", "session.interrupted"],
}


@pytest.mark.parametrize("state", ROADS)
async def test_a_store_refuses_an_illegal_event_and_writes_nothing(state: str) -> None:
    store = InMemorySessionStore()
    row = StreamRow(id="s", instance_id="i", agent_name="a", provider_name="p", model="m")
    road = tuple(Record(type, b"{}") for type in ROADS[state])
    await store.append(Unit("s", 0, Take("o"), road, create=row, release=True))
    before = await store.load("s")
    assert before is not None
    assert before.head.state.status == state
    governed = {event for moves in SESSION_MOVES.values() for event in moves}
    for event in sorted(governed - set(SESSION_MOVES[state])):
        records = (Record("an.event.of.tomorrow", b"{}"), Record(event, b"{}"))
        with pytest.raises(IllegalTransition):
            await store.append(Unit("s", len(road), Take("o"), records))
        after = await store.load("s")
        assert after is not None
        assert (after.head, after.records) == (before.head, before.records)
