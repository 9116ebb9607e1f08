"""Approvals and questions: durable pauses, one decision each, expiry by store time, repeats, races, and paging."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from runtime.support import (
    SESSION,
    FakeClock,
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

from cayu import CayuApp, ToolEffect, run_to_completion
from cayu.approvals import PendingActionQuery
from cayu.clock import as_datetime
from cayu.errors import AlreadyDecided, InvalidInput, PendingActionNotFound, SessionAwaitingHuman
from cayu.events import EventType as E
from cayu.messages import ToolResultPart
from cayu.providers.scripted import ScriptedModelProvider
from cayu.sessions import CallState, SessionStatus, UserInputResponse
from cayu.sessions.requests import ResolutionActor
from cayu.sessions.streams import SessionStore, Take
from cayu.sessions.view import arguments_digest
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import (
    AlwaysRequireApprovalToolPolicy,
    AskUserTool,
    ByNameToolPolicy,
    ToolPolicy,
    ToolPolicyDecision,
    ToolPolicyRequest,
)

APPROVE = AlwaysRequireApprovalToolPolicy()
NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def pay(**options: Any) -> FakeTool:
    return FakeTool("pay", effect=ToolEffect.EXTERNAL, **options)


def answer(input_id: str, text: str, by: str | None = None, **fields: Any) -> UserInputResponse:
    actor = ResolutionActor(subject=by) if by else None
    return UserInputResponse(session_id=SESSION, input_id=input_id, answer=text, resolved_by=actor, **fields)


async def paused(
    tool: FakeTool, wanted: int = 1, store: Any = None, policy: ToolPolicy = APPROVE, **arguments: Any
) -> tuple[CayuApp, list[str]]:
    """An app with a session that waits for `wanted` approvals, and their ids."""
    app = make_app(store, [calls(*[(tool.spec.name, arguments)] * wanted), "done"], [tool], policy)
    await play(app.run(new_run()))
    return app, await waiting_ids(app)


def provider_of(app: CayuApp) -> ScriptedModelProvider:
    provider = app.services.registry.assemble("a", None).provider
    assert isinstance(provider, ScriptedModelProvider)
    return provider


@pytest.mark.requirement("A050")
async def test_a_pause_is_durable_and_a_fresh_app_goes_on(tmp_path: Path) -> None:
    first = pay()
    app, _ = await paused(first, store=SQLiteSessionStore(tmp_path / "s.db"), x=1)
    assert types_of(await play(app.run(new_run("other"))))[-2:] == [E.TOOL_APPROVAL_REQUESTED, E.SESSION_INTERRUPTED]
    assert first.calls == []
    await app.aclose()

    second = pay()
    fresh = make_app(SQLiteSessionStore(tmp_path / "s.db"), [calls(("pay", {"x": 1})), "done"], [second], APPROVE)
    assert (await fresh.get_session(SESSION)).status == SessionStatus.INTERRUPTED
    page = await fresh.list_pending_actions(PendingActionQuery(session_id=SESSION))
    [action] = page.actions
    assert (action.kind, action.session, action.tool_name, action.tool_effect) == (
        "tool_approval",
        SESSION,
        "pay",
        "external",
    )
    assert (action.agent_name, action.arguments) == ("a", {"x": 1})
    assert action.arguments_digest == arguments_digest("pay", {"x": 1})
    assert action.approval_id == action.id
    request = approval(action.id, tool_round_id=action.round_id, tool_call_id=action.tool_call_id)
    outcome = await run_to_completion(fresh, request)
    assert (outcome.status, outcome.final_text, second.calls) == (SessionStatus.COMPLETED, "done", [{"x": 1}])
    assert (await fresh.list_pending_actions()).total == 1  # the other session still waits
    await assert_consistent(fresh)
    await fresh.aclose()


async def test_nothing_of_a_round_runs_while_one_call_waits() -> None:
    free, guarded = FakeTool("free"), pay()
    policy = ByNameToolPolicy({"pay": ToolPolicyDecision.REQUIRE_APPROVAL})
    app = make_app(None, [calls("free", "pay", "free"), "done"], [free, guarded], policy)
    events = await play(app.run(new_run()))
    assert free.calls == guarded.calls == []
    assert E.TOOL_STARTED not in types_of(events)
    [waiting] = await waiting_ids(app)
    outcome = await run_to_completion(app, approval(waiting))
    assert [call.state for call in outcome.tool_calls] == [CallState.COMPLETED] * 3
    assert (len(free.calls), len(guarded.calls)) == (2, 1)


async def test_a_decision_that_is_not_the_last_is_one_write_and_leaves_the_pause() -> None:
    store, tool = StoreProxy(InMemorySessionStore()), pay()
    app, (first, second, third) = await paused(tool, 3, store)
    store.units.clear()
    events = await play(app.resolve_tool_approval(approval(second)))
    assert types_of(events) == [E.TOOL_APPROVED]
    assert store.types == [[E.TOOL_APPROVED]]
    assert store.units[0].release
    assert await status_of(app) == SessionStatus.INTERRUPTED
    assert await waiting_ids(app) == [first, third]
    await play(app.resolve_tool_approval(approval(first, "deny")))
    assert tool.calls == []
    assert len(provider_of(app).requests) == 1
    await assert_consistent(app)

    store.units.clear()
    await play(app.resolve_tool_approval(approval(third)))
    opening = store.types[0]
    assert opening == [
        E.TOOL_APPROVED,
        E.SESSION_RESUMED,
        *[E.TOOL_STARTED, E.EFFECT_INTENT_RECORDED] * 2,
    ]
    assert isinstance(store.units[0].fence, Take)
    assert len(store.units) == 2 + 1 + 1  # two calls are three writes, then the end of the session
    assert len(tool.calls) == 2
    view = await assert_consistent(app)
    assert [call.state for call in view.rounds[0].calls] == ["blocked", "completed", "completed"]


@pytest.mark.requirement("A042")
async def test_a_denial_leaves_no_effect_and_the_model_reads_it() -> None:
    tool = pay()
    app, [waiting] = await paused(tool)
    outcome = await run_to_completion(app, approval(waiting, "deny", by="ann", reason="too much"))
    assert (outcome.status, tool.calls) == (SessionStatus.COMPLETED, [])
    [part] = provider_of(app).requests[-1].messages[-1].content
    assert isinstance(part, ToolResultPart)
    assert part.is_error
    assert "denied" in part.content
    assert "too much" in part.content
    assert outcome.tool_calls[0].state == CallState.BLOCKED
    assert (await logged(app, E.TOOL_APPROVAL_DENIED))[0]["resolved_by"] == {"subject": "ann", "claims": {}}
    assert await logged(app, E.TOOL_STARTED) == []


async def test_when_all_are_denied_the_last_decision_closes_the_round() -> None:
    store, tool = StoreProxy(InMemorySessionStore()), pay()
    app, (first, second) = await paused(tool, 2, store)
    await play(app.resolve_tool_approval(approval(first, "deny")))
    store.units.clear()
    await play(app.resolve_tool_approval(approval(second, "deny")))
    assert [has(unit, E.ROUND_COMMITTED) for unit in store.units] == [True, False]
    await assert_consistent(app)


async def test_edited_arguments_are_what_runs_under_a_digest_of_their_own() -> None:
    tool = pay(schema=NUMBER)
    app, [waiting] = await paused(tool, x=100)
    outcome = await run_to_completion(app, approval(waiting, arguments={"x": 5}))
    assert tool.calls == [{"x": 5}]
    assert outcome.tool_calls[0].arguments == {"x": 5}
    [approved] = await logged(app, E.TOOL_APPROVED)
    [intent] = await logged(app, E.EFFECT_INTENT_RECORDED)
    assert approved["digest"] == intent["digest"] == arguments_digest("pay", {"x": 5})
    assert approved["digest"] != arguments_digest("pay", {"x": 100})
    view = await assert_consistent(app)
    assert view.transcript[1].tool_calls[0].arguments == {"x": 100}  # what the model said stays as it was


@pytest.mark.parametrize("arguments", [{"x": "5"}, {}, {"x": 1, "y": 2}])
async def test_edited_arguments_outside_the_schema_are_refused_before_a_write(arguments: dict[str, Any]) -> None:
    tool = pay(schema=NUMBER)
    app, [waiting] = await paused(tool, x=100)
    before = await log_of(app)
    with pytest.raises(InvalidInput, match="schema"):
        await play(app.resolve_tool_approval(approval(waiting, arguments=arguments)))
    assert (await log_of(app)).head == before.head
    assert tool.calls == []
    assert await waiting_ids(app) == [waiting]


async def test_a_denial_takes_no_arguments() -> None:
    app, [waiting] = await paused(pay())
    before = await log_of(app)
    with pytest.raises(InvalidInput, match="denial"):
        await play(app.resolve_tool_approval(approval(waiting, "deny", arguments={})))
    assert (await log_of(app)).head == before.head


@pytest.mark.requirement("A081")
@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("seconds, runs", [(59.9, True), (60, False), (3600, False)])
async def test_expiry_by_the_stores_time(seconds: float, runs: bool, decision: str) -> None:
    clock, tool = FakeClock(), pay()
    policy = AlwaysRequireApprovalToolPolicy(expires_in_seconds=60)
    app, [waiting] = await paused(tool, 1, InMemorySessionStore(clock=clock), policy)
    [action] = (await app.list_pending_actions()).actions
    assert action.requested_at == as_datetime(clock.us)
    assert action.expires_at == as_datetime(clock.us + 60_000_000)
    clock.us += round(seconds * 1_000_000)
    outcome = await run_to_completion(app, approval(waiting, decision))
    assert (outcome.status, outcome.final_text) == (SessionStatus.COMPLETED, "done")
    assert len(tool.calls) == (1 if runs and decision == "approve" else 0)
    assert len(await logged(app, E.TOOL_APPROVAL_EXPIRED)) == (0 if runs else 1)
    if not runs:
        assert outcome.tool_calls[0].code == "approval_expired"
        with pytest.raises(AlreadyDecided, match="expired"):
            await play(app.resolve_tool_approval(approval(waiting, decision)))
    await assert_consistent(app)


@pytest.mark.requirement("A081")
async def test_resume_sweeps_what_has_expired() -> None:
    clock, tool = FakeClock(), pay()
    policy = AlwaysRequireApprovalToolPolicy(expires_in_seconds=60)
    app, waiting = await paused(tool, 2, InMemorySessionStore(clock=clock), policy)
    await play(app.resolve_tool_approval(approval(waiting[0])))
    with pytest.raises(SessionAwaitingHuman):
        await play(app.resume(next_turn()))
    clock.advance(60)
    outcome = await run_to_completion(app, next_turn())
    assert outcome.status == SessionStatus.COMPLETED
    assert [call.code for call in outcome.tool_calls] == [None, "approval_expired"]
    assert len(tool.calls) == 1
    view = await assert_consistent(app)
    assert [message.role for message in view.transcript] == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.requirement("A041")
@pytest.mark.parametrize("arguments", [None, {"x": 5}])
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_an_exact_repeat_gives_what_was_recorded_and_does_nothing(
    decision: str, arguments: dict[str, Any] | None
) -> None:
    if decision == "deny":
        arguments = None
    tool = pay(schema=NUMBER)
    app, (first, second) = await paused(tool, 2, x=1)
    request = approval(first, decision, arguments=arguments)
    await play(app.resolve_tool_approval(request))
    before = await log_of(app)
    early = await play(app.resolve_tool_approval(request))  # the session still waits for the other one
    assert len(early) == 1
    assert (await log_of(app)).head == before.head

    final = await play(app.resolve_tool_approval(approval(second, "deny")))
    assert types_of(final)[-1] == E.SESSION_COMPLETED
    before = await log_of(app)
    asked = len(provider_of(app).requests)
    for _ in range(3):
        events = await play(app.resolve_tool_approval(request))
        call_id = first.removesuffix(".approval")
        assert {event.payload["tool_call_id"] for event in events} == {call_id}
        expected = [E.TOOL_COMPLETED] if decision == "approve" else [E.TOOL_BLOCKED]
        assert types_of(events)[-1:] == expected
        assert [event.sequence for event in events] == sorted(event.sequence or 0 for event in events)
    outcome = await run_to_completion(app, request)
    assert (outcome.status, outcome.final_text) == (SessionStatus.COMPLETED, "done")
    after = await log_of(app)
    assert (after.head, list(after.records)) == (before.head, list(before.records))
    assert len(tool.calls) == (decision == "approve")
    assert len(provider_of(app).requests) == asked


@pytest.mark.parametrize(
    "first, second",
    [
        ({"decision": "approve"}, {"decision": "deny"}),
        ({"decision": "deny"}, {"decision": "approve"}),
        ({"decision": "approve"}, {"decision": "approve", "arguments": {"x": 2}}),
        ({"decision": "approve", "arguments": {"x": 2}}, {"decision": "approve", "arguments": {"x": 3}}),
        ({"decision": "approve", "arguments": {"x": 2}}, {"decision": "approve"}),
    ],
)
async def test_a_different_decision_is_told_who_decided_and_when(first: Any, second: Any) -> None:
    clock = FakeClock()
    app, (waiting, _) = await paused(pay(schema=NUMBER), 2, InMemorySessionStore(clock=clock), x=1)
    await play(app.resolve_tool_approval(approval(waiting, by="ann", **first)))
    decided_at = as_datetime(clock.us).isoformat(timespec="seconds")
    clock.advance(100)
    before = await log_of(app)
    with pytest.raises(AlreadyDecided) as caught:
        await play(app.resolve_tool_approval(approval(waiting, by="bob", **second)))
    told = caught.value
    assert (told.action_id, told.decision, told.decided_by, told.decided_at) == (
        waiting,
        first["decision"],
        "ann",
        decided_at,
    )
    assert "ann" in str(told)
    assert (await log_of(app)).head == before.head


@pytest.mark.parametrize("decisions", [("approve", "approve"), ("approve", "deny")])
async def test_of_two_apps_that_decide_at_once_one_decides(decisions: tuple[str, str], tmp_path: Path) -> None:
    path, receipts = tmp_path / "s.db", []

    async def act(ctx: Any, args: dict[str, Any]) -> Any:
        receipts.append(ctx.session_id)
        from cayu.tools import ToolResult

        return ToolResult(content="paid")

    def build() -> CayuApp:
        return make_app(SQLiteSessionStore(path), [calls("pay"), "done"], [pay(work=act)], APPROVE)

    apps = [build(), build()]
    winners: set[str] = set()
    for number in range(25):
        name = f"s{number}"
        await play(apps[0].run(new_run(name)))
        [waiting] = await waiting_ids(apps[0], name)
        order = apps if number % 2 else apps[::-1]
        found = await asyncio.gather(
            *(
                play(app.resolve_tool_approval(approval(waiting, decision, by=decision, session_id=name)))
                for app, decision in zip(order, decisions, strict=True)
            ),
            return_exceptions=True,
        )
        failures = [each for each in found if isinstance(each, BaseException)]
        if decisions[0] == decisions[1]:
            assert failures == []
        else:
            assert [type(each) for each in failures] == [AlreadyDecided]
        view = await assert_consistent(apps[1], name)
        assert view.status == SessionStatus.COMPLETED
        [decided] = view.decisions.values()
        winners.add(decided.decision)
        assert receipts.count(name) == (decided.decision == "approve")
    assert winners <= set(decisions)
    await asyncio.gather(*(app.aclose() for app in apps))


async def test_two_apps_decide_the_two_calls_of_one_round_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    tools = [pay(), pay()]
    apps = [make_app(SQLiteSessionStore(path), [calls("pay", "pay"), "done"], [tool], APPROVE) for tool in tools]
    for number in range(25):
        name = f"s{number}"
        await play(apps[0].run(new_run(name)))
        waiting = await waiting_ids(apps[0], name)
        requests = [approval(each, session_id=name) for each in waiting]
        await asyncio.gather(*(play(app.resolve_tool_approval(each)) for app, each in zip(apps, requests, strict=True)))
        view = await assert_consistent(apps[0], name)
        assert (view.status, view.tool_calls) == (SessionStatus.COMPLETED, 2)
    assert len(tools[0].calls) + len(tools[1].calls) == 50
    await asyncio.gather(*(app.aclose() for app in apps))


@pytest.mark.requirement("A099")
async def test_the_policy_is_asked_again_and_a_later_denial_blocks() -> None:
    now = {"says": ToolPolicyDecision.REQUIRE_APPROVAL}
    policy, tool = FakePolicy(lambda request: now["says"]), pay()
    app, [waiting] = await paused(tool, policy=policy)
    now["says"] = ToolPolicyDecision.DENY
    outcome = await run_to_completion(app, approval(waiting))
    assert (outcome.status, tool.calls) == (SessionStatus.COMPLETED, [])
    assert (outcome.tool_calls[0].state, outcome.tool_calls[0].code) == (CallState.BLOCKED, "policy_denied")
    assert len(policy.asked) == 2
    assert await logged(app, E.TOOL_STARTED) == []
    await assert_consistent(app)


@pytest.mark.requirement("A099")
async def test_the_policy_is_asked_again_about_the_edited_arguments() -> None:
    def decide(request: ToolPolicyRequest) -> ToolPolicyDecision:
        return ToolPolicyDecision.DENY if request.arguments["x"] > 1000 else ToolPolicyDecision.REQUIRE_APPROVAL

    for edited, runs in ((5, True), (5000, False)):
        tool = pay(schema=NUMBER)
        app, [waiting] = await paused(tool, policy=FakePolicy(decide), x=100)
        await play(app.resolve_tool_approval(approval(waiting, arguments={"x": edited})))
        assert tool.calls == ([{"x": edited}] if runs else [])


@pytest.mark.requirement("A048")
async def test_an_ordinary_resume_resolves_nothing_and_names_the_call_to_use() -> None:
    tools = [pay(), AskUserTool()]
    app = make_app(None, [calls("pay", ("ask_user", {"question": "Which?"})), "done"], tools, APPROVE)
    await play(app.run(new_run()))
    before, waiting = await log_of(app), await waiting_ids(app)
    with pytest.raises(SessionAwaitingHuman) as caught:
        await play(app.resume(next_turn()))
    for word in ("resolve_tool_approval", "resolve_user_input", *waiting):
        assert word in str(caught.value)
    after = await log_of(app)
    assert (after.head, list(after.records)) == (before.head, list(before.records))
    assert await waiting_ids(app) == waiting
    assert len(provider_of(app).requests) == 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_paging(kind: str, tmp_path: Path) -> None:
    store: SessionStore = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    batch = calls("pay", ("ask_user", {"question": "Which?"}), "pay")
    app = make_app(store, [batch, "done"], [pay(), AskUserTool()], APPROVE)
    for number in range(3):
        await play(app.run(new_run(f"s{number}")))
    whole = await app.list_pending_actions(PendingActionQuery(limit=1000))
    assert (whole.total, len(whole.actions), whole.next_cursor) == (9, 9, None)
    assert [action.session for action in whole.actions] == ["s0"] * 3 + ["s1"] * 3 + ["s2"] * 3
    for limit in (1, 2, 4, 9):
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(10):
            page = await app.list_pending_actions(PendingActionQuery(limit=limit, cursor=cursor))
            assert page.total == 9
            assert len(page.actions) <= limit
            found += page.actions
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == list(whole.actions)
    questions = await app.list_pending_actions(PendingActionQuery(kind="user_input"))
    assert [action.kind for action in questions.actions] == ["user_input"] * 3
    assert (await app.list_pending_actions(PendingActionQuery(session_id="s1"))).total == 3
    assert (await app.list_pending_actions(PendingActionQuery(session_id="nobody"))).actions == ()
    await app.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_deciding_between_pages_hides_nothing_that_still_waits(kind: str, tmp_path: Path) -> None:
    store: SessionStore = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    app, waiting = await paused(pay(), 3, store)
    first = await app.list_pending_actions(PendingActionQuery(limit=1))
    await play(app.resolve_tool_approval(approval(first.actions[0].id)))
    rest = await app.list_pending_actions(PendingActionQuery(limit=10, cursor=first.next_cursor))
    assert [action.id for action in rest.actions] == waiting[1:]
    await app.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", " 1", "9" * 40])
async def test_a_cursor_that_is_none_is_refused(cursor: str, kind: str, tmp_path: Path) -> None:
    store: SessionStore = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    app, _ = await paused(pay(), 1, store)
    with pytest.raises(InvalidInput, match="cursor"):
        await app.list_pending_actions(PendingActionQuery(cursor=cursor))
    await app.aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        {"approval_id": "nothing"},
        {"session_id": "nobody"},
        {"tool_round_id": "another"},
        {"tool_call_id": "another"},
    ],
    ids=str,
)
async def test_wrong_ids_find_nothing_and_write_nothing(wrong: dict[str, str]) -> None:
    from cayu.errors import SessionNotFound

    tool = pay()
    app, [waiting] = await paused(tool)
    before = await log_of(app)
    with pytest.raises((PendingActionNotFound, SessionNotFound)):
        await play(app.resolve_tool_approval(approval(**{"approval_id": waiting, **wrong})))
    assert (await log_of(app)).head == before.head
    assert tool.calls == []


@pytest.mark.parametrize("wanted", [1, 2])
async def test_an_approval_is_no_question_and_a_question_is_no_approval(wanted: int) -> None:
    """With one action the wrong call would be the last decision, with two it would not: neither may write."""
    for name, arguments in (("pay", {}), ("ask_user", OPTIONS)):
        tool = pay()
        app = make_app(None, [calls(*[(name, arguments)] * wanted), "done"], [tool, AskUserTool()], APPROVE)
        await play(app.run(new_run()))
        waiting, *_ = await waiting_ids(app)
        before = await log_of(app)
        wrong = answer(waiting, "red") if name == "pay" else approval(waiting)
        with pytest.raises(PendingActionNotFound):
            await run_to_completion(app, wrong)
        assert (await log_of(app)).head == before.head
        assert tool.calls == []
        await assert_consistent(app)


async def asked(question: dict[str, Any], **options: Any) -> tuple[CayuApp, str]:
    """An app with a session that waits for the answer to one question, and its id."""
    app = make_app(options.pop("store", None), [calls(("ask_user", question)), "done"], [AskUserTool(**options)])
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    return app, waiting


OPTIONS = {"question": "Which?", "options": ["red", "blue"]}


@pytest.mark.parametrize(
    "question, given, admitted",
    [
        ({"question": "Which?"}, "anything", True),
        (OPTIONS, "red", True),
        (OPTIONS, "green", False),
        ({**OPTIONS, "allow_other": True}, "green", True),
        ({**OPTIONS, "allow_other": False}, "green", False),
        ({**OPTIONS, "allow_other": False}, "blue", True),
    ],
)
async def test_questions_and_their_answers(question: dict[str, Any], given: str, admitted: bool) -> None:
    app, waiting = await asked(question)
    [action] = (await app.list_pending_actions()).actions
    assert (action.kind, action.question, action.input_id) == ("user_input", "Which?", waiting)
    assert list(action.options) == question.get("options", [])
    if not admitted:
        before = await log_of(app)
        with pytest.raises(InvalidInput, match="options"):
            await play(app.resolve_user_input(answer(waiting, given)))
        assert (await log_of(app)).head == before.head
        return
    outcome = await run_to_completion(app, answer(waiting, given, by="ann"))
    assert (outcome.status, outcome.tool_calls[0].content) == (SessionStatus.COMPLETED, given)
    assert outcome.tool_calls[0].structured == {"answer": given, "question": "Which?"}
    [part] = provider_of(app).requests[-1].messages[-1].content
    assert isinstance(part, ToolResultPart)
    assert (part.content, part.is_error) == (given, False)
    before = await log_of(app)
    assert types_of(await play(app.resolve_user_input(answer(waiting, given)))) == [E.TOOL_STAGED, E.TOOL_COMPLETED]
    with pytest.raises(AlreadyDecided, match="ann"):
        await play(app.resolve_user_input(answer(waiting, "another")))
    assert (await log_of(app)).head == before.head
    await assert_consistent(app)


async def test_a_question_with_no_text_is_never_asked() -> None:
    app = make_app(None, [calls(("ask_user", {"question": ""})), "done"], [AskUserTool()])
    outcome = await run_to_completion(app, new_run())
    assert (outcome.status, outcome.tool_calls[0].code) == (SessionStatus.COMPLETED, "invalid_arguments")


@pytest.mark.parametrize("by_resume", [True, False])
async def test_a_question_expires(by_resume: bool) -> None:
    clock = FakeClock()
    app, waiting = await asked(OPTIONS, store=InMemorySessionStore(clock=clock), expires_in_seconds=30)
    clock.advance(30)
    outcome = await run_to_completion(app, next_turn() if by_resume else answer(waiting, "red"))
    assert outcome.status == SessionStatus.COMPLETED
    assert (outcome.tool_calls[0].state, outcome.tool_calls[0].code) == (CallState.BLOCKED, "input_expired")
    with pytest.raises(AlreadyDecided):
        await play(app.resolve_user_input(answer(waiting, "red")))
    await assert_consistent(app)


@pytest.mark.parametrize("answer_first", [True, False])
async def test_a_round_with_an_approval_a_question_and_a_free_call(answer_first: bool) -> None:
    free, guarded = FakeTool("free"), pay()
    policy = ByNameToolPolicy({"pay": ToolPolicyDecision.REQUIRE_APPROVAL})
    batch = calls("free", ("ask_user", OPTIONS), "pay")
    store = StoreProxy(InMemorySessionStore())
    app = make_app(store, [batch, "done"], [free, guarded, AskUserTool()], policy)
    await play(app.run(new_run()))
    question, approve = sorted(await waiting_ids(app), key=lambda each: each.endswith("approval"))
    steps = [app.resolve_user_input(answer(question, "red")), app.resolve_tool_approval(approval(approve))]
    first, last = steps if answer_first else steps[::-1]
    await play(first)
    assert free.calls == guarded.calls == []
    assert await status_of(app) == SessionStatus.INTERRUPTED
    store.units.clear()
    await play(last)
    assert len(store.units) == 2 + 1 + 1  # two calls are dispatched: three writes, then the end
    assert (len(free.calls), len(guarded.calls)) == (1, 1)
    view = await assert_consistent(app)
    answers = view.transcript[2].content
    assert [part.content for part in answers if isinstance(part, ToolResultPart)] == [
        "free did it",
        "red",
        "pay did it",
    ]


async def test_a_second_pause_in_one_run() -> None:
    app = make_app(None, [calls("pay"), calls("pay"), "done"], [pay()], APPROVE)
    await play(app.run(new_run()))
    [first] = await waiting_ids(app)
    assert types_of(await play(app.resolve_tool_approval(approval(first))))[-1] == E.SESSION_INTERRUPTED
    [second] = await waiting_ids(app)
    assert second != first
    outcome = await run_to_completion(app, approval(second))
    assert (outcome.status, outcome.model_steps) == (SessionStatus.COMPLETED, 3)
    assert (await app.get_session(SESSION)).run_epoch == 3
    assert len(await logged(app, E.SESSION_RESUMED)) == 2


async def test_max_steps_holds_over_a_pause() -> None:
    app = make_app(None, [calls("pay"), calls("pay"), "done"], [pay()], APPROVE)
    await play(app.run(new_run(max_steps=1)))
    [waiting] = await waiting_ids(app)
    outcome = await run_to_completion(app, approval(waiting))
    assert outcome.interruption == {"reason": "limit_reached", "limit": "max_steps"}
    assert outcome.model_steps == 1
