"""A child process dies by SIGKILL at each named crash point; a new one takes over, and what the tool did is counted."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from runtime import crash_scenarios as scenarios

from cayu.approvals import ToolApprovalRequest
from cayu.crashpoints import CRASH_POINTS
from cayu.errors import SessionNotFound
from cayu.events import EventType as E
from cayu.runtime import CayuApp
from cayu.runtime.outcome import RunOutcome, outcome_of, session_view
from cayu.sessions.projection import EFFECT_KIND
from cayu.sessions.streams import HeadQuery, ItemQuery, RecordQuery
from cayu.sessions.view import SessionView
from cayu.testing import Child, run_child

pytestmark = pytest.mark.slow

SCENARIOS = str(Path(scenarios.__file__))
EFFECTS = ("none", "idempotent", "external")
RUNNING = ("session.created", "model.answered", "round.opened", "tool.dispatched", "tool.returned", "result.staged",
           "round.closing", "round.closed", "session.closing", "session.closed")  # fmt: skip
"""Points of a run that asks nobody."""
DECIDING = ("decision.recorded", "round.continued", "tool.dispatched", "tool.returned", "result.staged", "round.closed")
"""Points of a continuation."""
COMMITS = tuple(f"{point}:{n}" for point in ("commit.prepared", "commit.durable") for n in range(1, 6))
"""Both sides of each commit of a run."""


def test_every_named_point_is_crashed_at_somewhere() -> None:
    named = {*RUNNING, *DECIDING, "session.paused", *(point.partition(":")[0] for point in COMMITS)}
    assert named == set(CRASH_POINTS)


@pytest.mark.parametrize(
    ("point", "effect", "shape"),
    [*itertools.product(RUNNING, EFFECTS, ("serial", "parallel")), *itertools.product(COMMITS, EFFECTS, ("serial",))],
)
async def test_a_run_survives(point: str, effect: str, shape: str, tmp_path: Path) -> None:
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), effect, shape], crash_at=point)
    await _recovered(child, tmp_path, effect, shape)


@pytest.mark.parametrize(("point", "effect"), [*itertools.product(DECIDING, EFFECTS)])
async def test_an_approved_continuation_survives(point: str, effect: str, tmp_path: Path) -> None:
    paused = run_child(f"{SCENARIOS}:run", [str(tmp_path), effect, "approved"])
    assert paused.result == "interrupted"
    child = run_child(f"{SCENARIOS}:approve_all", [str(tmp_path), effect, "approved"], crash_at=point)
    await _recovered(child, tmp_path, effect, "approved")


@pytest.mark.requirement("A003", "A050")
async def test_a_pause_survives(tmp_path: Path) -> None:
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), "external", "approved"], crash_at="session.paused")
    assert child.killed
    async with scenarios.build(tmp_path, "external", "approved") as app:
        assert (await app.list_pending_actions()).total == scenarios.CALLS
    await _recovered(child, tmp_path, "external", "approved")


async def _recovered(child: Child, folder: Path, effect: str, shape: str) -> None:
    """Take the session over as an operator would, and hold what must hold whatever happened."""
    assert child.killed, child.stderr
    async with scenarios.build(folder, effect, shape) as app:
        try:
            before = await session_view(app, scenarios.SESSION)
        except SessionNotFound:
            assert not _acts(folder), "a session that was never durable has acted"
            return
        await _check_log(app, folder)
        if before.status == "running":
            async for _ in app.recover_incomplete_session(scenarios.SESSION):
                pass
        if (await app.list_pending_actions()).total and shape == "approved":
            await _approve(app)
        outcome = await outcome_of(app, scenarios.SESSION)
        view = await _check_log(app, folder)
        _check_effects(effect, outcome, view, folder)
        await _check_projections(app, view)


async def _approve(app: CayuApp) -> None:
    for action in (await app.list_pending_actions()).actions:
        if action.kind == "tool_approval":
            request = ToolApprovalRequest(session_id=scenarios.SESSION, approval_id=action.id, decision="approve")
            async for _ in app.resolve_tool_approval(request):
                pass


async def _check_log(app: CayuApp, folder: Path) -> SessionView:
    """The log is dense and legal, and nothing has acted that did not begin."""
    records = [record for _, record in await app.session_store.records(RecordQuery())]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    view = await session_view(app, scenarios.SESSION)
    started = sum(record.type == E.TOOL_STARTED for record in records)
    assert len(_acts(folder)) <= started, "a call has acted whose start is not durable"
    return view


def _check_effects(effect: str, outcome: RunOutcome, view: SessionView, folder: Path) -> None:
    acts = Counter(_acts(folder))
    unknown = [call for call in outcome.tool_calls if call.state == "unknown"]
    if effect == "external":
        assert max(acts.values(), default=0) <= 1, "an external effect was repeated"
        assert (outcome.status == "interrupted") == bool(unknown)
    else:
        assert not unknown
        assert outcome.status == "completed"
        assert max(acts.values(), default=0) <= 2, "a call was replayed more than once"
    if outcome.status == "completed":
        assert outcome.final_text == "all done"
        assert {call.state for call in outcome.tool_calls} <= {"completed", "failed"}
        for call in outcome.tool_calls:
            ran = f"{call.arguments['n']}" in {key.split()[1] for key in acts}
            assert (call.state == "completed") == ran, "a result was made up, or lost"
        assert len(outcome.tool_calls) == scenarios.CALLS
    receipts = scenarios.ReceiptBook(folder / "receipts.db").all()
    assert len(receipts) == len(acts), "one receipt per call that acted"


async def _check_projections(app: CayuApp, view: SessionView) -> None:
    page = await app.session_store.heads(HeadQuery(session_id=scenarios.SESSION))
    state = page.rows[0].state
    assert (state.status, state.version, state.model_steps) == (view.status, view.version, view.model_steps)
    assert state.tool_calls == view.tool_calls
    pending = (await app.list_pending_actions()).total
    opened = view.open_round
    assert state.pending == pending == (len(opened.awaiting) + len(opened.unknown) if opened else 0)
    effects = await app.session_store.items(ItemQuery(kinds=(EFFECT_KIND,)))
    assert all(row.item.state in ("completed", "failed", "unknown") for row in effects.rows)
    if view.status != "running":
        assert state.owner is None


def _acts(folder: Path) -> list[str]:
    path = folder / "acts.txt"
    return path.read_text(encoding="ascii").splitlines() if path.exists() else []
