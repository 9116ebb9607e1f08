"""Errors as answers: each has one shape, and what a client sends cannot make the server fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from runtime.support import StoreProxy, log_of, make_app
from server.support import OPERATOR_HEADERS, PROBLEM, problem, serving, tokens, waiting_app

from cayu import CayuApp, errors
from cayu.errors import CayuError, StoreFull
from cayu.server import create_server
from cayu.server.problems import STATUSES, problem_of, problem_response
from cayu.sessions.streams import Unit

JSON = {"content-type": "application/json"}
ATTRIBUTES = {
    **{"session_id": "s", "plan_id": "p", "execution_id": "e", "tool_call_id": "c", "action_id": "x"},
    **{"path": "/home/ada/secret.db", "reason": "r", "owner": "o", "status": "running", "next_step": "n"},
}


def kinds(base: type[CayuError]) -> Iterator[type[CayuError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def make(kind: type[CayuError]) -> CayuError:
    return kind("what to do", **ATTRIBUTES)


@pytest.mark.parametrize(
    "kind, status",
    [
        (errors.InvalidInput, 422),
        (errors.NotJson, 422),
        (errors.NotRegistered, 409),
        (errors.MissingBinding, 409),
        (errors.SessionNotFound, 404),
        (errors.PendingActionNotFound, 404),
        (errors.AlreadyDecided, 409),
        (errors.SessionRunning, 409),
        (errors.SessionNotRunning, 409),
        (errors.SessionAwaitingHuman, 409),
        (errors.SessionNeedsRecovery, 409),
        (errors.SessionRunFenced, 409),
        (errors.InvalidSessionLog, 409),
        (errors.StaleRecoveryPlanError, 409),
        (errors.RecoveryExecutionConflict, 409),
        (errors.ContradictoryEvidence, 409),
        (errors.BudgetExceeded, 409),
        (errors.ExecutionProfileError, 409),
        (errors.ExecutionProfileMismatchError, 409),
        (errors.ExecutionProfileMigrationRequired, 409),
        (errors.StreamConflict, 409),
        (errors.StoreBusy, 503),
        (errors.StoreOutcomeUnknown, 503),
        (errors.StoreFull, 503),
        (errors.StoreNotADatabase, 503),
        (errors.StoreTooNew, 503),
        (errors.StoreReadOnly, 503),
        (errors.StoreClosed, 503),
    ],
)
def test_each_error_has_its_status(kind: type[CayuError], status: int) -> None:
    told = problem_of(make(kind)).model_dump(exclude_none=True)
    assert (told["status"], told["code"], told["type"]) == (status, kind.__name__, f"urn:cayu:problem:{kind.__name__}")
    assert told["session_id"] == "s"
    assert told["title"][0].isupper()
    assert " " in told["title"]
    assert "owner" not in told
    assert "secret" not in json.dumps(told)


def test_errors_that_say_nothing_of_a_request_are_faults_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    base = {CayuError, errors.ProviderError, *kinds(errors.NotebookError), *kinds(errors.KnowledgeError)}
    base |= {*kinds(errors.SnapshotError), errors.MemoryInterventionExecutionConflict}
    for kind in base:
        told = problem_of(make(kind))
        assert (told.status, told.code, told.type) == (500, "internal_error", "about:blank")
        assert "what to do" not in str(told)
        assert "what to do" in caplog.text
        caplog.clear()
    mapped = {kind for top in STATUSES for kind in kinds(top)}
    assert mapped | base == set(kinds(CayuError))


def test_a_problem_can_always_be_written() -> None:
    told = problem_of(errors.SessionNotFound("no \ud800 here", session_id="\ud800\x00"))
    written = json.loads(bytes(problem_response(told).body))
    assert written["session_id"] == "\ufffd\x00"


DEEP = b"[" * 300_000
BODIES = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"session_id": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    "deep": DEEP,
    "deep arguments": b'{"session_id": "s", "approval_id": "a", "arguments": ' + b'{"a":' * 100 + b"1" + b"}" * 101,
    "NaN": b'{"session_id": "s", "approval_id": "a", "arguments": {"x": NaN}}',
    "infinity": b'{"session_id": "s", "approval_id": "a", "arguments": {"x": -Infinity}}',
    "a float beyond": b'{"session_id": "s", "approval_id": "a", "arguments": {"x": 1e999}}',
    "a huge integer": b'{"session_id": "s", "approval_id": "a", "arguments": {"x": 99999999999999999999}}',
    "a monstrous integer": b'{"session_id": "s", "approval_id": "a", "arguments": {"x": ' + b"9" * 5000 + b"}}",
    "keys that become one": b'{"session_id": "s", "arguments": {"\\ud800": 1, "\\ud801": 2}}',
    "an unknown field": b'{"session_id": "s", "approval_id": "a", "resolved_by": {"subject": "eve"}}',
    "an id of another kind": b'{"session_id": 7, "approval_id": "a"}',
    "an empty id": b'{"session_id": "", "approval_id": "a"}',
    "a long id": b'{"session_id": "' + b"x" * 513 + b'", "approval_id": "a"}',
    "NUL in an id": b'{"session_id": "s\\u0000", "approval_id": "a"}',
}


@pytest.mark.parametrize("path", ["/api/pending/approve", "/api/pending/deny", "/api/recovery/execute"])
async def test_bad_bodies_are_told_to_be_so(path: str) -> None:
    answers = {}
    async with serving(make_app()) as client:
        for name, body in BODIES.items():
            response = await client.post(path, content=body, headers=JSON)
            answers[name] = (response.status_code, response.headers["content-type"], response.json()["code"])
    assert answers == dict.fromkeys(BODIES, (422, PROBLEM, "invalid_request"))


async def test_a_body_that_a_form_can_send_is_not_read() -> None:
    app = await waiting_app()
    async with serving(app) as client:
        (action,) = (await app.list_pending_actions()).actions
        body = json.dumps({"session_id": "s", "approval_id": action.id})
        for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"content-type": content_type} if content_type else {}
            response = await client.post("/api/pending/approve", content=body.encode(), headers=headers)
            problem(response, 422, "invalid_request")
        assert len((await app.list_pending_actions()).actions) == 1


async def test_lone_surrogates_become_what_they_are_everywhere() -> None:
    async with serving(make_app()) as client:
        body = b'{"session_id": "\\ud800", "input_id": "\\udfff", "answer": "\\ud800"}'
        told = problem(await client.post("/api/pending/answer", content=body, headers=JSON), 404, "SessionNotFound")
        assert told["session_id"] == "\ufffd"
        body = b'{"session_ids": ["\\ud800"]}'
        problem(await client.post("/api/recovery/plan", content=body, headers=JSON), 404, "SessionNotFound")


async def test_fields_are_named_with_their_rule_and_without_their_value() -> None:
    async with serving(make_app()) as client:
        body = {"session_id": "SECRET" * 200, "approval_id": ["SECRET"], "reason": {"SECRET": 1}}
        told = problem(await client.post("/api/pending/deny", json=body), 422, "invalid_request")
        assert [(each["place"], each["rule"]) for each in told["errors"]] == [
            ("body.session_id", "string_too_long"),
            ("body.approval_id", "string_type"),
            ("body.reason", "string_type"),
        ]
        assert "at most 512 characters" in told["errors"][0]["message"]
        assert "SECRET" not in json.dumps(told)
        response = await client.get("/api/sessions", params={"status": "SECRET", "limit": "SECRET", "cursor": "SECRET"})
        told = problem(response, 422, "invalid_request")
        assert [each["place"] for each in told["errors"]] == ["query.status", "query.limit"]
        assert "SECRET" not in response.text


async def test_a_thousand_wrong_fields_make_a_short_answer() -> None:
    async with serving(make_app()) as client:
        body = {f"unknown {number} " + "x" * 300: 1 for number in range(1000)}
        response = await client.post("/api/pending/deny", json=body)
        told = problem(response, 422, "invalid_request")
        assert len(told["errors"]) == 20
        assert told["detail"].startswith("1002 field(s)")
        assert len(response.content) < 20_000


async def test_what_is_not_there_is_a_problem_too() -> None:
    async with serving(make_app()) as client:
        problem(await client.get("/api/nothing"), 404, "not_found")
        problem(await client.get("/api/pending/"), 404, "not_found")
        response = await client.put("/api/pending/deny")
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "POST"


async def test_a_body_has_a_bound() -> None:
    async with serving(make_app(), max_body_bytes=100) as client:
        body = b'{"session_id": "s", "approval_id": "' + b"x" * 100 + b'"}'

        async def pieces() -> Any:
            for start in range(0, len(body), 10):
                yield body[start : start + 10]

        for content in (body, pieces()):
            told = problem(await client.post("/api/pending/deny", content=content, headers=JSON), 413, "body_too_large")
            assert "100 bytes" in told["detail"]
        fits = b'{"session_id": "s", "approval_id": "a"}'
        fits += b" " * (100 - len(fits))
        problem(await client.post("/api/pending/deny", content=fits, headers=JSON), 404, "SessionNotFound")
    async with serving(make_app()) as client:
        response = await client.post("/api/pending/deny", content=b" " * (1 << 20) + b"1", headers=JSON)
        problem(response, 413, "body_too_large")


async def test_a_client_that_goes_away_is_answered_nothing() -> None:
    server = create_server(CayuApp(), authenticate=tokens())
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in OPERATOR_HEADERS.items()]
    scope = {
        **{"type": "http", "method": "POST", "path": "/api/pending/deny", "raw_path": b"/api/pending/deny"},
        **{"headers": headers, "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http"},
    }
    await server(scope, receive, send)
    assert sent == []


async def test_what_the_server_cannot_explain_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(store := StoreProxy(make_app().session_store))
    async with serving(app) as client:
        store.loads.append(ZeroDivisionError("secret"))
        with caplog.at_level(logging.ERROR, logger="cayu.server"):
            response = await client.get("/api/sessions/s/events")
        told = problem(response, 500, "internal_error")
        assert "secret" not in json.dumps(told)
        assert "secret" in caplog.text
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_store_that_is_in_trouble_is_not_the_clients_fault(caplog: pytest.LogCaptureFixture) -> None:
    raised: list[Exception] = []

    async def before(unit: Unit) -> None:
        if raised:
            raise raised.pop()

    app = await waiting_app(store=StoreProxy(make_app().session_store, before=before))
    written = len((await log_of(app)).records)
    (action,) = (await app.list_pending_actions()).actions
    async with serving(app) as client:
        raised.append(StoreFull(path="/secret/x"))
        response = await client.post("/api/pending/approve", json={"session_id": "s", "approval_id": action.id})
        told = problem(response, 503, "StoreFull")
        assert "secret" not in json.dumps(told)
        assert "/secret/x" in caplog.text
        assert len((await log_of(app)).records) == written
