"""Calls whose outcome is not known: how they come to be so, and how reconcilers, receipts and operators settle them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from runtime.support import (
    SESSION,
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    has,
    log_of,
    logged,
    new_run,
    next_turn,
    play,
    types_of,
    waiting_ids,
)

from cayu import AgentSpec, CayuApp, Message, RunRequest, RuntimeConfig, SQLiteSessionStore, ToolEffect
from cayu.approvals import PendingActionQuery
from cayu.effects import EffectOutcome, ToolEffectReceipt
from cayu.errors import ContradictoryEvidence, SessionNeedsRecovery, StoreFull
from cayu.events import EventType as E
from cayu.examples.receipts import OrderSuppliesTool, ReceiptBook
from cayu.messages import ToolCallPart, ToolResultPart
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.runtime import run_to_completion
from cayu.runtime.invoke import CUT_OFF_HERE
from cayu.sessions import InterruptSessionRequest
from cayu.sessions.plans import (
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanRequest,
)
from cayu.sessions.projection import EFFECT_KIND
from cayu.sessions.requests import ResolutionActor
from cayu.sessions.streams import ItemQuery, SessionStore, Unit
from cayu.sessions.texts import CUT_OFF, SETTLED
from cayu.storage import InMemorySessionStore
from cayu.testing import run_child
from cayu.tools import ToolContext, ToolResult
from cayu.tools.reconcilers import (
    Reconciliation,
    ReconciliationRequest,
    ToolEffectReconciler,
    ToolOutcomeUnknown,
)

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
SHORT = RuntimeConfig(tool_timeout_seconds=0.02, reconcile_timeout_seconds=0.02, cancel_grace_seconds=0.2)
Args = dict[str, Any]


async def hang(ctx: ToolContext, args: Args) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def raise_when_cancelled(ctx: ToolContext, args: Args) -> ToolResult:
    try:
        return await hang(ctx, args)
    except asyncio.CancelledError:
        raise ConnectionError("the connection went down with it") from None


async def run_out_of_time(ctx: ToolContext, args: Args) -> ToolResult:
    raise TimeoutError("the service did not answer")


async def lose_touch(ctx: ToolContext, args: Args) -> ToolResult:
    raise ToolOutcomeUnknown


async def cancel_itself(ctx: ToolContext, args: Args) -> ToolResult:
    raise asyncio.CancelledError


CUT_OFFS: dict[str, tuple[Callable[[ToolContext, Args], Awaitable[ToolResult]], str]] = {
    "out of time": (hang, "timed_out"),
    "raised when out of time": (raise_when_cancelled, "timed_out"),
    "raised TimeoutError": (run_out_of_time, "timed_out"),
    "raised ToolOutcomeUnknown": (lose_touch, "outcome_unknown"),
    "cancelled itself": (cancel_itself, "cancelled_itself"),
}


class FakeReconciler(ToolEffectReconciler):
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, answer: Callable[[ReconciliationRequest], object]) -> None:
        self._answer = answer
        self.asked: list[ReconciliationRequest] = []

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        self.asked.append(request)
        answer = self._answer(request)
        return cast(Reconciliation, await answer if isinstance(answer, Awaitable) else answer)


def says(outcome: str, content: str | None = None, **fields: Any) -> FakeReconciler:
    result = ToolResult(content=content) if content is not None else None
    return FakeReconciler(lambda request: Reconciliation(outcome=EffectOutcome(outcome), result=result, **fields))


def fails(request: ReconciliationRequest) -> object:
    raise LookupError("the service is down")


def leaks(request: ReconciliationRequest) -> object:
    raise asyncio.CancelledError


SILENT: dict[str, Callable[[ReconciliationRequest], object]] = {
    "unknown": lambda request: Reconciliation(outcome=EffectOutcome.UNKNOWN),
    "raises": fails,
    "hangs": lambda request: asyncio.Event().wait(),
    "cancels itself": leaks,
    "nothing": lambda request: None,
    "nonsense": lambda request: "completed",
    "a tool's result": lambda request: ToolResult(content="completed"),
}
"""Reconcilers that have found nothing out."""


def build(
    tools: Sequence[FakeTool],
    store: SessionStore | StoreProxy | None = None,
    asked: Sequence[str | tuple[str, Args]] = ("act",),
    reconcilers: dict[str, ToolEffectReconciler] | None = None,
    **options: Any,
) -> CayuApp:
    """An application whose agent asks for tools once and is then done."""
    app = CayuApp(session_store=cast("SessionStore | None", store), **{"config": SHORT, **options})
    app.register_provider(ScriptedModelProvider([calls(*asked), "done", "done again"]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=tools, tool_effect_reconcilers=reconcilers)
    return app


async def lose(app_store: InMemorySessionStore, tools: Sequence[FakeTool], asked: Sequence[Any] = ("act",)) -> None:
    """Leave a session whose calls have acted and whose process could write nothing more."""

    async def die(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED) or has(unit, E.EFFECT_OUTCOME_UNKNOWN):
            raise StoreFull(path="x")

    with pytest.raises(StoreFull):
        await play(build(tools, StoreProxy(app_store, before=die), asked).run(new_run()))
    CUT_OFF_HERE.clear()  # the process is gone


async def planned(app: CayuApp) -> RecoveryPlan:
    return await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))


def mark(plan: RecoveryPlan, outcome: str, call: int = 0, **fields: Any) -> RecoveryDecision:
    """Decide one of the calls that the plan asks about."""
    action = RecoveryAction(f"tool_mark_{outcome}")
    need = plan.items[0].needed_decisions[call]
    return RecoveryDecision(session_id=SESSION, action=action, tool_call_id=need.tool_call_id, **fields)


async def execute(
    app: CayuApp, plan: RecoveryPlan, *decisions: RecoveryDecision, by: ResolutionActor | None = None, id: str = "e"
) -> RecoveryExecution:
    request = RecoveryExecutionRequest(plan=plan, execution_id=id, decisions=decisions, requested_by=by)
    return await app.execute_recovery(request)


async def effects(app: CayuApp) -> list[str]:
    page = await app.session_store.items(ItemQuery(session_id=SESSION, kinds=(EFFECT_KIND,)))
    return [row.item.state for row in page.rows]


async def read_by_model(app: CayuApp) -> list[ToolResultPart]:
    """What the model reads of the first round's calls."""
    view = await assert_consistent(app)
    answer = next(message for message in view.transcript if message.role == "tool")
    return [part for part in answer.content if isinstance(part, ToolResultPart)]


