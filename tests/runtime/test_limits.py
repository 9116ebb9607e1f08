"""Limits of runs at work: waits that do not count, totals over restarts, skips that last, calls held back in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime import spending_scenarios as scenarios
from runtime.support import (
    QUICK,
    SESSION,
    FakeClock,
    FakeTool,
    StoreProxy,
    approval,
    assert_consistent,
    calls,
    has,
    log_of,
    logged,
    make_app,
    new_run,
    next_turn,
    play,
    status_of,
    types_of,
    waiting_ids,
)

from cayu import CayuApp, RunLimits, RuntimeConfig, ToolContext, ToolEffect, ToolResult, run_to_completion
from cayu.approvals import ToolApprovalRequest
from cayu.canonical import dumps, loads
from cayu.errors import CayuError, IllegalTransition, InvalidSessionLog, StoreFull
from cayu.events import EventType as E
from cayu.providers import ModelRequest, ModelStreamEvent
from cayu.runtime.outcome import RunOutcome, session_view
from cayu.sessions import (
    BlockerCode,
    CallState,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlanRequest,
    SessionStore,
    UserInputResponse,
)
from cayu.sessions.projection import EFFECT_KIND, Draft, counters
from cayu.sessions.streams import Held, ItemQuery, Record, RecordQuery, StoredRecord, StreamRow, Take, Unit
from cayu.sessions.view import SessionView
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.testing import run_child
from cayu.tools import AlwaysRequireApprovalToolPolicy, AskUserTool, ByNameToolPolicy, ToolPolicyDecision

APPROVE = AlwaysRequireApprovalToolPolicy()
PAY_ASKS = ByNameToolPolicy({"pay": ToolPolicyDecision.REQUIRE_APPROVAL})
HOUR = 3600.0
QUARTER = RunLimits(max_elapsed_seconds=900)
FIXTURES = Path(__file__).parent / "fixtures"
SCENARIOS = str(Path(scenarios.__file__))
Work = Callable[[ToolContext, dict[str, Any]], Awaitable[object]]


def spends(clock: FakeClock, seconds: float) -> Work:
    """Work that takes its time on the store's clock."""

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.advance(seconds)
        return ToolResult(content="took its time")

    return work


def used(input_tokens: int, output_tokens: int, *events: ModelStreamEvent) -> list[ModelStreamEvent]:
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return [*events, ModelStreamEvent.completed(usage=usage)]


def slow_answer(clock: FakeClock, seconds: float, events: Sequence[ModelStreamEvent] | str) -> Any:
    """A batch whose answer takes time on the store's clock."""

    def answered(_: ModelRequest) -> Any:
        clock.advance(seconds)
        return events

    return answered


async def reached(app: CayuApp, session_id: str = SESSION) -> list[tuple[str, float]]:
    """The limits that the log says were reached."""
    return [(each["limit"], each["value"]) for each in await logged(app, E.SESSION_LIMIT_REACHED, session_id)]


async def assert_stopped(app: CayuApp, name: str, value: float) -> None:
    assert await reached(app) == [(name, value)]
    view = await assert_consistent(app)
    assert (view.status, view.interruption) == ("interrupted", {"reason": "limit_reached", "limit": name})
    assert view.open_round is None


# Human waits.


@pytest.mark.requirement("A075")
@pytest.mark.parametrize("before", [0.0, 300.0, 899.0])
async def test_two_hours_in_approval_do_not_count(before: float, tmp_path: Path) -> None:
    clock, pay = FakeClock(), FakeTool("pay", effect=ToolEffect.EXTERNAL)
    batches = [slow_answer(clock, before, calls("pay")), "done"]
    app = make_app(SQLiteSessionStore(tmp_path / "s.db", clock=clock), batches, [pay], APPROVE)
    await play(app.run(new_run(limits=QUARTER)))
    clock.advance(2 * HOUR)
    [waiting] = await waiting_ids(app)
    outcome = await run_to_completion(app, approval(waiting))
    assert len(pay.calls) == 1
    assert (outcome.status, outcome.final_text) == ("completed", "done")
    await app.aclose()


@pytest.mark.requirement("A075")
@pytest.mark.parametrize(("after", "stops"), [(599.999999, False), (600.0, True), (600.000001, True)])
async def test_active_time_on_both_sides_of_a_wait_adds_up(after: float, stops: bool) -> None:
    clock = FakeClock()
    look, pay = FakeTool("look", spends(clock, 300)), FakeTool("pay", spends(clock, after))
    store = InMemorySessionStore(clock=clock)
    app = make_app(store, [calls("look"), calls("pay"), "done"], [look, pay], PAY_ASKS)
    await play(app.run(new_run(limits=QUARTER)))
    clock.advance(2 * HOUR)
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    assert len(pay.calls) == 1
    if stops:
        await assert_stopped(app, "max_elapsed_seconds", 900)
    else:
        assert await status_of(app) == "completed"


