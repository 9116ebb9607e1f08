"""The sweep at startup: every interruption that was cut off ends, and what cannot end here stays as it is, reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from runtime.support import (
    SESSION,
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
    types_of,
)

from cayu import AgentSpec, CayuApp, Message, SQLiteSessionStore, ToolEffect
from cayu.canonical import dumps
from cayu.effects import EffectOutcome
from cayu.errors import InvalidInput, SessionRunning, StoreBusy, StoreFull, StoreOutcomeUnknown
from cayu.events import EventType as E
from cayu.providers import ModelRequest, ScriptedModelProvider
from cayu.runtime import run_to_completion
from cayu.sessions.limits import BudgetLimit
from cayu.sessions.plans import MAX_BLOCKED, BlockedSession, BlockerCode, RecoveryPlanRequest, StartupRecoveryResult
from cayu.sessions.streams import HeadQuery, Page, Record, SessionStore, StreamHead, Take, Unit
from cayu.storage import InMemorySessionStore
from cayu.tools import ToolContext, ToolResult
from cayu.tools.reconcilers import Reconciliation, ReconciliationRequest, ToolEffectReconciler, ToolOutcomeUnknown
from cayu.tools.subagents import SubagentTool

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
Code = BlockerCode
BUDGET = (BudgetLimit(budget_id="b", max_tokens=100_000),)


async def lose(
    store: SessionStore,
    session_id: str = SESSION,
    effect: ToolEffect = NONE,
    *,
    at: str = E.TOOL_STAGED,
    tool: FakeTool | None = None,
    **fields: Any,
) -> None:
    """Leave a session whose process could write nothing more when it came to an event of that type."""

    async def die(unit: Unit) -> None:
        if has(unit, at):
            raise StoreFull(path="x")

    app = app_over(StoreProxy(store, before=die), tool or FakeTool("act", effect=effect))
    with pytest.raises(StoreFull):
        await play(app.run(new_run(session_id, **fields)))


async def stop(store: SessionStore, session_id: str = SESSION, root: object = None) -> None:
    """Append a request to interrupt, of which nobody hears."""
    record = Record(E.SESSION_INTERRUPT_REQUESTED, dumps({"cascade": {"root": root or session_id}}))
    await store.append(Unit(session_id, None, None, (record,)))


async def cut_off(store: SessionStore, session_id: str = SESSION, effect: ToolEffect = NONE, **fields: Any) -> None:
    """Leave an interruption whose process was lost before it could end it."""
    await lose(store, session_id, effect, **fields)
    await stop(store, session_id)


async def hold(store: SessionStore, session_id: str = SESSION) -> None:
    """Let a process elsewhere, of which nothing is known here, claim a session."""
    owner = (await log_of_store(store, session_id)).head.state.owner
    await store.append(Unit(session_id, None, Take("process 1 elsewhere", evicting=owner)))


async def forge(store: SessionStore, session_id: str, type: str, payload: dict[str, Any]) -> None:
    """Append one event as a process would that takes the session and lets it go at once."""
    owner = (await log_of_store(store, session_id)).head.state.owner
    fence = Take("process 1 elsewhere", evicting=owner)
    await store.append(Unit(session_id, None, fence, (Record(type, dumps(payload)),), release=True))


async def log_of_store(store: SessionStore, session_id: str) -> Any:
    loaded = await store.load(session_id)
    assert loaded is not None
    return loaded


def app_over(store: SessionStore | StoreProxy, tool: FakeTool | None = None, **options: Any) -> CayuApp:
    """What a new process registers."""
    return make_app(store, [calls("act"), "done", "done again"], [tool or FakeTool("act")], **options)


def changed_tool(effect: ToolEffect = NONE) -> FakeTool:
    tool = FakeTool("act", effect=effect)
    tool.spec = tool.spec.model_copy(update={"execution_profile_identity": identity("another")})
    return tool


async def state(app: CayuApp, *session_ids: str) -> list[Any]:
    """What stands of sessions: heads and records."""
    return [(found.head, list(found.records)) for name in session_ids for found in [await log_of(app, name)]]


async def sweep(app: CayuApp) -> StartupRecoveryResult:
    """Sweep once; hold what the call returns against what the status says."""
    scheduled = await app.resume_pending_interruption_cascades()
    result = await app.get_startup_recovery_status()
    assert type(scheduled) is int
    assert (result.scheduled_roots, result.completed) == (scheduled, True)
    assert result.status == ("completed_with_blocked" if result.blocked_sessions else "completed")
    assert result.blocked_session_count >= len(result.blocked_sessions)
    return result


def codes(result: StartupRecoveryResult) -> dict[str, tuple[BlockerCode, ...]]:
    return {blocked.session_id: blocked.blocker_codes for blocked in result.blocked_sessions}


class Meddling(StoreProxy):
    """Does something when planning has ended: the first thing that applying does is to list a root's children."""

    def __init__(self, inner: SessionStore, meddle: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.meddle: Callable[[], Awaitable[None]] | None = meddle
        self.written_while_planning: list[str] = []

    async def heads(self, query: HeadQuery) -> Page[StreamHead]:
        if query.parent_session_id is not None and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            self.written_while_planning = [type for types in self.types for type in types]
            await meddle()
        return await self.inner.heads(query)


async def nothing() -> None:
    """Only note that planning has ended."""


# One root.


@pytest.mark.requirement("A059", "A060")
async def test_a_fresh_process_reports_no_sweep_and_each_sweep_is_its_own() -> None:
    store = InMemorySessionStore()
    await cut_off(store)
    app = app_over(store)
    assert await app.get_startup_recovery_status() == StartupRecoveryResult()
    first = await sweep(app)
    assert (first.status, first.sweep_count, first.scheduled_roots) == ("completed", 1, 1)
    second = await sweep(app)
    assert (second.status, second.sweep_count, second.scheduled_roots) == ("completed", 2, 0)
    assert (await app_over(store).get_startup_recovery_status()).status == "not_run"


@pytest.mark.parametrize(
    "at, call", [(E.MODEL_COMPLETED, None), (E.TOOL_STAGED, "failed")], ids=["no round", "a call without effect"]
)
async def test_an_interruption_that_was_cut_off_ends(at: str, call: str | None) -> None:
    store = InMemorySessionStore()
    await cut_off(store, at=at)
    act = FakeTool("act")
    app = app_over(store, act)
    assert (await sweep(app)).scheduled_roots == 1
    view = await assert_consistent(app)
    assert (view.status, view.open_round, act.calls) == ("interrupted", None, [])
    assert view.interruption == {"reason": "interrupt_requested"}
    assert [each.state for opened in view.rounds for each in opened.calls] == ([call] if call else [])
    assert len(await logged(app, E.SESSION_INTERRUPT_REQUESTED)) == 1
    await play(app.resume(next_turn()))
    assert await status_of(app) == "completed"


async def test_what_a_reconciler_knows_ends_a_root_too() -> None:
    class Books(ToolEffectReconciler):
        async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
            return Reconciliation(outcome=EffectOutcome.COMPLETED, result=ToolResult(content="order 7"))

    store = InMemorySessionStore()
    await cut_off(store, effect=EXTERNAL)
    act = FakeTool("act", effect=EXTERNAL)
    app = CayuApp(session_store=store)
    app.register_provider(ScriptedModelProvider([calls("act"), "done"]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[act], tool_effect_reconcilers={"act": Books()})
    assert (await sweep(app)).scheduled_roots == 1
    view = await assert_consistent(app)
    assert (view.status, view.open_round, act.calls) == ("interrupted", None, [])


async def test_sessions_that_nobody_interrupted_are_left_alone() -> None:
    store = InMemorySessionStore()
    await lose(store, "lost")
    await play(app_over(store).run(new_run("done")))
    await cut_off(store, "root")
    app = app_over(store)
    before = await state(app, "lost", "done")
    assert (await sweep(app)).scheduled_roots == 1
    assert await state(app, "lost", "done") == before


# Roots that cannot end here.

Situation = Callable[[SessionStore, str], Awaitable[None]]


async def unknown_effect(store: SessionStore, name: str) -> None:
    await cut_off(store, name, EXTERNAL, tool=FakeTool("act", effect=EXTERNAL))


async def paid_step(store: SessionStore, name: str) -> None:
    await cut_off(store, name, at=E.MODEL_COMPLETED, budget_limits=BUDGET)


async def held(store: SessionStore, name: str) -> None:
    await cut_off(store, name)
    await hold(store, name)


async def another_tree(store: SessionStore, name: str) -> None:
    await lose(store, name)
    await stop(store, name, "nobody")


async def incompatible(store: SessionStore, name: str) -> None:
    await cut_off(store, name, tool=changed_tool())


async def unregistered(store: SessionStore, name: str) -> None:
    dying = CayuApp(session_store=cast(SessionStore, StoreProxy(store, before=_full)))
    dying.register_provider(ScriptedModelProvider(["done"]))
    dying.register_agent(AgentSpec(name="gone", model="m"))
    with pytest.raises(StoreFull):
        await play(dying.run(new_run(name).model_copy(update={"agent_name": "gone"})))
    await stop(store, name)


async def _full(unit: Unit) -> None:
    if has(unit, E.MODEL_COMPLETED):
        raise StoreFull(path="x")


async def nonsense(store: SessionStore, name: str) -> None:
    await cut_off(store, name)
    await forge(store, name, E.TOOL_STARTED, {"tool_call_id": "nobody", "attempt": 1})


BLOCKED: dict[Situation, BlockerCode] = {
    paid_step: Code.MODEL_EFFECT_OUTCOME_UNKNOWN,
    held: Code.ACTIVE_EXECUTION_OWNER,
    another_tree: Code.INVALID_CASCADE_MARKER,
    incompatible: Code.REGISTRATION_INCOMPATIBLE,
    unregistered: Code.REGISTRATION_UNAVAILABLE,
    nonsense: Code.INVALID_DURABLE_STATE,
}


@pytest.mark.requirement("A051", "A052", "A054", "A058", "A063", "A064")
@pytest.mark.parametrize("situation", BLOCKED, ids=lambda each: each.__name__)
async def test_a_blocked_root_stays_as_it_is_and_the_others_end(situation: Situation) -> None:
    """The blocked one is the newest of three, or the oldest: it comes first, or last."""
    store = InMemorySessionStore()
    await situation(store, "oldest")
    await cut_off(store, "good")
    await situation(store, "newest")
    app = app_over(store)
    before = await state(app, "oldest", "newest")
    for sweeps in (1, 2, 3):  # the third in a process of its own
        app = app if sweeps < 3 else app_over(store)
        result = await sweep(app)
        assert codes(result) == {"newest": (BLOCKED[situation],), "oldest": (BLOCKED[situation],)}
        assert (result.scheduled_roots, result.blocked_session_count) == (int(sweeps == 1), 2)
        assert await status_of(app, "good") == "interrupted"
        assert await state(app, "oldest", "newest") == before
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=("newest",)))
    assert plan.items[0].blocker_codes == (BLOCKED[situation],)


