"""Faults found by reading, each held where it would come back: nothing made up, nothing lost, nothing left hanging."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from runtime.support import (
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

from cayu.approvals import AskUserTool, UserInputResponse
from cayu.errors import (
    AlreadyDecided,
    ExecutionProfileMismatchError,
    InvalidInput,
    PendingActionNotFound,
    SessionNotRunning,
    StoreFull,
)
from cayu.events import EventType as E
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.observability import InMemoryEventSink
from cayu.providers import ModelProvider, ModelRequest, ModelStreamEvent
from cayu.runtime import CayuApp, run_to_completion
from cayu.runtime.outcome import session_view
from cayu.sessions import InterruptSessionRequest, RunRequest
from cayu.sessions.streams import Unit
from cayu.storage import InMemoryKnowledgeStore, InMemorySessionStore, SQLiteSessionStore
from cayu.tools import (
    AlwaysRequireApprovalToolPolicy,
    ToolEffect,
    ToolPolicy,
    ToolPolicyDecision,
    ToolPolicyRequest,
    ToolPolicyResult,
    ToolResult,
    tool,
)
from cayu.tools.functions import FunctionTool


async def _lost(store: InMemorySessionStore, tools: list[FakeTool], policy: ToolPolicy | None = None) -> None:
    """Leave a session whose calls have acted and whose process could write nothing more."""

    async def die(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED):
            raise StoreFull(path="x")

    names = [t.spec.name for t in tools]
    dying = make_app(StoreProxy(store, before=die), [calls(*names), "done"], tools, policy)
    with pytest.raises(StoreFull):
        await play(dying.run(new_run()))


@pytest.mark.parametrize(
    ("effect", "state"), [(ToolEffect.NONE, "failed"), (ToolEffect.IDEMPOTENT, "unknown")], ids=["none", "idempotent"]
)
async def test_an_interrupted_replay_is_never_told_as_not_run(effect: ToolEffect, state: str) -> None:
    store = InMemorySessionStore()
    acts = FakeTool("act", effect=effect)
    await _lost(store, [acts])
    app = make_app(store, [calls("act"), "done"], [acts])
    async with aclosing(app.recover_incomplete_session(SESSION)) as events:
        async for _ in events:
            break  # the second attempt is durable, and nothing of it has been launched
    view = await session_view(app, SESSION)
    [call] = view.rounds[0].calls
    assert (call.state, call.attempt, len(acts.calls)) == (state, 2, 1)
    assert call.code != "interrupted"
    await assert_consistent(app)


@pytest.mark.parametrize(
    ("effect", "state"), [(ToolEffect.NONE, "failed"), (ToolEffect.IDEMPOTENT, "unknown")], ids=["none", "idempotent"]
)
async def test_a_policy_that_denies_a_replay_leaves_a_legal_session(effect: ToolEffect, state: str) -> None:
    store = InMemorySessionStore()
    first, second = FakeTool("first", effect=effect), FakeTool("second", effect=effect)
    allow, deny = ToolPolicyDecision.ALLOW, ToolPolicyDecision.DENY
    await _lost(store, [first, second], FakePolicy(lambda request: allow))
    stricter = FakePolicy(lambda request: deny if request.tool_name == "second" else allow)
    app = make_app(store, [calls("first", "second"), "done"], [first, second], stricter)
    await play(app.recover_incomplete_session(SESSION))
    view = await assert_consistent(app)
    states = [call.state for call in view.rounds[0].calls]
    assert states == (["completed", state] if state == "failed" else ["staged", state])
    assert (len(first.calls), len(second.calls)) == (2, 1)


async def test_a_synchronous_tool_keeps_its_result_through_an_interruption() -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(version="1", effect=ToolEffect.EXTERNAL)
    def pay() -> str:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.3)
        return "paid"

    assert isinstance(pay, FunctionTool)
    app = make_app(None, [calls("pay"), "done"], [pay])
    running = asyncio.ensure_future(play(app.run(new_run())))
    await begun.wait()
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await running
    view = await assert_consistent(app)
    [call] = view.rounds[0].calls
    assert (view.status, call.state, call.result.content if call.result else None) == (
        "interrupted",
        "completed",
        "paid",
    )


class Unspeakable(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_without_words_still_ends_the_call_as_run() -> None:
    async def fail(ctx: object, args: object) -> ToolResult:
        raise Unspeakable

    app = make_app(None, [calls("act"), "done"], [FakeTool("act", fail, effect=ToolEffect.EXTERNAL)])
    await play(app.run(new_run()))
    view = await assert_consistent(app)
    [call] = view.rounds[0].calls
    assert (view.status, call.state, call.code) == ("completed", "failed", "raised")
    assert call.result is not None
    assert call.result.content == "Unspeakable"
    [end] = await logged(app, E.TOOL_FAILED)
    assert end["executed"] is True


async def test_a_question_without_options_can_always_be_answered() -> None:
    asked = ("ask_user", {"question": "why?", "options": [], "allow_other": False})
    app = make_app(None, [calls(asked), "done"], [AskUserTool()])
    await play(app.run(new_run()))
    [input_id] = await waiting_ids(app)
    await play(app.resolve_user_input(UserInputResponse(session_id=SESSION, input_id=input_id, answer="because")))
    assert await status_of(app) == "completed"


async def test_a_policy_may_forbid_questions() -> None:
    policy = FakePolicy(lambda request: ToolPolicyResult(decision=ToolPolicyDecision.DENY, reason="ask nobody"))
    app = make_app(None, [calls(("ask_user", {"question": "why?"})), "done"], [AskUserTool()], policy)
    await play(app.run(new_run()))
    view = await session_view(app, SESSION)
    assert (view.status, [call.state for call in view.rounds[0].calls]) == ("completed", ["blocked"])


async def test_a_tool_cannot_change_the_conversation_through_its_arguments() -> None:
    async def edit(ctx: object, args: dict[str, Any]) -> ToolResult:
        args["l"].append("evil")
        return ToolResult(content="done")

    app = make_app(None, [calls(("act", {"l": [1]})), "done"], [FakeTool("act", edit)])
    await play(app.run(new_run()))
    provider: Any = app.services.registry.assemble("a", None).provider
    assert provider.requests[-1].messages[1].tool_calls[0].arguments == {"l": [1]}
    await assert_consistent(app)


@pytest.mark.parametrize(
    "usage",
    [{"input_tokens": 5, "cache": None}, {"input_tokens": 5, "output_tokens": -1}, {"input_tokens": 5, "x": {}}],
)
async def test_odd_usage_does_not_throw_an_answer_away(usage: dict[str, Any]) -> None:
    said = [ModelStreamEvent.text_delta("hello"), ModelStreamEvent("completed", payload={"usage": usage})]
    app = make_app(None, [said])
    outcome = await run_to_completion(app, new_run())
    assert (outcome.status, outcome.final_text) == ("completed", "hello")
    assert outcome.usage == {"input_tokens": 5, "output_tokens": 0}


class Leaking(ModelProvider):
    """A provider whose stream lets somebody else's cancellation out."""

    name = "leaking"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Leak at once."""
        raise asyncio.CancelledError
        yield ModelStreamEvent.completed()


async def test_a_cancellation_that_leaks_from_a_provider_is_its_failure() -> None:
    app = make_app()
    app.register_provider(Leaking(), default=True)
    outcome = await run_to_completion(app, new_run())
    assert (outcome.status, outcome.error) == ("failed", {"code": "provider_failed", "detail": "CancelledError"})


async def test_sinks_hear_of_the_request_that_closes_a_lost_session() -> None:
    store, sink = InMemorySessionStore(), InMemoryEventSink()
    act = FakeTool("act")
    await _lost(store, [act])
    app = make_app(store, [calls("act"), "done"], [act], event_sinks=[sink])
    told = await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    assert [event.sequence for event in sink.events] == [event.sequence for event in told]
    assert types_of(told)[0] == E.SESSION_INTERRUPT_REQUESTED


async def test_an_end_that_comes_first_is_no_fault_of_the_interrupter() -> None:
    store = InMemorySessionStore()
    act = FakeTool("act")
    await _lost(store, [act])
    ending = make_app(store, [calls("act"), "done"], [act])

    async def end_first(unit: Unit) -> None:
        if has(unit, E.SESSION_INTERRUPT_REQUESTED):
            await play(ending.recover_incomplete_session(SESSION))

    app = make_app(StoreProxy(store, before=end_first), [calls("act"), "done"], [act])
    with pytest.raises(SessionNotRunning, match="completed"):
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))


async def test_a_bound_store_does_not_tell_of_what_it_may_not_see() -> None:
    store = InMemoryKnowledgeStore()
    for text in ("one", "two"):
        revision = 0 if text == "one" else 1
        await store.write(KnowledgeEntry(id="secret", text=text, namespace="hr"), revision)
    bound = store.bind(KnowledgeAccessScope(allowed_namespaces=("lab",)))
    with pytest.raises(Exception, match="cannot be created here") as refused:
        await bound.create_entry(KnowledgeEntry(id="secret", text="mine", namespace="lab"))
    assert "revision" not in str(refused.value)


async def test_what_is_registered_is_checked() -> None:
    with pytest.raises(InvalidInput, match="not an instance"):
        make_app(policy=FakePolicy)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not an AgentSpec"):
        CayuApp().register_agent("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="does not run a session"):
        await run_to_completion(make_app(), InterruptSessionRequest(session_id="s"))  # type: ignore[arg-type]


async def test_expiry_is_nobodys_decision() -> None:
    store = InMemorySessionStore()
    soon = ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, approval_expires_in_seconds=0.001)
    app = make_app(store, [calls("act"), "done"], [FakeTool("act")], FakePolicy(lambda request: soon))
    await play(app.run(new_run()))
    [approval_id] = await waiting_ids(app)
    await asyncio.sleep(0.01)
    await play(app.resolve_tool_approval(approval(approval_id)))
    with pytest.raises(AlreadyDecided, match="expired by the deadline"):
        await play(app.resolve_tool_approval(approval(approval_id)))


class Undeclared(ToolPolicy):
    """A user's own policy that declares no identity."""

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Ask a human."""
        return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL)


async def test_an_undeclared_part_is_named_before_and_after(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def build() -> CayuApp:
        store = SQLiteSessionStore(tmp_path / "s.db")
        return make_app(store, [calls("act"), "done"], [FakeTool("act")], Undeclared())

    async with build() as app:
        with caplog.at_level(logging.WARNING, "cayu.runtime"):
            await play(app.run(new_run()))
        assert "no identity declared for tool_policy" in caplog.text
        [approval_id] = await waiting_ids(app)
    async with build() as app:
        with pytest.raises(ExecutionProfileMismatchError, match="declares no execution_profile_identity"):
            await play(app.resolve_tool_approval(approval(approval_id)))


async def test_a_run_brings_its_own_metadata_to_its_tools() -> None:
    act = FakeTool("act")
    app = make_app(None, [calls("act"), "done", calls("act"), "done"], [act])
    await play(app.run(new_run(metadata={"ticket": 1, "kept": True})))
    await play(app.resume(next_turn(metadata={"ticket": 2})))
    assert [dict(ctx.metadata) for ctx in act.contexts] == [{"ticket": 1, "kept": True}, {"ticket": 2, "kept": True}]


def test_bad_requests_do_not_repeat_what_they_were_given() -> None:
    with pytest.raises(ValueError, match="messages") as refused:
        RunRequest(agent_name="a", messages="my secret prompt")  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


async def test_a_store_outside_the_runtime_is_read_back_as_it_was(tmp_path: Any) -> None:
    async with make_app(SQLiteSessionStore(tmp_path / "s.db")) as app:
        await play(app.run(new_run()))
        with pytest.raises(Exception, match="type 'dict' is not supported") as raised:
            await app.session_store.load({})  # type: ignore[arg-type]
        assert "SQLite refused" not in str(raised.value)
        assert (await log_of(app)).head.state.status == "completed"


async def test_a_lost_session_is_closed_without_the_registrations_that_it_began_with() -> None:
    store = InMemorySessionStore()
    act = FakeTool("act", effect=ToolEffect.EXTERNAL)
    await _lost(store, [act])
    stranger = CayuApp(session_store=store)
    told = await play(stranger.interrupt_session(InterruptSessionRequest(session_id=SESSION, reason="over")))
    assert types_of(told) == [E.SESSION_INTERRUPT_REQUESTED, E.EFFECT_OUTCOME_UNKNOWN, E.SESSION_INTERRUPTED]
    view = await assert_consistent(stranger)
    assert (view.status, [call.state for call in view.rounds[0].calls], len(act.calls)) == (
        "interrupted",
        ["unknown"],
        1,
    )


async def test_what_waits_for_something_else_is_said_to() -> None:
    app = make_app(None, [calls("act"), "done"], [FakeTool("act")], AlwaysRequireApprovalToolPolicy())
    await play(app.run(new_run()))
    [approval_id] = await waiting_ids(app)
    response = UserInputResponse(session_id=SESSION, input_id=approval_id, answer="yes")
    with pytest.raises(PendingActionNotFound, match="waits for an approval or a denial"):
        await play(app.resolve_user_input(response))


async def test_a_policy_that_fails_is_told_from_one_that_denies(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: ToolPolicyRequest) -> ToolPolicyResult:
        raise LookupError("no rule")

    app = make_app(None, [calls("act"), "done"], [FakeTool("act")], FakePolicy(fail))
    await play(app.run(new_run()))
    view = await session_view(app, SESSION)
    assert [(call.state, call.code) for call in view.rounds[0].calls] == [("blocked", "policy_failed")]
    assert "the tool policy" in caplog.text


def test_a_script_and_its_importer_have_one_identity(tmp_path: Any) -> None:
    program = tmp_path / "freezer.py"
    program.write_text(
        "from cayu import ToolEffect, tool\n"
        "@tool(version='1', effect=ToolEffect.NONE)\n"
        "def read() -> str:\n    return 'x'\n"
        "if __name__ == '__main__':\n    print(read.spec.execution_profile_identity.name)\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "freezer.read"
