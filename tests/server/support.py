"""What the tests of the server share: two people with tokens, clients, and applications in the states that matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from runtime.support import FakeTool, StoreProxy, calls, has, make_app, new_run, play

from cayu import AgentSpec, CayuApp, EventType, ToolEffect
from cayu.errors import StoreFull
from cayu.providers.scripted import ScriptedModelProvider
from cayu.server import OPERATOR, BearerTokens, Principal, create_server
from cayu.sessions import InterruptSessionRequest
from cayu.sessions.streams import SessionStore, Unit
from cayu.storage import InMemorySessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy, Tool, ToolContext, ToolOutcomeUnknown
from cayu.tools.spec import ToolResult

USER_TOKEN = "user-token-0123456789"
OPERATOR_TOKEN = "operator-token-0123456789"
USER = {"Authorization": f"Bearer {USER_TOKEN}"}
OPERATOR_HEADERS = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
ADA = Principal("ada", tenant="t1", claims={"desk": 7})
OLGA = Principal("olga", roles=frozenset({OPERATOR}))
PROBLEM = "application/problem+json"


def tokens() -> BearerTokens:
    return BearerTokens({USER_TOKEN: ADA, OPERATOR_TOKEN: OLGA})


def client_of(server: FastAPI, **headers: str) -> httpx.AsyncClient:
    """A client that speaks to a server in this process; what the server raises is raised here."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url="http://test", headers=headers)


@asynccontextmanager
async def serving(app: CayuApp, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A started server with a client of the operator's; it is stopped at the end."""
    server = create_server(app, authenticate=options.pop("authenticate", tokens()), **options)
    async with server.router.lifespan_context(server), client_of(server, **OPERATOR_HEADERS) as client:
        yield client


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Hold a response to be that problem; return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    assert response.headers["cache-control"] == "no-store"
    told: dict[str, Any] = response.json()
    assert (told["status"], told["code"]) == (status, code)
    assert told["title"]
    return told


async def hang(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def lose_touch(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    raise ToolOutcomeUnknown


async def waiting_app(
    *tools: Tool, asked: tuple[Any, ...] = ("act",), store: SessionStore | StoreProxy | None = None, **options: Any
) -> CayuApp:
    """An application with a session that waits for approval of the calls it has asked for."""
    policy = options.pop("policy", AlwaysRequireApprovalToolPolicy())
    app = make_app(store, (calls(*asked), "done"), tools or (FakeTool("act"),), policy, **options)
    await play(app.run(new_run()))
    return app


async def unknown_app(store: SessionStore | None = None) -> CayuApp:
    """An application with a session of which one external call's outcome is not known."""
    tool = FakeTool("act", lose_touch, effect=ToolEffect.EXTERNAL)
    app = make_app(store, (calls(("act", {"n": 1})), "done"), (tool,))
    await play(app.run(new_run()))
    return app


async def cut_off_store(session_id: str = "s", store: SessionStore | None = None, **fields: Any) -> SessionStore:
    """A store with a session whose interruption was asked for and cut off before its end."""
    inner = store or InMemorySessionStore()

    async def die(unit: Unit) -> None:
        if has(unit, EventType.SESSION_INTERRUPTED):
            raise StoreFull(path="x")

    tool = FakeTool("act", hang)
    app = make_app(StoreProxy(inner, before=die), (calls(("act", fields.pop("args", {}))), "done"), (tool,))
    request = new_run(session_id).model_copy(update=fields)
    running = asyncio.create_task(play(app.run(request)))
    await tool.entered.wait()
    await play(app.interrupt_session(InterruptSessionRequest(session_id=session_id)))
    with pytest.raises(StoreFull):
        await running
    return inner


def stranger(store: SessionStore) -> CayuApp:
    """An application over a store whose agent it does not have."""
    app = CayuApp(session_store=store)
    app.register_provider(ScriptedModelProvider(["done"]))
    app.register_agent(AgentSpec(name="other", model="m"))
    return app
