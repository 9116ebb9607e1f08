"""The fold of real logs: equal to what the run believed, to the store's projections, and always a whole transcript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from runtime.support import (
    QUICK,
    SESSION,
    FakeClock,
    FakePolicy,
    FakeTool,
    approval,
    assert_answered,
    assert_consistent,
    calls,
    log_of,
    make_app,
    new_run,
    next_turn,
    play,
    types_of,
    waiting_ids,
)

from cayu import CayuApp, Event, ToolEffect
from cayu.events import EventType
from cayu.messages import Message, ToolResultPart
from cayu.providers.base import ModelStreamEvent
from cayu.sessions import CallState, InterruptSessionRequest, SessionView, UserInputResponse, fold
from cayu.sessions.streams import Record, SessionStore, StoredRecord, Take, Unit
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import AskUserTool, ToolContext, ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult

Scenario = Callable[[SessionStore, FakeClock], Awaitable[CayuApp]]
IDEMPOTENT, EXTERNAL = ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL


class Watch:
    """Follows a run and keeps the view that its drive has at every event."""

    def __init__(self) -> None:
        self.view: SessionView | None = None

    async def follow(self, app: CayuApp, stream: AsyncGenerator[Event, None], stop_at: str | None = None) -> None:
        async with aclosing(stream):
            async for event in stream:
                drive = app.services.drives.get(SESSION)
                self.view = drive.log.view if drive else self.view
                if event.type == stop_at:
                    break


async def boom(ctx: ToolContext, args: dict[str, object]) -> object:
    raise ValueError("boom")


async def sleep(ctx: ToolContext, args: dict[str, object]) -> object:
    await asyncio.sleep(30)
    return None


async def plain(store: SessionStore, watch: Watch) -> CayuApp:
    app = make_app(store, [[ModelStreamEvent.text_delta("hi"), ModelStreamEvent.completed(usage={"input_tokens": 7})]])
    await watch.follow(app, app.run(new_run()))
    await watch.follow(app, app.resume(next_turn()))
    return app


async def parallel(store: SessionStore, watch: Watch) -> CayuApp:
    usage = ModelStreamEvent.completed("tool_calls", {"input_tokens": 10, "output_tokens": 3})
    tools = [FakeTool("n"), FakeTool("i", effect=IDEMPOTENT), FakeTool("e", effect=EXTERNAL, parallel_safe=False)]
    app = make_app(store, [[*calls("n", "i", "n", "e", "i"), usage], "done"], tools)
    await watch.follow(app, app.run(new_run()))
    return app


async def faults(store: SessionStore, watch: Watch) -> CayuApp:
    strict = FakeTool("strict", schema={"type": "object", "required": ["x"]}, effect=EXTERNAL)
    tools = [FakeTool("boom", boom, effect=EXTERNAL), strict, FakeTool("denied", effect=EXTERNAL)]
    policy = FakePolicy(lambda r: ToolPolicyDecision.DENY if r.tool_name == "denied" else ToolPolicyDecision.ALLOW)
    app = make_app(store, [calls("boom", "nowhere", "strict", "denied"), calls("nowhere"), "done"], tools, policy)
    await watch.follow(app, app.run(new_run()))
    return app


def asks(request: ToolPolicyRequest) -> ToolPolicyResult:
    return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, reason="why", approval_expires_in_seconds=60)


async def paused(store: SessionStore, watch: Watch) -> CayuApp:
    tools = [FakeTool("e", effect=EXTERNAL), AskUserTool()]
    batches = [calls("e", ("ask_user", {"question": "Which?"}), "e", "e", "e"), "done"]
    app = make_app(store, batches, tools, FakePolicy(asks))
    await watch.follow(app, app.run(new_run()))
    return app


async def partly_decided(store: SessionStore, watch: Watch) -> CayuApp:
    app = await paused(store, watch)
    first, *_, question = sorted(await waiting_ids(app), key=lambda each: (each.endswith("input"), each))
    await watch.follow(app, app.resolve_tool_approval(approval(first, "deny", by="ann", reason="no")))
    answer = UserInputResponse(session_id=SESSION, input_id=question, answer="this")
    await watch.follow(app, app.resolve_user_input(answer))
    return app


async def decided(store: SessionStore, watch: Watch, clock: FakeClock) -> CayuApp:
    app = await partly_decided(store, watch)
    approved, edited, late = await waiting_ids(app)
    await watch.follow(app, app.resolve_tool_approval(approval(approved)))
    await watch.follow(app, app.resolve_tool_approval(approval(edited, arguments={"edited": True})))
    clock.advance(61)
    await watch.follow(app, app.resolve_tool_approval(approval(late)))
    return app


async def swept(store: SessionStore, watch: Watch, clock: FakeClock) -> CayuApp:
    app = await partly_decided(store, watch)
    clock.advance(61)
    await watch.follow(app, app.resume(next_turn()))
    return app


async def interrupted(store: SessionStore, watch: Watch) -> CayuApp:
    tools = [FakeTool(str(effect), sleep, effect=effect) for effect in ToolEffect]
    tools.append(FakeTool("quick", effect=EXTERNAL))
    tools.append(FakeTool("later", effect=EXTERNAL, parallel_safe=False))
    batches = [calls("quick", "none", "idempotent", "external", "later"), "done"]
    app = make_app(store, batches, tools, config=QUICK)
    await watch.follow(app, app.run(new_run()), stop_at=EventType.TOOL_STAGED)
    return app


async def interrupted_cleanly(store: SessionStore, watch: Watch) -> CayuApp:
    tools = [FakeTool("quick", effect=EXTERNAL), FakeTool("slow", sleep, parallel_safe=False), FakeTool("later")]
    app = make_app(store, [calls("quick", "slow", "later"), "done"], tools, config=QUICK)
    stream = app.run(new_run())

    async def stop() -> None:
        await tools[1].entered.wait()
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))

    await asyncio.gather(watch.follow(app, stream), stop())
    await watch.follow(app, app.resume(next_turn()))
    return app


SCENARIOS: dict[str, tuple[Callable[..., Awaitable[CayuApp]], str]] = {
    "plain": (plain, "failed"),  # the script ends before the second turn
    "parallel": (parallel, "completed"),
    "faults": (faults, "completed"),
    "paused": (paused, "interrupted"),
    "partly decided": (partly_decided, "interrupted"),
    "decided": (decided, "completed"),
    "swept": (swept, "completed"),
    "interrupted with unknown outcomes": (interrupted, "interrupted"),
    "interrupted cleanly, then resumed": (interrupted_cleanly, "completed"),
}


def open_store(kind: str, folder: Path, clock: FakeClock) -> SessionStore:
    if kind == "memory":
        return InMemorySessionStore(clock=clock)
    return SQLiteSessionStore(folder / "s.db", clock=clock)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_fold_live_view_and_projections_agree(name: str, kind: str, tmp_path: Path) -> None:
    scenario, status = SCENARIOS[name]
    clock, watch = FakeClock(), Watch()
    store = open_store(kind, tmp_path, clock)
    timed = (clock,) if scenario in (decided, swept) else ()
    app = await scenario(store, watch, *timed)
    view = await assert_consistent(app)
    assert view.status == status
    assert watch.view is not None
    assert watch.view == view
    await app.aclose()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_prefix_of_a_log_folds_to_a_whole_transcript(name: str) -> None:
    scenario, _ = SCENARIOS[name]
    clock = FakeClock()
    timed = (clock,) if scenario in (decided, swept) else ()
    app = await scenario(InMemorySessionStore(clock=clock), Watch(), *timed)
    loaded = await log_of(app)
    for end in range(len(loaded.records) + 1):
        view = fold(loaded.head.row, loaded.records[:end])
        assert view.version == end
        if end and loaded.records[end - 1].type != EventType.MODEL_COMPLETED:
            assert_answered(view)


async def test_what_the_scenario_with_every_decision_means() -> None:
    clock = FakeClock()
    app = await decided(InMemorySessionStore(clock=clock), Watch(), clock)
    view = await assert_consistent(app)
    found = view.rounds[0].calls
    assert [call.state for call in found] == [
        CallState.BLOCKED,
        CallState.COMPLETED,
        CallState.COMPLETED,
        CallState.COMPLETED,
        CallState.BLOCKED,
    ]
    assert [call.code for call in found] == ["approval_denied", None, None, None, "approval_expired"]
    assert [call.attempt for call in found] == [0, 0, 1, 1, 0]
    assert found[3].edited
    assert found[3].arguments == {"edited": True}
    assert found[3].digest != found[3].asked_digest
    assert view.tool_calls == 2
    assert [decision.decision for decision in view.decisions.values()] == [
        "deny",
        "answer",
        "approve",
        "approve",
        "expired",
    ]
    answers = [part for part in view.transcript[2].content if isinstance(part, ToolResultPart)]
    assert [part.is_error for part in answers] == [True, False, False, False, True]
    assert "denied" in answers[0].content
    assert "no" in answers[0].content.split()
    assert answers[1].content == "this"
    assert "in time" in answers[4].content


async def test_events_of_tomorrow_change_nothing_and_read_back_as_plain_strings() -> None:
    store = InMemorySessionStore()
    app = make_app(store, ["one", "two"])
    await play(app.run(new_run()))
    before = await assert_consistent(app)
    records = (Record("session.teleported", b'{"to":"mars"}'), Record("tool.call.dreamt", b'{"tool_call_id":"no"}'))
    await store.append(Unit(SESSION, before.version, Take("someone|1|1|1"), records, release=True))
    after = await assert_consistent(app)
    at = (await log_of(app)).records[-1].at
    assert after == replace(before, version=before.version + 2, updated_at=at)

    from cayu.runtime.log import build_event

    loaded = await log_of(app)
    event = build_event(loaded.head.row, loaded.records[before.version])
    assert type(event.type) is str
    assert event.type == "session.teleported"
    assert event.payload == {"to": "mars"}
    assert "session.completed" in types_of(await play(app.resume(next_turn())))


async def test_a_log_that_no_run_can_have_written_is_refused() -> None:
    from cayu.errors import IllegalTransition, InvalidSessionLog

    app = await parallel(InMemorySessionStore(), Watch())
    loaded = await log_of(app)
    terminal = [record for record in loaded.records if record.type == EventType.TOOL_COMPLETED]
    doubled = [*loaded.records[:-3], StoredRecord(loaded.records[-3].sequence, terminal[0].type, 0, terminal[0].body)]
    with pytest.raises(InvalidSessionLog) as refused:
        fold(loaded.head.row, doubled)
    assert (refused.value.sequence, refused.value.event) == (doubled[-1].sequence, "tool.call.completed")
    assert isinstance(refused.value.__cause__, IllegalTransition)


async def test_messages_that_come_while_a_round_is_open_follow_its_results() -> None:
    clock = FakeClock()
    app = await swept(InMemorySessionStore(clock=clock), Watch(), clock)
    view = await assert_consistent(app)
    assert [message.role for message in view.transcript] == ["user", "assistant", "tool", "user", "assistant"]
    assert view.transcript[3] == Message.text("user", "more")
    assert view.queued == []
