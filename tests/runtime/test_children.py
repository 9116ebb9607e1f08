"""Child sessions: their lineage, their ends as the parent reads them, and trees that are interrupted or lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from runtime.support import (
    SESSION,
    FakeTool,
    StoreProxy,
    approval,
    assert_consistent,
    calls,
    has,
    log_of,
    logged,
    new_run,
    next_turn,
    play,
    status_of,
    types_of,
    waiting_ids,
)

from cayu import AgentSpec, CayuApp, Event, RuntimeConfig, ToolEffect
from cayu.canonical import dumps
from cayu.errors import SessionNotRunning, StoreFull
from cayu.events import EventType as E
from cayu.providers.base import ModelStreamEvent
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.runtime.outcome import lost_sessions, outcome_of
from cayu.sessions import (
    CallState,
    InterruptSessionRequest,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlanRequest,
    RunLimits,
    UserInputResponse,
)
from cayu.sessions.streams import HeadQuery, ItemQuery, Record, SessionStore, StreamHead, Unit
from cayu.sessions.view import CallView
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import (
    AlwaysRequireApprovalToolPolicy,
    AskUserTool,
    ChildTask,
    SubagentTool,
    Tool,
    ToolContext,
    ToolResult,
)

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
CONFIG = RuntimeConfig(cancel_grace_seconds=0.6)
STOP = InterruptSessionRequest(session_id=SESSION, reason="enough", requested_by="ann")
TIMEOUT = 10.0


def ask(agent: str = "b", task: str = "work", times: int = 1) -> list[ModelStreamEvent]:
    """An answer that gives another agent a task."""
    return calls(*[(f"ask_{agent}", {"task": task})] * times)


def tree(
    store: SessionStore | StoreProxy | None = None,
    *,
    agents: dict[str, tuple[Sequence[Batch], Sequence[Tool]]] | None = None,
    policy: AlwaysRequireApprovalToolPolicy | None = None,
    boss: Sequence[Batch] | None = None,
    subagent: Tool | None = None,
    **options: Any,
) -> CayuApp:
    """An application whose agent `a` asks `b`; `agents` gives each one below a script and tools."""
    app = CayuApp(session_store=store, **{"config": CONFIG, **options})  # type: ignore[arg-type]
    below = {"b": (["the answer"], ())} if agents is None else agents
    everyone = {"a": (boss or [ask(), "thanks", "more thanks"], (subagent or SubagentTool("b"),)), **below}
    for name, (script, tools) in everyone.items():
        app.register_provider(ScriptedModelProvider(script, name=f"model of {name}"))
        spec = AgentSpec(name=name, model="m", provider_name=f"model of {name}")
        app.register_agent(spec, tools=tools, tool_policy=policy if name == "b" else None)
    return app


def generations(leaf: Tool) -> dict[str, tuple[Sequence[Batch], Sequence[Tool]]]:
    """The agents below `a`: `b` asks `c`, and `c` has a tool."""
    return {
        "b": ([ask("c"), "b has heard"], (SubagentTool("c"),)),
        "c": ([calls(leaf.spec.name), "c is done"], (leaf,)),
    }


async def forever(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(60)
    return ToolResult(content="never")


async def heads(app: CayuApp) -> list[StreamHead]:
    """Every session, oldest first."""
    return list(reversed((await app.session_store.heads(HeadQuery(limit=1000))).rows))


async def below(app: CayuApp, session_id: str = SESSION) -> list[str]:
    """The ids of the direct children, oldest first."""
    page = await app.session_store.heads(HeadQuery(parent_session_id=session_id))
    return [head.row.id for head in reversed(page.rows)]


async def only_child(app: CayuApp, session_id: str = SESSION) -> str:
    [found] = await below(app, session_id)
    return found


async def calls_of(app: CayuApp, session_id: str = SESSION) -> list[CallView]:
    view = await assert_consistent(app, session_id)
    return [call for opened in view.rounds for call in opened.calls]


async def answers(app: CayuApp, session_id: str = SESSION) -> list[tuple[str, bool]]:
    """What the model of a session has read of its calls, and whether as an error."""
    found = [call.answer for call in await calls_of(app, session_id)]
    return [(answer.content, answer.is_error) for answer in found if answer is not None]


# Lineage.


async def test_a_child_has_its_own_session_and_the_parent_its_words() -> None:
    app = tree()
    events = await play(app.run(new_run(causal_budget_id="account")))
    assert {event.session_id for event in events} == {SESSION}, "the child's events are its own"
    [asked] = await calls_of(app)
    name = await only_child(app)
    assert name == f"{asked.id}.child"
    child = await app.get_session(name)
    assert (child.parent_session_id, child.causal_budget_id, child.agent_name) == (SESSION, "account", "b")
    assert (await app.get_session(SESSION)).parent_session_id is None
    assert await answers(app) == [("the answer", False)]
    view = await assert_consistent(app, name)
    assert [(message.role, message.plain_text) for message in view.transcript] == [
        ("user", "work"),
        ("assistant", "the answer"),
    ]
    outcome = await outcome_of(app, SESSION)
    assert (outcome.status, outcome.final_text) == ("completed", "thanks")
    assert outcome.tool_calls[0].structured == {"child_session_id": name, "status": "completed", "truncated": False}


async def test_without_an_account_a_tree_spends_under_its_root() -> None:
    leaf = FakeTool("t")
    app = tree(agents=generations(leaf))
    await play(app.run(new_run()))
    found = await heads(app)
    assert [head.row.agent_name for head in found] == ["a", "b", "c"]
    assert [head.row.parent_session_id for head in found] == [None, SESSION, found[1].row.id]
    assert {head.row.causal_budget_id for head in found} == {SESSION}
    assert [context.causal_budget_id for context in leaf.contexts] == [SESSION]


async def test_sinks_are_told_of_every_session_of_the_tree() -> None:
    seen: list[Event] = []

    class Sink:
        async def emit(self, event: Event) -> None:
            seen.append(event)

    app = tree(event_sinks=[Sink()])
    await play(app.run(new_run()))
    child = await only_child(app)
    ended = [event.session_id for event in seen if event.type == E.SESSION_COMPLETED]
    assert ended == [child, SESSION]


@pytest.mark.parametrize("length", [9, 10, 11])
async def test_an_answer_is_bounded_where_the_parent_reads_it(length: int) -> None:
    app = tree(agents={"b": (["x" * length], ())}, subagent=SubagentTool("b", max_answer_characters=10))
    await play(app.run(new_run()))
    cut = length > 10
    assert await answers(app) == [("x" * min(length, 10) + (" [cut]" if cut else ""), False)]
    assert (await outcome_of(app, SESSION)).tool_calls[0].structured["truncated"] is cut
    assert (await outcome_of(app, await only_child(app))).final_text == "x" * length


# A child that does not complete.


STOPS: dict[str, tuple[list[Batch], list[Tool], dict[str, Any], str, str]] = {
    "fails": ([], [], {}, "failed", "provider failed"),
    "steps": ([calls("t"), "done"], [FakeTool("t")], {"max_steps": 1}, "interrupted", "limit reached"),
    "calls": (
        [calls("t", "t"), "done"],
        [FakeTool("t", parallel_safe=False)],
        {"limits": RunLimits(max_tool_calls=1)},
        "interrupted",
        "limit reached",
    ),
    "approval": ([calls("t"), "done"], [FakeTool("t")], {}, "interrupted", "awaiting human"),
    "question": (
        [calls(("ask_user", {"question": "Which?"})), "done"],
        [AskUserTool()],
        {},
        "interrupted",
        "awaiting human",
    ),
}


WAITING = ("approval", "question")


@pytest.mark.parametrize("how", sorted(set(STOPS) - set(WAITING)))
async def test_a_child_that_does_not_complete_is_an_error_result_that_names_it(how: str) -> None:
    script, tools, bounds, status, reason = STOPS[how]
    app = tree(agents={"b": (script, tools)}, subagent=SubagentTool("b", **bounds))
    await play(app.run(new_run()))
    name = await only_child(app)
    assert await answers(app) == [(f"The child session {name} is {status}: {reason}.", True)]
    outcome = await outcome_of(app, SESSION)
    assert (outcome.status, outcome.final_text) == ("completed", "thanks")
    assert outcome.tool_calls[0].state == CallState.COMPLETED, "the call itself has done its work"
    assert outcome.tool_calls[0].structured == {"child_session_id": name, "status": status, "truncated": False}
    assert await status_of(app, name) == status
    await assert_consistent(app, name)


async def test_a_child_that_a_limit_has_stopped_goes_on_by_itself() -> None:
    script, tools, bounds, _, _ = STOPS["steps"]
    app = tree(agents={"b": (script, tools)}, subagent=SubagentTool("b", **bounds))
    await play(app.run(new_run()))
    name, before = await only_child(app), (await log_of(app)).head.state
    events = await play(app.resume(next_turn(name)))
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    assert (await outcome_of(app, name)).final_text == "done"
    assert (await log_of(app)).head.state == before, "nothing of it reaches the parent, which has gone on"
    await play(app.resume(next_turn()))
    assert await status_of(app) == "completed"
    assert await below(app) == [name]


async def recovered(app: CayuApp, session_id: str = SESSION) -> list[str]:
    """Plan and execute the recovery of one session without a decision; return what became of its items."""
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(session_id,)))
    request = RecoveryExecutionRequest(plan=plan, execution_id=f"{session_id} at {plan.items[0].version}")
    return [str(item.status) for item in (await app.execute_recovery(request)).items]


@pytest.mark.parametrize("how", WAITING)
async def test_a_parent_waits_for_a_child_that_waits_and_reads_its_answer(how: str) -> None:
    script, tools, bounds, _, _ = STOPS[how]
    policy = AlwaysRequireApprovalToolPolicy() if how == "approval" else None
    app = tree(agents={"b": (script, tools)}, policy=policy, subagent=SubagentTool("b", **bounds))
    await play(app.run(new_run()))
    name = await only_child(app)
    assert (await status_of(app), await answers(app)) == ("interrupted", [])
    [waits] = [action for action in (await app.list_pending_actions()).actions if action.session == SESSION]
    assert (waits.kind, waits.title) == ("manual_recovery", "ask_b waits for its child session")
    assert await recovered(app) == ["blocked"], "its child has not come to its end"
    [waiting] = await waiting_ids(app, name)
    if how == "approval":
        await play(app.resolve_tool_approval(approval(waiting, session_id=name)))
    else:
        await play(app.resolve_user_input(UserInputResponse(session_id=name, input_id=waiting, answer="That one.")))
    assert (await outcome_of(app, name)).final_text == "done"
    assert await recovered(app) == ["executed"]
    assert (await status_of(app), await answers(app)) == ("completed", [("done", False)])
    assert await below(app) == [name]


async def test_an_agent_that_is_not_registered_is_an_error_result() -> None:
    app = tree(agents={})
    await play(app.run(new_run()))
    [(text, is_error)] = await answers(app)
    assert is_error
    assert "not run: NotRegistered" in text
    assert await status_of(app) == "completed"
    assert await below(app) == []


async def test_a_child_that_loses_its_store_is_not_told_as_not_run() -> None:
    """The child has acted and cannot write what came of it: its parent waits until that is known."""

    async def full(unit: Unit) -> None:
        if unit.stream != SESSION and has(unit, E.ROUND_COMMITTED):
            raise StoreFull(path="x")

    tool = FakeTool("t", effect=EXTERNAL)
    store = InMemorySessionStore()
    app = tree(StoreProxy(store, before=full), agents={"b": ([calls("t"), "done"], [tool])})
    await play(app.run(new_run()))
    assert len(tool.calls) == 1
    name = await only_child(app)
    assert await lost_sessions(app) == [name]
    assert (await status_of(app), await answers(app)) == ("interrupted", [])
    assert [call.state for call in await calls_of(app)] == [CallState.UNKNOWN]
    again = tree(store, agents={"b": ([calls("t"), "done"], [tool])})
    await play(again.recover_incomplete_session(name))
    assert len(tool.calls) == 1
    assert [call.state for call in await calls_of(again, name)] == [CallState.UNKNOWN]
    assert await recovered(again) == ["blocked"]
    await settled(again, name)
    assert await recovered(again) == ["executed"]
    assert (await answers(again), len(tool.calls)) == ([("done", False)], 1)
    assert await status_of(again) == "completed"


# How deep, how many.


@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_an_agent_that_asks_itself_comes_to_an_end(depth: int) -> None:
    app = CayuApp(config=RuntimeConfig(max_child_depth=depth))
    app.register_provider(ScriptedModelProvider([ask("a"), "enough"]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[SubagentTool("a")])
    await play(app.run(new_run()))
    found = await heads(app)
    assert len(found) == 1 + depth
    assert {head.state.status for head in found} == {"completed"}
    [(text, is_error)] = await answers(app, found[-1].row.id)
    assert is_error
    assert text.endswith(f"is not run: sessions nest no deeper than {depth}.")
    for head in found[:-1]:
        assert await answers(app, head.row.id) == [("enough", False)]


async def test_children_of_one_round_work_side_by_side() -> None:
    meeting, arrived = asyncio.Event(), 0

    async def meet(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        nonlocal arrived
        arrived += 1
        if arrived == 3:
            meeting.set()
        await meeting.wait()
        return ToolResult(content="met")

    app = tree(
        agents={"b": ([calls("t"), lambda request: request.messages[0].plain_text.upper()], [FakeTool("t", meet)])},
        boss=[calls(*[("ask_b", {"task": task}) for task in ("one", "two", "three")]), "thanks"],
    )
    await asyncio.wait_for(play(app.run(new_run())), TIMEOUT)
    assert await answers(app) == [("ONE", False), ("TWO", False), ("THREE", False)]
    asked = [f"{call.id}.child" for call in await calls_of(app)]
    assert sorted(await below(app)) == sorted(asked)
    for name in asked:
        await assert_consistent(app, name)


async def test_no_two_calls_share_a_child() -> None:
    """The same task twice in a round, again in the next turn, and in another session that ends at the same call."""
    app = tree(boss=[ask(times=2), "thanks", ask(), "thanks"])
    await play(app.run(new_run()))
    await play(app.resume(next_turn()))
    await play(app.run(new_run("other")))
    found = [*await below(app), *await below(app, "other")]
    assert len(found) == len(set(found)) == 5
    assert {(await outcome_of(app, name)).model_steps for name in found} == {1}


# Interrupting.


async def interrupted(app: CayuApp, how: str, leaf: FakeTool, other: CayuApp) -> None:
    """Run the tree until its leaf is at work, and interrupt it in one of several ways."""
    if how == "close":
        async with aclosing(app.run(new_run())) as stream:
            async for event in stream:
                if event.type == E.TOOL_STAGED:  # of the call beside the child
                    return
    task = asyncio.create_task(play(app.run(new_run())))
    await asyncio.wait_for(leaf.entered.wait(), TIMEOUT)
    if how == "request":
        await play(app.interrupt_session(STOP))
    elif how == "other":
        await play(other.interrupt_session(STOP))
    elif how == "aclose":
        await app.aclose()
    else:
        task.cancel()
    await asyncio.wait([task], timeout=TIMEOUT)
    assert task.done()
    assert task.cancelled() == (how == "cancel")
    if not task.cancelled():
        task.result()


@pytest.mark.parametrize("effect", [NONE, EXTERNAL])
@pytest.mark.parametrize("how", ["request", "other", "close", "cancel", "aclose"])
async def test_interrupting_a_parent_interrupts_the_whole_tree(how: str, effect: ToolEffect, tmp_path: Path) -> None:
    leaf = FakeTool("t", forever, effect=effect)
    config = RuntimeConfig(cancel_grace_seconds=0.6, renew_after_seconds=0.1, lease_seconds=5)

    async def beside(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await leaf.entered.wait()
        return ToolResult(content="beside")

    def made(agents: dict[str, tuple[Sequence[Batch], Sequence[Tool]]]) -> CayuApp:
        both = [*ask(), ModelStreamEvent.tool_call("beside", id="p1")]
        agents = {"a": ([both, "thanks"], (SubagentTool("b"), FakeTool("beside", beside))), **agents}
        return tree(SQLiteSessionStore(tmp_path / "s.db"), agents=agents, config=config)

    app, other = made(generations(leaf)), made(generations(FakeTool("t")))
    try:
        await interrupted(app, how, leaf, other)
        assert app.services.drives == {}
        found = await heads(other)
        assert [head.row.agent_name for head in found] == ["a", "b", "c"]
        assert [(head.state.status, head.state.owner) for head in found] == [("interrupted", None)] * 3
        names = [head.row.id for head in found]
        assert await lost_sessions(other) == []
        for parent, child in itertools.pairwise(names):
            call = (await calls_of(other, parent))[0]
            if effect is EXTERNAL:
                assert call.state == CallState.UNKNOWN, "what the child has done is not known"
                continue
            assert call.state == CallState.COMPLETED, "how the child has ended is known"
            assert call.answer is not None
            assert call.answer.content.startswith(f"The child session {child} is interrupted: ")
        [act] = await calls_of(other, names[2])
        assert act.state == (CallState.UNKNOWN if effect is EXTERNAL else CallState.FAILED)
        for name in names[:2]:
            found_below = await logged(other, E.SESSION_CASCADE_COMPLETED, name)
            if found_below or (how, effect) != ("other", EXTERNAL):  # there a round may pause by itself before it hears
                assert found_below == [{"sessions": 3 - names.index(name) - 1, "unfinished": 0}]
            assert await logged(other, E.SESSION_CASCADE_FAILED, name) == []
    finally:
        await app.aclose()
        await other.aclose()


@pytest.mark.slow
async def test_a_leaf_that_does_not_heed_delays_nobody_beyond_the_grace() -> None:
    async def deaf(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        end = asyncio.get_running_loop().time() + 1.2
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return ToolResult(content="too late")

    leaf = FakeTool("t", deaf, effect=EXTERNAL)
    app = tree(agents=generations(leaf))
    begun = asyncio.get_running_loop().time()
    await interrupted(app, "request", leaf, app)
    assert asyncio.get_running_loop().time() - begun < 1.1
    found = [head.row.id for head in await heads(app)]
    assert {await status_of(app, name) for name in found} == {"interrupted"}
    for name in found:  # what the leaf has done is not known, and so is what those above it have
        assert [call.state for call in await calls_of(app, name)] == [CallState.UNKNOWN]
    await asyncio.sleep(max(0.0, 1.3 - (asyncio.get_running_loop().time() - begun)))  # the deaf one ends


async def test_a_request_for_a_child_alone_leaves_the_parent_going() -> None:
    leaf = FakeTool("t", forever)
    app = tree(agents=generations(leaf))
    task = asyncio.create_task(play(app.run(new_run())))
    await asyncio.wait_for(leaf.entered.wait(), TIMEOUT)
    middle = await only_child(app)
    await play(app.interrupt_session(InterruptSessionRequest(session_id=middle)))
    assert types_of(await asyncio.wait_for(task, TIMEOUT))[-1] == E.SESSION_COMPLETED
    assert await answers(app) == [(f"The child session {middle} is interrupted: interrupt requested.", True)]
    assert await status_of(app, await only_child(app, middle)) == "interrupted"
    assert await logged(app, E.SESSION_INTERRUPT_REQUESTED) == []
    with pytest.raises(SessionNotRunning):
        await play(app.interrupt_session(STOP))


# Trees that are lost.


class Died(BaseException):
    """The process is no more."""


def dying(store: SessionStore, at: int) -> StoreProxy:
    """A store that takes writes up to one, and from then on answers nobody."""
    taken = 0

    async def die(unit: Unit) -> None:
        nonlocal taken
        taken += 1
        if taken >= at:
            raise Died

    return StoreProxy(store, before=die)


async def lose(store: SessionStore, at: int, leaf: FakeTool) -> bool:
    """Run the tree in an application that dies at a write; False when it has come to its end before."""
    try:
        await play(tree(dying(store, at), agents=generations(leaf)).run(new_run()))
    except Died:
        return True
    return False


LEAF_AT_WORK = 7
"""Writes of a tree of three generations before the leaf's result: three creations, three rounds."""