# How an outcome comes to be unknown.


@pytest.mark.parametrize("effect", [NONE, IDEMPOTENT, EXTERNAL])
@pytest.mark.parametrize("how", CUT_OFFS)
async def test_a_call_that_did_not_come_to_its_end(how: str, effect: ToolEffect) -> None:
    work, code = CUT_OFFS[how]
    tools = [FakeTool("act", work, effect=effect), FakeTool("beside"), FakeTool("after", parallel_safe=False)]
    app = build(tools, asked=("beside", "act", "after"))
    await play(app.run(new_run()))
    view = await assert_consistent(app)
    assert [len(tool.ended) for tool in tools] == [0, 1, 1]  # its siblings go on
    [beside, act, after] = view.rounds[0].calls
    if effect is NONE:
        assert view.status == "completed"
        assert [(call.state, call.code) for call in (beside, act, after)] == [
            ("completed", None), ("failed", code), ("completed", None)
        ]  # fmt: skip
        [_, told, _] = await read_by_model(app)
        assert (told.content, told.is_error) == (CUT_OFF, True)
        assert await waiting_ids(app) == []
        return
    assert view.status == "interrupted"
    assert view.interruption == {"reason": "manual_recovery", "tool_round_id": view.rounds[0].id}
    assert [call.state for call in (beside, act, after)] == ["staged", "unknown", "staged"]
    assert [payload["code"] for payload in await logged(app, E.EFFECT_OUTCOME_UNKNOWN)] == [code]
    [waiting] = (await app.list_pending_actions(PendingActionQuery(session_id=SESSION))).actions
    assert (waiting.id, waiting.kind, waiting.tool_call_id) == (act.recovery_id, "manual_recovery", act.id)
    assert await effects(app) == ["unknown"]
    assert len(tools[0].calls) == 1


@pytest.mark.parametrize("effect", [NONE, IDEMPOTENT, EXTERNAL])
@pytest.mark.parametrize("work", [hang, raise_when_cancelled], ids=["cancelled", "raised"])
async def test_a_call_that_an_interruption_met(work: Any, effect: ToolEffect) -> None:
    act = FakeTool("act", work, effect=effect)
    app = build([act], config=RuntimeConfig(cancel_grace_seconds=0.2))
    running = asyncio.create_task(play(app.run(new_run())))
    await act.entered.wait()
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await running
    view = await assert_consistent(app)
    [call] = view.rounds[0].calls
    if effect is NONE:
        code = "raised" if work is raise_when_cancelled else "cancelled_itself"
        assert (call.state, call.code in (code, "lost")) == ("failed", True)
        assert (view.interruption or {})["reason"] == "interrupt_requested"
        return
    assert call.state == "unknown"
    assert view.interruption is not None
    assert (view.interruption["reason"], view.interruption["needs"]) == ("interrupt_requested", "manual_recovery")
    assert await waiting_ids(app) == [call.recovery_id]