@pytest.mark.requirement("A051")
async def test_a_root_with_an_unknown_outcome_keeps_it() -> None:
    store = InMemorySessionStore()
    act = FakeTool("act", effect=EXTERNAL)
    await unknown_effect(store, SESSION)
    app = app_over(store, act)
    before = await state(app, SESSION)
    assert codes(await sweep(app)) == {SESSION: (Code.TOOL_EFFECT_OUTCOME_UNKNOWN,)}
    assert (await state(app, SESSION), act.calls) == (before, [])


@pytest.mark.requirement("A053")
async def test_everything_is_planned_before_anything_is_written() -> None:
    store = InMemorySessionStore()
    for name in ("one", "two"):
        await cut_off(store, name)
    await incompatible(store, "bad")
    await cut_off(store, "parent")
    await lose(store, "left", parent_session_id="parent")
    await play(app_over(store).recover_incomplete_session("parent"))
    proxy = Meddling(store, nothing)
    result = await sweep(app_over(proxy))
    assert proxy.meddle is None
    assert proxy.written_while_planning == []
    assert (result.scheduled_roots, codes(result)) == (3, {"bad": (Code.REGISTRATION_INCOMPATIBLE,)})
    assert {unit.stream for unit in proxy.units} == {"one", "two", "left"}