async def test_a_lost_tree_is_closed_from_its_youngest_generation_on() -> None:
    store, leaf = InMemorySessionStore(), FakeTool("t", effect=EXTERNAL)
    assert await lose(store, LEAF_AT_WORK, leaf)
    assert len(leaf.calls) == 1
    spied = StoreProxy(store)
    app = CayuApp(session_store=spied)  # type: ignore[arg-type]
    names = [head.row.id for head in await heads(app)]
    assert len(await lost_sessions(app)) == len(names) == 3
    events = await play(app.interrupt_session(STOP))
    ended = [unit.stream for unit in spied.units if has(unit, E.SESSION_INTERRUPTED)]
    assert ended == names[::-1], "registrations are not needed, and the root is the last"
    assert has(spied.units[0], E.SESSION_INTERRUPT_REQUESTED)
    assert spied.units[0].stream == SESSION, "the request is durable before anything is stopped"
    assert {event.session_id for event in events} == set(names)
    assert await lost_sessions(app) == []
    for name in names:
        assert await status_of(app, name) == "interrupted"
        [asked] = await logged(app, E.SESSION_INTERRUPT_REQUESTED, name)
        assert asked["cascade"] == {"root": SESSION}
    assert await logged(app, E.SESSION_CASCADE_COMPLETED) == [{"sessions": 2, "unfinished": 0}]
    assert [call.state for call in await calls_of(app, names[2])] == [CallState.UNKNOWN]
    with pytest.raises(SessionNotRunning):
        await play(app.interrupt_session(STOP))


