"""What the world does to a store in the middle of a run: full disks, locks, torn logs, clocks that jump, two owners."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from runtime import crash_scenarios as scenarios
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

from cayu import CayuApp, Message, RuntimeConfig, ToolEffect
from cayu.errors import (
    AlreadyDecided,
    SessionNotFound,
    SessionRunFenced,
    SessionRunning,
    StoreBusy,
    StoreError,
    StoreFull,
)
from cayu.events import EventType as E
from cayu.providers.base import ModelStreamEvent
from cayu.runtime.outcome import lost_sessions, outcome_of, session_view
from cayu.sessions import CallState, InterruptSessionRequest, RunLimits, SessionStatus
from cayu.sessions.streams import HeadQuery, Unit
from cayu.sessions.view import CallView
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.testing import FakeClock, run_child
from cayu.tools import ToolContext, ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult, ToolResult

NONE, IDEMPOTENT, EXTERNAL = ToolEffect.NONE, ToolEffect.IDEMPOTENT, ToolEffect.EXTERNAL
SCENARIOS = str(Path(scenarios.__file__))
BULK = "x" * 200_000
"""More than what is free in the file anyway."""
HOURS = 6 * 3600.0


async def calls_of(app: CayuApp) -> list[CallView]:
    view = await assert_consistent(app)
    return [call for opened in view.rounds for call in opened.calls]


# A disk that is full.


async def allow(store: SQLiteSessionStore, pages: int | None) -> None:
    """Let the file grow to that many pages, None as it likes; `0` keeps it as large as it is."""

    def limit(raw: sqlite3.Connection) -> None:
        now = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {2**31 if pages is None else now + pages}")

    await store._database.write(limit)


WRITES = {
    "create": E.SESSION_STARTED,
    "open": E.ROUND_OPENED,
    "stage": E.TOOL_STAGED,
    "close": E.ROUND_COMMITTED,
    "end": E.SESSION_COMPLETED,
}
ACTS = {"create": 0, "open": 0, "stage": 1, "close": 2, "end": 2}
"""Calls of two, one after the other, that have acted when a write finds the disk full."""


@pytest.mark.parametrize("where", list(WRITES))
async def test_a_full_disk_ends_the_run_without_another_effect(where: str, tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "s.db")

    async def fill(unit: Unit) -> None:
        if has(unit, WRITES[where]):
            await allow(store, 0)

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        return ToolResult(content=BULK)

    tool = FakeTool("t", act, effect=EXTERNAL, parallel_safe=False)
    batches = [[ModelStreamEvent.text_delta(BULK), *calls("t", "t")], BULK]
    app = make_app(StoreProxy(store, before=fill), batches, [tool])
    request = new_run().model_copy(update={"messages": (Message.text("user", BULK),)})
    with pytest.raises(StoreFull, match=r"s\.db"):
        await play(app.run(request))
    assert len(tool.calls) == ACTS[where]
    assert app.services.drives == {}
    await allow(store, None)
    again = make_app(store, batches, [tool])
    if where == "create":
        with pytest.raises(SessionNotFound):
            await session_view(again, SESSION)
        await play(again.run(request))
    else:
        assert await lost_sessions(again) == [SESSION]
        await play(again.recover_incomplete_session(SESSION))
        states = [call.state for call in await calls_of(again)]
        if where in ("stage", "close"):
            assert CallState.UNKNOWN in states, "what was not written is not known, and nothing is made up"
            assert await status_of(again) == SessionStatus.INTERRUPTED
            assert len(tool.calls) == ACTS[where]
        else:
            assert await status_of(again) == SessionStatus.COMPLETED
            assert len(tool.calls) == 2
    await again.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 3_000, 6_000, 12_000, 18_000, 30_000])
async def test_a_file_that_may_not_grow_any_more(room: int, tmp_path: Path) -> None:
    """The system itself refuses the write; which call that meets depends on the room that is left."""
    found = run_child(f"{SCENARIOS}:run_within", [str(tmp_path), "external", "serial", room]).result
    acted = scenarios.acts(tmp_path)
    if room == 0:
        assert acted == []
    async with scenarios.build(tmp_path, "external", "serial") as app:
        await scenarios.recover(app)
        if not (await app.session_store.heads(HeadQuery())).total:
            assert not acted
            await scenarios.begin(app)
        await scenarios.settle(app, tmp_path)
        outcome = await outcome_of(app, scenarios.SESSION)
        assert (outcome.status, outcome.final_text) == ("completed", scenarios.ANSWER)
        await assert_consistent(app, scenarios.SESSION)
    assert found == "completed" or issubclass(getattr(__import__("cayu.errors", fromlist=[found]), found), StoreError)
    keys = [line.split()[0] for line in scenarios.acts(tmp_path)]
    assert len(keys) == len(set(keys)), "an external effect was repeated"
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# A file that another program has locked.


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock, as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        yield raw


async def test_a_lock_before_the_claim_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    tool = FakeTool("t")
    async with make_app(SQLiteSessionStore(path, busy_seconds=0.1), [calls("t"), "done"], [tool]) as app:
        await app.session_store.heads(HeadQuery())
        with locked(path), pytest.raises(StoreBusy, match=r"s\.db"):
            await asyncio.wait_for(play(app.run(new_run())), 3)
        with pytest.raises(SessionNotFound):
            await session_view(app, SESSION)
        await play(app.run(new_run()))
        before = await log_of(app)
        with locked(path), pytest.raises(StoreBusy):
            await asyncio.wait_for(play(app.resume(next_turn())), 3)
        assert (await log_of(app)).head == before.head
        assert len(tool.calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("at", ["stage", "close"])
async def test_a_lock_in_the_middle_is_waited_for_while_the_lease_holds(at: str, tmp_path: Path) -> None:
    path, held = tmp_path / "s.db", asyncio.Event()

    async def lock(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        if len(tool.calls) == (1 if at == "stage" else 2):
            raw = sqlite3.connect(path, isolation_level=None)
            raw.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.5, raw.close)
            held.set()
        return ToolResult(content="acted")

    tool = FakeTool("t", lock, effect=EXTERNAL, parallel_safe=False)
    config = RuntimeConfig(lease_seconds=5, renew_after_seconds=1)
    store = SQLiteSessionStore(path, busy_seconds=0.05)
    async with make_app(store, [calls("t", "t"), "done"], [tool], config=config) as app:
        assert types_of(await asyncio.wait_for(play(app.run(new_run())), 10))[-1] == E.SESSION_COMPLETED
        assert held.is_set()
        assert len(tool.calls) == 2
        await assert_consistent(app)


@pytest.mark.slow
async def test_a_lock_that_outlasts_the_lease_ends_the_run_and_recovery_works_afterwards(tmp_path: Path) -> None:
    path, held = tmp_path / "s.db", []

    async def lock(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        held.append(raw)
        return ToolResult(content="acted")

    tool = FakeTool("t", lock, effect=EXTERNAL, parallel_safe=False)
    config = RuntimeConfig(lease_seconds=0.6, renew_after_seconds=0.2, cancel_grace_seconds=0.05)
    store = SQLiteSessionStore(path, busy_seconds=0.05)
    async with make_app(store, [calls("t", "t"), "done"], [tool], config=config) as app:
        await app.session_store.heads(HeadQuery())
        with pytest.raises((StoreBusy, SessionRunFenced)):
            await asyncio.wait_for(play(app.run(new_run())), 5)
        assert len(tool.calls) == 1
        with pytest.raises(StoreBusy):  # nobody can take it over either
            await play(app.recover_incomplete_session(SESSION))
        held[0].close()
        await play(app.recover_incomplete_session(SESSION))
        assert (await calls_of(app))[0].state == CallState.UNKNOWN
        assert len(tool.calls) == 1


# A log that was torn.

FRAME, WAL_HEADER = 4096 + 24, 32


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """The folder of a process that died when the second of two external calls was about to act."""
    folder = tmp_path / "killed"
    folder.mkdir()
    assert run_child(f"{SCENARIOS}:run", [str(folder), "external", "serial"], crash_at="tool.dispatched:2").killed
    assert (folder / "sessions.db-wal").stat().st_size > 3 * FRAME
    return folder


def copied(folder: Path, to: Path, wal: bytes) -> Path:
    """The same file beside another log; who recovers it has not acted yet."""
    to.mkdir()
    shutil.copyfile(folder / "sessions.db", to / "sessions.db")
    (to / "sessions.db-wal").write_bytes(wal)
    return to


async def recovered_as_logged(folder: Path) -> int:
    """Recover what a log says; return how many records it had.

    What is lost with a log cannot be known. What it does say holds: it is legal, and a call whose start it has is not
    begun again.
    """
    async with scenarios.build(folder, "external", "serial") as app:
        try:
            view = await session_view(app, scenarios.SESSION)
        except SessionNotFound:
            assert await scenarios.begin(app) == "completed"
            return 0
        started = {call.id for opened in view.rounds for call in opened.calls if call.attempt}
        version = view.version
        await scenarios.recover(app)
        after = await assert_consistent(app, scenarios.SESSION)
        again = {call.id for opened in after.rounds for call in opened.calls if call.attempt > 1}
        assert not again
        acted = {int(line.split()[1]) for line in scenarios.acts(folder)}
        for opened in after.rounds:
            for call in opened.calls:
                if call.id in started:
                    assert call.arguments["n"] not in acted
        unknown = after.open_round.unknown if after.open_round else []
        assert after.status == ("interrupted" if unknown else "completed")
        return version


@pytest.mark.slow
async def test_a_log_that_is_cut_anywhere_is_legal_and_recovers(torn: Path, tmp_path: Path) -> None:
    wal = (torn / "sessions.db-wal").read_bytes()
    whole = await recovered_as_logged(copied(torn, tmp_path / "whole", wal))
    async with scenarios.build(tmp_path / "whole", "external", "serial") as app:
        view = await session_view(app, scenarios.SESSION)
        staged, begun = view.rounds[0].calls
        assert (staged.state, begun.state) == (CallState.STAGED, CallState.UNKNOWN), "what was acknowledged is there"
    frames = range(WAL_HEADER, len(wal), FRAME)
    ends = (start + part for start in frames[-6:] for part in (1, 24, FRAME - 1))
    cuts = {0, 1, WAL_HEADER - 1, *frames, *(start + 2048 for start in frames[::2]), *ends}
    lengths = [
        await recovered_as_logged(copied(torn, tmp_path / str(cut), wal[:cut]))
        for cut in sorted(cuts)
        if cut < len(wal)
    ]
    assert lengths == sorted(lengths), "a longer log says more"
    assert lengths[0] == 0
    assert max(lengths) < whole
    assert len({*lengths, whole}) > 3, "it was cut inside and between commits"


@pytest.mark.slow
async def test_a_log_whose_last_frames_are_damaged_is_legal_and_recovers(torn: Path, tmp_path: Path) -> None:
    wal = (torn / "sessions.db-wal").read_bytes()
    last = range(WAL_HEADER, len(wal), FRAME)[-4:]
    lengths = []
    for place in (start + part for start in last for part in (0, 5, 9, 17, 24, 1000, FRAME - 1)):
        damaged = bytearray(wal)
        damaged[place] ^= 0xFF
        lengths.append(await recovered_as_logged(copied(torn, tmp_path / str(place), bytes(damaged))))
    assert min(lengths) > 0
    assert len(set(lengths)) > 1, "a damaged frame ends the log"


# A wall clock that jumps.


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
@pytest.mark.parametrize("effect", [NONE, EXTERNAL])
async def test_a_clock_that_jumps_during_a_run(seconds: float, effect: ToolEffect) -> None:
    clock = FakeClock()

    async def jump(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.jump(seconds)
        return ToolResult(content="jumped")

    tool = FakeTool("t", jump, effect=effect, parallel_safe=False)
    app = make_app(InMemorySessionStore(clock=clock), [calls("t", "t"), "done"], [tool])
    assert types_of(await play(app.run(new_run())))[-1] == E.SESSION_COMPLETED
    assert len(tool.calls) == 2
    assert (await log_of(app)).head.state.owner is None
    await assert_consistent(app)
    assert types_of(await play(app.resume(next_turn())))[-1] in (E.SESSION_COMPLETED, E.SESSION_FAILED)


async def test_a_clock_set_forward_uses_up_the_time_of_a_run_and_one_set_back_does_not() -> None:
    for seconds, reached in ((HOURS, True), (-HOURS, False)):
        clock = FakeClock()

        async def jump(
            ctx: ToolContext, args: dict[str, Any], clock: FakeClock = clock, seconds: float = seconds
        ) -> ToolResult:
            clock.jump(seconds)
            return ToolResult(content="jumped")

        app = make_app(InMemorySessionStore(clock=clock), [calls("t"), "done"], [FakeTool("t", jump)])
        await play(app.run(new_run(limits=RunLimits(max_elapsed_seconds=900))))
        outcome = await outcome_of(app, SESSION)
        assert (outcome.status, bool(await logged(app, E.SESSION_LIMIT_REACHED))) == (
            ("interrupted", True) if reached else ("completed", False)
        )
        await play(app.resume(next_turn()))
        await assert_consistent(app)


def expiring(request: ToolPolicyRequest) -> ToolPolicyResult:
    return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, approval_expires_in_seconds=600)


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
async def test_a_clock_that_jumps_during_a_pause(seconds: float) -> None:
    """An approval expires by the store's clock; set back, it only lasts longer, and the wait is nobody's work."""
    clock, tool = FakeClock(), FakeTool("t", effect=EXTERNAL)
    app = make_app(InMemorySessionStore(clock=clock), [calls("t"), "done"], [tool], FakePolicy(expiring))
    await play(app.run(new_run(limits=RunLimits(max_elapsed_seconds=900))))
    [waiting] = await waiting_ids(app)
    clock.jump(seconds)
    await play(app.resolve_tool_approval(approval(waiting)))
    outcome = await outcome_of(app, SESSION)
    expected = ("blocked", "approval_expired") if seconds > 0 else ("completed", None)
    assert [(call.state, call.code) for call in outcome.tool_calls] == [expected]
    assert len(tool.calls) == (0 if seconds > 0 else 1)
    assert outcome.status == "completed"
    view = await assert_consistent(app)
    assert view.run.waited_us == round(seconds * 1_000_000)
    if seconds > 0:
        with pytest.raises(AlreadyDecided):
            await play(app.resolve_tool_approval(approval(waiting)))
    else:
        await play(app.resolve_tool_approval(approval(waiting)))
    assert len(tool.calls) == (0 if seconds > 0 else 1)


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
async def test_a_clock_that_jumps_under_a_lease(seconds: float) -> None:
    """Set forward, the claim of a live owner runs out, and it is fenced; set back, it holds and the owner goes on."""
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    going = asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await going.wait()
        return ToolResult(content="went")

    old = FakeTool("t", wait, effect=EXTERNAL, parallel_safe=False)
    new = FakeTool("t", effect=EXTERNAL, parallel_safe=False)
    first = make_app(store, [calls("t", "t"), "done"], [old])
    second = make_app(store, [calls("t", "t"), "done"], [new])
    task = asyncio.create_task(play(first.run(new_run())))
    await asyncio.wait_for(old.entered.wait(), 5)
    with pytest.raises(SessionRunning):
        await play(second.recover_incomplete_session(SESSION))
    clock.jump(seconds)
    if seconds < 0:
        with pytest.raises(SessionRunning):
            await play(second.recover_incomplete_session(SESSION))
        going.set()
        assert types_of(await asyncio.wait_for(task, 5))[-1] == E.SESSION_COMPLETED
        assert (len(old.calls), new.calls) == (2, [])
        return
    await play(second.recover_incomplete_session(SESSION))
    going.set()
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 5)
    assert (len(old.calls), new.calls) == (1, []), "neither the old owner nor the new one acts"
    assert (await calls_of(second))[0].state == CallState.UNKNOWN


# Two owners.


@pytest.mark.slow
@pytest.mark.parametrize("effect", [NONE, IDEMPOTENT, EXTERNAL])
async def test_an_owner_that_slept_past_its_lease_is_fenced_before_any_further_effect(
    effect: ToolEffect, tmp_path: Path
) -> None:
    """Its tool has been suspended, nothing was renewed, and another process has taken the session over and ended it."""
    config = RuntimeConfig(lease_seconds=0.4, renew_after_seconds=0.2, cancel_grace_seconds=0.05)
    going = asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await going.wait()
        return ToolResult(content="late")

    old = FakeTool("t", wait, effect=effect, parallel_safe=False)
    new = FakeTool("t", effect=effect, parallel_safe=False)
    batches = [calls("t", "t"), "done"]
    asleep = StoreProxy(SQLiteSessionStore(tmp_path / "s.db"), renewing=StoreBusy(path="x"))
    first = make_app(asleep, batches, [old], config=config)
    second = make_app(SQLiteSessionStore(tmp_path / "s.db"), batches, [new], config=config)
    task = asyncio.create_task(play(first.run(new_run())))
    await asyncio.wait_for(old.entered.wait(), 5)
    with pytest.raises(SessionRunning):
        await play(second.recover_incomplete_session(SESSION))
    await asyncio.sleep(0.5)
    await play(second.recover_incomplete_session(SESSION))
    before = await log_of(second)
    going.set()
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 5)
    assert (await log_of(second)).head == before.head, "it wrote after it had lost the session"
    assert len(old.calls) == 1, "it began another call after it had lost the session"
    assert first.services.drives == {}
    found = await calls_of(second)
    if effect is EXTERNAL:
        assert found[0].state == CallState.UNKNOWN
        assert new.calls == []
    else:
        assert await status_of(second) == SessionStatus.COMPLETED
        assert [call.state for call in found] == [CallState.COMPLETED, CallState.FAILED]
        assert len(new.calls) == 1
        assert {context.idempotency_key for context in new.contexts} == {
            context.idempotency_key for context in old.contexts
        }
    await first.aclose()
    await second.aclose()


async def test_an_owner_that_slept_between_a_commit_and_its_dispatch_does_not_act() -> None:
    """The start is durable, and then the process sleeps past its lease: the call is never begun by it."""
    clock = FakeClock()
    tool = FakeTool("t", effect=EXTERNAL)

    async def sleep(unit: Unit) -> None:
        if has(unit, E.TOOL_STARTED):
            clock.advance(60)

    store = InMemorySessionStore(clock=clock)
    app = make_app(StoreProxy(store, after=sleep), [calls("t"), "done"], [tool])
    app.services.clock = clock
    with pytest.raises(SessionRunFenced):
        await play(app.run(new_run()))
    assert tool.calls == []
    again = make_app(store, [calls("t"), "done"], [tool])
    await play(again.recover_incomplete_session(SESSION))
    assert [call.state for call in await calls_of(again)] == [CallState.UNKNOWN], "nobody can know that it did not act"
    assert tool.calls == []


async def test_an_interrupt_request_meets_a_locked_file(tmp_path: Path) -> None:
    """Nothing is stopped by a request that was not written."""
    path, going = tmp_path / "s.db", asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await going.wait()
        return ToolResult(content="went")

    tool = FakeTool("t", wait)
    async with make_app(SQLiteSessionStore(path, busy_seconds=0.1), [calls("t"), "done"], [tool]) as app:
        task = asyncio.create_task(play(app.run(new_run())))
        await asyncio.wait_for(tool.entered.wait(), 5)
        with locked(path), pytest.raises(StoreBusy):
            await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
        going.set()
        assert types_of(await asyncio.wait_for(task, 5))[-1] == E.SESSION_COMPLETED
        assert await logged(app, E.SESSION_INTERRUPT_REQUESTED) == []
