"""Who may write: claims and epochs, leases and their renewal, takeovers and fences, and writes without an answer."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime.support import (
    QUICK,
    SESSION,
    FakeClock,
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

from cayu import CayuApp, RuntimeConfig, ToolEffect, run_to_completion
from cayu.errors import InvalidInput, SessionRunFenced, SessionRunning, StoreBusy, StoreFull, StoreOutcomeUnknown
from cayu.events import EventType as E
from cayu.runtime import ownership
from cayu.sessions import InterruptSessionRequest, SessionStatus
from cayu.sessions.streams import Held, Record, SessionStore, Take, Unit, readable_owner
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy, ToolContext, ToolResult

EXTERNAL = ToolEffect.EXTERNAL


def gate() -> tuple[Callable[[ToolContext, dict[str, Any]], Any], asyncio.Event]:
    """Work that waits for an event, and the event."""
    opened = asyncio.Event()

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await opened.wait()
        return ToolResult(content="ok")

    return work, opened


async def test_epochs_count_claims_and_every_pause_and_end_releases() -> None:
    store = StoreProxy(InMemorySessionStore())
    batches = [calls("t"), "one", "two"]
    app = make_app(store, batches, [FakeTool("t")], AlwaysRequireApprovalToolPolicy())
    epochs = []
    await play(app.run(new_run()))
    epochs.append((await app.get_session(SESSION)).run_epoch)
    [waiting] = await waiting_ids(app)
    for request in (approval(waiting), approval(waiting), next_turn()):
        await run_to_completion(app, request)
        head = (await log_of(app)).head
        epochs.append(head.state.epoch)
        assert (head.state.owner, head.state.lease_expires_at) == (None, None)
    assert epochs == [1, 2, 2, 3]  # the exact repeat claims nothing
    owners = [unit.fence.owner for unit in store.units if unit.fence is not None]
    assert len(set(owners)) == 3
    takes = [isinstance(unit.fence, Take) for unit in store.units]
    assert takes.count(True) == 3
    assert takes[0]


@pytest.mark.slow
async def test_a_silent_run_renews_its_lease_and_keeps_its_session() -> None:
    work, opened = gate()
    store, tool = StoreProxy(InMemorySessionStore()), FakeTool("t", work)
    config = RuntimeConfig(lease_seconds=0.6, renew_after_seconds=0.1)
    app = make_app(store, [calls("t"), "done"], [tool], config=config)
    task = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await asyncio.sleep(0.9)
    other = make_app(store.inner, [calls("t"), "done"], [FakeTool("t")])
    with pytest.raises(SessionRunning):
        await play(other.recover_incomplete_session(SESSION))
    opened.set()
    assert types_of(await task)[-1] == E.SESSION_COMPLETED
    assert 2 <= store.renewals <= 9
    renewed, epochs = store.renewals, (await log_of(app)).head.state.epoch
    await asyncio.sleep(0.2)
    assert store.renewals == renewed  # nothing beats after the end
    assert epochs == 1


async def test_a_run_that_writes_often_needs_no_renewal() -> None:
    async def short(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(0.05)
        return ToolResult(content="ok")

    store = StoreProxy(InMemorySessionStore())
    config = RuntimeConfig(lease_seconds=5, renew_after_seconds=0.2)
    app = make_app(store, [*[calls("t")] * 6, "done"], [FakeTool("t", short)], config=config)
    await play(app.run(new_run()))
    assert store.renewals == 0


async def test_a_renewal_that_fails_for_a_moment_is_tried_again() -> None:
    class Flaky(StoreProxy):
        async def renew(self, *args: Any) -> Any:
            state = await super().renew(*args)
            if self.renewals == 1:
                raise StoreBusy(path="x")
            return state

    work, opened = gate()
    store, tool = Flaky(InMemorySessionStore()), FakeTool("t", work)
    config = RuntimeConfig(lease_seconds=2, renew_after_seconds=0.05)
    app = make_app(store, [calls("t"), "done"], [tool], config=config)
    task = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    await asyncio.sleep(0.25)
    opened.set()
    assert types_of(await task)[-1] == E.SESSION_COMPLETED
    assert store.renewals >= 2


@pytest.mark.parametrize(
    "numbers",
    [
        {"lease_seconds": 1.0, "renew_after_seconds": 1.0},
        {"renew_after_seconds": 0.0},
        {"cancel_grace_seconds": -1.0},
        {"sink_timeout_seconds": 0.0},
        {"parallel_width": 0},
        {"max_result_bytes": 0},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        RuntimeConfig(**numbers)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_takeover_only_after_expiry_and_then_the_old_owner_is_fenced(kind: str, tmp_path: Path) -> None:
    """The first owner is alive but silent; its lease runs out by the store's clock and another app takes over."""
    clock = FakeClock()
    stores: list[SessionStore] = (
        [InMemorySessionStore(clock=clock)] * 2
        if kind == "memory"
        else [SQLiteSessionStore(tmp_path / "s.db", clock=clock) for _ in range(2)]
    )
    work, opened = gate()
    slow, later = FakeTool("slow", work, parallel_safe=False), FakeTool("later", effect=EXTERNAL, parallel_safe=False)
    batches = [calls("slow", "later"), "done"]
    first = make_app(stores[0], batches, [slow, later], config=QUICK)
    tools = [FakeTool("slow", parallel_safe=False), FakeTool("later", effect=EXTERNAL, parallel_safe=False)]
    second = make_app(stores[1], batches, tools, config=QUICK)
    task = asyncio.create_task(play(first.run(new_run())))
    await slow.entered.wait()
    clock.advance(29.9)
    before = await log_of(second)
    with pytest.raises(SessionRunning):
        await play(second.recover_incomplete_session(SESSION))
    assert (await log_of(second)).head == before.head
    clock.advance(0.2)
    events = await play(second.recover_incomplete_session(SESSION))
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    assert (len(tools[0].calls), len(tools[1].calls)) == (1, 0)
    ended = await log_of(second)
    assert ended.head.state.epoch == 2

    opened.set()
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 2)
    assert later.calls == []  # its next tool does not run after the fence
    assert list((await log_of(second)).records) == list(ended.records)
    assert first.services.drives == {}
    view = await assert_consistent(second)
    assert [call.replayed for call in view.rounds[0].calls] == [True, False]
    assert (await logged(second, E.TOOL_COMPLETED))[0]["replayed_after_recovery"] is True
    assert (await logged(second, E.TOOL_FAILED))[0]["executed"] is False
    keys = [context.idempotency_key for context in (*slow.contexts, *tools[0].contexts)]
    assert len(set(keys)) == 1
    for store in stores:
        await store.aclose()