async def test_the_calls_above_a_child_that_was_closed_are_not_unknown() -> None:
    store = InMemorySessionStore()
    await lose(store, LEAF_AT_WORK, FakeTool("t"))
    app = CayuApp(session_store=store)
    await play(app.interrupt_session(STOP))
    names = [head.row.id for head in await heads(app)]
    states = [[call.state for call in await calls_of(app, name)] for name in names]
    assert states[2] == [CallState.FAILED], "the leaf leaves nothing behind"
    assert states[:2] == [[CallState.COMPLETED]] * 2, "how the child has ended is known"


@pytest.mark.parametrize("at", range(1, 5))
async def test_a_cascade_that_is_cut_off_is_brought_to_its_end_at_startup(at: int) -> None:
    store = InMemorySessionStore()
    await lose(store, LEAF_AT_WORK, FakeTool("t"))
    with pytest.raises(Died):
        await play(CayuApp(session_store=dying(store, at)).interrupt_session(STOP))  # type: ignore[arg-type]
    leaf = FakeTool("t")
    app = tree(store, agents=generations(leaf))
    assert await app.resume_pending_interruption_cascades() == (0 if at == 1 else 1)
    assert leaf.calls == [], "an interrupted tree does nothing more"
    if at == 1:  # the request itself was lost, so nobody has asked
        assert len(await lost_sessions(app)) == 3
        return
    assert await lost_sessions(app) == []
    assert [head.state.status for head in await heads(app)] == ["interrupted"] * 3
    assert (await app.get_startup_recovery_status()).blocked_session_count == 0
    assert await logged(app, E.SESSION_CASCADE_FAILED) == []


