"""A process dies at every named crash point and every commit of a trial; a new one executes the request again.

Whatever was done by then, one effect, one session and one evaluation come of it, and a record that is equal to that of
a trial which nothing has happened to, but for times, claims and owners.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from memory import crash_trials as trials
from runtime.support import assert_consistent

from cayu import CayuApp, SQLiteSessionStore
from cayu.crashpoints import CRASH_POINTS
from cayu.interventions.phases import ORDER
from cayu.memory import MemoryInterventionExecutionPhase as Phase
from cayu.memory import MemoryInterventionExecutionRecord
from cayu.sessions import SessionView
from cayu.sessions.streams import HeadQuery, StreamHead
from cayu.snapshots.components import OVERLAYS
from cayu.storage.interventions import SQLiteMemoryInterventionExecutionStore
from cayu.storage.snapshots import SQLiteAgentSnapshotStore
from cayu.testing import Child, run_child

CHILDREN = str(Path(trials.__file__))
COMMITS = 22
"""Of a trial with one lookup: the first finds the snapshot, the others are the trial's."""
TOGETHER = 4
"""Children at work at once."""


class At(NamedTuple):
    """What is durable when a process dies at a point."""

    phase: Phase
    session: bool = False
    """Whether the session exists."""


P = Phase
BEFORE: dict[str, At] = {
    "trial.prepared": At(P.PREPARED),
    "materialization.claimed": At(P.PREPARED),
    "materialization.made": At(P.PREPARED),
    "trial.bound": At(P.TRIAL_BOUND),
    "overlay.applying": At(P.TRIAL_BOUND),
    "overlay.applied": At(P.TRIAL_BOUND),
    "trial.effect_resolved": At(P.EFFECT_RESOLVED),
    "trial.session_bound": At(P.SESSION_BOUND),
    "trial.dispatching": At(P.SESSION_BOUND),
}
DURING: dict[str, At] = {
    point: At(P.SESSION_BOUND, session=True)
    for point in (
        *("session.created", "model.answered", "round.opened", "tool.dispatched", "tool.returned", "result.staged"),
        *("round.closing", "round.closed", "model.answered:2", "tool.dispatched:2", "tool.returned:2"),
        *("session.closing", "session.closed", "trial.settled"),
    )
}
AFTER: dict[str, At] = {
    "trial.runtime_terminal": At(P.RUNTIME_TERMINAL, session=True),
    "trial.evaluating": At(P.RUNTIME_TERMINAL, session=True),
    "trial.evaluated": At(P.EVALUATED, session=True),
    "trial.finalizing": At(P.EVALUATED, session=True),
    "trial.finalized": At(P.FINALIZED, session=True),
}
NAMED = BEFORE | DURING | AFTER
GROUPS = {
    "before": tuple(BEFORE),
    "during": tuple(DURING),
    "after": tuple(AFTER),
    "unwritten": tuple(f"commit.prepared:{n}" for n in range(1, COMMITS + 1)),
    "written": tuple(f"commit.durable:{n}" for n in range(1, COMMITS + 1)),
}
TWICE = {
    "trial.prepared": "materialization.claimed",
    "materialization.claimed": "materialization.made",
    "materialization.made": "commit.durable:4",
    "trial.bound": "overlay.applied",
    "overlay.applied": "trial.session_bound",
    "trial.session_bound": "tool.returned",
    "trial.dispatching": "session.created",
    "session.created": "model.answered",
    "model.answered": "commit.prepared:3",
    "round.opened": "commit.prepared:3",
    "tool.returned": "commit.prepared:3",
    "round.closed": "session.closing",
    "session.closing": "session.closed",
    "session.closed": "trial.settled",
    "trial.settled": "trial.runtime_terminal",
    "trial.runtime_terminal": "trial.evaluating",
    "trial.evaluating": "trial.evaluating",
    "trial.evaluated": "trial.finalizing",
    "trial.finalizing": "trial.finalized",
}
"""Where a process dies, and where the one dies that takes over."""
LOST = {"round.opened": "round.continued", "tool.dispatched": "tool.dispatched", "tool.returned": "round.closing"}
"""The same, where both have begun the call of the round: nobody begins it a third time."""
CANCELLED_IN = ("commit.durable:18", "commit.durable:19", "trial.settled", "trial.runtime_terminal")
"""Where a process dies whose trial is cancelled while its model thinks; the first has the flag written, and no more."""
UNREACHED = {"session.paused", "decision.recorded"}
"""Points of sessions that wait for a human; no trial does."""