@pytest.mark.requirement("A076")
@pytest.mark.parametrize("asker", ["question", "approval", "both"])
async def test_approvals_and_questions_are_waits_alike(asker: str) -> None:
    clock = FakeClock()
    pay = FakeTool("pay", spends(clock, 1))
    question = ("ask_user", {"question": "Which?"})
    wanted = {"question": [question], "approval": ["pay"], "both": [question, "pay"]}[asker]
    store = InMemorySessionStore(clock=clock)
    app = make_app(store, [calls(*wanted), calls(question), "done"], [AskUserTool(), pay], PAY_ASKS)
    await play(app.run(new_run(limits=QUARTER)))
    for pause in (1, 2):
        clock.advance(2 * HOUR)
        for action in await waiting_ids(app):
            if action.endswith(".input"):
                answered = UserInputResponse(session_id=SESSION, input_id=action, answer="that")
                await play(app.resolve_user_input(answered))
            else:
                await play(app.resolve_tool_approval(approval(action)))
        assert await reached(app) == [], f"pause {pause}"
    view = await assert_consistent(app)
    assert (view.status, view.run.waited_us) == ("completed", round(4 * HOUR * 1e6))
    assert len(pay.calls) == (asker != "question")


async def test_a_round_held_for_an_operator_waits_for_a_human_too() -> None:
    clock = FakeClock()
    config = RuntimeConfig(tool_timeout_seconds=0.02, cancel_grace_seconds=0.02)

    async def hang(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(30)
        return ToolResult(content="never")

    pay = FakeTool("pay", hang, effect=ToolEffect.EXTERNAL)
    app = make_app(InMemorySessionStore(clock=clock), [calls("pay"), "done"], [pay], config=config)
    await play(app.run(new_run(limits=QUARTER)))
    clock.advance(2 * HOUR)
    await settle(app)
    assert (await status_of(app), await reached(app)) == ("completed", [])


async def settle(app: CayuApp, action: RecoveryAction = RecoveryAction.TOOL_MARK_COMPLETED) -> None:
    """Decide every call of the session whose outcome is unknown."""
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    needed = plan.items[0].needed_decisions
    assert needed
    decisions = tuple(
        RecoveryDecision(session_id=SESSION, action=action, tool_call_id=need.tool_call_id) for need in needed
    )
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x", decisions=decisions))


@pytest.mark.requirement("A077")
@pytest.mark.parametrize("asked", [["pay"], ["pay", "look", "pay"], [("ask_user", {"question": "Which?"})]])
async def test_a_paused_round_takes_the_same_transactions_with_and_without_a_limit(asked: list[Any]) -> None:
    written = []
    for limits in (RunLimits(), QUARTER, RunLimits(max_elapsed_seconds=900, max_tool_calls=9, max_total_tokens=999)):
        store = StoreProxy(InMemorySessionStore(clock=FakeClock()))
        tools = [FakeTool("pay"), FakeTool("look"), AskUserTool()]
        app = make_app(store, [calls(*asked), "done"], tools, PAY_ASKS)
        await play(app.run(new_run(limits=limits)))
        for action in await waiting_ids(app):
            if action.endswith(".input"):
                response = UserInputResponse(session_id=SESSION, input_id=action, answer="that")
                await play(app.resolve_user_input(response))
            else:
                await play(app.resolve_tool_approval(approval(action)))
        assert await status_of(app) == "completed"
        written.append(store.types)
    assert written[0] == written[1] == written[2]


@pytest.mark.requirement("A079")
@pytest.mark.parametrize(("between", "runs"), [(HOUR, False), (889.0, True), (890.0, False)])
async def test_time_counts_again_from_the_first_decision(between: float, runs: bool) -> None:
    clock, pay = FakeClock(), FakeTool("pay")
    store = InMemorySessionStore(clock=clock)
    app = make_app(store, [slow_answer(clock, 10, calls("pay", "pay")), "done"], [pay], APPROVE)
    await play(app.run(new_run(limits=QUARTER)))
    clock.advance(2 * HOUR)
    first, second = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(first)))
    clock.advance(between)
    await play(app.resolve_tool_approval(approval(second)))
    assert len(pay.calls) == (2 if runs else 0)
    if runs:
        assert await status_of(app) == "completed"
    else:
        await assert_stopped(app, "max_elapsed_seconds", 900)


@pytest.mark.requirement("A080")
@pytest.mark.parametrize(("waited", "runs"), [(899.999999, True), (900.0, False), (2 * HOUR, False)])
async def test_the_session_scope_counts_waiting(waited: float, runs: bool) -> None:
    clock, pay = FakeClock(), FakeTool("pay")
    app = make_app(InMemorySessionStore(clock=clock), [calls("pay"), "done"], [pay], APPROVE)
    await play(app.run(new_run(limits=RunLimits(max_elapsed_seconds=900, scope="session"))))
    clock.advance(waited)
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    assert len(pay.calls) == runs
    if runs:
        assert await status_of(app) == "completed"
    else:
        await assert_stopped(app, "max_elapsed_seconds", 900)