@pytest.mark.requirement("A055")
async def test_a_profile_that_is_refused_only_after_planning_is_isolated() -> None:
    store = InMemorySessionStore()
    for name in ("one", "two"):
        await cut_off(store, name)

    async def change() -> None:
        app.services.registry._agents["a"].tools["act"].spec = changed_tool().spec  # type: ignore[index]

    proxy = Meddling(store, change)
    app = app_over(proxy)
    result = await sweep(app)
    assert codes(result) == dict.fromkeys(("one", "two"), (Code.REGISTRATION_INCOMPATIBLE,))
    lengths = []
    for _ in range(3):
        app = app_over(store, changed_tool())
        assert codes(await sweep(app)) == codes(result)
        lengths.append([len((await log_of(app, name)).records) for name in ("one", "two")])
    assert lengths[0] == lengths[1] == lengths[2]
    for name in ("one", "two"):
        assert len(await logged(app, E.SESSION_PROFILE_REJECTED, name)) == 1
        assert await status_of(app, name) == "interrupting"
    assert (await sweep(app_over(store))).scheduled_roots == 2


@pytest.mark.requirement("A055")
@pytest.mark.parametrize(
    "code",
    [
        Code.MODEL_EFFECT_OUTCOME_UNKNOWN,
        Code.ACTIVE_EXECUTION_OWNER,
        Code.REGISTRATION_UNAVAILABLE,
        Code.INVALID_DURABLE_STATE,
    ],
)
async def test_what_else_turns_out_after_planning_is_isolated_too(code: BlockerCode) -> None:
    store = InMemorySessionStore()
    await cut_off(store, "good", at=E.MODEL_COMPLETED)
    await cut_off(store, "newest", at=E.MODEL_COMPLETED)

    async def meddle() -> None:
        if code is Code.MODEL_EFFECT_OUTCOME_UNKNOWN:
            await forge(store, "newest", E.BUDGET_RESERVED, {"reservation_id": "r", "budget_id": "b"})
            await forge(store, "newest", E.MODEL_STARTED, {"model": "m"})
        elif code is Code.ACTIVE_EXECUTION_OWNER:
            await hold(store, "newest")
        elif code is Code.INVALID_DURABLE_STATE:
            await forge(store, "newest", E.TOOL_STARTED, {"tool_call_id": "nobody", "attempt": 1})
        else:
            app.services.registry._agents.clear()

    app = app_over(Meddling(store, meddle))
    result = await sweep(app)
    if code is Code.REGISTRATION_UNAVAILABLE:
        assert codes(result) == dict.fromkeys(("good", "newest"), (code,))
    else:
        assert codes(result) == {"newest": (code,)}
        assert await status_of(app, "good") == "interrupted"
    assert (await log_of(app, "newest")).head.state.status == "interrupting"