def test_every_point_of_a_trial_is_crashed_at() -> None:
    named = {point.partition(":")[0] for points in GROUPS.values() for point in points}
    again = {point.partition(":")[0] for points in (TWICE, LOST) for pair in points.items() for point in pair}
    assert named | again == set(CRASH_POINTS) - UNREACHED


# What a file holds.


class Found(NamedTuple):
    """Everything about the one trial of a folder, read by a process that takes no part in it."""

    record: MemoryInterventionExecutionRecord | None
    overlay: dict[str, Any] | None
    heads: Sequence[StreamHead]
    view: SessionView | None
    events: tuple[str, ...]

    @property
    def durable(self) -> MemoryInterventionExecutionRecord:
        """The record, which is there."""
        assert self.record is not None
        return self.record

    @property
    def receipts(self) -> list[Any]:
        """The receipts that stand in the overlay."""
        return list(self.overlay["operations"].values()) if self.overlay is not None else []


@asynccontextmanager
async def _stores(folder: Path) -> AsyncIterator[tuple[Any, Any, Any]]:
    path = folder / "trials.db"
    opened = (
        SQLiteSessionStore(path),
        SQLiteAgentSnapshotStore(path),
        SQLiteMemoryInterventionExecutionStore(path),
    )
    try:
        yield opened
    finally:
        for store in opened:
            await store.aclose()


async def look(folder: Path, execution_id: str, scope_id: str) -> Found:
    """Read what is durable in a folder."""
    async with _stores(folder) as (sessions, snapshots, journal):
        record = await journal.load(execution_id)
        overlay = await snapshots.read(OVERLAYS, scope_id)
        heads = (await sessions.heads(HeadQuery())).rows
        if not heads:
            return Found(record, overlay, heads, None, ())
        loaded = await sessions.load(heads[0].row.id)
        app = cast(CayuApp, SimpleNamespace(session_store=sessions))
        view = await assert_consistent(app, heads[0].row.id)
        return Found(record, overlay, heads, view, tuple(each.type for each in loaded.records))


# A trial that nothing happens to.


class Plain(NamedTuple):
    """An uninterrupted trial."""

    outcome: dict[str, Any]
    found: Found
    execution_id: str
    scope_id: str


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the agent is captured, and nothing was tried."""
    folder: Path = tmp_path_factory.mktemp("captured")

    async def capture() -> None:
        async with trials.laboratory(folder):
            pass

    asyncio.run(capture())
    return folder


@pytest.fixture(scope="module")
def plain(captured: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Plain]:
    """By number of lookups."""

    async def one(lookups: int) -> Plain:
        folder = tmp_path_factory.mktemp("plain") / "trial"
        shutil.copytree(captured, folder)
        outcome = await trials.execute(str(folder), lookups)
        async with trials.laboratory(folder) as lab:
            execution_id = lab.request().execution_id
        async with _stores(folder) as (_, snapshots, _journal):
            trial = outcome["execution"]["materialization_fingerprint"]
            scope_id = (await snapshots.read("materializations", trial))["state_scope_id"]
        return Plain(outcome, await look(folder, execution_id, scope_id), execution_id, scope_id)

    async def both() -> dict[int, Plain]:
        return {lookups: await one(lookups) for lookups in (1, 2)}

    return asyncio.run(both())


# Dying, and taking over.


async def kill(folders: dict[Path, str], name: str, *arguments: Any) -> None:
    """Let a child go to work in each folder, a few at once, and see each die at its point."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(folder: Path, point: str) -> None:
        async with room:
            given = [str(folder), *arguments]
            child: Child = await asyncio.to_thread(run_child, f"{CHILDREN}:{name}", given, crash_at=point)
        assert child.killed, f"it has not come to {point}: {child.stdout}{child.stderr}"

    await asyncio.gather(*(one(folder, point) for folder, point in folders.items()))


async def take_over(folders: dict[Path, str], lookups: int, hours: int = 1, late: float = 0.0) -> dict[str, Any]:
    """Execute the request of every folder again in one new process, and return the outcomes by crash point."""
    given = [[str(folder) for folder in folders], lookups, hours, late]
    child = await asyncio.to_thread(run_child, f"{CHILDREN}:execute_in", given)
    outcomes = dict(zip(folders.values(), child.result, strict=True))
    failed = {point: outcome for point, outcome in outcomes.items() if isinstance(outcome, str)}
    assert not failed
    return outcomes