async def test_a_result_that_comes_with_the_timeout_is_a_result() -> None:
    async def late(ctx: ToolContext, args: Args) -> ToolResult:
        try:
            return await hang(ctx, args)
        except asyncio.CancelledError:
            return ToolResult(content="it was done all the same")

    app = build([FakeTool("act", late, effect=EXTERNAL)])
    await play(app.run(new_run()))
    [told] = await read_by_model(app)
    assert (told.content, told.is_error) == ("it was done all the same", False)


async def test_every_unknown_call_has_an_action_of_its_own() -> None:
    tools = [FakeTool("act", lose_touch, effect=EXTERNAL), FakeTool("serial", lose_touch, effect=IDEMPOTENT)]
    app = build(tools, asked=("act", "serial", "act"))
    await play(app.run(new_run()))
    view = await assert_consistent(app)
    assert await waiting_ids(app) == [call.recovery_id for call in view.rounds[0].calls]
    assert (await log_of(app)).head.state.pending == 3


# Reconcilers.


async def _live(app_tools: list[FakeTool], reconciler: FakeReconciler) -> CayuApp:
    app = build(app_tools, reconcilers={"act": reconciler}, asked=(("act", {"n": [1]}),))
    await play(app.run(new_run()))
    return app


async def _after_crash(app_tools: list[FakeTool], reconciler: FakeReconciler) -> CayuApp:
    store = InMemorySessionStore()
    await lose(store, app_tools, (("act", {"n": [1]}),))
    app = build(app_tools, store, (("act", {"n": [1]}),), {"act": reconciler})
    await play(app.recover_incomplete_session(SESSION))
    return app


async def _executed(app_tools: list[FakeTool], reconciler: FakeReconciler) -> CayuApp:
    store = InMemorySessionStore()
    await play(build(app_tools, store, (("act", {"n": [1]}),)).run(new_run()))
    CUT_OFF_HERE.clear()  # in another process
    app = build(app_tools, store, (("act", {"n": [1]}),), {"act": reconciler})
    plan = await planned(app)
    assert (plan.items[0].action, plan.items[0].blocker_codes) == (RecoveryAction.AUTOMATIC_REPAIR, ())
    await execute(app, plan)
    return app


async def _executed_after_crash(app_tools: list[FakeTool], reconciler: FakeReconciler) -> CayuApp:
    store = InMemorySessionStore()
    await lose(store, app_tools, (("act", {"n": [1]}),))
    app = build(app_tools, store, (("act", {"n": [1]}),), {"act": reconciler})
    await execute(app, await planned(app))
    return app


WAYS = {"live": _live, "after a crash": _after_crash, "by plan": _executed, "by plan, crash": _executed_after_crash}


SETTLING = [*itertools.product((("completed", "order 7"), ("completed", None), ("failed", None)), WAYS)]


async def test_a_process_that_cut_a_call_off_does_not_believe_that_it_has_not_acted() -> None:
    """A thread of the tool may be at work still; only another process can take the reconciler's word for it."""
    act = FakeTool("act", run_out_of_time, effect=EXTERNAL)
    app = await WAYS["live"]([act], says("failed"))
    view = await assert_consistent(app)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("interrupted", ["unknown"])
    again = build([act], app.session_store, (("act", {"n": [1]}),), {"act": says("failed")})
    result = await execute(again, await planned(again))
    assert result.items[0].status == RecoveryItemStatus.BLOCKED
    CUT_OFF_HERE.clear()  # as in another process
    await execute(again, await planned(again))
    assert (await assert_consistent(again)).rounds[0].calls[0].state == "failed"


@pytest.mark.parametrize("found, way", SETTLING)
async def test_a_reconciler_settles_a_call(found: tuple[str, str | None], way: str) -> None:
    CUT_OFF_HERE.clear()
    outcome, content = found
    act = FakeTool("act", lose_touch, effect=EXTERNAL)
    reconciler = says(outcome, content, reference="order-7")
    app = await WAYS[way]([act], reconciler)
    view = await assert_consistent(app)
    assert (view.status, view.final_text, len(act.calls)) == ("completed", "done", 1)
    [call] = view.rounds[0].calls
    assert call.settlement is not None
    assert (call.settlement.outcome, call.settlement.source) == (outcome, "reconciler")
    assert call.settlement.by == "the reconciler of act"
    assert await effects(app) == [outcome]
    [told] = await read_by_model(app)
    assert (told.content, told.is_error) == (content or SETTLED[outcome], outcome == "failed")
    [settled] = await logged(app, E.EFFECT_RECONCILED)
    assert settled["reference"] == "order-7"
    [request] = reconciler.asked
    [context] = act.contexts
    assert (request.idempotency_key, request.arguments_digest) == (context.idempotency_key, call.digest)
    assert (request.arguments, request.effect, request.attempt) == ({"n": [1]}, EXTERNAL, 1)
    assert (request.tool_call_id, request.tool_round_id) == (call.id, view.rounds[0].id)
    assert (request.session_id, request.agent_name, request.tool_name) == (SESSION, "a", "act")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", SILENT)
