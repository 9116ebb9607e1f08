"""The life of a server: what start takes up, what stop ends, by itself and inside another application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request
from runtime.support import (
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    has,
    logged,
    make_app,
    new_run,
    play,
    status_of,
    waiting_ids,
)
from server.support import OPERATOR_HEADERS, USER, client_of, cut_off_store, hang, problem, tokens, waiting_app

from cayu import CayuApp, EventType, SQLiteSessionStore
from cayu.errors import InvalidInput, StoreBusy
from cayu.observability import InMemoryEventSink, RuntimeTimingConfig, TimingRecord
from cayu.server import create_server, mount_server
from cayu.sessions import SessionStore
from cayu.sessions.streams import Loaded, StreamState, Unit
from cayu.shielding import finish
from cayu.storage import InMemorySessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy


class Closing(InMemorySessionStore):
    """Counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def served(app: CayuApp, mounted: bool) -> tuple[FastAPI, str]:
    """A server, by itself or mounted, and the prefix of its paths."""
    if not mounted:
        return create_server(app, authenticate=tokens()), ""
    host = FastAPI()
    mount_server(host, app, authenticate=tokens())
    return host, "/cayu"


def _threads() -> set[threading.Thread]:
    """The threads at work; the one that waits for the end of the process serves all stores, and stays."""
    return {thread for thread in threading.enumerate() if thread.name != "cayu-sqlite-exit"}


@pytest.mark.requirement("A143")
@pytest.mark.parametrize("mounted", [False, True], ids=["standalone", "mounted"])
async def test_after_stop_nothing_is_at_work(mounted: bool, tmp_path: Path) -> None:
    threads, tasks = _threads(), asyncio.all_tasks()
    tool = FakeTool("act", hang)
    app = await waiting_app(tool, store=SQLiteSessionStore(tmp_path / "s.db"))
    server, prefix = served(app, mounted)
    async with server.router.lifespan_context(server), client_of(server, **USER) as client:
        body = {"session_id": "s", "approval_id": (await waiting_ids(app))[0]}
        assert (await client.post(f"{prefix}/api/pending/approve", json=body)).status_code == 200
        async with asyncio.timeout(5):
            await tool.entered.wait()
        assert asyncio.all_tasks() > tasks
    assert app.services.drives == {}
    assert asyncio.all_tasks() == tasks
    async with asyncio.timeout(5):
        while not _threads() <= threads:  # a closed connection's thread takes a moment to end
            await asyncio.sleep(0.01)
    async with make_app(SQLiteSessionStore(tmp_path / "s.db")) as later:
        view = await assert_consistent(later)
        assert view.status == "interrupted"
        assert (view.interruption or {})["reason"] == "interrupt_requested"
        assert len(await logged(later, EventType.TOOL_APPROVED)) == 1


@pytest.mark.parametrize("mounted", [False, True], ids=["standalone", "mounted"])
async def test_start_takes_up_what_a_crash_has_cut_off(mounted: bool) -> None:
    app = make_app(await cut_off_store(), tools=[FakeTool("act", hang)])
    assert await status_of(app) == "interrupting"
    server, prefix = served(app, mounted)
    async with server.router.lifespan_context(server), client_of(server, **OPERATOR_HEADERS) as client:
        assert await status_of(app) == "interrupted"
        told = (await client.get(f"{prefix}/api/recovery/startup")).json()
        assert (told["status"], told["scheduled_roots"]) == ("completed", 1)


@pytest.mark.parametrize("mounted", [False, True], ids=["standalone", "mounted"])
async def test_a_store_that_fails_fails_the_start(mounted: bool) -> None:
    store = Closing()
    await cut_off_store(store=store)
    proxy = StoreProxy(store, loads=[StoreBusy(path="x")])
    server, _ = served(make_app(cast(SessionStore, proxy), tools=[FakeTool("act", hang)]), mounted)
    with pytest.raises(StoreBusy):
        async with server.router.lifespan_context(server):
            pytest.fail("it has started")
    assert store.closed == 1


async def test_the_hosts_own_life_goes_around() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def life(host: FastAPI) -> AsyncIterator[dict[str, Any]]:
        told.append(f"up {store.closed}")
        yield {"shared": 7}
        told.append(f"down {store.closed}")

    async def shared(request: Request) -> int:
        return int(request.state.shared)

    store = Closing()
    host = FastAPI(lifespan=life)
    host.add_api_route("/shared", shared)
    mounted = mount_server(host, CayuApp(session_store=store), authenticate=tokens(), path="/agents/v1")
    with pytest.raises(InvalidInput, match="mounted at '/agents/v1' already"):
        mount_server(host, CayuApp(), authenticate=tokens(), path="/agents/v1")
    async with host.router.lifespan_context(host) as state, client_of(host) as client:
        assert state == {"shared": 7}
        assert (await client.get("/agents/v1/api/sessions", headers=USER)).json()["total"] == 0
        problem(await client.get("/agents/v1/api/sessions"), 401, "unauthenticated")
        assert (await client.get("/none")).json() == {"detail": "Not Found"}
        assert store.closed == 0
    assert told == ["up 0", "down 1"]
    assert mounted.title == "Cayu"