def copies(captured: Path, home: Path, points: Sequence[str]) -> dict[Path, str]:
    """A copy of what was captured for each point."""
    folders = {home / point.replace(":", "-"): point for point in points}
    for folder in folders:
        shutil.copytree(captured, folder)
    return folders


VARYING = frozenset(
    (
        *("created_at", "updated_at", "recorded_at", "runtime_deadline_at"),
        *("started_at", "completed_at", "duration_ms"),
        *("acquired_at", "renewed_at", "lease_expires_at", "released_at", "settled_at"),
        *("claim_id", "request_authority_hmac_sha256", "owner_id", "generation"),
    )
)
"""What differs between two executions of one request: times, claims (which are signed) and owners."""


def steady(value: Any, name: str = "") -> Any:
    """A value with everything that may differ replaced by whether it is there."""
    if name in VARYING:
        return value is not None
    if isinstance(value, dict):
        return {key: steady(each, key) for key, each in value.items()}
    return [steady(each) for each in value] if isinstance(value, list) else value


def assert_once(folder: Path, found: Found, point: str) -> None:
    """However often the request was executed, one effect, one session and one evaluation came of it."""
    record = found.durable
    assert len(found.receipts) == 1, point
    assert [head.row.id for head in found.heads] == [record.session_id], point
    assert found.events.count("session.started") == 1, point
    assert found.heads[0].state.owner is None, point
    overlay, runner, evaluator = (trials.notes(folder, name) for name in ("overlay", "runner", "evaluator"))
    for told, first in ((overlay, "apply"), (runner, "run"), (evaluator, "evaluate")):
        called = [line["call"] for line in told]
        assert called.count(first) <= 1, f"{point}: {called}"
        assert first not in called[1:], f"{point}: {called}"
        assert len({line["operation"] for line in told}) == 1, point
    for line in (*overlay, *runner):
        assert line["committed_to"] == line["operation"] == record.operation_fingerprint, point
    assert all(line["claimed"] and line["owner"] for line in runner), point
    assert len(trials.notes(folder, "verdicts")) == 1, point


def assert_as_plain(folder: Path, outcome: dict[str, Any], found: Found, plain: Plain, point: str) -> None:
    """The trial has come to what it would have come to without any crash."""
    assert_once(folder, found, point)
    assert steady(outcome) == steady(plain.outcome), point
    assert outcome["execution"]["status"] == "completed", point
    assert steady(found.durable.model_dump(mode="json")) == steady(plain.found.durable.model_dump(mode="json")), point
    assert found.overlay == plain.found.overlay, point
    assert found.view is not None
    assert plain.found.view is not None
    assert found.view.transcript == plain.found.view.transcript, point
    assert found.events.count("session.completed") == 1, point


@pytest.mark.slow
@pytest.mark.requirement("B043", "B044", "B045", "B050", "B055")
@pytest.mark.parametrize("group", list(GROUPS))
async def test_a_trial_survives(group: str, captured: Path, plain: dict[int, Plain], tmp_path: Path) -> None:
    lookups = 1 if group in ("unwritten", "written") else 2
    usual, folders = plain[lookups], copies(captured, tmp_path, GROUPS[group])
    await kill(folders, "execute", lookups)
    before = {point: await look(folder, usual.execution_id, usual.scope_id) for folder, point in folders.items()}
    for point, found in before.items():
        if point in NAMED:
            assert At(found.durable.phase, bool(found.heads)) == NAMED[point], point
    outcomes = await take_over(folders, lookups)
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        assert_as_plain(folder, outcomes[point], found, usual, point)
        assert_kept(before[point], found, point)


def assert_kept(before: Found, after: Found, point: str) -> None:
    """What was durable at the crash is what stands in the end."""
    assert after.receipts[: len(before.receipts)] == before.receipts, point
    assert after.events[: len(before.events)] == before.events, point
    if before.record is None:
        return
    for name in type(before.record).model_fields:
        known, final = getattr(before.record, name), getattr(after.durable, name)
        if name not in ("phase", "status", "revision", "updated_at", "runtime_dispatch_ownership") and known:
            assert known == final, f"{point}: {name}"


@pytest.mark.slow
async def test_a_trial_has_no_more_commits_than_are_crashed_at(captured: Path, tmp_path: Path) -> None:
    [folder] = copies(captured, tmp_path, ["uninterrupted"])
    child = run_child(f"{CHILDREN}:execute", [str(folder), 1], crash_at=f"commit.prepared:{COMMITS + 1}")
    assert child.result["execution"]["status"] == "completed"