@pytest.mark.parametrize("effect", [NONE, IDEMPOTENT, EXTERNAL])
async def test_a_lost_tree_goes_on_where_each_part_stands(effect: ToolEffect) -> None:
    """Lost at each of its writes: what is done is not done again, and the end is that of a run that was not lost."""
    plain = tree(agents=generations(FakeTool("t", effect=effect)))
    await play(plain.run(new_run()))
    expected = [(await outcome_of(plain, head.row.id)).final_text for head in await heads(plain)]
    for at in range(2, 20):
        store, leaf = InMemorySessionStore(), FakeTool("t", effect=effect)
        if not await lose(store, at, leaf):
            assert at == 13, "three creations, rounds, closes and ends, and then nothing"
            return
        before = {head.row.id: head.state for head in await heads(tree(store))}
        app = tree(store, agents=generations(leaf))
        await play(app.recover_incomplete_session(SESSION))
        assert await lost_sessions(app) == []
        found = await heads(app)
        assert len(found) == 3
        for head in found:
            earlier = before.get(head.row.id)
            if earlier is not None and earlier.status == "completed":
                assert head.state == earlier, "a child that has ended is read, not touched"
        if effect is EXTERNAL and at == LEAF_AT_WORK:
            assert [call.state for call in await calls_of(app, found[2].row.id)] == [CallState.UNKNOWN]
            name = found[2].row.id
            assert await answers(app, found[1].row.id) == [], "its parent waits until that is known"
            await settled(app, name)
            for above in (found[1].row.id, SESSION):
                assert await recovered(app, above) == ["executed"]
        assert len(leaf.calls) == (2 if at == LEAF_AT_WORK and effect is not EXTERNAL else 1)
        assert [(await outcome_of(app, head.row.id)).final_text for head in found] == expected
        keys = {context.idempotency_key for context in leaf.contexts}
        assert len(keys) == 1