async def test_a_fence_stops_tools_that_still_run() -> None:
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    work, opened = gate()
    cut_off: list[str] = []

    async def watch(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cut_off.append("yes")
            raise
        return ToolResult(content="never")

    slow, beside = FakeTool("slow", work), FakeTool("beside", watch)
    app = make_app(store, [calls("slow", "beside"), "done"], [slow, beside], config=QUICK)
    task = asyncio.create_task(play(app.run(new_run())))
    await beside.entered.wait()
    clock.advance(31)
    await store.append(Unit(SESSION, None, Take("another|1|1|1")))
    opened.set()
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 2)
    assert cut_off == ["yes"]


async def test_a_renewal_that_is_fenced_stops_the_run() -> None:
    clock, (work, _) = FakeClock(), gate()
    store, tool = InMemorySessionStore(clock=clock), FakeTool("t", work)
    config = RuntimeConfig(lease_seconds=5, renew_after_seconds=0.05, cancel_grace_seconds=0.05)
    app = make_app(store, [calls("t"), "done"], [tool], config=config)
    task = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    clock.advance(6)
    await store.append(Unit(SESSION, None, Take("another|1|1|1")))
    before = await log_of(app)
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 2)
    assert list((await log_of(app)).records) == list(before.records)
    assert tool.ended == []


