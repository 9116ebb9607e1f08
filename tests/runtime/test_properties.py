"""Properties of the runtime: laws that hold over scripts that nobody wrote, and over the pure parts by themselves.

A failure prints the shrunk script, which `runtime.property_play.play` plays again. `CAYU_EXPLORE=1` looks for new
scripts at every run; otherwise a run repeats the last one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from runtime.property_model import EFFECTS, PATIENCE, Call, Crash, Script, Step, Together, Trouble
from runtime.property_play import play

from cayu.canonical import loads
from cayu.effects import ToolEffect
from cayu.errors import CayuError, SessionRunFenced, SessionRunning, StreamConflict
from cayu.sessions.fold import ahead, fold
from cayu.sessions.plans import (
    TOOL_ACTIONS,
    BlockerCode,
    NeededDecision,
    RecoveryAction,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
)
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import (
    Held,
    Record,
    StoredRecord,
    StreamRow,
    StreamState,
    Take,
    Unit,
    decide_append,
    decide_renewal,
    is_owned,
)

pytestmark = pytest.mark.exhaustive

EXPLORING = os.environ.get("CAYU_EXPLORE") == "1"


def profile(examples: int) -> settings:
    """Return settings under which runs repeat, on machines of any speed."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=not EXPLORING,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def rarely(value: st.SearchStrategy[Any], usual: Any) -> st.SearchStrategy[Any]:
    """Return `usual` most of the time."""
    return st.one_of(st.just(usual), st.just(usual), st.just(usual), value)