async def test_a_reconciler_that_found_nothing_out_leaves_the_call_open(how: str, way: str) -> None:
    act, reconciler = FakeTool("act", lose_touch, effect=EXTERNAL), FakeReconciler(SILENT[how])
    app = await WAYS[way]([act], reconciler)
    view = await assert_consistent(app)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("interrupted", ["unknown"])
    assert (len(reconciler.asked), len(act.calls)) == (1, 1)
    assert len(await waiting_ids(app)) == 1


@pytest.mark.parametrize("way", ["live", "after a crash", "by plan, crash"])
async def test_a_call_without_effect_is_never_asked_about(way: str) -> None:
    act, reconciler = FakeTool("act", lose_touch, effect=NONE), says("completed")
    app = await WAYS[way]([act], reconciler)
    view = await assert_consistent(app)
    assert (view.status, view.rounds[0].calls[0].state, reconciler.asked) == ("completed", "failed", [])


async def test_a_reconciler_cannot_change_what_was_asked() -> None:
    def meddle(request: ReconciliationRequest) -> Reconciliation:
        request.arguments["n"].append("meddled")
        return Reconciliation(outcome=EffectOutcome.COMPLETED)

    app = await _live([FakeTool("act", lose_touch, effect=EXTERNAL)], FakeReconciler(meddle))
    provider = app.services.registry.assemble("a", None).provider
    assert isinstance(provider, ScriptedModelProvider)
    asked = [part for message in provider.requests[-1].messages for part in message.content]
    assert [part.arguments for part in asked if isinstance(part, ToolCallPart)] == [{"n": [1]}]


async def test_an_interrupted_session_with_a_reconciler_is_closed_and_not_continued() -> None:
    act = FakeTool("act", hang, effect=EXTERNAL)
    app = build([act], reconcilers={"act": says("completed", "order 7")}, config=RuntimeConfig(cancel_grace_seconds=0))
    running = asyncio.create_task(play(app.run(new_run())))
    await act.entered.wait()
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await running
    result = await execute(app, await planned(app))
    assert (result.items[0].status, result.items[0].session_status) == (RecoveryItemStatus.EXECUTED, "interrupted")
    view = await assert_consistent(app)
    assert (view.open_round, view.model_steps) == (None, 1)
    assert (view.interruption or {})["reason"] == "interrupt_requested"
    assert [part.content for part in await read_by_model(app)] == ["order 7"]
    await play(app.resume(next_turn()))
    assert (await assert_consistent(app)).status == "completed"


# Decisions and receipts.


async def paused(
    *, asked: Sequence[Any] = ("act",), max_bytes: int | None = None, store: SessionStore | None = None, **options: Any
) -> CayuApp:
    """An application whose session waits for the outcome of external calls."""
    app = build([FakeTool("act", lose_touch, effect=EXTERNAL, max_bytes=max_bytes)], store, asked, **options)
    await play(app.run(new_run()))
    return app


@pytest.mark.parametrize(
    "given, content, structured",
    [
        ({"content": "order 7"}, "order 7", None),
        ({"content": ""}, "", None),
        ({"structured": {"order": 7}}, "", {"order": 7}),
        ({"structured": 0}, "", 0),
        ({"content": "order 7", "structured": [None]}, "order 7", [None]),
        ({}, SETTLED["completed"], None),
    ],
    ids=str,
)
async def test_a_call_that_acted_is_marked_with_what_it_returned(given: Args, content: str, structured: Any) -> None:
    app = await paused()
    plan = await planned(app)
    result = await execute(app, plan, mark(plan, "completed", **given))
    assert (result.items[0].status, result.items[0].session_status) == (RecoveryItemStatus.EXECUTED, "completed")
    [told] = await read_by_model(app)
    assert (told.content, told.structured, told.is_error) == (content, structured, False)
    assert (await effects(app), await waiting_ids(app)) == (["completed"], [])
    assert types_of(await play(app.resume(next_turn())))[-1] == E.SESSION_COMPLETED