async def test_two_applications_stop_each_for_itself() -> None:
    host, stores = FastAPI(), [Closing(), Closing()]
    for number, store in enumerate(stores):
        mount_server(host, CayuApp(session_store=store), authenticate=tokens(), path=f"/{number}")
    async with host.router.lifespan_context(host):
        pass
    assert [store.closed for store in stores] == [1, 1]


class Held(InMemorySessionStore):
    """A store whose reads, or whose writes of a decision, wait until they are let go."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held
        self.entered, self.gate = asyncio.Event(), asyncio.Event()

    async def load(self, stream: str, after: int = 0) -> Loaded | None:
        await self._pass("load")
        return await super().load(stream, after)

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        return await finish(self._append(unit))

    async def _append(self, unit: Unit) -> tuple[StreamState, int]:
        await self._pass("decision" if has(unit, EventType.TOOL_APPROVED) else "append")
        return await super().append(unit)

    async def _pass(self, place: str) -> None:
        if place == self.held:
            self.entered.set()
            await self.gate.wait()


@pytest.mark.parametrize("place, decided", [("load", False), ("decision", True)])
async def test_a_decision_that_meets_the_end_of_the_server_is_told_to_look_again(place: str, decided: bool) -> None:
    tasks = asyncio.all_tasks()
    app = await waiting_app(FakeTool("act", hang), store=(store := Held("")))
    server = create_server(app, authenticate=tokens())
    body = {"session_id": "s", "approval_id": (await waiting_ids(app))[0]}
    async with asyncio.timeout(5), client_of(server, **USER) as client:
        async with server.router.lifespan_context(server):
            store.held = place
            asking = asyncio.create_task(client.post("/api/pending/approve", json=body))
            await store.entered.wait()
            if decided:
                asyncio.get_running_loop().call_later(0.02, store.gate.set)
        store.held = ""
        told = problem(await asking, 503, "stopping")
        assert "look at the session" in told["detail"]
        assert asyncio.all_tasks() == tasks
        assert app.services.drives == {}
        view = await assert_consistent(app)
        assert view.status == "interrupted"
        assert len(await waiting_ids(app)) == (0 if decided else 1)
        problem(await client.post("/api/pending/approve", json=body), 503, "stopping")


async def test_a_decision_goes_on_although_whoever_made_it_has_gone() -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def before(unit: Unit) -> None:
        if has(unit, EventType.TOOL_APPROVED):
            entered.set()
            await gate.wait()

    app = await waiting_app(store=StoreProxy(InMemorySessionStore(), before=before))
    server = create_server(app, authenticate=tokens())
    body = {"session_id": "s", "approval_id": (await waiting_ids(app))[0]}
    async with server.router.lifespan_context(server), client_of(server, **USER) as client:
        asking = asyncio.create_task(client.post("/api/pending/approve", json=body))
        await entered.wait()
        asking.cancel()
        await asyncio.wait([asking])
        gate.set()
        async with asyncio.timeout(5):
            while await status_of(app) != "completed":
                await asyncio.sleep(0.005)


async def test_every_run_of_the_server_is_stopped() -> None:
    tools = [FakeTool("act", hang)]
    app = make_app(batches=(calls("act"), "done"), tools=tools, policy=AlwaysRequireApprovalToolPolicy())
    names = [f"s{number}" for number in range(5)]
    for name in names:
        await play(app.run(new_run(name)))
    server = create_server(app, authenticate=tokens())
    async with server.router.lifespan_context(server), client_of(server, **USER) as client:
        for name in names:
            body = {"session_id": name, "approval_id": (await waiting_ids(app, name))[0]}
            assert (await client.post("/api/pending/approve", json=body)).status_code == 200
    assert [await status_of(app, name) for name in names] == ["interrupted"] * 5
    assert app.services.drives == {}


@pytest.mark.requirement("A143")
@pytest.mark.parametrize("mounted", [False, True], ids=["standalone", "mounted"])
async def test_after_stop_no_timing_is_being_delivered(mounted: bool) -> None:
    class Stuck(InMemoryEventSink):
        async def emit_timing(self, record: TimingRecord) -> None:
            await asyncio.Event().wait()

    def workers() -> set[str]:
        return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("cayu timing")}

    fast, tasks = InMemoryEventSink(), asyncio.all_tasks()
    app = make_app(
        batches=(calls("act"), "done", "done"),
        tools=[FakeTool("act")],
        timing_sinks=[Stuck(), fast],
        runtime_timing=RuntimeTimingConfig(sink_timeout_seconds=0.1),
    )
    server, _ = served(app, mounted)
    async with asyncio.timeout(5), server.router.lifespan_context(server):
        await play(app.run(new_run()))
        assert workers() >= {"cayu timing to Stuck"}
    assert workers() == set()
    assert asyncio.all_tasks() == tasks
    status = app.runtime_timing_status()
    assert (status.queued_records, status.dropped_records, len(fast.timings)) == (0, 3, 3)
    assert len(await app.inspect_recent_tool_round_timing("s")) == 1