async def settled(app: CayuApp, session_id: str) -> None:
    """Settle the one unknown call of a session as completed."""
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(session_id,)))
    [need] = plan.items[0].needed_decisions
    decision = RecoveryDecision(
        session_id=session_id, action=RecoveryAction.TOOL_MARK_COMPLETED, tool_call_id=need.tool_call_id, content="ok"
    )
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="e", decisions=(decision,)))


async def test_a_child_that_was_decided_meanwhile_is_read_by_the_recovered_parent() -> None:
    """The parent was lost before it could write that its child waits; then a human has approved the child's call."""
    policy, tool = AlwaysRequireApprovalToolPolicy(), FakeTool("t", effect=EXTERNAL)
    store, agents = InMemorySessionStore(), {"b": ([calls("t"), "done"], [tool])}
    with pytest.raises(Died):
        await play(tree(dying(store, 5), agents=agents, policy=policy).run(new_run()))
    app = tree(store, agents=agents, policy=policy)
    name = await only_child(app)
    assert await status_of(app, name) == "interrupted"
    [waiting] = await waiting_ids(app, name)
    await play(app.resolve_tool_approval(approval(waiting, session_id=name)))
    await play(app.recover_incomplete_session(SESSION))
    assert await answers(app) == [("done", False)]
    assert len(tool.calls) == 1