async def test_a_root_that_somebody_else_ended_meanwhile_is_no_blocker() -> None:
    store = InMemorySessionStore()
    await cut_off(store)

    async def be_faster() -> None:
        await play(app_over(store).recover_incomplete_session(SESSION))

    app = app_over(Meddling(store, be_faster))
    assert (await sweep(app)).status == "completed"
    assert types_of(await play(app.resume(next_turn())))[-1] == E.SESSION_COMPLETED


# What fails the sweep.


class Unlisting(StoreProxy):
    """Gives its own answer to a listing of heads."""

    def __init__(self, inner: SessionStore, answer: Callable[[HeadQuery, Page[StreamHead]], Page[StreamHead]]) -> None:
        super().__init__(inner)
        self._answer = answer

    async def heads(self, query: HeadQuery) -> Page[StreamHead]:
        return self._answer(query, await self.inner.heads(query))


def fail_with(error: BaseException) -> Callable[[HeadQuery, Page[StreamHead]], Page[StreamHead]]:
    def answer(query: HeadQuery, page: Page[StreamHead]) -> Page[StreamHead]:
        raise error

    return answer


def garble(query: HeadQuery, page: Page[StreamHead]) -> Page[StreamHead]:
    return Page(page.rows, "garbage", page.total) if query.session_id is None else page


async def assert_fails(app: CayuApp, kind: type[BaseException]) -> StartupRecoveryResult:
    with pytest.raises(kind):
        await app.resume_pending_interruption_cascades()
    result = await app.get_startup_recovery_status()
    assert (result.status, result.completed, result.sweep_count) == ("failed", False, 1)
    return result


@pytest.mark.requirement("A056", "A057")
@pytest.mark.parametrize(
    "error", [StoreFull(path="x"), StoreOutcomeUnknown(path="x"), StoreBusy(path="x"), LookupError("unknown")], ids=repr
)
async def test_a_store_that_cannot_be_read_fails_the_sweep(error: Exception) -> None:
    store = InMemorySessionStore()
    await cut_off(store)
    app = app_over(Unlisting(store, fail_with(error)))
    before = await state(app, SESSION)
    await assert_fails(app, type(error))
    assert await state(app, SESSION) == before