@pytest.mark.parametrize("elapsed, runs", [(29.9, True), (30.0, False), (500.0, False)])
async def test_a_lease_that_ran_out_locally_stops_a_dispatch(elapsed: float, runs: bool) -> None:
    """The opening commit took so long that the claim may be gone by the time it answers."""
    clock, tool = FakeClock(), FakeTool("t", effect=EXTERNAL)

    async def slow_commit(unit: Unit) -> None:
        if has(unit, E.ROUND_OPENED):
            clock.seconds += elapsed

    app = make_app(StoreProxy(InMemorySessionStore(), after=slow_commit), [calls("t"), "done"], [tool], config=QUICK)
    app.services.clock = clock
    if runs:
        assert (await run_to_completion(app, new_run())).status == SessionStatus.COMPLETED
    else:
        with pytest.raises(SessionRunFenced):
            await play(app.run(new_run()))
        assert len(await logged(app, E.TOOL_STARTED)) == 1
    assert len(tool.calls) == runs


async def test_a_consumer_that_holds_an_event_too_long_stops_the_dispatch() -> None:
    clock, tool = FakeClock(), FakeTool("t", effect=EXTERNAL)
    app = make_app(None, [calls("t"), "done"], [tool], config=QUICK)
    app.services.clock = clock

    async def consume() -> None:
        async for event in app.run(new_run()):
            if event.type == E.TOOL_STARTED:
                clock.seconds += 31

    with pytest.raises(SessionRunFenced):
        await consume()
    assert tool.calls == []


def child(code: str) -> subprocess.Popen[str]:
    script = f"from cayu.runtime.ownership import new_owner\nprint(new_owner(), flush=True)\n{code}"
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_owners_of_dead_processes_are_gone_and_of_live_ones_are_not() -> None:
    with child("input()") as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert not ownership.is_gone(owner)
        assert readable_owner(owner).startswith(f"process {process.pid} on ")
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ownership.is_gone(owner)  # dead, though its parent has not asked yet
    assert ownership.is_gone(owner)


@pytest.mark.slow
def test_an_owner_whose_process_id_was_given_again_is_gone() -> None:
    with child("input()") as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        *places, start, token = owner.rstrip("]").split("|")
        assert not ownership.is_gone(owner)
        assert ownership.is_gone("|".join((*places, str(int(start) - 1), token)) + "]")
        process.communicate("\n")


def test_a_claim_of_this_process_lives_until_it_is_forgotten() -> None:
    owner, other = ownership.new_owner(), ownership.new_owner()
    assert owner != other
    assert not ownership.is_gone(owner)
    ownership.forget(owner)
    assert ownership.is_gone(owner)
    assert not ownership.is_gone(other)
    ownership.forget(other)
    ownership.forget(other)


def test_owners_elsewhere_cannot_be_known_to_be_gone_but_those_of_an_earlier_boot_are() -> None:
    machine, boot, space, pid, start, token = ownership.new_owner().partition(" [")[2].rstrip("]").split("|")

    def gone(*places: str) -> bool:
        return ownership.is_gone(f"somebody [{'|'.join((*places, pid, start, token))}]")

    assert not gone("elsewhere/0123", boot, space)
    assert not gone(f"{machine.partition('/')[0]}/another-machine-of-that-name", boot, space)
    assert not gone(machine, boot, "pid:[1]")
    assert gone(machine, "an-earlier-boot", space) is not machine.endswith("/-")
    assert not ownership.is_gone("written by something else")


async def test_a_session_of_an_owner_that_is_gone_is_taken_over_at_once() -> None:
    store = InMemorySessionStore()
    app = make_app(store, [calls("t"), "done"], [FakeTool("t")])

    async def die(unit: Unit) -> None:
        if has(unit, E.ROUND_OPENED):
            raise StoreFull(path="x")

    dying = make_app(StoreProxy(store, before=die), [calls("t"), "done"], [FakeTool("t")])
    with pytest.raises(StoreFull):
        await play(dying.run(new_run()))
    head = (await log_of(app)).head
    assert (head.state.status, head.state.owner is not None) == ("running", True)
    events = await play(app.recover_incomplete_session(SESSION))
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    await assert_consistent(app)