async def test_children_are_listed_with_what_waits_in_them() -> None:
    policy = AlwaysRequireApprovalToolPolicy()
    app = tree(agents={"b": ([calls("t"), "done"], [FakeTool("t")])}, policy=policy, boss=[ask(times=3), "thanks"])
    await play(app.run(new_run()))
    asked = [action.session for action in (await app.list_pending_actions()).actions if action.kind == "tool_approval"]
    assert sorted(asked) == sorted(await below(app))
    waiting = await app.session_store.items(ItemQuery(session_id=SESSION, state="pending"))
    assert [row.item.kind for row in waiting.rows] == ["manual_recovery"] * 3


class Publish(Tool):
    """Asks a child for words and then acts with them: what the child has done is not what the call has done."""

    def __init__(self, acts: list[str]) -> None:
        self.acts = acts
        self.spec = FakeTool("ask_b", effect=EXTERNAL).spec

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        assert ctx.children is not None
        words = (await ctx.children.run(ChildTask("b", "write it", RunLimits(), 10))).text
        await asyncio.sleep(60)
        self.acts.append(words)
        return ToolResult(content="published")


async def test_a_child_does_not_speak_for_a_call_that_does_more() -> None:
    acts: list[str] = []
    app = tree(subagent=Publish(acts))
    running = asyncio.create_task(play(app.run(new_run())))
    while not await below(app) or await status_of(app, await only_child(app)) != "completed":
        await asyncio.sleep(0.01)
    await play(app.interrupt_session(STOP))
    await running
    assert [call.state for call in await calls_of(app)] == [CallState.UNKNOWN]
    assert await recovered(app) == ["blocked"], "its child has ended, and says nothing of what came after"
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    [need] = plan.items[0].needed_decisions
    found = RecoveryDecision(session_id=SESSION, action=RecoveryAction.TOOL_MARK_FAILED, tool_call_id=need.tool_call_id)
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="e", decisions=(found,)))
    assert ([call.state for call in await calls_of(app)], acts) == ([CallState.FAILED], [])