@pytest.mark.requirement("A056", "A057")
@pytest.mark.parametrize("error", [StoreFull(path="x"), RuntimeError("CANARY")], ids=["store", "unknown"])
async def test_a_write_that_fails_fails_the_sweep(error: Exception) -> None:
    store = InMemorySessionStore()
    await cut_off(store, "second")
    await incompatible(store, "blocked")
    await cut_off(store, "first")

    async def fail(unit: Unit) -> None:
        if unit.stream == "second":
            raise error

    app = app_over(StoreProxy(store, before=fail))
    result = await assert_fails(app, type(error))
    assert result.scheduled_roots == 1  # what had ended by then
    assert codes(result) == {"blocked": (Code.REGISTRATION_INCOMPATIBLE,)}
    assert "CANARY" not in result.model_dump_json()
    again = await app_over(store).resume_pending_interruption_cascades()
    assert again == 1


@pytest.mark.requirement("A057")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_cursor_that_is_garbled_fails_the_sweep(kind: str, tmp_path: Any) -> None:
    store: SessionStore = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    await cut_off(store)
    app = app_over(Unlisting(store, garble))
    before = await state(app, SESSION)
    await assert_fails(app, InvalidInput)
    assert await state(app, SESSION) == before
    await store.aclose()


async def test_a_sweep_after_a_failed_one_reports_itself() -> None:
    store = InMemorySessionStore()
    await cut_off(store)
    proxy = Unlisting(store, fail_with(StoreFull(path="x")))
    app = app_over(proxy)
    await assert_fails(app, StoreFull)
    proxy._answer = lambda query, page: page
    result = await sweep(app)
    assert (result.status, result.sweep_count, result.scheduled_roots) == ("completed", 2, 1)


async def test_a_sweep_that_is_cancelled_has_failed() -> None:
    store = InMemorySessionStore()
    await cut_off(store)
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    app = app_over(Meddling(store, wait))
    sweeping = asyncio.create_task(app.resume_pending_interruption_cascades())
    await reached.wait()
    assert (await app.get_startup_recovery_status()).model_dump(mode="json", exclude_defaults=True) == {
        "status": "running", "sweep_count": 1
    }  # fmt: skip
    sweeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    result = await app.get_startup_recovery_status()
    assert (result.status, result.completed) == ("failed", False)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_processes_that_start_at_once_end_each_root_once(kind: str, tmp_path: Any) -> None:
    stores: list[SessionStore] = [InMemorySessionStore()] * 2
    if kind == "sqlite":
        stores = [SQLiteSessionStore(tmp_path / "s.db") for _ in range(2)]
    for name in ("one", "two", "three"):
        await cut_off(stores[0], name)
    apps = [app_over(store) for store in stores]
    await asyncio.gather(*(app.resume_pending_interruption_cascades() for app in apps))
    for name in ("one", "two", "three"):
        assert (await assert_consistent(apps[0], name)).status == "interrupted"
        assert len(await logged(apps[0], E.SESSION_INTERRUPTED, name)) == 1
    for store in stores:
        await store.aclose()


# What is told.


@pytest.mark.requirement("A061")
@pytest.mark.parametrize("count", [MAX_BLOCKED, MAX_BLOCKED + 1])
async def test_at_most_a_hundred_blocked_sessions_are_named_and_all_are_counted(count: int) -> None:
    store = InMemorySessionStore()
    for number in range(count):
        await unregistered(store, f"blocked{number}")
    await cut_off(store, "good")
    result = await sweep(app_over(store))
    assert (result.blocked_session_count, len(result.blocked_sessions)) == (count, MAX_BLOCKED)
    assert result.blocked_sessions_truncated is (count > MAX_BLOCKED)
    assert (result.scheduled_roots, len(codes(result))) == (1, MAX_BLOCKED)
    assert set(codes(result).values()) == {(Code.REGISTRATION_UNAVAILABLE,)}


