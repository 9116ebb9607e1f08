"""Sessions over HTTP: found, read as they stand in the log, and stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from runtime.support import FakePolicy, FakeTool, calls, log_of, logged, make_app, new_run, play, status_of
from server.support import PROBLEM, USER, client_of, hang, problem, serving, tokens, waiting_app

from cayu import CayuApp, Event
from cayu.server import create_server
from cayu.sessions import Session
from cayu.tools import ToolPolicyDecision

STRANGE = (
    "a/b/c",
    "/",
    "a/events",
    "events",
    "interrupt",
    "with space?and=query#and more",
    "100%25/..%2f",
    "ünï☃\u202e",
    "'; \"\\",
    "tab\tnew\nline",
    "x" * 512,
)
"""Ids that only encoding keeps apart from the rest of a URL."""


async def app_with(*ids: str, **options: Any) -> CayuApp:
    """An application with a completed session of every id."""
    app = make_app(**options)
    for name in ids:
        await play(app.run(new_run(name, title=f"title of {name[:50]}")))
    return app


def quoted(session_id: str) -> str:
    """The id as one segment of a path, every byte encoded."""
    return "".join(f"%{byte:02x}" for byte in session_id.encode())


async def test_sessions_are_listed_in_pages_newest_first() -> None:
    app = await app_with(*"abcde")
    async with serving(app) as client:
        seen: list[str] = []
        cursor = None
        while True:
            params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/api/sessions", params=params, headers=USER)).json()
            assert page["total"] == 5
            seen += [each["id"] for each in page["sessions"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == list("edcba")


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["w", "b", "a"]),
    ({"agent": "a"}, ["w", "b", "a"]),
    ({"agent": "nobody"}, []),
    ({"status": "completed"}, ["b", "a"]),
    ({"status": "interrupted"}, ["w"]),
    ({"text": "TITLE OF B"}, ["b"]),
    ({"text": "%"}, []),
    ({"text": ""}, ["w", "b", "a"]),
    ({"session_id": "a"}, ["a"]),
    ({"session_id": "a", "status": "failed"}, []),
    ({"limit": 1}, ["w"]),
]


async def test_sessions_are_found() -> None:
    ask, allow = ToolPolicyDecision.REQUIRE_APPROVAL, ToolPolicyDecision.ALLOW
    policy = FakePolicy(lambda request: ask if request.session.id == "w" else allow)
    app = make_app(batches=[calls("act"), "done"], tools=[FakeTool("act")], policy=policy)
    for name in "abw":
        await play(app.run(new_run(name, title=f"title of {name}")))
    async with serving(app) as client:
        for params, found in FILTERS:
            page = (await client.get("/api/sessions", params=params)).json()
            assert ([each["id"] for each in page["sessions"]], params) == (found, params)


BAD_QUESTIONS = [
    "/api/sessions?limit=0",
    "/api/sessions?limit=201",
    "/api/sessions?limit=x",
    "/api/sessions?status=asleep",
    "/api/sessions?text=%00",
    "/api/sessions?agent=%00",
    "/api/sessions?session_id=",
    "/api/sessions?cursor=nonsense",
    "/api/sessions?cursor=[99999999999999999999]",
    "/api/sessions?cursor=[true]",
    "/api/sessions?cursor=" + "%5B" * 4000,
    "/api/sessions/%00",
    "/api/sessions/" + "x" * 513,
    "/api/sessions/s/events?after=-1",
    "/api/sessions/s/events?after=9223372036854775808",
    "/api/sessions/s/events?limit=501",
    "/api/pending?limit=201",
    "/api/pending?kind=nap",
    "/api/pending?cursor=[]",
    "/api/pending?cursor=[1,2,3]",
    "/api/pending?session_id=%00",
]


async def test_bad_questions_are_told_to_be_so() -> None:
    async with serving(make_app()) as client:
        for url in BAD_QUESTIONS:
            response = await client.get(url)
            assert (url, response.status_code, response.headers["content-type"]) == (url, 422, PROBLEM)


async def test_an_id_may_hold_any_character() -> None:
    app = await app_with("a", *STRANGE)
    async with serving(app) as client:
        for session_id in STRANGE:
            events = (await client.get(f"/api/sessions/{quoted(session_id)}/events")).json()["events"]
            assert {event["session_id"] for event in events} == {session_id}
            (found,) = (await client.get("/api/sessions", params={"session_id": session_id})).json()["sessions"]
            assert Session.model_validate(found) == await app.get_session(session_id)
            if not session_id.endswith("/events"):
                assert (await client.get(f"/api/sessions/{quoted(session_id)}")).json() == found


async def test_a_session_that_is_not_there() -> None:
    async with serving(make_app()) as client:
        problem(await client.get("/api/sessions/"), 404, "not_found")
        for path in ("no/such", "no/such/events"):
            told = problem(await client.get(f"/api/sessions/{path}"), 404, "SessionNotFound")
            assert told["session_id"] == "no/such"


async def test_events_are_read_in_pages_as_they_stand_in_the_log() -> None:
    app = make_app(batches=[calls("act"), "done"], tools=[FakeTool("act")])
    told = [event for event in await play(app.run(new_run())) if event.sequence is not None]
    async with serving(app) as client:
        read: list[Event] = []
        after: int | None = 0
        while after is not None:
            page = (await client.get("/api/sessions/s/events", params={"after": after, "limit": 2})).json()
            assert 1 <= len(page["events"]) <= 2
            read += map(Event.model_validate, page["events"])
            after = page["next_after"]
        assert [event.model_dump(mode="json") for event in read] == [event.model_dump(mode="json") for event in told]
        end = (await client.get("/api/sessions/s/events", params={"after": len(told)})).json()
        assert end == {"events": [], "next_after": None}
        beyond = (await client.get("/api/sessions/s/events", params={"after": 2**63 - 1})).json()
        assert beyond == {"events": [], "next_after": None}
        whole = (await client.get("/api/sessions/s/events")).json()
        assert (len(whole["events"]), whole["next_after"]) == (len(told), None)


async def test_a_running_session_is_stopped_in_the_principals_name() -> None:
    tool = FakeTool("act", hang)
    app = make_app(batches=[calls("act"), "done"], tools=[tool])
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    async with serving(app) as client:
        body = {"session_id": "s", "reason": "too dear"}
        response = await client.post("/api/sessions/interrupt", json=body, headers=USER)
        assert response.json()["session_id"] == "s"
        assert response.json()["status"] in ("interrupting", "interrupted")
        await running
        (asked,) = await logged(app, "session.interrupt_requested")
        assert (asked["reason"], asked["requested_by"]) == ("too dear", "ada")
        assert await status_of(app) == "interrupted"
        response = await client.post("/api/sessions/interrupt", json=body)
        assert problem(response, 409, "SessionNotRunning")["session_id"] == "s"
        response = await client.post("/api/sessions/interrupt", json={"session_id": "none"})
        problem(response, 404, "SessionNotFound")
        eve = {**body, "requested_by": "eve"}
        problem(await client.post("/api/sessions/interrupt", json=eve), 422, "invalid_request")


async def test_reading_writes_nothing() -> None:
    app = await waiting_app()
    before = len((await log_of(app)).records)
    async with client_of(create_server(app, authenticate=tokens()), **USER) as client:
        for path in ("/api/sessions", "/api/sessions/s", "/api/sessions/s/events", "/api/pending"):
            assert (await client.get(path)).status_code == 200
        assert len((await log_of(app)).records) == before