async def test_the_time_of_a_resume_begins_with_it_though_a_round_was_open() -> None:
    clock = FakeClock()
    look, ask = FakeTool("look"), AskUserTool(expires_in_seconds=60)
    asked = calls(("ask_user", {"question": "Which?"}), "look")
    app = make_app(InMemorySessionStore(clock=clock), [asked, "done"], [look, ask])
    await play(app.run(new_run()))
    clock.advance(2 * HOUR)
    await play(app.resume(next_turn(limits=QUARTER)))
    assert (len(look.calls), await status_of(app), await reached(app)) == (1, "completed", [])


# Totals over restarts.


async def totals(app: CayuApp) -> dict[str, Any]:
    """What is counted of a session, in its log, its head and the ledger."""
    view = await session_view(app, scenarios.SESSION)
    head = (await log_of(app, scenarios.SESSION)).head.state
    account = await app.services.ledger.account(scenarios.BUDGET)
    run = view.run
    return {
        "session": (view.usage.input_tokens, view.usage.output_tokens, view.model_steps, view.tool_calls),
        "run": (run.usage.input_tokens, run.usage.output_tokens, run.steps, run.tool_calls),
        "head": (head.input_tokens, head.output_tokens, head.model_steps, head.tool_calls),
        "cost": (account.spent_tokens, account.spent_cost),
        "reserved": (account.reserved_tokens, account.reserved_cost, account.reservations),
        "limits": (run.limits, run.budget_limits, run.max_steps),
        "status": view.status,
    }


async def uninterrupted(folder: Path) -> dict[str, Any]:
    """The totals of the run that one application made without an end."""
    folder.mkdir()
    async with scenarios.build(folder) as app:
        request = new_run(scenarios.SESSION, limits=scenarios.LIMITS, budget_limits=(scenarios.LIMIT,))
        await play(app.run(request.model_copy(update={"agent_name": "spender"})))
        [waiting] = await waiting_ids(app, scenarios.SESSION)
        await play(app.resolve_tool_approval(approval(waiting, session_id=scenarios.SESSION)))
        return await totals(app)


@pytest.mark.requirement("A078")
async def test_totals_after_a_restart_are_those_of_an_uninterrupted_run(tmp_path: Path) -> None:
    expected = await uninterrupted(tmp_path / "whole")
    spent = scenarios.steps_of()
    assert expected["cost"] == (spent.tokens, spent.cost)
    assert expected["session"] == expected["run"] == expected["head"] == (469, 67, 3, 3)
    assert expected["status"] == "completed"
    (tmp_path / "parts").mkdir()
    assert await scenarios.run(str(tmp_path / "parts")) == "interrupted"
    assert await scenarios.approve(str(tmp_path / "parts")) == "completed"
    async with scenarios.build(tmp_path / "parts") as app:
        assert await totals(app) == expected


@pytest.mark.slow
@pytest.mark.requirement("A078")
@pytest.mark.parametrize(
    ("target", "point"),
    [
        *(("run", point) for point in ("round.opened", "tool.returned", "result.staged", "round.closing")),
        *(("run", point) for point in ("round.closed", "session.paused")),
        *(("approve", point) for point in ("round.closed", "session.closed")),
    ],
)
async def test_totals_after_a_crash_are_those_of_an_uninterrupted_run(target: str, point: str, tmp_path: Path) -> None:
    expected = await uninterrupted(tmp_path / "whole")
    folder = tmp_path / "parts"
    folder.mkdir()
    if target == "approve":
        assert await scenarios.run(str(folder)) == "interrupted"
    child = run_child(f"{SCENARIOS}:{target}", [str(folder)], crash_at=point)
    assert child.killed, child.stderr
    async with scenarios.build(folder) as app:
        if await status_of(app, scenarios.SESSION) == "running":
            await play(app.recover_incomplete_session(scenarios.SESSION))
        for waiting in await waiting_ids(app, scenarios.SESSION):
            await play(app.resolve_tool_approval(approval(waiting, session_id=scenarios.SESSION)))
        assert await totals(app) == expected


@pytest.mark.slow
@pytest.mark.requirement("A078")
@pytest.mark.parametrize("point", ["session.created", "model.answered", "round.opened", "round.closed"])
async def test_a_recovered_run_has_its_limits_and_counts(point: str, tmp_path: Path) -> None:
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), scenarios.SESSION, False], crash_at=point)
    assert child.killed, child.stderr
    async with scenarios.build(tmp_path) as app:
        await play(app.recover_incomplete_session(scenarios.SESSION))
        view = await session_view(app, scenarios.SESSION)
        assert view.run.limits == scenarios.LIMITS
        assert (view.run.steps, view.run.tool_calls, view.run.usage.input_tokens) == (2, 2, 101 + 157)


# Histories of older releases.


def older_session() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / "older_session.json").read_text(encoding="utf-8"))
    return loaded