class LostAnswers:
    """Raises `StoreOutcomeUnknown` for the n-th write, after it was written or in its stead."""

    def __init__(self, number: int, written: bool) -> None:
        self.store = StoreProxy(InMemorySessionStore())
        self.number, self.left, self.written = number, number, written
        setattr(self.store, "after" if written else "before", self.lose)

    async def lose(self, unit: Unit) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoreOutcomeUnknown


@pytest.mark.requirement("A108")
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_write_without_an_answer_is_settled_exactly(number: int, written: bool) -> None:
    """The writes: creation, opening, two stages, closing, end. The first is not retried when it was not written."""
    lost, tool = LostAnswers(number, written), FakeTool("t", effect=EXTERNAL)
    plain = make_app(None, [calls("t", "t", "t"), "done"], [FakeTool("t", effect=EXTERNAL)])
    expected = types_of(await play(plain.run(new_run())))
    app = make_app(lost.store, [calls("t", "t", "t"), "done"], [tool])
    if number == 1 and not written:
        with pytest.raises(StoreOutcomeUnknown):
            await play(app.run(new_run()))
        assert await app.session_store.load(SESSION) is None
        return
    events = await play(app.run(new_run()))
    assert types_of(events) == expected
    assert [event.sequence for event in events if event.sequence] == list(range(1, len(expected) + 1))
    assert len(tool.calls) == 3
    assert len(await logged(app, E.ROUND_COMMITTED)) == 1
    assert len(lost.store.units) == 6
    await assert_consistent(app)