async def test_a_child_is_settled_and_goes_no_further_while_its_root_is_being_interrupted() -> None:
    store = InMemorySessionStore()
    leaf = FakeTool("t", effect=EXTERNAL)

    async def die(unit: Unit) -> None:
        if unit.stream != SESSION and has(unit, E.TOOL_STAGED):
            raise StoreFull(path="x")
        if unit.stream == SESSION and has(unit, E.EFFECT_OUTCOME_UNKNOWN):
            raise StoreFull(path="x")

    agents = {"b": ([calls("t"), calls("t"), "done"], [leaf])}
    with pytest.raises(StoreFull):
        await play(tree(StoreProxy(store, before=die), agents=agents).run(new_run()))
    app = tree(store, agents=agents)
    name = await only_child(app)
    await play(app.recover_incomplete_session(name))
    record = Record(E.SESSION_INTERRUPT_REQUESTED, dumps({"cascade": {"root": SESSION}}))
    await store.append(Unit(SESSION, None, None, (record,)))
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(name, SESSION)))
    needs = [(item.session_id, need) for item in plan.items for need in item.needed_decisions if not need.optional]
    decisions = tuple(
        RecoveryDecision(
            session_id=session, action=RecoveryAction.TOOL_MARK_COMPLETED, tool_call_id=need.tool_call_id, content="did"
        )
        for session, need in needs
    )
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="e", decisions=decisions))
    assert [await status_of(app, each) for each in (name, SESSION)] == ["interrupted"] * 2
    assert len(leaf.calls) == 1, "its model would have called the tool again"


async def test_a_tree_is_stopped_from_its_root_also_while_the_root_waits() -> None:
    leaf = FakeTool("t", forever)
    policy = AlwaysRequireApprovalToolPolicy()
    app = tree(agents={"b": ([calls("t"), "done"], [leaf])}, policy=policy)
    await play(app.run(new_run()))
    name = await only_child(app)
    [waiting] = await waiting_ids(app, name)
    working = asyncio.create_task(play(app.resolve_tool_approval(approval(waiting, session_id=name))))
    await asyncio.wait_for(leaf.entered.wait(), TIMEOUT)
    await play(app.interrupt_session(STOP))
    await working
    assert [await status_of(app, each) for each in (name, SESSION)] == ["interrupted"] * 2