async def plant(store: SessionStore, clock: FakeClock, row: StreamRow, records: Sequence[StoredRecord]) -> None:
    """Write a history into a store, each record at its time; the last one gives the session up."""
    held: Held | Take = Take("an older release")
    for index, record in enumerate(records):
        clock.us = record.at
        state, _ = await store.append(
            Unit(
                stream=row.id,
                expected_version=index,
                fence=held,
                records=(Record(record.type, record.body),),
                create=row if index == 0 else None,
                add=counters([Draft(record.type, loads(record.body))]),
                release=record is records[-1],
            )
        )
        held = Held(state.epoch, "an older release")


async def older_app(store: SessionStore, clock: FakeClock, accounting: int | None) -> tuple[CayuApp, FakeTool]:
    """An application over the stored history, which waits for an approval after 120 s of work."""
    pay = FakeTool("pay", effect=ToolEffect.EXTERNAL)
    app = make_app(store, ["unused", "unused", "done"], [FakeTool("look"), pay], PAY_ASKS)
    stored = older_session()
    begun = stored["records"][0]["payload"]
    begun["profile"] = app.services.registry.assemble("a", None).profile.as_json()
    begun["accounting"] = accounting
    if accounting is None:
        del begun["accounting"]
    records = [
        StoredRecord(number, each["type"], each["at"], dumps(each["payload"]))
        for number, each in enumerate(stored["records"], 1)
    ]
    await plant(store, clock, StreamRow(**stored["row"]), records)
    return app, pay


@pytest.mark.requirement("A082")
def test_the_stored_history_names_the_older_accounting() -> None:
    assert older_session()["records"][0]["payload"]["accounting"] == 1


@pytest.mark.requirement("A082")
@pytest.mark.parametrize("sqlite", [False, True])
@pytest.mark.parametrize(("accounting", "runs"), [(1, False), (None, False), (2, True)])
async def test_a_history_keeps_the_verdict_of_its_accounting(
    accounting: int | None, runs: bool, sqlite: bool, tmp_path: Path
) -> None:
    clock = FakeClock()
    store: SessionStore = InMemorySessionStore(clock=clock)
    if sqlite:
        store = SQLiteSessionStore(tmp_path / "s.db", clock=clock)
    app, pay = await older_app(store, clock, accounting)
    before = (await log_of(app, "older")).records
    clock.advance(2 * HOUR)
    [waiting] = [call.approval_id for call in (await session_view(app, "older")).awaiting]
    await play(app.resolve_tool_approval(approval(waiting, session_id="older")))
    assert len(pay.calls) == runs
    assert await status_of(app, "older") == ("completed" if runs else "interrupted")
    assert await reached(app, "older") == ([] if runs else [("max_elapsed_seconds", 900)])
    assert list((await log_of(app, "older")).records[: len(before)]) == list(before)
    await app.aclose()


@pytest.mark.requirement("A082")
@pytest.mark.parametrize("accounting", [1, None])
async def test_an_older_run_within_its_time_goes_on(accounting: int | None) -> None:
    clock = FakeClock()
    app, pay = await older_app(InMemorySessionStore(clock=clock), clock, accounting)
    clock.advance(900 - 120 - 1)
    [waiting] = [call.approval_id for call in (await session_view(app, "older")).awaiting]
    await play(app.resolve_tool_approval(approval(waiting, session_id="older")))
    assert (len(pay.calls), await status_of(app, "older")) == (1, "completed")


@pytest.mark.requirement("A082", "A083")
async def test_an_older_run_that_reached_its_limit_is_resumed_under_the_accounting_of_today() -> None:
    clock = FakeClock()
    app, pay = await older_app(InMemorySessionStore(clock=clock), clock, 1)
    clock.advance(2 * HOUR)
    [waiting] = [call.approval_id for call in (await session_view(app, "older")).awaiting]
    await play(app.resolve_tool_approval(approval(waiting, session_id="older")))
    before = list((await log_of(app, "older")).records)
    await play(app.resume(next_turn("older", limits=QUARTER)))
    assert list((await log_of(app, "older")).records[: len(before)]) == before
    assert (await status_of(app, "older"), pay.calls) == ("completed", [])
    assert [begun["accounting"] for begun in await logged(app, E.SESSION_RESUMED, "older") if "run_id" in begun] == [2]


# Skips.


async def skipped(
    store: Any = None, clock: FakeClock | None = None, batches: Sequence[Any] = ()
) -> tuple[CayuApp, FakeTool]:
    """An approved call that a limit kept from beginning: a session-scoped one that a human's wait has used up."""
    clock = clock or FakeClock()
    pay = FakeTool("pay", effect=ToolEffect.EXTERNAL)
    script = [calls("pay"), *(batches or ["done"])]
    app = make_app(store or InMemorySessionStore(clock=clock), script, [pay], APPROVE)
    await play(app.run(new_run(limits=RunLimits(max_elapsed_seconds=900, scope="session"))))
    clock.advance(HOUR)
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    return app, pay