@pytest.mark.slow
@pytest.mark.requirement("B043", "B044", "B050", "B055")
async def test_a_trial_survives_two_deaths(captured: Path, plain: dict[int, Plain], tmp_path: Path) -> None:
    usual, folders = plain[1], copies(captured, tmp_path, list(TWICE))
    await kill(folders, "execute", 1)
    await kill({folder: TWICE[point] for folder, point in folders.items()}, "execute", 1, 1)
    outcomes = await take_over(folders, 1, hours=2)
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        assert_as_plain(folder, outcomes[point], found, usual, f"{point}, then {TWICE[point]}")


@pytest.mark.slow
async def test_a_tool_that_is_lost_twice_fails_and_the_trial_goes_on(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    usual, folders = plain[1], copies(captured, tmp_path, list(LOST))
    await kill(folders, "execute", 1)
    await kill({folder: LOST[point] for folder, point in folders.items()}, "execute", 1, 1)
    outcomes = await take_over(folders, 1, hours=2)
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        assert_once(folder, found, point)
        assert found.view is not None
        assert [call.state for call in found.view.rounds[0].calls] == ["failed"], point
        assert outcomes[point]["execution"]["status"] == "completed"
        assert outcomes[point]["eval_result"]["score"] == 1.0  # what was recalled holds the answer as well


# Which side of an act a process dies on.


@pytest.mark.slow
@pytest.mark.requirement("B044", "B045")
async def test_an_effect_is_committed_to_before_and_found_after(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    """Killed between the commitment and the application, before the effect is written, and after it."""
    usual, folders = plain[1], copies(captured, tmp_path, ["trial.bound", "overlay.applying", "overlay.applied"])
    await kill(folders, "execute", 1)
    before = {point: await look(folder, usual.execution_id, usual.scope_id) for folder, point in folders.items()}
    called = {point: [line["call"] for line in trials.notes(folder, "overlay")] for folder, point in folders.items()}
    assert called == {"trial.bound": [], "overlay.applying": ["apply"], "overlay.applied": ["apply"]}
    assert [len(before[point].receipts) for point in called] == [0, 0, 1]
    assert {found.durable.operation_fingerprint for found in before.values()} == {
        usual.found.durable.operation_fingerprint
    }
    await take_over(folders, 1)
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        assert found.receipts == usual.found.receipts
        again = [line["call"] for line in trials.notes(folder, "overlay")]
        assert again == [*called[point], "recover"]


@pytest.mark.slow
@pytest.mark.requirement("B055")
async def test_a_claimed_session_is_started_once_and_gone_on_with_after(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    """Killed when the session is claimed, owned, begun and ended: a session that there is has one start, the first."""
    points = ["trial.session_bound", "trial.dispatching", "session.created", "session.closed"]
    usual, folders = plain[1], copies(captured, tmp_path, points)
    await kill(folders, "execute", 1)
    before = {point: await look(folder, usual.execution_id, usual.scope_id) for folder, point in folders.items()}
    assert [found.durable.runtime_session_create_claim is not None for found in before.values()] == [True] * 4
    assert [found.durable.runtime_dispatch_ownership is not None for found in before.values()] == [False, *[True] * 3]
    assert [len(found.heads) for found in before.values()] == [0, 0, 1, 1]
    await take_over(folders, 1)
    calls = {}
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        claim = before[point].durable.runtime_session_create_claim
        assert found.durable.runtime_session_create_claim == claim
        assert found.view is not None
        assert found.view.row.metadata is not None
        assert claim is not None
        assert found.view.row.metadata["memory_intervention"]["claim"] == claim.model_dump(mode="json")
        if before[point].heads:
            assert found.heads[0].state.created_at == before[point].heads[0].state.created_at
        calls[point] = [line["call"] for line in trials.notes(folder, "runner")]
    assert calls == {
        "trial.session_bound": ["recover"],
        "trial.dispatching": ["recover"],
        "session.created": ["run", "recover"],
        "session.closed": ["run", "recover"],
    }


@pytest.mark.slow
@pytest.mark.requirement("B050")
async def test_an_evaluation_that_was_begun_is_completed(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    points = ["trial.runtime_terminal", "trial.evaluating", "trial.evaluated"]
    usual, folders = plain[1], copies(captured, tmp_path, points)
    await kill(folders, "execute", 1)
    made = {point: trials.notes(folder, "verdicts") for folder, point in folders.items()}
    assert [len(verdicts) for verdicts in made.values()] == [0, 1, 1]
    outcomes = await take_over(folders, 1)
    calls = {}
    for folder, point in folders.items():
        [verdict] = trials.notes(folder, "verdicts")
        assert made[point] in ([], [verdict])
        assert outcomes[point]["eval_result"] == verdict["verdict"]
        told = trials.notes(folder, "evaluator")
        assert {line["operation"] for line in told} == {verdict["operation"]}
        calls[point] = [line["call"] for line in told]
    assert calls == {
        "trial.runtime_terminal": ["recover"],
        "trial.evaluating": ["evaluate", "recover"],
        "trial.evaluated": ["evaluate", "recover"],
    }
    assert usual.outcome["eval_result"]["structured_output"] == {"number": 1}


# Deadlines and cancellations.


LATE = trials.TIMEOUT_SECONDS + 1.0


@pytest.mark.slow
@pytest.mark.requirement("B017", "B018")
async def test_a_trial_that_is_taken_over_too_late_has_timed_out(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    """The deadline that was set first holds. A session that had come to its end by then has completed all the same."""
    begun = ["session.created", "model.answered", "round.opened", "tool.dispatched", "round.closed", "session.closing"]
    ended = ["session.closed", "trial.settled"]
    usual, folders = plain[1], copies(captured, tmp_path, ["trial.session_bound", "trial.dispatching", *begun, *ended])
    await kill(folders, "execute", 1)
    before = {point: await look(folder, usual.execution_id, usual.scope_id) for folder, point in folders.items()}
    outcomes = await take_over(folders, 1, late=LATE)
    for folder, point in folders.items():
        record = (found := await look(folder, usual.execution_id, usual.scope_id)).durable
        assert record.runtime_deadline_at == before[point].durable.runtime_deadline_at, point
        assert record.runtime_timeout_observed is True, point
        assert record.runtime_cancellation_observed is False, point
        assert record.revision == usual.found.durable.revision + 1, point
        assert (record.status == "completed") is (point in ended), point
        assert record.status in ("completed", "timed_out"), point
        assert outcomes[point]["execution"] == record.model_dump(mode="json"), point
        assert len(found.heads) == (point not in ("trial.session_bound", "trial.dispatching")), point
        assert all(head.state.status == ("completed" if point in ended else "interrupted") for head in found.heads)
        assert len(trials.notes(folder, "verdicts")) == 1, point


@pytest.mark.slow
@pytest.mark.requirement("B017")
async def test_a_cancellation_that_is_durable_is_never_forgotten(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    """Cancelled, killed at every commit from there to the end of the session, and executed again."""
    usual, folders = plain[1], copies(captured, tmp_path, CANCELLED_IN)
    await kill(folders, "cancel", 1)
    before = {point: await look(folder, usual.execution_id, usual.scope_id) for folder, point in folders.items()}
    assert {found.durable.runtime_cancellation_observed for found in before.values()} == {True}
    ended = {point: found.heads[0].state.status == "interrupted" for point, found in before.items()}
    assert not all(ended.values())
    assert any(ended.values())
    outcomes = await take_over(folders, 1)
    for folder, point in folders.items():
        found = await look(folder, usual.execution_id, usual.scope_id)
        assert_once(folder, found, point)
        record = found.durable
        assert (record.runtime_cancellation_observed, record.runtime_timeout_observed) == (True, False), point
        assert (record.phase, record.status) == (Phase.FINALIZED, "cancelled"), point
        assert record.failure_code == "runtime_cancelled"
        assert outcomes[point]["execution"] == record.model_dump(mode="json"), point
        assert found.heads[0].state.status == "interrupted", point


@pytest.mark.slow
async def test_a_cancellation_that_was_not_written_is_none(
    captured: Path, plain: dict[int, Plain], tmp_path: Path
) -> None:
    point = CANCELLED_IN[0].replace("durable", "prepared")
    usual, folders = plain[1], copies(captured, tmp_path, [point])
    await kill(folders, "cancel", 1)
    outcomes = await take_over(folders, 1)
    [folder] = folders
    assert_as_plain(folder, outcomes[point], await look(folder, usual.execution_id, usual.scope_id), usual, point)


def test_the_points_stand_in_the_order_of_the_phases() -> None:
    phases = [at.phase for at in NAMED.values()]
    assert phases == sorted(phases, key=ORDER.__getitem__)
