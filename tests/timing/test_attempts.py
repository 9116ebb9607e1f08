"""One record per attempt at a round, and how it says that the attempt did not come to its end here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from runtime.support import (
    QUICK,
    SESSION,
    FakePolicy,
    FakeTool,
    StoreProxy,
    calls,
    logged,
    make_app,
    new_run,
    play,
    types_of,
)
from timing.support import (
    TickingClock,
    active,
    consume,
    failing_store,
    flags,
    lasted,
    lasting,
    ns,
    round_of,
    rounds_of,
    serial,
    slow_store,
    timed_app,
    told,
    took,
    write_of,
)

from cayu import CayuApp, RuntimeConfig, ToolEffect
from cayu.errors import SessionRunFenced, StoreError
from cayu.events import EventType as E
from cayu.sessions import InterruptSessionRequest, RunLimits
from cayu.sessions.streams import Unit
from cayu.storage import InMemorySessionStore
from cayu.testing import FakeClock
from cayu.timing.phases import AUTHORIZATION, EXECUTION, PUBLICATION, ROUND_COMMIT, STAGING, STARTED_PERSISTENCE
from cayu.tools import AlwaysRequireApprovalToolPolicy, ToolContext, ToolPolicyDecision, ToolResult

STOP = InterruptSessionRequest(session_id=SESSION)
COMPLETE, INCOMPLETE = (False, False), (True, False)


async def forever(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(30)
    return ToolResult(content="never")


def interrupting(kind: str, *, before: bool) -> tuple[CayuApp, FakeTool]:
    """An application whose session is interrupted just before, or after, its first write of that kind."""
    tool = FakeTool("t", parallel_safe=False)

    async def stop(unit: Unit) -> None:
        if write_of(unit) == kind:
            app.services.drives[SESSION].interrupt()

    store = StoreProxy(InMemorySessionStore(), **{"before" if before else "after": stop})
    app = make_app(store, [calls("t", "t"), "done"], [tool], config=QUICK)
    return app, tool


# What does not come to its end.


@pytest.mark.requirement("A116")
async def test_an_attempt_that_is_interrupted_while_a_tool_runs_is_incomplete() -> None:
    tool = FakeTool("t", forever)
    app = make_app(None, [calls("t"), "done"], [tool], config=QUICK)
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await play(app.interrupt_session(STOP))
    assert types_of(await running)[-1] == E.SESSION_INTERRUPTED
    record = await round_of(app)
    assert flags(record) == INCOMPLETE
    [call] = record.calls
    assert took(call, EXECUTION) > 0
    assert call.tool_effect_completed_at is None, "the tool did not come to its end"
    assert took(record, ROUND_COMMIT) > 0, "the interruption closes the round"


@pytest.mark.requirement("A116")
async def test_a_tool_that_does_not_mind_being_cancelled_executes_to_the_end_of_the_attempt() -> None:
    async def deaf(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        while not heard.is_set():
            try:
                await heard.wait()
            except asyncio.CancelledError:
                continue
        return ToolResult(content="too late")

    heard, tool = asyncio.Event(), FakeTool("t", deaf)
    app = make_app(None, [calls("t"), "done"], [tool], config=QUICK)
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await play(app.interrupt_session(STOP))
    await running
    before = await round_of(app)
    heard.set()
    await asyncio.sleep(0.01)
    assert tool.ended, "it has gone on"
    assert await round_of(app) == before
    assert flags(before) == INCOMPLETE
    assert before.phase(EXECUTION).last_completed_at == before.completed_at
    assert took(before, EXECUTION) >= ns(QUICK.cancel_grace_seconds)


async def leave(app: CayuApp, tool: FakeTool) -> None:
    """Go away from the generator while the tool runs."""
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def close(app: CayuApp, tool: FakeTool) -> None:
    """Close the generator on the first event after a call has run."""
    async with aclosing(app.run(new_run())) as events:
        async for event in events:
            if event.type == E.TOOL_STAGED:
                return


async def shut(app: CayuApp, tool: FakeTool) -> None:
    """Close the application while the tool runs."""
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await app.aclose()
    await running


@pytest.mark.requirement("A116")
@pytest.mark.parametrize(
    ("end", "wanted"),
    [(leave, ("slow",)), (close, ("quick", "slow")), (shut, ("slow",))],
    ids=["cancel", "close", "shut"],
)
async def test_an_attempt_that_is_cancelled_is_incomplete(end: Callable[..., Any], wanted: tuple[str, ...]) -> None:
    slow, quick = FakeTool("slow", forever, parallel_safe=False), FakeTool("quick", parallel_safe=False)
    app = make_app(None, [calls(*wanted), "done"], [slow, quick], config=QUICK)
    await end(app, slow)
    assert [flags(record) for record in await rounds_of(app)] == [INCOMPLETE]


@pytest.mark.requirement("A107", "A116")
async def test_an_attempt_that_pauses_for_an_approval_is_incomplete_and_its_pause_is_the_round_commit() -> None:
    clock = FakeClock()
    store = slow_store(clock, pause=0.5)
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], AlwaysRequireApprovalToolPolicy(), store)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert flags(record) == INCOMPLETE
    assert told(record) == {ROUND_COMMIT: 0.5}
    assert told(record.calls[0]) == {}


async def test_a_pause_has_ended_before_the_consumer_learns_of_it() -> None:
    clock = FakeClock()
    store, policy = slow_store(clock, pause=0.5), AlwaysRequireApprovalToolPolicy()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], policy, store)
    await consume(app.run(new_run()), clock, 2)
    record = await round_of(app)
    assert active(record) == lasted(record) == ns(0.5)


@pytest.mark.requirement("A116")
async def test_an_attempt_whose_outcome_is_not_known_is_incomplete() -> None:
    tool = FakeTool("t", forever, effect=ToolEffect.EXTERNAL)
    app = make_app(None, [calls("t"), "done"], [tool], config=QUICK)
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await play(app.interrupt_session(STOP))
    await running
    assert await logged(app, E.EFFECT_OUTCOME_UNKNOWN)
    assert flags(await round_of(app)) == INCOMPLETE


@pytest.mark.requirement("A116")
@pytest.mark.parametrize("kind", ["open", "stage", "close"])
@pytest.mark.parametrize("error", [SessionRunFenced(session_id=SESSION), StoreError("the disk is gone")])
async def test_an_attempt_that_loses_its_session_or_its_store_is_incomplete(kind: str, error: Exception) -> None:
    """Whoever was fenced writes nothing more, and tells what it has seen all the same."""
    store = failing_store(kind, error)
    app = make_app(store, [calls("t", "t"), "done"], [FakeTool("t", parallel_safe=False)], config=QUICK)
    with pytest.raises(type(error)):
        await play(app.run(new_run()))
    record = await round_of(app)
    assert flags(record) == INCOMPLETE
    begun = [name for name in (STARTED_PERSISTENCE, STAGING, ROUND_COMMIT) if record.phase(name).first_started_at]
    assert len(begun) == ("open", "stage", "close").index(kind) + 1
    assert len(record.calls) == 2


@pytest.mark.requirement("A116")
async def test_an_attempt_in_which_the_runtime_fails_is_incomplete() -> None:
    store = failing_store("stage", RuntimeError("a defect"))
    app = make_app(store, [calls("t", "t"), "done"], [FakeTool("t", parallel_safe=False)], config=QUICK)
    with pytest.raises(RuntimeError):
        await play(app.run(new_run()))
    assert await logged(app, E.SESSION_FAILED)
    record = await round_of(app)
    assert flags(record) == INCOMPLETE
    assert took(record, EXECUTION) > 0


@pytest.mark.requirement("A116")
@pytest.mark.parametrize("kind", ["stage", "close"])
async def test_an_attempt_that_is_interrupted_in_a_write_is_told_once_and_incomplete_unless_that_closed_it(
    kind: str,
) -> None:
    app, tool = interrupting(kind, before=True)
    events = await play(app.run(new_run()))
    assert len(tool.calls) == ("stage", "close").index(kind) + 1
    assert await logged(app, E.ROUND_COMMITTED), "what had run is kept, and the round closed"
    assert types_of(events)[-1] == E.SESSION_INTERRUPTED
    assert flags(await round_of(app)) == (INCOMPLETE if kind == "stage" else COMPLETE), "what was closed is closed"


async def test_an_attempt_that_is_interrupted_while_the_policy_thinks_is_incomplete() -> None:
    """Nothing of the round is written, so nothing is closed either."""

    def decide(request: Any) -> ToolPolicyDecision:
        app.services.drives[SESSION].interrupt()
        return ToolPolicyDecision.ALLOW

    policy = FakePolicy(decide)
    store = slow_store(FakeClock())
    app = make_app(store, [calls("t"), "done"], [FakeTool("t")], policy, config=QUICK)

    async def give_way(unit: Unit) -> None:
        await asyncio.sleep(0)

    store.before = give_way
    await play(app.run(new_run()))
    assert not await logged(app, E.ROUND_OPENED)
    record = await round_of(app)
    assert flags(record) == INCOMPLETE
    assert took(record, AUTHORIZATION) > 0


# What does.


@pytest.mark.requirement("A119")
async def test_a_round_that_is_interrupted_before_its_runner_starts_is_only_closed() -> None:
    app, tool = interrupting("open", before=False)
    await play(app.run(new_run()))
    assert tool.calls == []
    assert await logged(app, E.ROUND_COMMITTED)
    record = await round_of(app)
    assert flags(record) == COMPLETE
    assert took(record, EXECUTION) == 0
    assert all(took(call, PUBLICATION) > 0 for call in record.calls)


@pytest.mark.requirement("A119")
async def test_a_round_whose_start_the_consumer_does_not_want_is_only_closed() -> None:
    tool = FakeTool("t")
    app = make_app(None, [calls("t"), "done"], [tool], config=QUICK)
    async with aclosing(app.run(new_run())) as events:
        async for event in events:
            if event.type == E.TOOL_STARTED:
                break
    assert (tool.calls, len(await logged(app, E.ROUND_COMMITTED))) == ([], 1)
    assert flags(await round_of(app)) == COMPLETE


async def test_a_round_that_reaches_a_limit_is_complete_and_its_skipped_calls_did_nothing() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)])
    events = await play(app.run(new_run(limits=RunLimits(max_tool_calls=1))))
    assert types_of(events)[-2:] == [E.SESSION_LIMIT_REACHED, E.SESSION_INTERRUPTED]
    record = await round_of(app)
    assert flags(record) == COMPLETE
    ran, skipped = record.calls
    assert (told(ran), told(skipped)) == ({EXECUTION: 1}, {})
    assert skipped.tool_terminal_staged_at is None
    assert skipped.tool_terminal_publication_started_at is not None
    assert active(record) == lasted(record)


async def test_a_round_of_which_nothing_may_run_is_complete_with_one_write() -> None:
    clock = TickingClock()
    policy = FakePolicy(lambda request: ToolPolicyDecision.DENY)
    tool = lasting(clock, "t", 1)
    app = timed_app(clock, [calls("t", "no_such_tool"), "done"], [tool], policy, slow_store(clock, open=4, close=2))
    await play(app.run(new_run()))
    record = await round_of(app)
    assert (tool.calls, flags(record)) == ([], COMPLETE)
    assert ns(2) < took(record, ROUND_COMMIT) < ns(2.001)
    assert took(record, STARTED_PERSISTENCE) == took(record, EXECUTION) == took(record, STAGING) == 0
    assert active(record) == lasted(record)


async def test_each_round_of_a_run_gives_one_record() -> None:
    app = make_app(None, [calls("t"), calls("t"), calls("t"), "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    records = await rounds_of(app)
    opened = [payload["tool_round_id"] for payload in await logged(app, E.ROUND_OPENED)]
    assert [record.tool_round_id for record in records] == opened[::-1]
    assert [flags(record) for record in records] == [COMPLETE] * 3


async def test_a_tool_that_is_cut_off_by_the_clock_leaves_the_round_complete() -> None:
    config = RuntimeConfig(tool_timeout_seconds=0.02, cancel_grace_seconds=0.01)
    app = make_app(None, [calls("t"), "done"], [FakeTool("t", forever)], config=config)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert flags(record) == COMPLETE
    assert took(record, EXECUTION) >= ns(0.0199)
    assert record.calls[0].tool_effect_completed_at is None, "nobody knows that the effect has ended"


@pytest.mark.parametrize("known", ["tool", "other tool", "no agent"])
async def test_interrupting_a_lost_session_names_the_tools_that_are_registered(known: str) -> None:
    store = failing_store("close", StoreError("gone"))
    lost = make_app(store, [calls("t", "no_such_tool")], [FakeTool("t")])
    with pytest.raises(StoreError):
        await play(lost.run(new_run()))
    tools = [FakeTool("t")] if known == "tool" else [FakeTool("u")]
    app = CayuApp(session_store=store) if known == "no agent" else make_app(store, tools=tools)
    await play(app.interrupt_session(STOP))
    record = await round_of(app)
    assert [call.tool_name for call in record.calls] == ["t" if known == "tool" else None, None]
    assert len({call.tool_call_id for call in record.calls}) == 2
