"""Recovery by plan: looking writes nothing, acting does what was reviewed or nothing, and a repeat does it once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from runtime.support import (
    SESSION,
    FakeClock,
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    has,
    identity,
    log_of,
    logged,
    make_app,
    new_run,
    next_turn,
    play,
    status_of,
)

from cayu import AgentSpec, CayuApp, SQLiteSessionStore, ToolEffect
from cayu.approvals import AskUserTool
from cayu.canonical import dumps
from cayu.errors import (
    ContradictoryEvidence,
    InvalidInput,
    RecoveryExecutionConflict,
    SessionNotFound,
    StaleRecoveryPlanError,
    StoreFull,
)
from cayu.events import EventType as E
from cayu.messages import Message
from cayu.providers import ModelRequest, ScriptedModelProvider
from cayu.runtime.ownership import RECOVERING
from cayu.sessions.limits import BudgetLimit
from cayu.sessions.plans import (
    BlockerCode,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanRequest,
)
from cayu.sessions.requests import ResolutionActor
from cayu.sessions.streams import HeadQuery, Item, Record, SessionStore, Take, Unit, cursor
from cayu.storage import InMemorySessionStore
from cayu.testing import run_child
from cayu.tools import AlwaysRequireApprovalToolPolicy, Tool, ToolContext, ToolPolicy, ToolResult
from cayu.tools.reconcilers import ToolOutcomeUnknown
from cayu.tools.subagents import SubagentTool

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
Action, Code, Done = RecoveryAction, BlockerCode, RecoveryItemStatus
ASK = [("ask_user", {"question": "Which one?"})]
BUDGET = (BudgetLimit(budget_id="b", max_tokens=100_000),)


async def lose_touch(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    raise ToolOutcomeUnknown


class ReadOnly(StoreProxy):
    """A store under which every write is a fault."""

    def __init__(self, inner: SessionStore) -> None:
        super().__init__(inner)
        self.tried: list[str] = []

    async def append(self, unit: Unit) -> Any:
        self.tried.append("append")
        raise AssertionError("something was appended")

    async def renew(self, *args: Any) -> Any:
        self.tried.append("renew")
        raise AssertionError("something was renewed")

    async def transact(self, *args: Any) -> Any:
        self.tried.append("transact")
        raise AssertionError("a document was written")


async def lose(
    store: SessionStore,
    session_id: str = SESSION,
    effect: ToolEffect = NONE,
    *,
    at: str = E.TOOL_STAGED,
    asked: Sequence[Any] = ("act",),
    **fields: Any,
) -> None:
    """Leave a session whose process could write nothing more when it came to an event of that type."""

    async def die(unit: Unit) -> None:
        if has(unit, at):
            raise StoreFull(path="x")

    app = make_app(StoreProxy(store, before=die), [calls(*asked), "done"], [FakeTool("act", effect=effect)])
    with pytest.raises(StoreFull):
        await play(app.run(new_run(session_id, **fields)))


async def write(store: SessionStore, session_id: str, type: str, payload: dict[str, Any], **fields: Any) -> None:
    """Append one event as a process would that takes the session and lets it go at once."""
    records = (Record(type, dumps(payload)),)
    await store.append(Unit(session_id, None, await take(store, session_id), records, release=True, **fields))


async def take(store: SessionStore, session_id: str, role: str = "") -> Take:
    """Claim a session for a process elsewhere, of which nothing is known here."""
    loaded = await store.load(session_id)
    assert loaded is not None
    return Take(f"{role}process 1 elsewhere", evicting=loaded.head.state.owner)


async def stop(store: SessionStore, session_id: str = SESSION, root: object = None) -> None:
    """Append a request to interrupt, of which nobody hears."""
    record = Record(E.SESSION_INTERRUPT_REQUESTED, dumps({"cascade": {"root": root or session_id}}))
    await store.append(Unit(session_id, None, None, (record,)))


def app_over(store: SessionStore | StoreProxy, effect: ToolEffect = NONE, tool: Tool | None = None) -> CayuApp:
    """What a new process registers."""
    return make_app(store, [calls("act"), "done"], [tool or FakeTool("act", effect=effect)])


async def planned(app: CayuApp, *session_ids: str, **fields: Any) -> RecoveryPlan:
    return await app.plan_recovery(RecoveryPlanRequest(session_ids=session_ids, **fields))


def decide(plan: RecoveryPlan, action: RecoveryAction, item: int = 0, **fields: Any) -> RecoveryDecision:
    [need] = plan.items[item].needed_decisions
    name = plan.items[item].session_id
    return RecoveryDecision(session_id=name, action=action, tool_call_id=need.tool_call_id, **fields)


def executing(plan: RecoveryPlan, *decisions: RecoveryDecision, id: str = "e", by: str | None = None) -> Any:
    actor = ResolutionActor(subject=by) if by else None
    return RecoveryExecutionRequest(plan=plan, execution_id=id, decisions=decisions, requested_by=actor)


async def logs(app: CayuApp, *session_ids: str) -> list[Any]:
    """What stands of sessions: heads and records."""
    return [(found.head, list(found.records)) for name in session_ids for found in [await log_of(app, name)]]


# Real situations, with what a plan makes of each.

Situation = Callable[[InMemorySessionStore], Awaitable[CayuApp | None]]


async def at_rest(store: InMemorySessionStore) -> None:
    await play(app_over(store).run(new_run()))


async def lost_step(store: InMemorySessionStore) -> None:
    await lose(store, at=E.MODEL_COMPLETED)


async def lost_call(store: InMemorySessionStore) -> None:
    await lose(store)


async def stopping(store: InMemorySessionStore) -> None:
    await lose(store, at=E.MODEL_COMPLETED)
    await stop(store)


async def stopping_round(store: InMemorySessionStore) -> None:
    await lose(store)
    await stop(store)


async def lost_external(store: InMemorySessionStore) -> CayuApp:
    await lose(store, effect=EXTERNAL)
    return app_over(store, EXTERNAL)


async def paid_step(store: InMemorySessionStore) -> None:
    await lose(store, at=E.MODEL_COMPLETED, budget_limits=BUDGET)


async def _paused(store: InMemorySessionStore, asked: Sequence[Any], tool: Tool, policy: ToolPolicy | None) -> CayuApp:
    app = make_app(store, [calls(*asked), "done", "done again"], [tool], policy)
    await play(app.run(new_run()))
    return app


async def unknown_external(store: InMemorySessionStore) -> CayuApp:
    return await _paused(store, ["act"], FakeTool("act", lose_touch, effect=EXTERNAL), None)


async def approval(store: InMemorySessionStore) -> CayuApp:
    return await _paused(store, ["act"], FakeTool("act"), AlwaysRequireApprovalToolPolicy())


async def question(store: InMemorySessionStore) -> CayuApp:
    return await _paused(store, ASK, AskUserTool(), None)


async def decided_and_left(store: InMemorySessionStore) -> CayuApp:
    """An older release wrote the last decision and the continuation apart, and died in between."""
    app = await approval(store)
    [call] = (await assert_consistent(app)).awaiting
    payload = {"tool_call_id": call.id, "tool_name": "act", "code": "approval_denied", "action": call.approval_id}
    settled = (Item("tool_approval", call.approval_id, "approval_denied"),)
    await write(store, SESSION, E.TOOL_APPROVAL_DENIED, payload, add={"pending": -1}, items=settled)
    return app


async def held(store: InMemorySessionStore, role: str = "") -> None:
    await lose(store)
    await store.append(Unit(SESSION, None, await take(store, SESSION, role)))


async def held_by_recovery(store: InMemorySessionStore) -> None:
    await held(store, RECOVERING)


async def another_tree(store: InMemorySessionStore) -> None:
    await lose(store)
    await stop(store, root="nobody")


async def a_broken_marker(store: InMemorySessionStore) -> None:
    await lose(store)
    record = Record(E.SESSION_INTERRUPT_REQUESTED, dumps({"cascade": ["s"]}))
    await store.append(Unit(SESSION, None, None, (record,)))


async def unregistered(store: InMemorySessionStore) -> CayuApp:
    await lose(store)
    return CayuApp(session_store=store)


async def changed(store: InMemorySessionStore) -> CayuApp:
    await lose(store)
    tool = FakeTool("act")
    tool.spec = tool.spec.model_copy(update={"execution_profile_identity": identity("another")})
    return app_over(store, tool=tool)


async def nonsense(store: InMemorySessionStore) -> None:
    await lose(store)
    await write(store, SESSION, E.TOOL_STARTED, {"tool_call_id": "nobody", "attempt": 1})


SITUATIONS: dict[Situation, tuple[RecoveryAction, tuple[BlockerCode, ...]]] = {
    at_rest: (Action.LEAVE_INTACT, ()),
    lost_step: (Action.AUTOMATIC_REPAIR, ()),
    lost_call: (Action.AUTOMATIC_REPAIR, ()),
    stopping: (Action.TERMINALIZE_ZERO_WORK, ()),
    stopping_round: (Action.AUTOMATIC_REPAIR, ()),
    lost_external: (Action.LEAVE_INTACT, (Code.TOOL_EFFECT_OUTCOME_UNKNOWN,)),
    unknown_external: (Action.LEAVE_INTACT, (Code.TOOL_EFFECT_OUTCOME_UNKNOWN,)),
    paid_step: (Action.LEAVE_INTACT, (Code.MODEL_EFFECT_OUTCOME_UNKNOWN,)),
    approval: (Action.LEAVE_INTACT, (Code.TOOL_APPROVAL_REQUIRED,)),
    question: (Action.LEAVE_INTACT, (Code.USER_INPUT_REQUIRED,)),
    decided_and_left: (Action.LEAVE_INTACT, (Code.TOOL_EFFECT_CONTINUATION_REQUIRED,)),
    held: (Action.LEAVE_INTACT, (Code.ACTIVE_EXECUTION_OWNER,)),
    held_by_recovery: (Action.LEAVE_INTACT, (Code.ACTIVE_RECOVERY_CLAIM,)),
    another_tree: (Action.LEAVE_INTACT, (Code.INVALID_CASCADE_MARKER,)),
    a_broken_marker: (Action.LEAVE_INTACT, (Code.INVALID_CASCADE_MARKER,)),
    unregistered: (Action.LEAVE_INTACT, (Code.REGISTRATION_UNAVAILABLE,)),
    changed: (Action.LEAVE_INTACT, (Code.REGISTRATION_INCOMPATIBLE,)),
    nonsense: (Action.LEAVE_INTACT, (Code.INVALID_DURABLE_STATE,)),
}
HARD = [each for each, (_, codes) in SITUATIONS.items() if codes and codes[0] not in (
    Code.TOOL_EFFECT_OUTCOME_UNKNOWN, Code.MODEL_EFFECT_OUTCOME_UNKNOWN)]  # fmt: skip


def test_every_blocker_has_a_situation_of_its_own() -> None:
    assert {code for _, codes in SITUATIONS.values() for code in codes} == set(Code)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
async def test_a_plan_tells_what_stands_in_the_way_and_writes_nothing(situation: Situation) -> None:
    store = InMemorySessionStore()
    app = await situation(store) or app_over(store)
    action, codes = SITUATIONS[situation]
    before = await logs(app, SESSION)
    trap = ReadOnly(store)
    app.services.store = app.session_store = cast(SessionStore, trap)
    plan, again = await planned(app, SESSION), await planned(app, SESSION)
    [item] = plan.items
    assert (item.action, item.blocker_codes) == (action, codes)
    assert (plan.plan_id, plan.items, trap.tried) == (again.plan_id, again.items, [])
    assert await logs(app, SESSION) == before
    head = before[0][0]
    assert (item.version, item.run_epoch, item.status) == (head.state.version, head.state.epoch, head.state.status)
    assert (item.instance_id, plan.inspected_session_count) == (head.row.instance_id, 1)
    assert RecoveryPlan.model_validate_json(plan.model_dump_json()) == plan
    by_listing = await planned(app)
    at_rest_now = action is Action.LEAVE_INTACT and not codes
    assert [each.session_id for each in by_listing.items] == ([] if at_rest_now else [SESSION])
    asked = codes and codes[0] in (Code.TOOL_EFFECT_OUTCOME_UNKNOWN, Code.MODEL_EFFECT_OUTCOME_UNKNOWN)
    assert len(item.needed_decisions) == int(bool(asked))


async def test_what_waits_for_a_resume_is_closed_by_one() -> None:
    store = InMemorySessionStore()
    app = await decided_and_left(store)
    await play(app.resume(next_turn()))
    assert (await assert_consistent(app)).status == "completed"


async def test_a_decision_is_asked_for_with_what_identifies_the_call_outside() -> None:
    store = InMemorySessionStore()
    act = FakeTool("act", lose_touch, effect=EXTERNAL)
    app = make_app(store, [calls("act"), "done"], [act])
    await play(app.run(new_run()))
    [need] = (await planned(app, SESSION)).items[0].needed_decisions
    [call] = (await assert_consistent(app)).rounds[0].calls
    assert need.idempotency_key == act.contexts[0].idempotency_key
    assert (need.tool_call_id, need.arguments_digest, need.attempt) == (call.id, call.digest, 1)
    assert (need.subject, need.tool_effect, need.tool_name) == ("tool_call", EXTERNAL, "act")
    assert need.allowed_actions == (Action.TOOL_MARK_COMPLETED, Action.TOOL_MARK_FAILED)


async def test_a_session_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SessionNotFound, match="'nowhere'"):
        await planned(app_over(InMemorySessionStore()), "nowhere")


async def test_a_session_that_was_at_work_a_moment_ago_counts_as_owned() -> None:
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    await lose(store)
    app = app_over(store)
    codes = []
    for seconds in (59.0, 1.0):
        clock.advance(seconds)
        codes.append((await planned(app, SESSION, inactive_for_seconds=60)).items[0].blocker_codes)
    assert codes == [(Code.ACTIVE_EXECUTION_OWNER,), ()]


async def test_a_plan_and_its_execution_carry_no_content() -> None:
    def build(store: SessionStore | StoreProxy) -> CayuApp:
        async def give(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
            return ToolResult(content="CANARY result", structured={"CANARY": "CANARY"})

        async def fall(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
            raise ToolOutcomeUnknown("CANARY words")

        app = CayuApp(session_store=cast(SessionStore, store))
        asked = calls(("give", {"q": "CANARY"}), ("act", {"q": "CANARY"}))
        app.register_provider(ScriptedModelProvider([asked, "CANARY answer"]))
        spec = AgentSpec(name="a", model="m", system_prompt="CANARY system", metadata={"k": "CANARY"})
        app.register_agent(spec, tools=[FakeTool("give", give), FakeTool("act", fall, effect=EXTERNAL)])
        return app

    store = InMemorySessionStore()
    app = build(store)
    said = (Message.text("user", "CANARY prompt"),)
    request = new_run().model_copy(update={"messages": said, "title": "CANARY", "metadata": {"k": "CANARY"}})
    await play(app.run(request))
    plan = await planned(app)
    assert len(plan.items) == 1
    assert "CANARY" not in plan.model_dump_json()
    decision = decide(plan, Action.TOOL_MARK_COMPLETED, content="CANARY", reason="CANARY")
    result = await app.execute_recovery(executing(plan, decision))
    assert "CANARY" not in result.model_dump_json()
    assert "CANARY" not in dumps(await logged(app, E.RECOVERY_ITEM_EXECUTED)).decode()


@pytest.fixture(scope="module")
def many() -> InMemorySessionStore:
    """Sessions of every kind, among them some that are at rest."""
    store = InMemorySessionStore()

    async def fill() -> None:
        for number in range(3):
            await lose(store, f"running{number}")
            await lose(store, f"stopping{number}")
            await stop(store, f"stopping{number}")
            app = make_app(store, [calls("act"), "done"], [FakeTool("act", lose_touch, effect=EXTERNAL)])
            await play(app.run(new_run(f"unknown{number}")))
            await play(app_over(store).run(new_run(f"completed{number}")))
            await lose(store, f"closed{number}")
            await stop(store, f"closed{number}")
            await play(app_over(store).recover_incomplete_session(f"closed{number}"))

    asyncio.run(fill())
    return store


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 11, 12, 13, 1000])
async def test_pages_lose_no_session_and_tell_of_none_twice(limit: int, many: InMemorySessionStore) -> None:
    app = app_over(many)
    found: list[str] = []
    inspected, following, pages = 0, None, 0
    while pages == 0 or following is not None:
        plan = await planned(app, limit=limit, cursor=following, agent_name="a")
        assert plan.inspected_session_count <= limit
        found += [item.session_id for item in plan.items]
        inspected, following, pages = inspected + plan.inspected_session_count, plan.next_cursor, pages + 1
        assert pages <= 30
    assert sorted(found) == sorted(f"{kind}{n}" for kind in ("running", "stopping", "unknown") for n in range(3))
    assert inspected == 12  # those that were closed have been looked at too
    assert (await planned(app, agent_name="somebody else")).items == ()


@pytest.mark.parametrize("text", ["nonsense", "", "[]", "[0]", '["0",""]', cursor(0, "nonsense"), cursor(1, "[1,2]")])
async def test_a_cursor_that_no_plan_gave_is_refused(text: str, many: InMemorySessionStore) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await planned(app_over(many), cursor=text)


# Execution.


@pytest.mark.requirement("A070")
@pytest.mark.parametrize("situation", [lost_step, lost_call, stopping, stopping_round], ids=lambda s: s.__name__)
async def test_what_can_be_done_by_itself_is_done_under_the_executions_name(situation: Situation) -> None:
    store = InMemorySessionStore()
    await situation(store)
    app = app_over(store)
    plan = await planned(app, SESSION)
    result = await app.execute_recovery(executing(plan, by="ana"))
    [item] = result.items
    expected = "interrupted" if situation in (stopping, stopping_round) else "completed"
    assert (item.status, item.session_status, item.action) == (Done.EXECUTED, expected, plan.items[0].action)
    assert (await assert_consistent(app)).status == expected
    assert (result.execution_id, result.plan_id) == ("e", plan.plan_id)
    [receipt] = await logged(app, E.RECOVERY_ITEM_EXECUTED)
    assert receipt.pop("decisions")
    assert receipt == {
        "execution_id": "e",
        "plan_id": plan.plan_id,
        "item_id": plan.items[0].item_id,
        "action": plan.items[0].action,
        "requested_by": "ana",
    }
    loaded = await log_of(app)
    [sequence] = [record.sequence for record in loaded.records if record.type == E.RECOVERY_ITEM_EXECUTED]
    assert item.receipt_event_id == f"{loaded.head.row.instance_id}.{sequence}"
    assert sequence == plan.items[0].version + 1  # it stands before what was done


async def test_an_exact_repeat_does_nothing() -> None:
    store = InMemorySessionStore()
    act = FakeTool("act", effect=IDEMPOTENT)
    await lose(store, effect=IDEMPOTENT)
    app = app_over(store, tool=act)
    request = executing(await planned(app, SESSION))
    first = await app.execute_recovery(request)
    before = await logs(app, SESSION)
    second = await app.execute_recovery(request)
    third = await app_over(store, tool=act).execute_recovery(request)
    assert await logs(app, SESSION) == before
    assert len(act.calls) == 1
    for again in (second, third):
        assert [item.status for item in again.items] == [Done.REPEATED]
        assert again.items[0].receipt_event_id == first.items[0].receipt_event_id
        assert again.items[0].session_status == "completed"


@pytest.mark.parametrize("action", [Action.MODEL_MARK_FAILED, Action.MODEL_MARK_INTERRUPTED])
async def test_a_lost_step_that_was_paid_for_is_ended_by_decision(action: RecoveryAction) -> None:
    store = InMemorySessionStore()
    await paid_step(store)
    app = app_over(store)
    plan = await planned(app, SESSION)
    before = await logs(app, SESSION)
    assert [item.status for item in (await app.execute_recovery(executing(plan))).items] == [Done.BLOCKED]
    assert await logs(app, SESSION) == before
    result = await app.execute_recovery(executing(plan, decide(plan, action)))
    ended = "failed" if action is Action.MODEL_MARK_FAILED else "interrupted"
    assert (result.items[0].status, result.items[0].session_status) == (Done.EXECUTED, ended)
    view = await assert_consistent(app)
    assert (view.status, view.model_in_flight, view.reservations) == (ended, False, {})
    provider = app.services.registry.assemble("a", None).provider
    assert isinstance(provider, ScriptedModelProvider)
    assert provider.requests == []
    await play(app.resume(next_turn()))
    assert await status_of(app) == "completed"


async def test_a_stale_plan_is_refused_before_anything_is_written() -> None:
    store = InMemorySessionStore()
    for name in ("one", "two", "three"):
        await lose(store, name)
    app = app_over(store)
    plan = await planned(app, "one", "two", "three")
    await play(app_over(store).recover_incomplete_session("two"))
    before = await logs(app, "one", "two", "three")
    proxy = StoreProxy(store)
    with pytest.raises(StaleRecoveryPlanError, match="'two'") as refused:
        await app_over(proxy).execute_recovery(executing(plan))
    assert (refused.value.session_id, refused.value.plan_id) == ("two", plan.plan_id)
    assert (await logs(app, "one", "two", "three"), proxy.units) == (before, [])
    fresh = await planned(app)
    result = await app.execute_recovery(executing(fresh))  # the id is still free
    assert {item.status for item in result.items} == {Done.EXECUTED}


async def test_contradictory_evidence_is_refused_before_anything_is_written() -> None:
    store = InMemorySessionStore()
    app = app_over(store, EXTERNAL)
    for name in ("one", "two"):
        await lose(store, name, EXTERNAL)
    plan = await planned(app, "one", "two")
    key = plan.items[0].needed_decisions[0].idempotency_key
    digest = plan.items[1].needed_decisions[0].arguments_digest
    receipt = {"idempotency_key": key, "arguments_digest": digest, "reference": "r"}  # of the other session's call
    decisions = [
        decide(plan, Action.TOOL_MARK_FAILED, 0),
        decide(plan, Action.TOOL_MARK_COMPLETED, 1, receipt=receipt),
    ]
    before = await logs(app, "one", "two")
    with pytest.raises(ContradictoryEvidence, match="nothing was written"):
        await app.execute_recovery(executing(plan, *decisions))
    assert await logs(app, "one", "two") == before


async def test_an_execution_id_stands_for_one_plan_and_its_decisions() -> None:
    store = InMemorySessionStore()
    app = app_over(store, EXTERNAL)
    for name in ("one", "two"):
        await lose(store, name, EXTERNAL)
    plan, other = await planned(app, "one"), await planned(app, "two")
    await app.execute_recovery(executing(plan, decide(plan, Action.TOOL_MARK_FAILED)))
    before = await logs(app, "one", "two")
    refused = [
        executing(plan, decide(plan, Action.TOOL_MARK_COMPLETED)),
        executing(plan, decide(plan, Action.TOOL_MARK_FAILED, reason="why")),
        executing(plan),
        executing(other, decide(other, Action.TOOL_MARK_FAILED)),
    ]
    for request in refused:
        with pytest.raises(RecoveryExecutionConflict, match="'e'"):
            await app.execute_recovery(request)
    assert await logs(app, "one", "two") == before
    await app.execute_recovery(executing(other, decide(other, Action.TOOL_MARK_FAILED), id="e2"))


@pytest.mark.requirement("A071")
@pytest.mark.parametrize("situation", HARD, ids=lambda each: each.__name__)
async def test_nothing_is_tried_against_a_hard_blocker(situation: Situation) -> None:
    store = InMemorySessionStore()
    app = await situation(store) or app_over(store)
    plan, before = await planned(app, SESSION), await logs(app, SESSION)
    trap = ReadOnly(store)
    app.services.store = app.session_store = cast(SessionStore, trap)
    for _ in range(2):
        [item] = (await app.execute_recovery(executing(plan))).items
        assert (item.status, item.blocker_codes, item.receipt_event_id) == (
            Done.BLOCKED, plan.items[0].blocker_codes, None
        )  # fmt: skip
    assert (await logs(app, SESSION), trap.tried) == (before, [])  # profile, version and owner with everything else


@pytest.mark.requirement("A071")
async def test_a_changed_profile_is_never_adopted_by_a_plan() -> None:
    store = InMemorySessionStore()
    app = await changed(store)
    await lose(store, "healthy", at=E.MODEL_COMPLETED)
    started = await logged(app, E.SESSION_STARTED)
    plan = await planned(app, SESSION)
    await app.execute_recovery(executing(plan))
    assert await logged(app, E.SESSION_STARTED) == started
    assert await logged(app, E.SESSION_PROFILE_DECIDED) == []
    assert await logged(app, E.SESSION_PROFILE_REJECTED) == []
    restored = app_over(store)
    [item] = (await restored.execute_recovery(executing(await planned(restored, SESSION)))).items
    assert (item.status, item.session_status) == (Done.EXECUTED, "completed")


@pytest.mark.requirement("A072")
@pytest.mark.parametrize("action", [None, Action.TOOL_MARK_FAILED, Action.TOOL_MARK_COMPLETED], ids=str)
@pytest.mark.parametrize("situation", [lost_external, unknown_external], ids=lambda each: each.__name__)
async def test_an_unknown_external_call_is_never_begun_again(
    situation: Situation, action: RecoveryAction | None
) -> None:
    store = InMemorySessionStore()
    await situation(store)
    act = FakeTool("act", effect=EXTERNAL)
    app = app_over(store, tool=act)
    plan = await planned(app, SESSION)
    before = await logs(app, SESSION)
    decisions = [decide(plan, action)] if action else []
    [item] = (await app.execute_recovery(executing(plan, *decisions))).items
    assert act.calls == []
    assert len(await logged(app, E.TOOL_STARTED)) == 1
    if action is None:
        assert (item.status, await logs(app, SESSION)) == (Done.BLOCKED, before)
    else:
        assert (item.status, item.session_status) == (Done.EXECUTED, "completed")


async def test_a_session_that_changes_between_the_look_and_the_write_is_left_to_whoever_changed_it() -> None:
    store = InMemorySessionStore()
    await lose(store)
    act = FakeTool("act")

    async def be_faster(unit: Unit) -> None:
        if has(unit, E.RECOVERY_ITEM_EXECUTED):
            proxy.before = None
            await play(app_over(store).recover_incomplete_session(SESSION))

    proxy = StoreProxy(store, before=be_faster)
    app = app_over(proxy, tool=act)
    plan = await planned(app, SESSION)
    with pytest.raises(StaleRecoveryPlanError):
        await app.execute_recovery(executing(plan))
    assert (proxy.units, act.calls) == ([], [])
    assert (await assert_consistent(app)).status == "completed"
    assert await logged(app, E.RECOVERY_ITEM_EXECUTED) == []


@pytest.mark.parametrize("same_id", [True, False], ids=["one id", "two ids"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_executions_of_one_plan_have_one_effect(kind: str, same_id: bool, tmp_path: Path) -> None:
    stores: list[SessionStore] = [InMemorySessionStore()] * 2
    if kind == "sqlite":
        stores = [SQLiteSessionStore(tmp_path / "s.db") for _ in range(2)]
    await lose(stores[0], effect=IDEMPOTENT)
    tools = [FakeTool("act", effect=IDEMPOTENT) for _ in range(2)]
    apps = [app_over(store, tool=tool) for store, tool in zip(stores, tools, strict=True)]
    plan = await planned(apps[0], SESSION)
    ids = ["e", "e" if same_id else "f"]
    both = [app.execute_recovery(executing(plan, id=id)) for app, id in zip(apps, ids, strict=True)]
    told = await asyncio.gather(*both, return_exceptions=True)
    done = [each.items[0].status for each in told if not isinstance(each, BaseException)]
    assert done.count(Done.EXECUTED) == 1
    assert all(isinstance(each, StaleRecoveryPlanError) for each in told if isinstance(each, BaseException))
    assert sum(len(tool.calls) for tool in tools) == 1
    assert len(await logged(apps[0], E.RECOVERY_ITEM_EXECUTED)) == 1
    assert (await assert_consistent(apps[0])).status == "completed"
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize("below", ["lost", "stopping too"])
async def test_a_root_that_is_being_interrupted_ends_with_what_works_for_it(below: str) -> None:
    store = InMemorySessionStore()
    await lose(store, "root")
    await lose(store, "child", parent_session_id="root")
    await lose(store, "grandchild", parent_session_id="child")
    await stop(store, "root")
    if below == "stopping too":
        await stop(store, "child", "root")
        await stop(store, "grandchild", "root")
    await lose(store, "beside")
    app = app_over(store)
    by_name = await planned(app, "root")
    [item] = (await app.execute_recovery(executing(by_name))).items
    assert (item.status, item.session_status) == (Done.EXECUTED, "interrupted")
    for name in ("root", "child", "grandchild"):
        view = await assert_consistent(app, name)
        assert (view.status, view.open_round) == ("interrupted", None)
    assert (await assert_consistent(app, "beside")).status == "running"
    assert len(await logged(app, E.SESSION_CASCADE_COMPLETED, "root")) == 1


@pytest.mark.parametrize("below", ["lost", "stopping too"])
async def test_a_plan_of_a_whole_tree_is_executed_as_a_whole(below: str) -> None:
    """What one item does to a session of another item is no change by somebody else."""
    store = InMemorySessionStore()
    await lose(store, "root")
    await lose(store, "child", parent_session_id="root")
    await stop(store, "root")
    if below == "stopping too":
        await stop(store, "child", "root")
    await lose(store, "beside")
    app = app_over(store)
    plan = await planned(app)
    assert {item.session_id for item in plan.items} == {"root", "child", "beside"}
    await app.execute_recovery(executing(plan))
    assert [await status_of(app, name) for name in ("root", "child", "beside")] == [
        "interrupted", "interrupted", "completed"
    ]  # fmt: skip
    assert (await planned(app)).items == ()


@pytest.mark.parametrize("order", ["child first", "parent first"])
async def test_a_parent_and_its_child_are_recovered_by_one_plan(order: str) -> None:
    """The parent's replay goes on with the child; with the child's own item that makes one recovery of each."""
    act = FakeTool("act", effect=IDEMPOTENT)

    def build(over: SessionStore | StoreProxy) -> CayuApp:
        app = CayuApp(session_store=cast(SessionStore, over))
        app.register_provider(ScriptedModelProvider([_hand_over, "done"]))
        app.register_agent(AgentSpec(name="a", model="m"), tools=[SubagentTool("b")])
        app.register_agent(AgentSpec(name="b", model="m"), tools=[act])
        return app

    async def die(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED) or has(unit, E.EFFECT_OUTCOME_UNKNOWN):
            raise StoreFull(path="x")

    store = InMemorySessionStore()
    with pytest.raises(StoreFull):
        await play(build(StoreProxy(store, before=die)).run(new_run()))
    [child] = [head.row.id for head in (await store.heads(HeadQuery(parent_session_id=SESSION))).rows]
    app = build(store)
    names = (child, SESSION) if order == "child first" else (SESSION, child)
    await app.execute_recovery(executing(await planned(app, *names)))
    for name in names:
        assert (await assert_consistent(app, name)).status == "completed"
    assert len(act.calls) == 2  # once before the crash, and once after it


def _hand_over(request: ModelRequest) -> Any:
    asked = [tool.name for tool in request.tools]
    return calls(("ask_b", {"task": "act"}) if "ask_b" in asked else "act")


# An execution that dies half-way.

HERE = str(Path(__file__))
NAMES = ("one", "two")


class Noted(FakeTool):
    """Notes each time it acts, in a file."""

    def __init__(self, folder: Path) -> None:
        async def note(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
            with open(folder / "acts.txt", "a", encoding="ascii") as acts:
                acts.write(f"{ctx.session_id}\n")
            return ToolResult(content="noted")

        super().__init__("act", note, effect=EXTERNAL)


def noting(folder: Path) -> CayuApp:
    batches = [calls("act"), "done"]
    return make_app(SQLiteSessionStore(folder / "s.db"), batches, [Noted(folder)])


async def prepare(folder: str) -> None:
    """Leave two sessions of a process that is gone, with unknown outcomes."""
    async with noting(Path(folder)) as app:
        for name in NAMES:
            await lose(app.session_store, name, EXTERNAL)


async def execute_file(folder: str) -> list[str]:
    """Execute the plan that lies in the folder."""
    home = Path(folder)
    async with noting(home) as app:
        request = RecoveryExecutionRequest.model_validate_json((home / "request.json").read_text(encoding="utf-8"))
        return [str(item.status) for item in (await app.execute_recovery(request)).items]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["commit.prepared:1", "commit.durable:1", "commit.durable:2", "session.closing:1", "session.closed:1",
     "session.closing:2"],
)  # fmt: skip
async def test_an_execution_that_was_killed_is_finished_by_its_repeat(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    assert run_child(f"{HERE}:prepare", [str(tmp_path)]).result is None
    async with noting(tmp_path) as app:
        plan = await planned(app, *NAMES)
        decisions = [decide(plan, Action.TOOL_MARK_COMPLETED, item, content="noted") for item in range(2)]
        request = executing(plan, *decisions)
        (tmp_path / "request.json").write_text(request.model_dump_json(), encoding="utf-8")
    child = run_child(f"{HERE}:execute_file", [str(tmp_path)], crash_at=point)
    assert child.killed, child.stderr
    async with noting(tmp_path) as app:
        result = await app.execute_recovery(request)
        assert {item.status for item in result.items} <= {Done.EXECUTED, Done.REPEATED}
        for name in NAMES:
            if await status_of(app, name) == "running":  # its receipt was written, and then its run was cut off
                rest = await planned(app, name)
                assert rest.items[0].blocker_codes == ()
                await app.execute_recovery(executing(rest, id=f"rest of {name}"))
            view = await assert_consistent(app, name)
            assert (view.status, view.final_text) == ("completed", "done")
            assert len(await logged(app, E.EFFECT_RECONCILED, name)) == 1
            receipts = await logged(app, E.RECOVERY_ITEM_EXECUTED, name)
            assert [receipt["execution_id"] for receipt in receipts].count("e") == 1
        again = await app.execute_recovery(request)
        assert [item.status for item in again.items] == [Done.REPEATED] * 2
    assert not (tmp_path / "acts.txt").exists()