async def test_a_lost_answer_and_an_interrupt_request_at_once() -> None:
    """The request came in right after the unanswered write, so the log is longer than what was written."""
    store = StoreProxy(InMemorySessionStore())
    other = make_app(store.inner)

    async def lose(unit: Unit) -> None:
        if has(unit, E.ROUND_OPENED):
            await play(other.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
            raise StoreOutcomeUnknown

    store.after = lose
    tools = [FakeTool("t", effect=EXTERNAL, parallel_safe=False), FakeTool("later", effect=EXTERNAL)]
    app = make_app(store, [calls("t", "later"), "done"], tools, config=QUICK)
    events = await asyncio.wait_for(play(app.run(new_run())), 2)
    assert types_of(events)[-1] == E.SESSION_INTERRUPTED
    assert tools[1].calls == []
    view = await assert_consistent(app)
    assert types_of(events) == [record.type for record in (await log_of(app)).records]
    assert view.status == SessionStatus.INTERRUPTED


@pytest.mark.parametrize("error", [StoreBusy(path="x"), StoreOutcomeUnknown()], ids=["busy", "unknown"])
async def test_a_read_back_that_fails_for_a_moment_is_tried_again(error: Exception) -> None:
    lost = LostAnswers(5, written=True)
    app = make_app(lost.store, [calls("t", "t", "t"), "done"], [FakeTool("t", effect=EXTERNAL)])
    lose = lost.lose

    async def lose_and_block(unit: Unit) -> None:
        if lost.left == 1:
            lost.store.loads.append(error)
        await lose(unit)

    lost.store.after = lose_and_block
    assert types_of(await play(app.run(new_run())))[-1] == E.SESSION_COMPLETED
    assert len(await logged(app, E.ROUND_COMMITTED)) == 1


async def test_a_decision_of_someone_else_is_not_taken_for_our_own_lost_write() -> None:
    """Ours was not written and not answered; at that moment another app made the very same decision."""
    store, tools = InMemorySessionStore(), [FakeTool("t", effect=EXTERNAL) for _ in range(2)]
    batches, policy = [calls("t"), "done"], AlwaysRequireApprovalToolPolicy()
    go_on, opened = gate()
    tools[1]._work = go_on
    other = make_app(store, batches, [tools[1]], policy)
    await play(other.run(new_run()))
    [waiting] = await waiting_ids(other)
    running: list[asyncio.Task[Any]] = []

    async def overtaken(unit: Unit) -> None:
        if not running:
            running.append(asyncio.create_task(play(other.resolve_tool_approval(approval(waiting)))))
            await tools[1].entered.wait()
            raise StoreOutcomeUnknown

    app = make_app(StoreProxy(store, before=overtaken), batches, [tools[0]], policy, config=QUICK)
    ours = asyncio.create_task(play(app.resolve_tool_approval(approval(waiting))))
    await asyncio.wait([ours], timeout=2)
    opened.set()
    await running[0]
    await asyncio.wait([ours], timeout=2)
    ours.exception()
    assert len(tools[0].calls) + len(tools[1].calls) == 1
    await assert_consistent(other)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("type", [E.ROUND_OPENED, E.TOOL_STAGED, E.ROUND_COMMITTED, E.SESSION_COMPLETED])
async def test_a_busy_store_is_asked_again_while_the_lease_holds(type: str, times: int) -> None:
    left = [times]

    async def busy(unit: Unit) -> None:
        if has(unit, type) and left[0]:
            left[0] -= 1
            raise StoreBusy(path="x")

    tool = FakeTool("t", effect=EXTERNAL)
    app = make_app(StoreProxy(InMemorySessionStore(), before=busy), [calls("t", "t"), "done"], [tool])
    assert types_of(await play(app.run(new_run())))[-1] == E.SESSION_COMPLETED
    assert left == [0]
    assert len(tool.calls) == 2
    await assert_consistent(app)


async def test_a_busy_store_is_given_up_when_the_lease_ends() -> None:
    async def busy(unit: Unit) -> None:
        if has(unit, E.TOOL_STAGED):
            raise StoreBusy(path="x")

    config = RuntimeConfig(lease_seconds=0.3, renew_after_seconds=0.2, cancel_grace_seconds=0.05)
    tool = FakeTool("t", effect=EXTERNAL, parallel_safe=False)
    store = StoreProxy(InMemorySessionStore(), before=busy, renewing=StoreBusy(path="x"))
    app = make_app(store, [calls("t", "t"), "done"], [tool], config=config)
    with pytest.raises((StoreBusy, SessionRunFenced)):
        await asyncio.wait_for(play(app.run(new_run())), 3)
    assert len(tool.calls) == 1
    assert await status_of(app) == SessionStatus.RUNNING  # for recovery to find


async def test_a_busy_store_refuses_the_first_write_at_once() -> None:
    async def busy(unit: Unit) -> None:
        raise StoreBusy(path="x")

    store = StoreProxy(InMemorySessionStore(), before=busy)
    with pytest.raises(StoreBusy):
        await asyncio.wait_for(play(make_app(store).run(new_run())), 1)
    assert store.units == []


async def test_a_foreign_record_in_the_log_is_a_fence() -> None:
    """Anything but an interrupt request between two writes of an owner means that the session was taken over."""
    work, opened = gate()
    store, tool = InMemorySessionStore(), FakeTool("t", work, effect=EXTERNAL)
    app: CayuApp = make_app(store, [calls("t"), "done"], [tool], config=QUICK)
    task = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    head = (await log_of(app)).head.state
    assert head.owner is not None
    foreign = (Record(E.MODEL_STARTED, b'{"step":9,"model":"m"}'),)
    await store.append(Unit(SESSION, head.version, Held(head.epoch, head.owner), foreign))
    opened.set()
    with pytest.raises(SessionRunFenced):
        await asyncio.wait_for(task, 2)
    assert len((await log_of(app)).records) == head.version + 1


@pytest.mark.parametrize("role", ["", ownership.RECOVERING])
def test_an_owner_id_is_short_on_a_machine_of_a_long_name(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to cut it, so its claim is known again while it lives, and gone once it is forgotten."""
    here = (f"{'n' * 64}/{'1' * 32}", "2" * 36, "pid:[4026531836]")
    monkeypatch.setattr(platform, "node", lambda: "n" * 64)
    monkeypatch.setattr(ownership, "_here", lambda: here)
    owner = ownership.new_owner(role)
    assert len(owner) <= 256
    assert owner.startswith(f"{role}process {os.getpid()} on {'n' * 24} [")
    assert not ownership.is_gone(owner)
    ownership.forget(owner)
    assert ownership.is_gone(owner)