SECONDS = rarely(st.sampled_from([1.0, 12.0, 25.0, 40.0]), 0.0)
CALLS = st.builds(
    Call,
    tool=st.sampled_from([*EFFECTS, "ask", "ask_brief", "missing"]),
    policy=st.sampled_from(["allow", "allow", "allow", "ask", "ask", "brief", "revocable", "deny", "fail"]),
    fate=rarely(st.sampled_from(["raise", "unknown", "cancel", "deaf"]), "return"),
    before=SECONDS,
    after=SECONDS,
)
PLAYS = st.lists(st.lists(CALLS, min_size=0, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
CRASHES = st.builds(
    Crash,
    at=st.integers(1, 5),
    where=st.sampled_from(["write", "write", "act", "model"]),
    took_effect=st.booleans(),
    known=st.booleans(),
)
TROUBLES = st.builds(Trouble, at=st.integers(1, 4), answer=st.sampled_from(["busy", "lost", "unheard", "full"]))
OWNERS = st.sampled_from("AB")
WORK = st.builds(
    Step,
    what=st.sampled_from(
        [*("go", "go", "go", "resume", "recover", "approve", "deny", "edit", "answer", "repair", "interrupt", "sweep")]
    ),
    by=OWNERS,
    which=st.integers(0, 2),
    crash=rarely(CRASHES, None),
    deaf=rarely(st.just(True), False),
    trouble=rarely(TROUBLES, None),
    slow=SECONDS,
    leave=rarely(st.integers(1, 8), 0),
    cancelled=rarely(st.sampled_from([0.5, 5.0, 20.0]), 0.0),
    max_steps=rarely(st.integers(1, 2), 100),
    max_tool_calls=rarely(st.integers(1, 3), None),
    max_elapsed_seconds=rarely(st.sampled_from([5.0, 20.0]), None),
)
OTHER = st.builds(
    Step,
    what=st.sampled_from(["wait", "jump", "restart", "revoke", "repeat", "contradict", "again"]),
    by=OWNERS,
    which=st.integers(0, 2),
    seconds=st.sampled_from([1.0, 15.0, PATIENCE, 1000.0]),
)
BEGINNINGS = WORK.map(lambda step: replace(step, what="run"))
BESIDE = st.builds(replace, WORK, what=st.sampled_from(["go", "interrupt", "interrupt", "approve", "repair"]))
LAGS = st.sampled_from([0.0, 0.0, 1.0, 5.0, 13.0, 35.0])
TOGETHER = st.builds(Together, first=WORK, second=BESIDE, lag=LAGS)
FIRST = st.one_of(BEGINNINGS, st.builds(Together, first=BEGINNINGS, second=BESIDE, lag=LAGS))
LATER = st.lists(st.one_of(WORK, WORK, OTHER, TOGETHER), min_size=1, max_size=8)
STEPS = st.tuples(FIRST, LATER).map(lambda drawn: (drawn[0], *drawn[1]))
SCRIPTS = st.builds(
    Script,
    plays=PLAYS,
    steps=STEPS,
    reconciled=rarely(st.just(True), False),
    width=rarely(st.integers(1, 2), 8),
    timeout=rarely(st.just(20.0), None),
    thinking=rarely(st.sampled_from([1.0, 11.0, 35.0]), 0.0),
)


MET_EXTERNAL = Script(((Call("send"),),), (Step("run", crash=Crash(where="act", took_effect=True)),))
"""The process dies when an external tool has acted."""
MET_SECOND = Script(((Call("send"), Call("pay")),), (Step("run", crash=Crash(at=2, where="act")),))
"""It dies in the second call, when the first one's result is durable."""
DECIDED = Script(((Call("send", policy="ask"), Call("ask")),), (Step("run"), Step("approve"), Step("answer", by="B")))
"""What is decided is decided again, likewise and otherwise, when all is done."""
OUTLIVED = Script(
    ((Call("put", before=40.0),),), (Together(Step("run", deaf=True), Step("recover", by="B"), lag=35.0),)
)
"""A silent owner is taken over while its tool runs, and goes on not knowing."""


def hold(script: Script, folder: Path | None = None) -> list[StoredRecord]:
    """Play a script to its end under all laws."""
    return play(script, folder)


@profile(100)
@example(MET_EXTERNAL)
@example(MET_SECOND)
@example(DECIDED)
@example(OUTLIVED)
@given(SCRIPTS)
def test_whatever_happens_the_laws_hold_and_the_session_can_be_brought_to_its_end(script: Script) -> None:
    hold(script)


def test_an_interruption_that_meets_a_recovery_stops_it_and_is_not_told_to_interrupt_first() -> None:
    lost = Step("run", crash=Crash(took_effect=True))
    hold(Script(((Call(before=12.0),),), (lost, Together(Step("recover"), Step("interrupt", by="B")))))


@profile(5)
@given(SCRIPTS)
def test_the_laws_hold_over_a_file(script: Script) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hold(script, Path(folder))


@pytest.mark.slow
@profile(1200)
@given(SCRIPTS)
def test_the_laws_hold_over_many_more_scripts(script: Script) -> None:
    hold(script)


@pytest.mark.slow
@profile(50)
@given(SCRIPTS)
def test_the_laws_hold_over_many_more_files(script: Script) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hold(script, Path(folder))


ROW = StreamRow(id="s", instance_id="i", agent_name="a", provider_name="p", model="m")


@profile(25)
@given(SCRIPTS)
def test_every_beginning_of_a_log_folds_and_ahead_says_what_the_rest_will_make_of_it(script: Script) -> None:
    records = [replace(record, at=0) for record in hold(script)]
    ends = range(len(records) + 1)
    views = [fold(ROW, records[:end]) for end in ends]
    for begin in ends:
        for end in {begin, min(begin + 1, len(records)), min(begin + 5, len(records)), len(records)}:
            changes = [(record.type, loads(record.body)) for record in records[begin:end]]
            assert ahead(views[begin], changes) == views[end]
        assert views[begin] == fold(ROW, records[:begin]), "ahead leaves the view as it is"


@dataclass(frozen=True)
class Move:
    """What one writer does to a stream; `claim` counts the claims that were ever granted."""

    what: str
    owner: str = "X"
    claim: int = 0
    records: int = 1
    seconds: float = 0.0


MOVES = st.lists(
    st.builds(
        Move,
        what=st.sampled_from(["take", "take", "evict", "append", "append", "renew", "release"]),
        owner=st.sampled_from("XY"),
        claim=st.integers(0, 5),
        records=st.integers(0, 2),
        seconds=st.sampled_from([0.0, 1.0, 29.0, 31.0]),
    ),
    max_size=30,
)
WORKING = StreamState(version=1, status=SessionStatus.RUNNING, created_at=1, updated_at=1)


@profile(150)
@given(MOVES)
def test_between_two_takes_only_the_taker_writes(moves: list[Move]) -> None:
    state, now = WORKING, 1_000_000
    claims: list[Held] = []
    holder: Held | None = None
    for move in moves:
        now += round(move.seconds * 1_000_000)
        records = (Record("model.started", b"{}"),) * move.records
        if move.what in ("take", "evict"):
            evicting = state.owner if move.what == "evict" else None
            unit = Unit("s", state.version, Take(move.owner, evicting), records)
            if is_owned(state, now) and evicting is None:
                _refused(SessionRunning, lambda unit=unit, state=state, now=now: decide_append(state, unit, now))
                continue
            _refused(StreamConflict, lambda unit=unit, state=state, now=now: decide_append(state, _late(unit), now))
            state = decide_append(state, unit, now)
            holder = Held(state.epoch, move.owner)
            claims.append(holder)
        elif claims:
            claim = claims[move.claim % len(claims)]
            if move.what == "renew":
                act = lambda s, claim=claim, now=now: decide_renewal(s, "s", claim, now, 30.0)  # noqa: E731
            else:
                unit = Unit("s", state.version, claim, records, release=move.what == "release")
                act = lambda s, unit=unit, now=now: decide_append(s, unit, now)  # noqa: E731
            if claim != holder:
                _refused(SessionRunFenced, lambda act=act, state=state: act(state))
                continue
            state = act(state)
            holder = None if move.what == "release" else holder
    assert [claim.epoch for claim in claims] == list(range(1, len(claims) + 1))


def _late(unit: Unit) -> Unit:
    """Return the unit as whoever has not read the last record would write it."""
    return replace(unit, expected_version=(unit.expected_version or 0) - 1)


def _refused(kind: type[CayuError], act: Callable[[], object]) -> None:
    with pytest.raises(kind):
        act()


NEEDS = st.builds(
    NeededDecision,
    subject=st.just("tool_call"),
    allowed_actions=st.just(TOOL_ACTIONS),
    tool_call_id=st.text(max_size=5),
    tool_effect=st.sampled_from(ToolEffect),
    attempt=st.integers(1, 2),
)
ITEMS = st.builds(
    RecoveryPlanItem.create,
    session_id=st.text(min_size=1, max_size=5),
    instance_id=st.text(max_size=5),
    agent_name=st.text(max_size=5),
    status=st.sampled_from(SessionStatus).map(str),
    version=st.integers(0, 2**40),
    run_epoch=st.integers(0, 2**40),
    action=st.sampled_from(RecoveryAction),
    blocker_codes=st.lists(st.sampled_from(BlockerCode), max_size=2).map(tuple),
    needed_decisions=st.lists(NEEDS, max_size=2).map(tuple),
)
PLANS = st.builds(
    RecoveryPlan.create,
    st.builds(RecoveryPlanRequest, inactive_for_seconds=st.floats(0, 1e9), cursor=st.none() | st.text(max_size=5)),
    st.lists(ITEMS, min_size=1, max_size=3),
    created_at=st.datetimes(timezones=st.just(UTC)),
    inspected=st.integers(0, 1000),
    next_cursor=st.none() | st.text(max_size=5),
)
EDITS = {
    "version": lambda value: value + 1,
    "run_epoch": lambda value: value + 1,
    "session_id": lambda value: f"{value}x",
    "status": lambda value: f"{value}x",
    "action": lambda value: "leave_intact" if value != "leave_intact" else "automatic_repair",
    "blocker_codes": lambda value: [*value, "tool_approval_required"],
    "needed_decisions": lambda value: [*value, {"subject": "model_step", "allowed_actions": []}],
}


@profile(60)
@given(PLANS, st.sampled_from(sorted(EDITS)))
def test_a_plan_survives_its_file_and_no_edit(plan: RecoveryPlan, edited: str) -> None:
    assert RecoveryPlan.model_validate_json(plan.model_dump_json()) == plan
    later = plan.model_copy(update={"created_at": datetime(2030, 1, 1, tzinfo=UTC)})
    assert RecoveryPlan.model_validate_json(later.model_dump_json()).plan_id == plan.plan_id
    dumped = plan.model_dump(mode="json")
    dumped["items"][0][edited] = EDITS[edited](dumped["items"][0][edited])
    with pytest.raises(ValidationError, match="not what its plan_id says"):
        RecoveryPlan.model_validate(dumped)