@pytest.mark.requirement("A084")
async def test_a_skipped_call_was_not_executed_and_nothing_says_otherwise() -> None:
    app, pay = await skipped()
    [told] = await logged(app, E.TOOL_SKIPPED)
    assert (told["executed"], told["code"]) == (False, "limit_reached")
    log = [record.type for record in (await log_of(app)).records]
    for absent in (E.TOOL_STARTED, E.TOOL_STAGED, E.TOOL_COMPLETED, E.TOOL_FAILED, E.EFFECT_INTENT_RECORDED):
        assert absent not in log
    assert log.count(E.TOOL_SKIPPED) == 1
    assert pay.calls == []
    assert (await app.session_store.items(ItemQuery(kinds=(EFFECT_KIND,)))).total == 0
    [receipt] = await logged(app, E.ROUND_COMMITTED)
    assert (receipt["executed"], receipt["calls"]) == (0, 1)
    view = await assert_consistent(app)
    assert (view.tool_calls, view.rounds[0].calls[0].state) == (0, CallState.SKIPPED)
    await assert_stopped(app, "max_elapsed_seconds", 900)


@pytest.mark.requirement("A083", "A084")
@pytest.mark.parametrize("restart", [False, True])
async def test_a_skip_goes_on_by_an_ordinary_resume(restart: bool, tmp_path: Path) -> None:
    clock = FakeClock()
    app, pay = await skipped(SQLiteSessionStore(tmp_path / "s.db", clock=clock), clock)
    before = list((await log_of(app)).records)
    if restart:
        await app.aclose()
        pay = FakeTool("pay", effect=ToolEffect.EXTERNAL)
        app = make_app(SQLiteSessionStore(tmp_path / "s.db", clock=clock), [calls("pay"), "done"], [pay], APPROVE)
    wider = RunLimits(max_elapsed_seconds=2 * HOUR, scope="session")
    outcome = await run_to_completion(app, next_turn(limits=wider))
    assert (outcome.status, outcome.final_text) == ("completed", "done")
    after = list((await log_of(app)).records)
    assert after[: len(before)] == before, "a resume edits nothing"
    assert after[len(before)].type == E.SESSION_RESUMED
    assert pay.calls == []
    assert E.TOOL_STARTED not in [record.type for record in after]
    assert [call.state for call in outcome.tool_calls] == [CallState.SKIPPED]
    view = await assert_consistent(app)
    [answer] = [part for message in view.transcript if message.role == "tool" for part in message.content]
    assert "limit" in answer.content  # type: ignore[union-attr]
    await app.aclose()


@pytest.mark.requirement("A083")
async def test_a_resume_with_the_same_limits_stops_again_at_once() -> None:
    app, pay = await skipped()
    before = await session_view(app, SESSION)
    await play(app.resume(next_turn(limits=RunLimits(max_elapsed_seconds=900, scope="session"))))
    view = await assert_consistent(app)
    assert (view.status, view.model_steps, pay.calls) == ("interrupted", before.model_steps, [])
    assert await reached(app) == [("max_elapsed_seconds", 900)] * 2


async def test_the_model_may_ask_again_for_what_was_skipped() -> None:
    app, pay = await skipped(batches=[calls("pay"), "done"])
    await play(app.resume(next_turn()))
    [waiting] = await waiting_ids(app)
    outcome = await run_to_completion(app, approval(waiting))
    assert [call.state for call in outcome.tool_calls] == [CallState.SKIPPED, CallState.COMPLETED]
    assert len(pay.calls) == 1


BESIDE: dict[str, dict[str, Any]] = {
    E.TOOL_STARTED: {"attempt": 1},
    E.TOOL_STAGED: {"content": "made up"},
    E.TOOL_COMPLETED: {"executed": True},
    E.TOOL_FAILED: {"executed": True, "code": "raised"},
    E.TOOL_BLOCKED: {"executed": False, "code": "policy_denied"},
    E.EFFECT_OUTCOME_UNKNOWN: {"effect": "external"},
    E.EFFECT_INTENT_RECORDED: {"effect": "external", "digest": "0" * 64, "idempotency_key": "k"},
}


@pytest.mark.requirement("A085")
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("type", BESIDE)
async def test_a_skip_with_other_evidence_beside_it_is_an_explicit_error(type: str, place: str) -> None:
    app, _ = await skipped()
    records = list((await log_of(app)).records)
    at = next(index for index, record in enumerate(records) if record.type == E.TOOL_SKIPPED)
    named = {name: loads(records[at].body)[name] for name in ("tool_call_id", "tool_name")}
    forged = replace(records[at], type=type, body=dumps(named | BESIDE[type]))
    records.insert(at + (place == "after"), forged)

    clock, pay = FakeClock(), FakeTool("pay", effect=ToolEffect.EXTERNAL)
    store = StoreProxy(InMemorySessionStore(clock=clock))
    await plant(store, clock, (await log_of(app)).head.row, records)  # type: ignore[arg-type]
    store.units.clear()
    fresh = make_app(store, [calls("pay"), "done"], [pay], APPROVE)
    with pytest.raises(InvalidSessionLog) as told:
        await play(fresh.resume(next_turn(limits=RunLimits(max_elapsed_seconds=9 * HOUR))))
    assert told.value.session_id == SESSION
    assert told.value.sequence in ((at + 2,) if place == "after" else (at + 1, at + 2)), "the first that does not fit"
    for entry in (fresh.recover_incomplete_session(SESSION), fresh.resolve_tool_approval(forged_approval(named))):
        with pytest.raises(InvalidSessionLog):
            await play(entry)
    plan = await fresh.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    [item] = plan.items
    assert (item.action, item.blocker_codes) == (
        RecoveryAction.LEAVE_INTACT,
        (BlockerCode.INVALID_DURABLE_STATE,),
    )
    await fresh.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x"))
    assert (store.units, pay.calls) == ([], [])
    assert list((await log_of(fresh)).records) == records_of(records)