async def test_a_call_that_did_not_act_is_marked_so() -> None:
    app = await paused()
    plan = await planned(app)
    await execute(app, plan, mark(plan, "failed"))
    [told] = await read_by_model(app)
    assert (told.content, told.is_error, await effects(app)) == (SETTLED["failed"], True, ["failed"])
    view = await assert_consistent(app)
    assert [(call.state, call.code) for call in view.rounds[0].calls] == [("failed", "settled_failed")]


async def test_who_decided_and_why_is_recorded() -> None:
    app = await paused()
    plan = await planned(app)
    actor = ResolutionActor(subject="ana", tenant="lab", source="console", claims={"role": "operator"})
    await execute(app, plan, mark(plan, "completed", content="x", reason="the books say so"), by=actor)
    [settled] = await logged(app, E.EFFECT_RECONCILED)
    assert (settled["by"], settled["source"], settled["reason"]) == ("ana", "operator", "the books say so")
    assert settled["resolved_by"] == actor.model_dump(mode="json")
    [receipt] = await logged(app, E.RECOVERY_ITEM_EXECUTED)
    assert (receipt["requested_by"], receipt["execution_id"]) == ("ana", "e")
    call = (await assert_consistent(app)).rounds[0].calls[0]
    assert call.settlement is not None
    assert (call.settlement.by, call.settlement.source) == ("ana", "operator")


async def test_nobody_in_particular_is_recorded_too() -> None:
    app = await paused()
    plan = await planned(app)
    await execute(app, plan, mark(plan, "failed"))
    [settled] = await logged(app, E.EFFECT_RECONCILED)
    assert settled["by"] == "an unnamed operator"
    assert "resolved_by" not in settled


@pytest.mark.parametrize("tools_bound", [False, True], ids=["the runtime's bound", "the tool's bound"])
async def test_a_result_that_is_too_large_is_told_to_be_so(tools_bound: bool) -> None:
    config = SHORT if tools_bound else RuntimeConfig(max_result_bytes=100)
    app = await paused(max_bytes=100 if tools_bound else None, config=config)
    plan = await planned(app)
    await execute(app, plan, mark(plan, "completed", content="x" * 200))
    [told] = await read_by_model(app)
    assert told.is_error
    assert "bytes of JSON and the bound is 100" in told.content
    assert await effects(app) == ["completed"]


async def receipt_for(app: CayuApp, **changes: str) -> ToolEffectReceipt:
    [need] = (await planned(app)).items[0].needed_decisions
    fields = {"idempotency_key": need.idempotency_key, "arguments_digest": need.arguments_digest, "reference": "o-7"}
    return ToolEffectReceipt.model_validate(fields | changes)


async def test_a_receipt_of_this_very_call_settles_it() -> None:
    app = await paused()
    plan = await planned(app)
    await execute(app, plan, mark(plan, "completed", receipt=await receipt_for(app)))
    [settled] = await logged(app, E.EFFECT_RECONCILED)
    assert (settled["source"], settled["reference"], settled["outcome"]) == ("receipt", "o-7", "completed")
    [told] = await read_by_model(app)
    assert told.content == SETTLED["completed"]


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"idempotency_key": "another"}, "idempotency key of another call"),
        ({"arguments_digest": "0" * 64}, "other arguments"),
    ],
    ids=["another key", "other arguments"],
)
async def test_a_receipt_of_another_call_is_refused_and_nothing_is_written(changes: Args, problem: str) -> None:
    app = await paused()
    plan, before = await planned(app), await log_of(app)
    wrong = await receipt_for(app, **changes)
    with pytest.raises(ContradictoryEvidence, match=problem):
        await execute(app, plan, mark(plan, "completed", receipt=wrong))
    after = await log_of(app)
    assert (list(after.records), after.head) == (list(before.records), before.head)
    await execute(app, plan, mark(plan, "completed", receipt=await receipt_for(app)), id="corrected")
    assert (await assert_consistent(app)).status == "completed"


async def test_evidence_can_be_corrected_under_the_same_execution_id() -> None:
    app = await paused()
    plan = await planned(app)
    wrong = await receipt_for(app, idempotency_key="another")
    with pytest.raises(ContradictoryEvidence, match="nothing was written"):
        await execute(app, plan, mark(plan, "completed", receipt=wrong))
    await execute(app, plan, mark(plan, "completed", receipt=await receipt_for(app)))
    assert (await assert_consistent(app)).status == "completed"


