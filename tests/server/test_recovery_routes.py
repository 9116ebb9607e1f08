"""Recovery over HTTP: how startup went, plans, and executions that name the principal."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from runtime.support import StoreProxy, logged, status_of
from server.support import (
    OPERATOR_HEADERS,
    PROBLEM,
    client_of,
    cut_off_store,
    problem,
    serving,
    stranger,
    tokens,
    unknown_app,
)

from cayu import CayuApp, Message
from cayu.errors import StoreFull
from cayu.server import create_server, mount_server
from cayu.sessions import RecoveryPlan, SessionStore

CANARIES = {"prompt": "CANARY-prompt", "argument": "CANARY-argument", "metadata": "CANARY-metadata"}


def _body(plan: Any, **decision: Any) -> dict[str, Any]:
    need = plan["items"][0]["needed_decisions"][0]
    decided = {"session_id": "s", "tool_call_id": need["tool_call_id"], **decision}
    return {"plan": plan, "execution_id": "e1", "decisions": [decided]}


@pytest.mark.requirement("A065", "A066")
@pytest.mark.parametrize("mounted", [False, True])
async def test_the_startup_status_has_its_url(mounted: bool) -> None:
    host, app, store = FastAPI(), stranger(await cut_off_store()), "/api/recovery/startup"
    if mounted:
        mount_server(host, app, authenticate=tokens())
        server, url = host, f"/cayu{store}"
    else:
        server, url = create_server(app, authenticate=tokens()), store
    async with server.router.lifespan_context(server), client_of(server) as client:
        problem(await client.get(url), 401, "unauthenticated")
        wrong = {"Authorization": "Bearer wrong-token-0123456789"}
        problem(await client.get(url, headers=wrong), 401, "unauthenticated")
        response = await client.get(url, headers=OPERATOR_HEADERS)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["cache-control"] == "no-store"
        assert response.json() == {
            "schema_version": 1,
            "completed": True,
            "status": "completed_with_blocked",
            "sweep_count": 1,
            "scheduled_roots": 0,
            "blocked_session_count": 1,
            "blocked_sessions": [{"session_id": "s", "blocker_codes": ["registration_unavailable"]}],
            "blocked_sessions_truncated": False,
        }
        assert response.json() == (await app.get_startup_recovery_status()).model_dump(mode="json")


async def test_before_the_first_sweep_nothing_is_claimed() -> None:
    async with serving(stranger(await cut_off_store()), recover_on_start=False) as client:
        told = (await client.get("/api/recovery/startup")).json()
        assert (told["status"], told["completed"], told["sweep_count"]) == ("not_run", False, 0)


@pytest.mark.requirement("A062")
async def test_the_startup_status_tells_no_content() -> None:
    store = await cut_off_store(
        messages=(Message.text("user", CANARIES["prompt"]),),
        args={"note": CANARIES["argument"]},
        metadata={"note": CANARIES["metadata"]},
        title="CANARY-title",
    )
    loaded = await store.load("s")
    assert loaded is not None
    stored = b"".join(record.body for record in loaded.records).decode() + repr(loaded.head.row)
    assert all(canary in stored for canary in (*CANARIES.values(), "CANARY-title"))
    async with serving(stranger(store)) as client:
        response = await client.get("/api/recovery/startup")
        assert response.json()["blocked_session_count"] == 1
        assert "CANARY" not in response.text
        assert "other" not in response.text


@pytest.mark.requirement("A062")
async def test_a_sweep_that_failed_tells_no_exception() -> None:
    store = StoreProxy(await cut_off_store(), loads=[StoreFull("CANARY-exception", path="/CANARY")])
    app = stranger(cast(SessionStore, store))
    with pytest.raises(StoreFull):
        await app.resume_pending_interruption_cascades()
    async with serving(app, recover_on_start=False) as client:
        response = await client.get("/api/recovery/startup")
        assert (response.json()["status"], response.json()["completed"]) == ("failed", False)
        assert "CANARY" not in response.text


async def test_a_plan_comes_back_as_it_went_and_is_executed_by_the_principal() -> None:
    app = await unknown_app()
    async with serving(app) as client:
        response = await client.post("/api/recovery/plan", json={"session_ids": ["s"], "inactive_for_seconds": 0})
        plan = response.json()
        assert RecoveryPlan.model_validate(plan).items[0].blocker_codes == ("tool_effect_outcome_unknown",)
        body = _body(plan, action="tool_mark_completed", content="order 7", structured={"order": 7})
        done = (await client.post("/api/recovery/execute", json=body)).json()
        assert [(item["status"], item["session_status"]) for item in done["items"]] == [("executed", "completed")]
        (receipt,) = await logged(app, "recovery.plan.item.executed")
        assert (receipt["requested_by"], receipt["execution_id"]) == ("olga", "e1")
        again = (await client.post("/api/recovery/execute", json=body)).json()
        assert [item["status"] for item in again["items"]] == ["repeated"]
        other = _body(plan, action="tool_mark_failed")
        problem(await client.post("/api/recovery/execute", json=other), 409, "RecoveryExecutionConflict")
        other["execution_id"] = "e2"
        told = problem(await client.post("/api/recovery/execute", json=other), 409, "ContradictoryEvidence")
        assert (told["session_id"], told["tool_call_id"]) == ("s", body["decisions"][0]["tool_call_id"])


async def _refused(client: httpx.AsyncClient, body: Any) -> dict[str, Any]:
    return problem(await client.post("/api/recovery/execute", json=body), 422, "invalid_request")


async def test_who_asks_is_never_read_from_the_body() -> None:
    app = await unknown_app()
    async with serving(app) as client:
        plan = (await client.post("/api/recovery/plan", json={})).json()
        body = _body(plan, action="tool_mark_failed") | {"requested_by": {"subject": "eve"}}
        told = await _refused(client, body)
        assert [each["place"] for each in told["errors"]] == ["body.requested_by"]
        assert "eve" not in json.dumps(told)
        assert await status_of(app) == "interrupted"


async def test_an_edited_plan_and_a_decision_that_is_not_asked_for_are_refused() -> None:
    async with serving(await unknown_app()) as client:
        plan = (await client.post("/api/recovery/plan", json={})).json()
        edited = _body(plan, action="tool_mark_failed")
        edited["plan"] = {**plan, "items": [{**plan["items"][0], "version": 1}]}
        assert "make a new one instead of editing it" in (await _refused(client, edited))["errors"][0]["message"]
        asked = _body(plan, action="tool_mark_failed")
        asked["decisions"][0]["tool_call_id"] = "another"
        assert "asks for no decision" in (await _refused(client, asked))["errors"][0]["message"]
        stray = _body(plan, action="model_mark_failed")
        assert "names its tool_call_id" in (await _refused(client, stray))["errors"][0]["message"]


STALE = "StaleRecoveryPlanError"


async def test_a_stale_plan_is_refused() -> None:
    app = await unknown_app()
    async with serving(app) as client:
        plan = (await client.post("/api/recovery/plan", json={})).json()
        body = _body(plan, action="tool_mark_failed")
        assert (await client.post("/api/recovery/execute", json=body)).status_code == 200
        told = problem(await client.post("/api/recovery/execute", json={**body, "execution_id": "e2"}), 409, STALE)
        assert (told["session_id"], told["plan_id"]) == ("s", plan["plan_id"])


BAD_REQUESTS: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": 1001},
    {"limit": "5"},
    {"limit": 10**18 * 10},
    {"inactive_for_seconds": -1},
    {"session_ids": ["a", "a"]},
    {"session_ids": ["a"], "agent_name": "b"},
    {"cursor": "nonsense"},
    {"cursor": '["a",1]'},
    {"unknown": 1},
]


async def test_a_bad_request_for_a_plan_is_told_to_be_so() -> None:
    async with serving(CayuApp()) as client:
        for body in BAD_REQUESTS:
            response = await client.post("/api/recovery/plan", json=body)
            assert (body, response.status_code, response.headers["content-type"]) == (body, 422, PROBLEM)


async def test_a_session_that_is_not_there_has_no_plan() -> None:
    async with serving(CayuApp()) as client:
        response = await client.post("/api/recovery/plan", json={"session_ids": ["\x00/../"]})
        told = problem(response, 404, "SessionNotFound")
        assert told["session_id"] == "\x00/../"
