"""Decisions over HTTP: made by the principal, answered once they are durable, while the run goes on in the server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from runtime.support import (
    FakeClock,
    FakePolicy,
    FakeTool,
    StoreProxy,
    calls,
    has,
    logged,
    make_app,
    new_run,
    play,
    status_of,
    waiting_ids,
)
from server.support import USER, hang, problem, serving, waiting_app

from cayu import CayuApp, EventType
from cayu.errors import StoreFull
from cayu.sessions.streams import Unit
from cayu.storage import InMemorySessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy, AskUserTool, ToolPolicyDecision, ToolPolicyResult

ACTOR = {"subject": "ada", "tenant": "t1", "source": "server", "claims": {"desk": 7}}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def until_status(app: CayuApp, status: str) -> None:
    """Wait until the session has come to a status."""
    async with asyncio.timeout(5):
        while await status_of(app) != status:
            await asyncio.sleep(0.005)


async def first(app: CayuApp) -> dict[str, Any]:
    """The body that names the first action that waits."""
    return {"session_id": "s", "approval_id": (await waiting_ids(app))[0]}


async def test_what_waits_is_listed() -> None:
    app = await waiting_app(FakeTool("act"), AskUserTool(), asked=("act", ("ask_user", {"question": "why?"})))
    async with serving(app) as client:
        page = (await client.get("/api/pending", headers=USER)).json()
        assert page == (await app.list_pending_actions()).model_dump(mode="json")
        assert [each["kind"] for each in page["actions"]] == ["tool_approval", "user_input"]
        one = (await client.get("/api/pending", params={"limit": 1})).json()
        assert (len(one["actions"]), one["total"]) == (1, 2)
        rest = (await client.get("/api/pending", params={"cursor": one["next_cursor"]})).json()
        assert [each["kind"] for each in rest["actions"]] == ["user_input"]
        asked = (await client.get("/api/pending", params={"kind": "user_input", "session_id": "s"})).json()
        assert [each["question"] for each in asked["actions"]] == ["why?"]
        assert (await client.get("/api/pending", params={"session_id": "t"})).json()["total"] == 0


async def test_an_approval_is_the_principals_and_the_run_goes_on() -> None:
    app = await waiting_app(tool := FakeTool("act", schema=NUMBER), asked=(("act", {"n": 1}),))
    async with serving(app) as client:
        body = {**await first(app), "arguments": {"n": 2}, "reason": "rather two"}
        response = await client.post("/api/pending/approve", json=body, headers=USER)
        assert response.status_code == 200, response.text
        told = response.json()
        assert (told["session_id"], told["action_id"], told["decision"]) == ("s", body["approval_id"], "approved")
        (recorded,) = await logged(app, EventType.TOOL_APPROVED)
        assert (recorded["resolved_by"], recorded["reason"]) == (ACTOR, "rather two")
        await until_status(app, "completed")
        assert tool.calls == [{"n": 2}]
        events = (await client.get("/api/sessions/s/events")).json()["events"]
        assert told["event_id"] in [event["id"] for event in events if event["type"] == "tool.call.approved"]
        again = await client.post("/api/pending/approve", json=body)
        assert again.json() == told
        denied = await client.post("/api/pending/deny", json={"session_id": "s", "approval_id": body["approval_id"]})
        refused = problem(denied, 409, "AlreadyDecided")
        assert (refused["session_id"], refused["action_id"]) == ("s", body["approval_id"])
        assert len(tool.calls) == 1


async def test_a_denial_and_an_answer_are_the_principals_too() -> None:
    question = {"question": "which?", "options": ["a", "b"]}
    app = await waiting_app(FakeTool("act"), AskUserTool(), asked=("act", ("ask_user", question)))
    async with serving(app) as client:
        approval_id, input_id = await waiting_ids(app)
        body = {"session_id": "s", "approval_id": approval_id, "reason": "no"}
        response = await client.post("/api/pending/deny", json=body, headers=USER)
        assert response.json()["decision"] == "denied"
        (recorded,) = await logged(app, EventType.TOOL_APPROVAL_DENIED)
        assert recorded["resolved_by"] == ACTOR
        wrong = {"session_id": "s", "input_id": input_id, "answer": "c"}
        assert "options" in problem(await client.post("/api/pending/answer", json=wrong), 422, "InvalidInput")["detail"]
        response = await client.post("/api/pending/answer", json={**wrong, "answer": "b"}, headers=USER)
        assert (response.json()["decision"], response.json()["action_id"]) == ("answered", input_id)
        await until_status(app, "completed")
        staged = [each for each in await logged(app, EventType.TOOL_STAGED) if each.get("action") == input_id]
        assert [each["resolved_by"] for each in staged] == [ACTOR]


async def test_the_answer_does_not_wait_for_the_run() -> None:
    app = await waiting_app(tool := FakeTool("act", hang))
    async with serving(app) as client:
        async with asyncio.timeout(5):
            response = await client.post("/api/pending/approve", json=await first(app))
        assert response.json()["decision"] == "approved"
        async with asyncio.timeout(5):
            await tool.entered.wait()
        assert await status_of(app) == "running"
        problem(await client.post("/api/pending/deny", json={**await _named(app)}), 409, "AlreadyDecided")
    assert await status_of(app) == "interrupted"


async def _named(app: CayuApp) -> dict[str, Any]:
    (recorded,) = await logged(app, EventType.TOOL_APPROVED)
    return {"session_id": "s", "approval_id": recorded["action"]}


async def test_one_of_many_that_decide_at_once_decides() -> None:
    app = await waiting_app(tool := FakeTool("act"))
    async with serving(app) as client:
        body = await first(app)
        verdicts = [client.post(f"/api/pending/{'deny' if n % 2 else 'approve'}", json=body) for n in range(10)]
        answers = await asyncio.gather(*verdicts)
        await until_status(app, "completed")
        decided = [each.json()["decision"] for each in answers if each.status_code == 200]
        assert len(set(decided)) == 1
        assert len(decided) == 5
        assert {each.json()["code"] for each in answers if each.status_code != 200} == {"AlreadyDecided"}
        assert len(tool.calls) == (1 if decided[0] == "approved" else 0)


@pytest.mark.parametrize(
    "body, status, code",
    [
        ({"session_id": "none"}, 404, "SessionNotFound"),
        ({"approval_id": "none"}, 404, "PendingActionNotFound"),
        ({"arguments": {"n": "two"}}, 422, "InvalidInput"),
    ],
)
async def test_a_decision_that_cannot_be_made_changes_nothing(body: dict[str, Any], status: int, code: str) -> None:
    app = await waiting_app(FakeTool("act", schema=NUMBER), asked=(("act", {"n": 1}),))
    async with serving(app) as client:
        response = await client.post("/api/pending/approve", json={**await first(app), **body})
        told = problem(response, status, code)
        assert "two" not in told["detail"]
        assert len(await waiting_ids(app)) == 1


async def test_a_decision_that_comes_too_late_is_no_success() -> None:
    clock = FakeClock()
    policy = AlwaysRequireApprovalToolPolicy(expires_in_seconds=60)
    app = await waiting_app(tool := FakeTool("act"), policy=policy, store=InMemorySessionStore(clock=clock))
    async with serving(app) as client:
        body = await first(app)
        clock.advance(61)
        told = problem(await client.post("/api/pending/approve", json=body), 409, "action_expired")
        assert (told["session_id"], told["action_id"]) == ("s", body["approval_id"])
        await until_status(app, "completed")
        assert tool.calls == []
        problem(await client.post("/api/pending/approve", json=body), 409, "AlreadyDecided")


async def test_a_changed_profile_is_refused_although_its_refusal_is_written_first() -> None:
    store = InMemorySessionStore()
    before = await waiting_app(store=store)
    after = make_app(store, tools=[FakeTool("act"), FakeTool("other")], policy=AlwaysRequireApprovalToolPolicy())
    async with serving(after) as client:
        response = await client.post("/api/pending/approve", json=await first(before))
        told = problem(response, 409, "ExecutionProfileMismatchError")
        assert told["session_id"] == "s"
        assert len(await logged(after, EventType.SESSION_PROFILE_REJECTED)) == 1
        assert len(await waiting_ids(after)) == 1


async def test_an_agent_that_is_not_registered_is_not_the_clients_fault() -> None:
    store = InMemorySessionStore()
    body = await first(await waiting_app(store=store))
    async with serving(CayuApp(session_store=store)) as client:
        problem(await client.post("/api/pending/approve", json=body), 409, "NotRegistered")


async def test_what_goes_wrong_after_the_decision_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def before(unit: Unit) -> None:
        if has(unit, EventType.TOOL_COMPLETED):
            raise StoreFull(path="x")

    app = await waiting_app(store=StoreProxy(InMemorySessionStore(), before=before))
    async with serving(app) as client:
        with caplog.at_level(logging.ERROR, logger="cayu.server"):
            response = await client.post("/api/pending/approve", json=await first(app))
            assert response.json()["decision"] == "approved"
            async with asyncio.timeout(5):
                while "has failed" not in caplog.text:
                    await asyncio.sleep(0.005)
    assert "StoreFull" in caplog.text


async def test_the_policy_is_asked_again_and_the_decision_stands() -> None:
    verdicts = [ToolPolicyDecision.REQUIRE_APPROVAL, ToolPolicyDecision.DENY]
    policy = FakePolicy(lambda request: ToolPolicyResult(decision=verdicts.pop(0)))
    app = make_app(batches=(calls("act"), "done"), tools=[tool := FakeTool("act")], policy=policy)
    await play(app.run(new_run()))
    async with serving(app) as client:
        assert (await client.post("/api/pending/approve", json=await first(app))).json()["decision"] == "approved"
        await until_status(app, "completed")
        assert tool.calls == []