async def test_an_operator_may_settle_what_the_reconciler_cannot_find_out() -> None:
    app = await paused(reconcilers={"act": FakeReconciler(SILENT["unknown"])})
    plan = await planned(app)
    assert len(plan.items[0].needed_decisions) == 1, "the plan asks nobody, so the session waits for ever"
    await execute(app, plan, mark(plan, "completed", content="found in the books"))
    assert [part.content for part in await read_by_model(app)] == ["found in the books"]


@pytest.mark.parametrize("decided, known", [("completed", "failed"), ("failed", "completed")])
async def test_a_decision_that_the_reconciler_denies_is_refused(decided: str, known: str) -> None:
    answers = iter(("unknown", known))
    reconciler = FakeReconciler(lambda request: Reconciliation(outcome=EffectOutcome(next(answers))))
    app = await paused(reconcilers={"act": reconciler})
    plan, before = await planned(app), await log_of(app)
    CUT_OFF_HERE.clear()  # as in another process, which takes a reconciler's word for a call that has not acted
    assert len(plan.items[0].needed_decisions) == 1, "the plan asks for no decision on a call with a reconciler"
    with pytest.raises(ContradictoryEvidence, match=f"its reconciler answers {known}"):
        await execute(app, plan, mark(plan, decided))
    after = await log_of(app)
    assert (list(after.records), after.head) == (list(before.records), before.head)


@pytest.mark.parametrize("content", [None, "as the operator read it"])
async def test_a_receipt_is_shown_to_the_reconciler_which_may_know_the_result(content: str | None) -> None:
    later = Reconciliation(outcome=EffectOutcome.COMPLETED, result=ToolResult(content="order 7"), reference="o-8")
    answers = iter((Reconciliation(outcome=EffectOutcome.UNKNOWN), later))
    reconciler = FakeReconciler(lambda request: next(answers))
    app = await paused(reconcilers={"act": reconciler})
    plan, receipt = await planned(app), await receipt_for(app)
    await execute(app, plan, mark(plan, "completed", content=content, receipt=receipt))
    assert [request.receipt for request in reconciler.asked] == [None, receipt]
    [settled] = await logged(app, E.EFFECT_RECONCILED)
    assert (settled["source"], settled["reference"]) == ("receipt", "o-7")
    assert [part.content for part in await read_by_model(app)] == [content or "order 7"]


async def test_one_execution_settles_a_call_by_decision_and_another_by_its_reconciler() -> None:
    answers = iter(("unknown", "completed"))
    reconciler = FakeReconciler(lambda request: Reconciliation(outcome=EffectOutcome(next(answers))))
    tools = [FakeTool(name, lose_touch, effect=EXTERNAL) for name in ("act", "known")]
    app = build(tools, asked=("act", "known"), reconcilers={"known": reconciler})
    await play(app.run(new_run()))
    plan = await planned(app)
    result = await execute(app, plan, mark(plan, "failed", 0), by=ResolutionActor(subject="ana"))
    assert result.items[0].session_status == "completed"
    sources = {payload["tool_name"]: payload["source"] for payload in await logged(app, E.EFFECT_RECONCILED)}
    assert sources == {"act": "operator", "known": "reconciler"}
    assert sorted(await effects(app)) == ["completed", "failed"]
    assert [part.content for part in await read_by_model(app)] == [SETTLED["failed"], SETTLED["completed"]]


@pytest.mark.parametrize("first, second", [("completed", "failed"), ("failed", "completed")])
async def test_a_decision_that_contradicts_an_earlier_one_is_refused(first: str, second: str) -> None:
    app = await paused()
    plan = await planned(app)
    await execute(app, plan, mark(plan, first), by=ResolutionActor(subject="ana"))
    before = await log_of(app)
    with pytest.raises(ContradictoryEvidence, match=f"settled as {first} by ana at 20") as refused:
        await execute(app, plan, mark(plan, second), id="e2")
    assert (refused.value.session_id, refused.value.tool_call_id) == (SESSION, mark(plan, first).tool_call_id)
    after = await log_of(app)
    assert (list(after.records), after.head) == (list(before.records), before.head)


async def test_contradiction_tells_no_content() -> None:
    app = await paused(asked=(("act", {"n": "CANARY"}),))
    plan = await planned(app)
    wrong = await receipt_for(app, idempotency_key="another")
    with pytest.raises(ContradictoryEvidence) as refused:
        await execute(app, plan, mark(plan, "completed", content="CANARY", reason="CANARY", receipt=wrong))
    assert "CANARY" not in str(refused.value) + repr(refused.value.attributes)