def forged_approval(named: dict[str, Any]) -> ToolApprovalRequest:
    return approval(f"{named['tool_call_id']}.approval")


def records_of(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The records as a store numbers them."""
    return [replace(record, sequence=number) for number, record in enumerate(records, 1)]


@pytest.mark.requirement("A085")
async def test_no_store_takes_a_start_of_a_session_that_has_stopped() -> None:
    app, _ = await skipped()
    before = await log_of(app)
    [told] = await logged(app, E.TOOL_SKIPPED)
    body = dumps({"tool_call_id": told["tool_call_id"], "tool_name": "pay", "attempt": 1})
    unit = Unit(SESSION, before.head.state.version, Take("forger"), (Record(E.TOOL_STARTED, body),), release=True)
    with pytest.raises(IllegalTransition):
        await app.session_store.append(unit)
    assert await log_of(app) == replace(before, now=(await log_of(app)).now)


# Each limit, exactly.


@pytest.mark.parametrize(
    ("name", "spent"), [("max_input_tokens", 100), ("max_output_tokens", 40), ("max_total_tokens", 140)]
)
@pytest.mark.parametrize("beyond", [-1, 0, 1])
async def test_a_step_that_spends_a_token_limit_is_the_last(name: str, spent: int, beyond: int) -> None:
    look = FakeTool("look")
    app = make_app(None, [used(100, 40, *calls("look")), "done"], [look])
    limits = RunLimits(**{name: spent - beyond})
    outcome = await run_to_completion(app, new_run(limits=limits))
    assert len(look.calls) == 1, "the calls of the step that reached it are paid for, and run"
    if beyond < 0:
        assert (outcome.status, outcome.model_steps) == ("completed", 2)
    else:
        assert outcome.model_steps == 1
        await assert_stopped(app, name, spent - beyond)


async def test_an_answer_that_needs_no_more_steps_is_not_stopped_by_what_it_spent() -> None:
    app = make_app(None, [used(1000, 1000, ModelStreamEvent.text_delta("done"))])
    outcome = await run_to_completion(app, new_run(limits=RunLimits(max_total_tokens=1), max_steps=1))
    assert outcome.status == "completed"


@pytest.mark.parametrize(("steps", "status"), [(1, "interrupted"), (2, "interrupted"), (3, "completed")])
async def test_steps_are_counted_per_run(steps: int, status: str) -> None:
    app = make_app(None, [calls("look"), calls("look"), "done", "again"], [FakeTool("look")])
    outcome = await run_to_completion(app, new_run(max_steps=steps))
    assert (outcome.status, outcome.model_steps) == (status, min(steps, 3))
    if status == "interrupted":
        await assert_stopped(app, "max_steps", steps)
        outcome = await run_to_completion(app, next_turn(max_steps=3))
        assert (outcome.status, outcome.final_text) == ("completed", "done")


@pytest.mark.parametrize("parallel_safe", [True, False])
@pytest.mark.parametrize("cap", [1, 2, 3, 4])
async def test_calls_beyond_the_limit_do_not_begin(cap: int, parallel_safe: bool) -> None:
    look = FakeTool("look", parallel_safe=parallel_safe)
    app = make_app(None, [calls("look", "look", "look"), "done"], [look])
    outcome = await run_to_completion(app, new_run(limits=RunLimits(max_tool_calls=cap)))
    ran = min(cap, 3)
    assert len(look.calls) == ran
    states = [CallState.COMPLETED] * ran + [CallState.SKIPPED] * (3 - ran)
    assert [call.state for call in outcome.tool_calls] == states
    if cap < 3:
        await assert_stopped(app, "max_tool_calls", cap)
    else:
        assert outcome.status == "completed", "reaching the number with no call left over stops nothing"


async def test_the_call_limit_holds_over_rounds_and_the_first_call_beyond_stops_the_run() -> None:
    look = FakeTool("look")
    app = make_app(None, [calls("look"), calls("look"), calls("look"), "done"], [look])
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=2))))
    assert len(look.calls) == 2
    await assert_stopped(app, "max_tool_calls", 2)


@pytest.mark.parametrize(("scope", "runs"), [("run", 1), ("session", 0)])
async def test_the_scope_says_whether_calls_of_an_earlier_run_count(scope: Any, runs: int) -> None:
    look = FakeTool("look")
    app = make_app(None, [calls("look"), "done", calls("look"), "done"], [look])
    await play(app.run(new_run()))
    await play(app.resume(next_turn(limits=RunLimits(max_tool_calls=1, scope=scope))))
    assert len(look.calls) == 1 + runs


@pytest.mark.parametrize(("scope", "asked"), [("run", True), ("session", False)])
async def test_the_scope_says_whether_tokens_of_an_earlier_run_count(scope: Any, asked: bool) -> None:
    app = make_app(None, [used(10, 5, ModelStreamEvent.text_delta("one")), "two"])
    await play(app.run(new_run()))
    outcome = await run_to_completion(app, next_turn(limits=RunLimits(max_total_tokens=15, scope=scope)))
    assert outcome.final_text == ("two" if asked else "one")
    assert outcome.status == ("completed" if asked else "interrupted")


@pytest.mark.parametrize(("each", "ran"), [(449.0, 3), (450.0, 2), (899.0, 2), (900.0, 1), (5000.0, 1)])
async def test_serial_calls_stop_when_time_runs_out_between_them(each: float, ran: int) -> None:
    clock = FakeClock()
    look = FakeTool("look", spends(clock, each), parallel_safe=False)
    app = make_app(InMemorySessionStore(clock=clock), [calls("look", "look", "look"), "done"], [look])
    outcome = await run_to_completion(app, new_run(limits=QUARTER))
    assert len(look.calls) == ran
    assert [call.state for call in outcome.tool_calls].count(CallState.SKIPPED) == 3 - ran
    await assert_stopped(app, "max_elapsed_seconds", 900)


async def test_parallel_calls_beyond_the_width_are_held_back_when_time_runs_out() -> None:
    clock = FakeClock()
    look = FakeTool("look", spends(clock, 500))
    config = RuntimeConfig(parallel_width=2)
    app = make_app(InMemorySessionStore(clock=clock), [calls(*["look"] * 5), "done"], [look], config=config)
    outcome = await run_to_completion(app, new_run(limits=QUARTER))
    states = [CallState.COMPLETED] * 2 + [CallState.SKIPPED] * 3
    assert [call.state for call in outcome.tool_calls] == states
    await assert_stopped(app, "max_elapsed_seconds", 900)


async def test_a_slow_model_leaves_its_calls_no_time() -> None:
    clock, look = FakeClock(), FakeTool("look")
    store = InMemorySessionStore(clock=clock)
    app = make_app(store, [slow_answer(clock, 900, calls("look", "look")), "done"], [look])
    await play(app.run(new_run(limits=QUARTER)))
    assert look.calls == []
    assert [told["code"] for told in await logged(app, E.TOOL_SKIPPED)] == ["limit_reached"] * 2
    await assert_stopped(app, "max_elapsed_seconds", 900)


@pytest.mark.parametrize(("cap", "ran"), [(1, 0), (2, 1), (3, 2)])
async def test_an_approved_continuation_holds_the_call_limit(cap: int, ran: int) -> None:
    look, pay = FakeTool("look"), FakeTool("pay", effect=ToolEffect.EXTERNAL)
    app = make_app(None, [calls("look"), calls("pay", "pay"), "done"], [look, pay], PAY_ASKS)
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=cap))))
    for waiting in await waiting_ids(app):
        await play(app.resolve_tool_approval(approval(waiting)))
    assert len(pay.calls) == ran
    if ran < 2:
        await assert_stopped(app, "max_tool_calls", cap)
    else:
        assert await status_of(app) == "completed"


async def test_a_skip_beside_a_denial_keeps_each_its_own_end() -> None:
    pay = FakeTool("pay", effect=ToolEffect.EXTERNAL)
    app = make_app(None, [calls("pay", "pay", "pay"), "done"], [pay], APPROVE)
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=1))))
    first, second, third = await waiting_ids(app)
    for action, decision in ((second, "approve"), (third, "approve"), (first, "deny")):
        await play(app.resolve_tool_approval(approval(action, decision)))
    view = await assert_consistent(app)
    assert [call.state for call in view.rounds[0].calls] == [
        CallState.BLOCKED,
        CallState.COMPLETED,
        CallState.SKIPPED,
    ]
    await assert_stopped(app, "max_tool_calls", 1)


# Crashes and unknown outcomes.


def failing_at(type: str) -> Callable[[Unit], Awaitable[None]]:
    """A hook that loses the store for good at the first write with such an event, as if the process had died."""
    left = [1]

    async def fail(unit: Unit) -> None:
        if has(unit, type) and left:
            left.clear()
            raise StoreFull(path="disk")

    return fail


@pytest.mark.parametrize("effect", [ToolEffect.NONE, ToolEffect.IDEMPOTENT])
async def test_a_replay_is_let_through_though_the_limits_are_reached(effect: ToolEffect) -> None:
    clock = FakeClock()
    store = StoreProxy(InMemorySessionStore(clock=clock), before=failing_at(E.TOOL_STAGED))
    look = FakeTool("look", effect=effect, parallel_safe=False)
    app = make_app(store, [calls("look", "look"), "done"], [look])
    with pytest.raises(StoreFull):
        await play(app.run(new_run(limits=RunLimits(max_tool_calls=1, max_elapsed_seconds=900))))
    clock.advance(HOUR)
    await play(app.recover_incomplete_session(SESSION))
    view = await assert_consistent(app)
    first, second = view.rounds[0].calls
    assert (first.state, first.attempt, first.replayed) == (CallState.COMPLETED, 2, True)
    assert (second.state, second.attempt) == (CallState.FAILED, 0), "it had not begun when the process was lost"
    assert len(look.calls) == 2
    assert view.tool_calls == 1
    assert (view.status, [name for name, _ in await reached(app)]) == ("interrupted", ["max_elapsed_seconds"])


async def test_time_lost_to_a_crash_counts() -> None:
    clock = FakeClock()
    store = StoreProxy(InMemorySessionStore(clock=clock), before=failing_at(E.MODEL_COMPLETED))
    app = make_app(store, ["done"])
    with pytest.raises(StoreFull):
        await play(app.run(new_run(limits=QUARTER)))
    clock.advance(900)
    await play(app.recover_incomplete_session(SESSION))
    await assert_stopped(app, "max_elapsed_seconds", 900)


async def unknown_and_limited(limits: RunLimits, clock: FakeClock) -> tuple[CayuApp, FakeTool, RunOutcome]:
    """A round whose first call is cut off and leaves no trace of what it did, while the second one still waits."""

    async def hang(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.advance(1000)
        await asyncio.sleep(30)
        return ToolResult(content="never")

    pay = FakeTool("pay", hang, effect=ToolEffect.EXTERNAL, parallel_safe=False)
    look = FakeTool("look")
    config = RuntimeConfig(tool_timeout_seconds=0.02, cancel_grace_seconds=0.02)
    store = InMemorySessionStore(clock=clock)
    app = make_app(store, [calls("pay", "look"), "done"], [pay, look], config=config)
    return app, look, await run_to_completion(app, new_run(limits=limits))


@pytest.mark.parametrize("limits", [RunLimits(max_tool_calls=1), QUARTER])
@pytest.mark.parametrize("action", [RecoveryAction.TOOL_MARK_COMPLETED, RecoveryAction.TOOL_MARK_FAILED])
async def test_a_limit_reached_beside_an_unknown_outcome_waits_for_it(
    limits: RunLimits, action: RecoveryAction
) -> None:
    clock = FakeClock()
    app, look, outcome = await unknown_and_limited(limits, clock)
    assert (outcome.status, (outcome.interruption or {})["reason"]) == ("interrupted", "manual_recovery")
    assert await reached(app) == []
    view = await assert_consistent(app)
    assert [call.state for call in view.rounds[0].calls] == [CallState.UNKNOWN, CallState.SKIPPED]
    await settle(app, action)
    view = await assert_consistent(app)
    settled = CallState.COMPLETED if action is RecoveryAction.TOOL_MARK_COMPLETED else CallState.FAILED
    assert [call.state for call in view.rounds[0].calls] == [settled, CallState.SKIPPED]
    assert look.calls == []
    name = "max_tool_calls" if limits.max_tool_calls else "max_elapsed_seconds"
    await assert_stopped(app, name, limits.max_tool_calls or 900)


async def test_an_interruption_beside_a_limit_ends_once() -> None:
    look = FakeTool("look")
    app = make_app(None, [calls("look", "look"), "done"], [look], config=QUICK)
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=1))))
    types = [record.type for record in (await log_of(app)).records]
    assert (types.count(E.SESSION_INTERRUPTED), types.count(E.SESSION_LIMIT_REACHED)) == (1, 1)
    with pytest.raises(CayuError):
        await play(app.recover_incomplete_session(SESSION))
    assert [record.type for record in (await log_of(app)).records] == types


async def test_limits_of_the_run_that_began_hold_for_its_continuation_and_no_longer() -> None:
    pay = FakeTool("pay", effect=ToolEffect.EXTERNAL)
    app = make_app(None, [calls("pay"), "one", calls("pay"), "two"], [pay], APPROVE)
    await play(app.run(new_run(limits=RunLimits(max_tool_calls=1), max_steps=2)))
    [waiting] = await waiting_ids(app)
    events = await play(app.resolve_tool_approval(approval(waiting)))
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    await play(app.resume(next_turn()))
    view: SessionView = await session_view(app, SESSION)
    assert (view.run.limits, view.run.max_steps) == (RunLimits(), 1000)
    begun = await app.session_store.records(RecordQuery(types=(E.SESSION_STARTED, E.SESSION_RESUMED)))
    assert [loads(record.body).get("limits") for _, record in begun] == [{"max_tool_calls": 1}, None, None]