@pytest.mark.requirement("A062")
async def test_the_status_holds_ids_and_fixed_codes_only() -> None:
    async def fall(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise ToolOutcomeUnknown("CANARY words")

    def build(store: SessionStore | StoreProxy, tool: FakeTool) -> CayuApp:
        app = CayuApp(session_store=cast(SessionStore, store))
        app.register_provider(ScriptedModelProvider([calls(("act", {"CANARY": "CANARY"})), "CANARY"]))
        spec = AgentSpec(name="a", model="m", system_prompt="CANARY", provider_options={"key": "CANARY"})
        app.register_agent(spec, tools=[tool])
        return app

    async def die(unit: Unit) -> None:
        if has(unit, E.EFFECT_OUTCOME_UNKNOWN):
            raise StoreFull(path="CANARY")

    store = InMemorySessionStore()
    request = new_run().model_copy(update={"messages": (Message.text("user", "CANARY"),), "title": "CANARY"})
    act = FakeTool("act", fall, effect=EXTERNAL)
    with pytest.raises(StoreFull):
        await play(build(StoreProxy(store, before=die), act).run(request))
    await stop(store)
    for tool in (act, changed_tool(EXTERNAL)):
        result = await sweep(build(store, tool))
        assert result.blocked_session_count == 1
        assert "CANARY" not in result.model_dump_json()
        assert set(result.model_dump(mode="json")) == {
            "schema_version", "completed", "status", "sweep_count", "scheduled_roots", "blocked_session_count",
            "blocked_sessions", "blocked_sessions_truncated",
        }  # fmt: skip
        assert set(BlockedSession.model_fields) == {"session_id", "blocker_codes"}


@pytest.mark.requirement("A074")
async def test_a_retained_session_stays_intact_while_healthy_ones_run_in_the_same_process() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "retained", EXTERNAL)
    app = app_over(store, changed_tool(EXTERNAL))
    before = await state(app, "retained")
    assert codes(await sweep(app))["retained"] == (
        Code.REGISTRATION_INCOMPATIBLE, Code.TOOL_EFFECT_OUTCOME_UNKNOWN
    )  # fmt: skip
    assert (await run_to_completion(app, new_run("healthy"))).status == "completed"
    assert (await run_to_completion(app, next_turn("healthy"))).status == "completed"
    assert await state(app, "retained") == before
    await sweep(app)
    assert await state(app, "retained") == before


# Trees.


@pytest.mark.requirement("A052")
@pytest.mark.parametrize("child_is", ["lost", "stopping", "done"])
async def test_a_root_ends_with_what_works_for_it(child_is: str) -> None:
    store = InMemorySessionStore()
    await cut_off(store, "root")
    if child_is == "done":
        await play(app_over(store).run(new_run("child", parent_session_id="root")))
    else:
        await lose(store, "child", parent_session_id="root")
    if child_is == "stopping":
        await stop(store, "child", "root")
    await lose(store, "grandchild", parent_session_id="child")
    await lose(store, "stranger")
    app = app_over(store)
    result = await sweep(app)
    assert (result.scheduled_roots, result.blocked_session_count) == (1, 0)
    expected = {"root": "interrupted", "child": "interrupted", "grandchild": "interrupted", "stranger": "running"}
    expected |= {"child": "completed"} if child_is == "done" else {}
    assert {name: await status_of(app, name) for name in expected} == expected
    for name in ("root", "child", "grandchild"):
        await assert_consistent(app, name)
    assert await logged(app, E.SESSION_CASCADE_COMPLETED, "root") == [{"sessions": 2, "unfinished": 0}]
    assert (await logged(app, E.SESSION_INTERRUPT_REQUESTED, "grandchild"))[0]["cascade"] == {"root": "root"}
    assert (await sweep(app)).scheduled_roots == 0


@pytest.mark.requirement("A052")
async def test_children_that_an_interrupted_parent_left_at_work_are_taken_up() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "parent")
    await play(app_over(store).run(new_run("finished")))
    for parent in ("parent", "finished"):
        await lose(store, f"child of {parent}", parent_session_id=parent)
    await play(app_over(store).recover_incomplete_session("parent"))
    await lose(store, "begun since", parent_session_id="parent")
    app = app_over(store)
    assert (await sweep(app)).scheduled_roots == 1
    assert await status_of(app, "child of parent") == "interrupted"
    assert await status_of(app, "child of finished") == "running"
    assert await status_of(app, "begun since") == "running", "somebody has begun it after the interruption"