async def test_decisions_on_some_calls_leave_the_others_open_and_the_last_one_lets_the_run_go_on() -> None:
    app = await paused(asked=("act", "act", "act"))
    plan = await planned(app)
    assert len(plan.items[0].needed_decisions) == 3
    result = await execute(app, plan, mark(plan, "completed", 0, content="one"), mark(plan, "failed", 2), id="e1")
    assert (result.items[0].status, result.items[0].session_status) == (RecoveryItemStatus.EXECUTED, "interrupted")
    view = await assert_consistent(app)
    assert [call.state for call in view.rounds[0].calls] == ["staged", "unknown", "staged"]
    assert await waiting_ids(app) == [view.rounds[0].calls[1].recovery_id]
    with pytest.raises(SessionNeedsRecovery):
        await play(app.resume(next_turn()))
    plan = await planned(app)
    assert [need.tool_call_id for need in plan.items[0].needed_decisions] == [view.rounds[0].calls[1].id]
    result = await execute(app, plan, mark(plan, "completed", content="two"), id="e2")
    assert result.items[0].session_status == "completed"
    failed = SETTLED["failed"]
    assert [part.content for part in await read_by_model(app)] == ["one", "two", failed]
    assert [receipt["execution_id"] for receipt in await logged(app, E.RECOVERY_ITEM_EXECUTED)] == ["e1", "e2"]


@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_a_session_that_a_human_interrupted_is_closed_and_not_continued(outcome: str) -> None:
    act, later = FakeTool("act", hang, effect=EXTERNAL), FakeTool("later", parallel_safe=False)
    app = build([act, later], asked=("act", "later"), config=RuntimeConfig(cancel_grace_seconds=0))
    running = asyncio.create_task(play(app.run(new_run())))
    await act.entered.wait()
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await running
    plan = await planned(app)
    await execute(app, plan, mark(plan, outcome))
    view = await assert_consistent(app)
    assert (view.status, view.open_round, view.model_steps) == ("interrupted", None, 1)
    assert (view.interruption or {})["reason"] == "interrupt_requested"
    assert [call.state for call in view.rounds[0].calls] == [outcome, "failed"]
    assert (later.calls, await waiting_ids(app)) == ([], [])
    outcome_after = await run_to_completion(app, next_turn())
    assert outcome_after.status == "completed"


async def test_a_session_that_failed_over_an_unknown_call_can_be_settled_and_resumed() -> None:
    """The runtime itself failed while an external call was at work: the call stays open, and somebody finds out."""

    async def fail(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED):
            proxy.before = None
            raise RuntimeError("a fault of the runtime")

    proxy = StoreProxy(InMemorySessionStore(), before=fail)
    tools = [FakeTool("act", hang, effect=EXTERNAL), FakeTool("quick")]
    app = build(tools, proxy, ("act", "quick"), config=RuntimeConfig(cancel_grace_seconds=0.02))
    with pytest.raises(RuntimeError):
        await play(app.run(new_run()))
    view = await assert_consistent(app)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("failed", ["unknown", "staged"])
    with pytest.raises(SessionNeedsRecovery):
        await play(app.resume(next_turn()))
    plan = await planned(app)
    await execute(app, plan, mark(plan, "completed", content="found in the books"))
    assert [part.content for part in await read_by_model(app)] == ["found in the books", "quick did it"]
    assert (await run_to_completion(app, next_turn())).status == "completed"


async def test_an_execution_that_found_nothing_out_may_be_given_a_decision() -> None:
    app = await paused(reconcilers={"act": FakeReconciler(SILENT["unknown"])})
    plan, before = await planned(app), await log_of(app)
    result = await execute(app, plan)
    assert (result.items[0].status, result.items[0].receipt_event_id) == (RecoveryItemStatus.BLOCKED, None)
    assert list((await log_of(app)).records) == list(before.records)
    result = await execute(app, plan, mark(plan, "failed"))  # under the same id: nothing was done in its name
    assert result.items[0].status == RecoveryItemStatus.EXECUTED


async def test_a_decision_on_a_lost_session_is_written_with_what_was_lost() -> None:
    store, act = InMemorySessionStore(), FakeTool("act", effect=EXTERNAL)
    await lose(store, [act], ("act", "act"))
    app = build([act], store, ("act", "act"))
    plan = await planned(app)
    assert len(plan.items[0].needed_decisions) == 2
    await execute(app, plan, mark(plan, "completed", 0, content="one"), id="e1")
    view = await assert_consistent(app)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("interrupted", ["staged", "unknown"])
    plan = await planned(app)
    await execute(app, plan, mark(plan, "failed"), id="e2")
    view = await assert_consistent(app)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("completed", ["completed", "failed"])
    assert len(act.calls) == 2


