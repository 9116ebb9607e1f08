"""Interrupting: by request, by closing, by cancelling; in a stream, in tools; with a grace, and with nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from runtime.support import (
    QUICK,
    SESSION,
    FakePolicy,
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

from cayu import AgentSpec, CayuApp, Event, RuntimeConfig, ToolEffect, run_to_completion
from cayu.errors import SessionNeedsRecovery, SessionNotFound, SessionNotRunning, StoreFull
from cayu.events import EventType as E
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.providers.scripted import ScriptedModelProvider
from cayu.sessions import CallState, InterruptSessionRequest, SessionStatus, SessionView
from cayu.sessions.streams import SessionStore, Unit
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy, ToolContext, ToolPolicyDecision, ToolPolicyResult, ToolResult

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
STOP = InterruptSessionRequest(session_id=SESSION, reason="enough", requested_by="ann")


async def forever(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(30)
    return ToolResult(content="never")


async def in_time(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    """Gives its result when it is cancelled."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(0.01)
    return ToolResult(content="in time")


async def deaf(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    """Does not mind being cancelled, and takes longer than the grace."""
    end = asyncio.get_running_loop().time() + 0.4
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return ToolResult(content="too late")


class TalkingProvider(ScriptedModelProvider):
    """Says a word and then never stops thinking."""

    def __init__(self) -> None:
        super().__init__([])
        self.speaking = asyncio.Event()
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        try:
            yield ModelStreamEvent.text_delta("well")
            self.speaking.set()
            await asyncio.sleep(30)
            yield ModelStreamEvent.completed()
        finally:
            self.closed = True


def talking_app(store: SessionStore | None = None) -> tuple[CayuApp, TalkingProvider]:
    app, provider = CayuApp(session_store=store, config=QUICK), TalkingProvider()
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"))
    return app, provider


async def broken_consumer(stream: AsyncGenerator[Event, None], stop_at: str) -> None:
    async with aclosing(stream):
        async for event in stream:
            if event.type == stop_at:
                raise LookupError("a broken consumer")


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("how", ["request", "cancel"])
async def test_during_a_model_stream(how: str) -> None:
    app, provider = talking_app()
    task = asyncio.create_task(play(app.run(new_run())))
    await provider.speaking.wait()
    if how == "request":
        [requested] = await play(app.interrupt_session(STOP))
        assert requested.type == E.SESSION_INTERRUPT_REQUESTED
        assert requested.payload == {"reason": "enough", "requested_by": "ann", "cascade": {"root": "s"}}
        events = await asyncio.wait_for(task, 2)
        assert types_of(events)[-2:] == [E.SESSION_INTERRUPT_REQUESTED, E.SESSION_INTERRUPTED]
    else:
        await cancel(task)
    assert provider.closed
    view = await assert_consistent(app)
    assert view.status == SessionStatus.INTERRUPTED
    assert view.interruption == {"reason": "interrupt_requested" if how == "request" else "cancelled"}
    assert view.model_steps == 0
    assert (await log_of(app)).head.state.owner is None
    assert app.services.drives == {}


@pytest.mark.parametrize("stop_at", [E.SESSION_STARTED, E.MODEL_TEXT_DELTA, E.TOOL_STARTED, E.TOOL_STAGED])
@pytest.mark.parametrize("how", ["break", "aclose", "raise"])
async def test_a_consumer_that_goes_away(how: str, stop_at: str) -> None:
    batch = [ModelStreamEvent.text_delta("hm"), *calls("t", "t")]
    app = make_app(None, [batch, "done", "more"], [FakeTool("t", parallel_safe=False)], config=QUICK)
    stream = app.run(new_run())
    if how == "break":
        async for event in stream:
            if event.type == stop_at:
                break
        del stream, event
        for _ in range(50):
            await asyncio.sleep(0.002)
            if not app.services.drives:
                break
    elif how == "aclose":
        async with aclosing(stream):
            async for event in stream:
                if event.type == stop_at:
                    break
    else:
        with pytest.raises(LookupError, match="broken"):
            await broken_consumer(stream, stop_at)
    assert app.services.drives == {}
    view = await assert_consistent(app)
    assert view.status == SessionStatus.INTERRUPTED
    assert view.interruption == {"reason": "cancelled"}
    assert view.open_round is None
    assert (await log_of(app)).head.state.owner is None
    assert (await run_to_completion(app, next_turn())).status == SessionStatus.COMPLETED


@pytest.mark.parametrize("parallel_safe", [True, False])
@pytest.mark.parametrize("how", ["request", "cancel"])
async def test_during_tools(how: str, parallel_safe: bool) -> None:
    """The first has ended, the second is cut off, the third waits (serial) or is cut off too (parallel)."""
    names = ("quick", "slow", "last")
    quick, slow, last = (
        FakeTool(name, None if name == "quick" else forever, parallel_safe=parallel_safe) for name in names
    )
    app = make_app(None, [calls("quick", "slow", "last"), "done"], [quick, slow, last], config=QUICK)
    task = asyncio.create_task(play(app.run(new_run())))
    await slow.entered.wait()
    await asyncio.sleep(0.01)
    if how == "request":
        await play(app.interrupt_session(STOP))
        await asyncio.wait_for(task, 2)
    else:
        await cancel(task)
    view = await assert_consistent(app)
    assert view.status == SessionStatus.INTERRUPTED
    assert view.open_round is None
    assert [call.state for call in view.rounds[0].calls] == [CallState.COMPLETED, CallState.FAILED, CallState.FAILED]
    assert [call.code for call in view.rounds[0].calls] == [None, "lost", "lost" if parallel_safe else "interrupted"]
    assert slow.ended == last.ended == []
    assert len(last.calls) == parallel_safe
    outcome = await run_to_completion(app, next_turn())
    assert (outcome.status, outcome.final_text) == (SessionStatus.COMPLETED, "done")


async def interrupted_in(work: Callable[..., Any], effect: ToolEffect, **config: Any) -> tuple[CayuApp, SessionView]:
    tool = FakeTool("t", work, effect=effect)
    config.setdefault("cancel_grace_seconds", 0.05)
    app = make_app(None, [calls("t"), "done"], [tool], config=RuntimeConfig(**config))
    task = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await play(app.interrupt_session(STOP))
    await asyncio.wait_for(task, 5)
    return app, await assert_consistent(app)


@pytest.mark.parametrize("effect", list(ToolEffect))
async def test_a_result_within_the_grace_is_kept(effect: ToolEffect) -> None:
    _, view = await interrupted_in(in_time, effect, cancel_grace_seconds=2.0)
    [call] = view.rounds[0].calls
    assert (view.status, view.open_round) == (SessionStatus.INTERRUPTED, None)
    assert call.state == CallState.COMPLETED
    assert call.result is not None
    assert call.result.content == "in time"


@pytest.mark.parametrize("work", [forever, deaf], ids=["heeds", "deaf"])
async def test_a_read_that_is_cut_off_fails_and_the_round_closes(work: Callable[..., Any]) -> None:
    app, view = await interrupted_in(work, NONE)
    [call] = view.rounds[0].calls
    assert (call.state, call.code, view.open_round) == (CallState.FAILED, "lost", None)
    assert (await app.list_pending_actions()).total == 0
    assert (await run_to_completion(app, next_turn())).final_text == "done"
    await asyncio.sleep(0.4 if work is deaf else 0)  # what comes too late is taken and complains about nothing


@pytest.mark.parametrize("work", [forever, deaf], ids=["heeds", "deaf"])
@pytest.mark.parametrize("effect", [IDEMPOTENT, EXTERNAL])
async def test_an_effect_that_is_cut_off_is_unknown_and_the_round_stays_open(
    effect: ToolEffect, work: Callable[..., Any]
) -> None:
    app, view = await interrupted_in(work, effect)
    [call] = view.rounds[0].calls
    assert view.open_round is not None
    assert (view.status, call.state) == (SessionStatus.INTERRUPTED, CallState.UNKNOWN)
    assert view.interruption == {
        "reason": "interrupt_requested",
        "needs": "manual_recovery",
        "tool_round_id": view.rounds[0].id,
    }
    [action] = (await app.list_pending_actions()).actions
    assert (action.kind, action.tool_call_id, action.tool_name) == ("manual_recovery", call.id, "t")
    assert (action.approval_id, action.input_id) == (None, None)
    before = await log_of(app)
    with pytest.raises(SessionNeedsRecovery, match="cayu recovery plan"):
        await play(app.resume(next_turn()))
    with pytest.raises(SessionNeedsRecovery):
        await play(app.recover_incomplete_session(SESSION))
    assert (await log_of(app)).head == before.head
    await asyncio.sleep(0.4 if work is deaf else 0)
    assert (await log_of(app)).head == before.head


async def test_a_tool_that_raises_when_it_is_cancelled_is_no_result() -> None:
    async def raises(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ValueError("cut off") from None
        return ToolResult(content="never")

    _, view = await interrupted_in(raises, NONE, cancel_grace_seconds=1.0)
    [call] = view.rounds[0].calls
    assert (call.state, call.code) == (CallState.FAILED, "raised")


@pytest.mark.parametrize("where", ["tool", "pause", "last step"])
async def test_another_app_over_the_same_file_interrupts(where: str, tmp_path: Path) -> None:
    """The owner notices at its next write, rebases over the request, and its consumer is not cancelled."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        entered.set()
        await go_on.wait()
        return ToolResult(content="ok")

    class Waiting(ScriptedModelProvider):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
            if where != "tool":
                entered.set()
                await go_on.wait()
            async for event in super().stream(request):
                yield event

    def build() -> tuple[CayuApp, FakeTool]:
        tool, later = FakeTool("t", wait, parallel_safe=False, effect=EXTERNAL), FakeTool("later", effect=EXTERNAL)
        app = CayuApp(session_store=SQLiteSessionStore(tmp_path / "s.db"), config=QUICK)
        app.register_provider(Waiting(["done"] if where == "last step" else [calls("t", "later"), "done"]))
        policy = AlwaysRequireApprovalToolPolicy() if where == "pause" else None
        app.register_agent(AgentSpec(name="a", model="m"), [tool, later], policy)
        return app, later

    (owner, later), (other, _) = build(), build()
    task = asyncio.create_task(play(owner.run(new_run())))
    await entered.wait()
    [requested] = await play(other.interrupt_session(STOP))
    assert requested.type == E.SESSION_INTERRUPT_REQUESTED
    assert await status_of(other) == "interrupting"
    go_on.set()
    events = await asyncio.wait_for(task, 5)
    sequences = [event.sequence for event in events if event.sequence]
    assert sequences == list(range(1, len(sequences) + 1))
    assert [event.type for event in events if event.sequence] == [r.type for r in (await log_of(other)).records]
    view = await assert_consistent(other)
    assert later.calls == []
    if where == "tool":
        assert view.status == SessionStatus.INTERRUPTED
        assert [call.state for call in view.rounds[0].calls] == [CallState.COMPLETED, CallState.FAILED]
    elif where == "pause":
        assert (view.status, len(view.awaiting)) == (SessionStatus.INTERRUPTED, 2)
    else:
        assert view.status == SessionStatus.COMPLETED
    await owner.aclose()
    await other.aclose()


async def test_a_renewal_notices_the_request_too(tmp_path: Path) -> None:
    tools = [FakeTool("t", forever) for _ in range(2)]
    config = RuntimeConfig(lease_seconds=5, renew_after_seconds=0.05, cancel_grace_seconds=0.05)
    owner, other = (
        make_app(SQLiteSessionStore(tmp_path / "s.db"), [calls("t"), "done"], [tool], config=config) for tool in tools
    )
    task = asyncio.create_task(play(owner.run(new_run())))
    await tools[0].entered.wait()
    await play(other.interrupt_session(STOP))
    events = await asyncio.wait_for(task, 3)
    assert types_of(events)[-1] == E.SESSION_INTERRUPTED
    await assert_consistent(other)
    await owner.aclose()
    await other.aclose()


async def test_requests_may_repeat() -> None:
    app, provider = talking_app()
    other = CayuApp(session_store=app.session_store)
    task = asyncio.create_task(play(app.run(new_run())))
    await provider.speaking.wait()
    for _ in range(3):
        await play(other.interrupt_session(STOP))
    await play(app.interrupt_session(STOP))
    await asyncio.wait_for(task, 2)
    view = await assert_consistent(app)
    assert view.status == SessionStatus.INTERRUPTED
    assert len(await logged(app, E.SESSION_INTERRUPT_REQUESTED)) == 4


@pytest.mark.parametrize("how", ["completed", "failed", "interrupted", "paused"])
async def test_a_session_that_has_ended_is_not_interrupted_and_nothing_is_written(how: str) -> None:
    batches: dict[str, list[Any]] = {
        "completed": ["done"],
        "failed": [],
        "interrupted": [calls("t"), "done"],
        "paused": [calls("t"), "done"],
    }
    policy = AlwaysRequireApprovalToolPolicy() if how == "paused" else None
    app = make_app(None, batches[how], [FakeTool("t")], policy)
    await play(app.run(new_run(max_steps=1)))
    before = await log_of(app)
    with pytest.raises(SessionNotRunning, match="nothing was written"):
        await play(app.interrupt_session(STOP))
    after = await log_of(app)
    assert (after.head, list(after.records)) == (before.head, list(before.records))


async def test_a_session_that_is_not_there_is_not_interrupted() -> None:
    with pytest.raises(SessionNotFound):
        await play(make_app().interrupt_session(STOP))


@pytest.mark.parametrize("effect", list(ToolEffect))
async def test_a_session_whose_owner_is_gone_is_closed_here_and_now(effect: ToolEffect) -> None:
    tool = FakeTool("t", effect=effect, parallel_safe=False)
    store = InMemorySessionStore()

    async def die(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED) or has(unit, E.SESSION_FAILED):
            raise StoreFull(path="x")

    batches = [calls("t", "t"), "done"]
    with pytest.raises(StoreFull):
        await play(make_app(StoreProxy(store, before=die), batches, [tool], config=QUICK).run(new_run()))
    app = make_app(store, batches, [tool], config=QUICK)
    assert await status_of(app) == "running"
    events = await play(app.interrupt_session(STOP))
    assert types_of(events)[0] == E.SESSION_INTERRUPT_REQUESTED
    assert types_of(events)[-1] == E.SESSION_INTERRUPTED
    view = await assert_consistent(app)
    assert view.status == SessionStatus.INTERRUPTED
    first, second = view.rounds[0].calls
    assert len(tool.calls) == 1
    if effect is NONE:
        assert view.open_round is None
        assert (first.code, second.state) == ("lost", CallState.FAILED)
        assert (await run_to_completion(app, next_turn())).final_text == "done"
    else:
        assert first.state == CallState.UNKNOWN
        assert [action.kind for action in (await app.list_pending_actions()).actions] == ["manual_recovery"]
        with pytest.raises(SessionNeedsRecovery):
            await play(app.resume(next_turn()))


async def test_a_model_step_whose_owner_is_gone_is_closed_too() -> None:
    async def die(unit: Unit) -> None:
        if unit.expected_version:
            raise StoreFull(path="x")

    store = InMemorySessionStore()
    with pytest.raises(StoreFull):
        await play(make_app(StoreProxy(store, before=die)).run(new_run()))
    app = make_app(store)
    await play(app.interrupt_session(STOP))
    assert (await assert_consistent(app)).status == SessionStatus.INTERRUPTED


async def test_a_finished_result_is_not_lost_while_the_policy_is_asked_about_the_next_call() -> None:
    """The tool has ended and its result is in hand when the interruption comes: it is kept as what it is."""
    asking, first = asyncio.Event(), FakeTool("first", effect=EXTERNAL, parallel_safe=False)
    second = FakeTool("second", effect=EXTERNAL, parallel_safe=False)

    class SlowPolicy(FakePolicy):
        async def authorize(self, request: Any) -> ToolPolicyResult:
            if first.ended:
                asking.set()
                await asyncio.sleep(30)
            return await super().authorize(request)

    policy = SlowPolicy(lambda request: ToolPolicyDecision.ALLOW)
    app = make_app(None, [calls("first", "second"), "done"], [first, second], policy, config=QUICK)
    task = asyncio.create_task(play(app.run(new_run())))
    await asking.wait()
    await play(app.interrupt_session(STOP))
    await asyncio.wait_for(task, 2)
    view = await assert_consistent(app)
    assert [call.state for call in view.rounds[0].calls] == [CallState.COMPLETED, CallState.FAILED]
    assert view.rounds[0].calls[0].result is not None
    assert view.rounds[0].calls[0].result.content == "first did it"
    assert second.calls == []


@pytest.mark.parametrize("effect", [NONE, EXTERNAL])
async def test_a_call_that_never_began_is_no_unknown_outcome(effect: ToolEffect, tmp_path: Path) -> None:
    """The consumer is cancelled while the opening commit is in the store: the promise stands, the act never came."""
    consumer: list[asyncio.Task[Any]] = []

    async def cancel_consumer(unit: Unit) -> None:
        if has(unit, E.ROUND_OPENED):
            consumer[0].cancel()

    store = SQLiteSessionStore(tmp_path / "s.db")
    tool = FakeTool("t", forever, effect=effect)
    proxy = StoreProxy(store, before=cancel_consumer)
    app = make_app(proxy, [calls("t"), "done"], [tool], config=QUICK)
    consumer.append(asyncio.create_task(play(app.run(new_run()))))
    with pytest.raises(asyncio.CancelledError):
        await consumer[0]
    view = await assert_consistent(app)
    assert tool.calls == []
    assert view.status == SessionStatus.INTERRUPTED
    assert [call.state for call in view.rounds[0].calls] == [CallState.FAILED]
    assert (await app.list_pending_actions()).total == 0
    assert (await logged(app, E.TOOL_FAILED))[0]["executed"] is False
    await app.aclose()


@pytest.mark.slow
async def test_cancelling_at_every_moment_leaves_a_session_that_goes_on(tmp_path: Path) -> None:
    """Cancel after k steps of the event loop, for many k: legal, consistent, unowned, and it can be resumed."""
    store = SQLiteSessionStore(tmp_path / "s.db")
    app = make_app(store, [calls("t", "t", "t"), "done", "more"], [FakeTool("t", parallel_safe=False)], config=QUICK)
    seen: set[str] = set()
    for steps in range(0, 120, 5):
        name = f"s{steps}"
        task = asyncio.create_task(play(app.run(new_run(name))))
        for _ in range(steps):
            await asyncio.sleep(0.0001 if steps % 8 else 0)
        task.cancel()
        await asyncio.wait([task])
        loaded = await store.load(name)
        if loaded is None:
            continue
        view = await assert_consistent(app, name)
        seen.add(view.status)
        assert view.status in (SessionStatus.INTERRUPTED, SessionStatus.COMPLETED)
        assert loaded.head.state.owner is None
        assert view.open_round is None
        assert (await run_to_completion(app, next_turn(name))).status == SessionStatus.COMPLETED
    assert SessionStatus.INTERRUPTED in seen
    await app.aclose()


async def test_interrupting_during_an_approved_round() -> None:
    tool = FakeTool("t", forever)
    app = make_app(None, [calls("t"), "done"], [tool], AlwaysRequireApprovalToolPolicy(), config=QUICK)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    task: asyncio.Task[list[Event]] = asyncio.create_task(play(app.resolve_tool_approval(approval(waiting))))
    await tool.entered.wait()
    await play(app.interrupt_session(STOP))
    await asyncio.wait_for(task, 2)
    view = await assert_consistent(app)
    assert (view.status, view.rounds[0].calls[0].code) == (SessionStatus.INTERRUPTED, "lost")
    assert (await run_to_completion(app, next_turn())).final_text == "done"


async def test_a_consumer_may_interrupt_its_own_run() -> None:
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")], config=QUICK)
    found = []
    async for event in app.run(new_run()):
        found.append(event)
        if event.type == E.TOOL_STARTED:
            await play(app.interrupt_session(STOP))
    assert types_of(found)[-1] == E.SESSION_INTERRUPTED
    await assert_consistent(app)