async def test_a_blocked_child_does_not_keep_its_root_back() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "root")
    await lose(store, "child", parent_session_id="root", tool=changed_tool())
    app = app_over(store)
    before = await state(app, "child")
    for scheduled in (1, 0):
        result = await sweep(app)
        assert (result.scheduled_roots, codes(result)) == (scheduled, {"child": (Code.REGISTRATION_INCOMPATIBLE,)})
        assert await state(app, "child") == before
    assert await status_of(app, "root") == "interrupted"
    assert await logged(app, E.SESSION_CASCADE_FAILED, "root") == [{"sessions": 1, "unfinished": 1}]
    restored = app_over(store, changed_tool())
    assert (await sweep(restored)).scheduled_roots == 1
    assert await status_of(restored, "child") == "interrupted"


async def test_a_child_at_work_elsewhere_hears_of_an_interruption_that_was_cut_off() -> None:
    """Its owner is alive and would stop, if anybody asked: the process that was to ask has died."""
    store = InMemorySessionStore()
    await cut_off(store, "root")
    await lose(store, "child", parent_session_id="root")
    await hold(store, "child")
    app = app_over(store)
    await sweep(app)
    with pytest.raises(SessionRunning):
        await play(app.recover_incomplete_session("child"))
    assert (await log_of(app, "child")).head.state.status == "interrupting"


async def test_a_tree_that_the_runtime_itself_grew_ends_as_a_whole() -> None:
    def build(over: SessionStore | StoreProxy) -> CayuApp:
        app = CayuApp(session_store=cast(SessionStore, over))
        app.register_provider(ScriptedModelProvider([_ask, "done"]))
        app.register_agent(AgentSpec(name="a", model="m", system_prompt="parent"), tools=[SubagentTool("b")])
        app.register_agent(AgentSpec(name="b", model="m", system_prompt="child"), tools=[FakeTool("act")])
        return app

    async def die(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED) or has(unit, E.EFFECT_OUTCOME_UNKNOWN):
            raise StoreFull(path="x")

    store = InMemorySessionStore()
    with pytest.raises(StoreFull):
        await play(build(StoreProxy(store, before=die)).run(new_run()))
    await stop(store)
    [child] = [head.row.id for head in (await store.heads(HeadQuery(parent_session_id=SESSION))).rows]
    app = build(store)
    await sweep(app)
    assert await status_of(app, child) == "interrupted"
    view = await assert_consistent(app)
    assert view.status == "interrupted"
    assert [call.state for call in view.rounds[0].calls] in (["unknown"], ["completed"], ["failed"])


def _ask(request: ModelRequest) -> Any:
    """Give the child to do what the parent hands over, and the tool to the child."""
    names = [tool.name for tool in request.tools]
    return calls(("ask_b", {"task": "act"}) if "ask_b" in names else "act")


async def test_a_child_in_the_hands_of_a_recovery_is_asked_too() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "root")
    await lose(store, "child", parent_session_id="root")
    owner = (await log_of_store(store, "child")).head.state.owner
    await store.append(Unit("child", None, Take("recovery in process 1 elsewhere", evicting=owner)))
    app = app_over(store)
    assert codes(await sweep(app)) == {"child": (Code.ACTIVE_RECOVERY_CLAIM,)}
    assert (await log_of(app, "child")).head.state.status == "interrupting"


async def test_a_round_that_was_closed_too_early_is_reported_and_holds_nobody_up() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "broken")
    await forge(store, "broken", E.ROUND_COMMITTED, {"tool_round_id": "r", "executed": 0, "calls": 1})
    await cut_off(store, "whole")
    app = app_over(store)
    result = await sweep(app)
    assert (result.scheduled_roots, codes(result)) == (1, {"broken": (Code.INVALID_DURABLE_STATE,)})
    assert await status_of(app, "whole") == "interrupted"


async def test_a_child_that_a_human_has_resumed_since_is_left_to_them() -> None:
    store = InMemorySessionStore()
    await cut_off(store, "root")
    await lose(store, "child", parent_session_id="root")
    app = app_over(store)
    await sweep(app)
    assert await status_of(app, "child") == "interrupted"

    async def die(unit: Unit) -> None:
        if has(unit, E.SESSION_COMPLETED):
            raise StoreFull(path="x")

    with pytest.raises(StoreFull):
        await play(app_over(StoreProxy(store, before=die)).resume(next_turn("child")))
    assert (await sweep(app_over(store))).scheduled_roots == 0
    assert await status_of(app_over(store), "child") == "running"