@pytest.mark.requirement("A049")
async def test_resume_while_an_outcome_is_unknown_points_at_the_plan() -> None:
    app = await paused()
    before = await log_of(app)
    with pytest.raises(SessionNeedsRecovery, match=r"app\.plan_recovery.*cayu recovery plan .* --session s "):
        await play(app.resume(next_turn()))
    with pytest.raises(SessionNeedsRecovery, match="plan_recovery"):
        await play(app.recover_incomplete_session(SESSION))
    after = await log_of(app)
    assert (list(after.records), after.head) == (list(before.records), before.head)


# A real service, in a file of its own, and processes that really die.

HERE = str(Path(__file__))
ORDER = {"item": "gloves", "quantity": 2}


class ExternalOrder(OrderSuppliesTool):
    """Orders from a service that the runtime may never ask twice."""

    def __init__(self, book: ReceiptBook) -> None:
        super().__init__(book)
        self.spec = self.spec.model_copy(update={"effect": EXTERNAL})


class ReceiptReconciler(ToolEffectReconciler):
    """Looks up in the service's own books whether it acted under a key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        with closing(sqlite3.connect(self._path)) as raw:
            query = "SELECT number FROM receipts WHERE idempotency_key = ?"
            found = raw.execute(query, (request.idempotency_key,)).fetchone()
        if found is None:
            return Reconciliation(outcome=EffectOutcome.FAILED)
        result = ToolResult(content=f"Receipt {found[0]}")
        return Reconciliation(outcome=EffectOutcome.COMPLETED, result=result, reference=f"receipt-{found[0]}")


def ordering(folder: Path, *, reconciled: bool = False) -> CayuApp:
    book = ReceiptBook(folder / "receipts.db")
    app = CayuApp(session_store=SQLiteSessionStore(folder / "sessions.db"))
    app.register_provider(ScriptedModelProvider([[ModelStreamEvent.tool_call("order_supplies", ORDER)], "ordered"]))
    known = {"order_supplies": ReceiptReconciler(book.path)} if reconciled else None
    app.register_agent(AgentSpec(name="a", model="m"), tools=[ExternalOrder(book)], tool_effect_reconcilers=known)
    return app


@pytest.fixture
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import what this module imports."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


async def order(folder: str) -> str:
    async with ordering(Path(folder)) as app:
        request = RunRequest(agent_name="a", session_id=SESSION, messages=(Message.text("user", "order"),))
        return str((await run_to_completion(app, request)).status)


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_the_tests")
@pytest.mark.requirement("A044", "A049")
@pytest.mark.parametrize("by", ["recovery", "plan"])
@pytest.mark.parametrize("point, acted", [("tool.dispatched", False), ("tool.returned", True)])
async def test_a_process_that_died_inside_an_external_call(point: str, acted: bool, by: str, tmp_path: Path) -> None:
    assert run_child(f"{HERE}:order", [str(tmp_path)], crash_at=point).killed
    async with ordering(tmp_path) as app:
        with pytest.raises(SessionNeedsRecovery, match="cayu recovery plan"):
            await play(app.resume(next_turn()))
        [need] = (await planned(app)).items[0].needed_decisions
        assert need.tool_name == "order_supplies"
    async with ordering(tmp_path, reconciled=True) as app:
        if by == "plan":
            result = await execute(app, await planned(app))
            assert result.items[0].session_status == "completed"
        else:
            await play(app.recover_incomplete_session(SESSION))
        view = await assert_consistent(app)
        assert (view.status, view.final_text) == ("completed", "ordered")
        [told] = await read_by_model(app)
        assert (told.content, told.is_error) == ("Receipt 1", False) if acted else (SETTLED["failed"], True)
        assert len(ReceiptBook(tmp_path / "receipts.db").all()) == int(acted)


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_the_tests")
@pytest.mark.requirement("A044")
async def test_a_process_that_died_inside_an_external_call_and_an_operator(tmp_path: Path) -> None:
    assert run_child(f"{HERE}:order", [str(tmp_path)], crash_at="tool.returned").killed
    async with ordering(tmp_path) as app:
        await play(app.recover_incomplete_session(SESSION))
        assert len(await waiting_ids(app)) == 1
        with pytest.raises(SessionNeedsRecovery, match=r"whether .* acted is not known"):
            await play(app.resume(next_turn()))
        plan = await planned(app)
        receipt = await receipt_for(app, reference="receipt-1")
        await execute(app, plan, mark(plan, "completed", content="Receipt 1", receipt=receipt))
        view = await assert_consistent(app)
        assert (view.status, len(ReceiptBook(tmp_path / "receipts.db").all())) == ("completed", 1)
        assert (await app.plan_recovery(RecoveryPlanRequest())).items == ()
