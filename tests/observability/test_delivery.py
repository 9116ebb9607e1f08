"""Delivery of timing records: bounded, beside the work, and of no consequence to it."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from runtime.support import FakeClock, FakeTool, calls, log_of, make_app, new_run, next_turn, play

from cayu import CayuApp, Event, SQLiteSessionStore
from cayu.errors import InvalidInput
from cayu.events import EventType as E
from cayu.observability import EventSink, InMemoryEventSink, RuntimeTimingConfig, TimingRecord
from cayu.observability.delivery import TimingDelivery
from cayu.runtime.ownership import is_gone
from cayu.storage import InMemoryBudgetLedger, InMemorySessionStore
from cayu.timing.marks import Attempt
from cayu.timing.phases import ROUND_COMMIT, STARTED_PERSISTENCE
from cayu.timing.session import SessionTiming
from cayu.tools import ToolContext, ToolResult

QUICK = RuntimeTimingConfig(sink_timeout_seconds=0.05)
WORKER = "cayu timing"
SLACK_SECONDS = 0.9
"""What a busy machine may take on top."""


class Sink:
    """Takes records after doing something with each."""

    def __init__(self, act: Callable[[TimingRecord], Awaitable[object]] | None = None) -> None:
        self._act = act
        self.taken: list[TimingRecord] = []
        self.tried = 0

    async def emit_timing(self, record: TimingRecord) -> None:
        self.tried += 1
        if self._act is not None:
            await self._act(record)
        self.taken.append(record)


class Gated(Sink):
    """Takes nothing before its gate is opened."""

    def __init__(self) -> None:
        super().__init__(self._pass)
        self.entered, self.gate = asyncio.Event(), asyncio.Event()

    async def _pass(self, record: TimingRecord) -> None:
        self.entered.set()
        await self.gate.wait()


async def stuck(record: TimingRecord) -> None:
    await asyncio.Event().wait()


async def stubborn(record: TimingRecord) -> None:
    """Do not mind being cancelled, for a while."""
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.4)
        except asyncio.CancelledError:
            continue


def attempts(count: int) -> list[Attempt]:
    """What a session has prepared, step after step."""
    kept: list[Attempt] = []
    timing = SessionTiming(FakeClock(), 128, kept.append)
    timing.attach("s", "i")
    for step in range(1, count + 1):
        timing.begin_step(step)
        timing.asked()
    return kept


def steps(records: list[TimingRecord]) -> list[int]:
    """The steps that records are about."""
    return [int(record.model_step_id.removeprefix("i.m")) for record in records]


def workers() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name().startswith(WORKER)}


def deliver(count: int, *sinks: Any, config: RuntimeTimingConfig | None = None) -> TimingDelivery:
    """A delivery with so many records to these sinks."""
    delivery = TimingDelivery(config or RuntimeTimingConfig(), sinks)
    for attempt in attempts(count):
        delivery.add(attempt)
    return delivery


@asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Hold that a block ends in time, with some room for a busy machine."""
    begun = time.monotonic()
    async with asyncio.timeout(5):
        yield
    assert time.monotonic() - begun < seconds + SLACK_SECONDS


def round_app(*sinks: Any, rounds: int = 1, store: Any = None, **options: Any) -> CayuApp:
    """An application whose session has some rounds."""
    tools = [FakeTool("act")]
    return make_app(store, [*[calls("act")] * rounds, *["done"] * 3], tools, timing_sinks=sinks, **options)


# Bounds


@pytest.mark.requirement("A139")
async def test_a_blocked_sink_keeps_128_and_the_rest_is_dropped() -> None:
    assert RuntimeTimingConfig().sink_queue_capacity == 128
    assert RuntimeTimingConfig().sink_timeout_seconds == 1
    sink = Gated()
    delivery = deliver(100, sink)
    await sink.entered.wait()
    for attempt in attempts(200)[100:]:
        delivery.add(attempt)
    assert (delivery.queued, delivery.dropped, delivery.failed) == (128, 72, 0)
    assert len(workers()) == 1
    sink.gate.set()
    await delivery.flush()
    assert steps(sink.taken) == list(range(1, 129))
    assert (delivery.queued, delivery.dropped, delivery.failed) == (0, 72, 0)


@pytest.mark.requirement("A139")
async def test_a_sink_that_takes_too_long_loses_that_record_and_gets_the_next() -> None:
    async def slow_at_first(record: TimingRecord) -> None:
        if record.model_step_id == "i.m1":
            await stuck(record)

    sink = Sink(slow_at_first)
    delivery = deliver(3, sink, config=QUICK)
    async with at_most(0.05):
        await delivery.flush()
    assert steps(sink.taken) == [2, 3]
    assert (delivery.dropped, delivery.failed, delivery.queued) == (1, 0, 0)


@pytest.mark.requirement("A139")
async def test_a_stuck_sink_keeps_nothing_from_another() -> None:
    fast, slow = Sink(), Sink(stuck)
    delivery = deliver(20, slow, fast, config=RuntimeTimingConfig(sink_queue_capacity=5))
    assert delivery.dropped == 30
    await asyncio.sleep(0.01)
    assert steps(fast.taken) == [1, 2, 3, 4, 5]
    assert (slow.tried, slow.taken) == (1, [])
    for attempt in attempts(3):
        delivery.add(attempt)
    await asyncio.sleep(0.01)
    assert len(fast.taken) == 8
    assert (delivery.queued, delivery.dropped) == (5, 33)
    for worker in workers():
        worker.cancel()


# Sinks that fail


class Odd(BaseException):
    """An exception that is no `Exception`."""


@pytest.mark.requirement("A140")
@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError("x"), asyncio.CancelledError("x"), StopAsyncIteration(), Odd("x")]
)
async def test_whatever_a_sink_raises_counts_as_failed(error: BaseException) -> None:
    async def fail(record: TimingRecord) -> None:
        if record.model_step_id != "i.m2":
            raise error

    sink = Sink(fail)
    delivery = deliver(3, sink)
    async with asyncio.timeout(5):
        await delivery.flush()
    assert sink.tried == 3
    assert steps(sink.taken) == [2]
    assert (delivery.failed, delivery.dropped, delivery.queued) == (2, 0, 0)
    await delivery.close()


async def test_what_cannot_take_timing_is_refused() -> None:
    app = round_app()
    for wrong in (object(), None, "a sink"):
        with pytest.raises(InvalidInput, match="async emit_timing"):
            app.add_timing_sink(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="async emit_timing"):
            round_app(wrong)
    await play(app.run(new_run()))
    assert app.runtime_timing_status().queued_records == 0


def test_a_sink_that_is_not_async_or_a_class_is_refused() -> None:
    class Hasty:
        def emit_timing(self, record: TimingRecord) -> None:
            """Take it at once."""

    for sink in (Hasty(), object(), Sink):
        with pytest.raises(InvalidInput, match=r"async emit_timing|is a class"):
            deliver(0, sink)  # type: ignore[arg-type]


async def test_a_sink_that_is_named_twice_gets_each_record_once() -> None:
    sink = InMemoryEventSink()
    app = round_app(sink, event_sinks=[sink])
    app.add_timing_sink(sink)
    await play(app.run(new_run()))
    await app.flush_runtime_timing()
    assert len(sink.timings) == 3


class Failing(EventSink):
    """Takes events, and raises on every timing record."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.events: list[Event] = []

    async def emit(self, event: Event) -> None:
        self.events.append(event)

    async def emit_timing(self, record: TimingRecord) -> None:
        raise self.error


async def story(app: CayuApp) -> list[tuple[str, str]]:
    """What stands in the log of a session, without the names that are drawn anew for each."""
    loaded = await log_of(app)
    bodies = ((record.type, record.body.decode()) for record in loaded.records)
    private = rf"{loaded.head.row.instance_id}|run-[0-9a-f]+"
    return [(type, re.sub(private, "-", body)) for type, body in bodies]


@pytest.mark.requirement("A140")
@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError("x")])
async def test_a_sink_that_fails_harms_no_run_and_leaves_no_trace(error: BaseException) -> None:
    sink = Failing(error)
    with_sink, without = round_app(rounds=3, event_sinks=[sink]), round_app(rounds=3)
    for app in (with_sink, without):
        await play(app.run(new_run()))
        await play(app.resume(next_turn()))
        await app.flush_runtime_timing()
    assert await story(with_sink) == await story(without)
    assert with_sink.runtime_timing_status().failed_deliveries == 3 + 5
    assert with_sink.runtime_timing_status().dropped_records == 0
    assert without.runtime_timing_status().failed_deliveries == 0
    assert [event.sequence for event in sink.events] == list(range(1, len(sink.events) + 1))
    assert with_sink.runtime_timing_status().recent_records == 8


@pytest.mark.requirement("A140")
async def test_a_stuck_sink_holds_up_no_run() -> None:
    sink = Sink(stuck)
    app = round_app(sink, rounds=3, runtime_timing=RuntimeTimingConfig(sink_timeout_seconds=60))
    async with at_most(0.5):
        await play(app.run(new_run()))
    assert app.runtime_timing_status().queued_records == 7
    for worker in workers():
        worker.cancel()


# Flush


@pytest.mark.requirement("A141")
async def test_flush_waits_for_all_that_is_queued() -> None:
    sinks = [Sink(lambda record: asyncio.sleep(0.005)), Sink()]
    app = round_app(*sinks, rounds=4)
    await play(app.run(new_run()))
    await app.flush_runtime_timing()
    assert [len(sink.taken) for sink in sinks] == [9, 9]
    assert app.runtime_timing_status().queued_records == 0
    await app.flush_runtime_timing()
    assert workers() == set()


@pytest.mark.requirement("A141")
async def test_flush_does_not_wait_for_what_comes_later() -> None:
    sink = Sink(lambda record: asyncio.sleep(0.01))
    delivery = deliver(3, sink)
    later = iter(attempts(1000))

    async def go_on() -> None:
        while True:
            delivery.add(next(later))
            await asyncio.sleep(0.005)

    going = asyncio.create_task(go_on())
    try:
        async with asyncio.timeout(0.5):
            await delivery.flush()
    finally:
        going.cancel()
        await delivery.close()
    assert len(sink.taken) >= 3


async def test_a_flush_that_is_cancelled_stops_no_delivery() -> None:
    sink = Gated()
    delivery = deliver(3, sink)
    flushing = asyncio.create_task(delivery.flush())
    await sink.entered.wait()
    flushing.cancel()
    await asyncio.wait([flushing])
    sink.gate.set()
    await delivery.flush()
    assert len(sink.taken) == 3


# Close


@pytest.mark.requirement("A142")
@pytest.mark.parametrize("act, bound", [(stuck, 0.05), (stubborn, 0.1)], ids=["stuck", "stubborn"])
async def test_close_returns_in_time_and_drops_what_is_left(
    act: Callable[[TimingRecord], Awaitable[None]], bound: float
) -> None:
    sink, other = Sink(act), Sink()
    app = round_app(sink, other, rounds=3, runtime_timing=QUICK)
    await play(app.run(new_run()))
    async with at_most(bound):
        await app.close_runtime_timing()
    status = app.runtime_timing_status()
    assert (len(other.taken), sink.taken) == (7, [])
    assert (status.dropped_records, status.queued_records, status.failed_deliveries) == (7, 0, 0)
    await asyncio.sleep(0.5 if act is stubborn else 0)
    assert workers() == set()
    assert app.runtime_timing_status().dropped_records == 7


@pytest.mark.requirement("A142")
async def test_close_delivers_what_it_can_within_the_timeout() -> None:
    sink = Sink(lambda record: asyncio.sleep(0.03))
    delivery = deliver(20, sink, config=RuntimeTimingConfig(sink_timeout_seconds=0.2))
    async with at_most(0.2):
        await delivery.close()
    assert 3 <= len(sink.taken) <= 7
    assert (len(sink.taken) + delivery.dropped, delivery.queued, delivery.failed) == (20, 0, 0)
    assert workers() == set()


@pytest.mark.requirement("A142")
async def test_after_close_nothing_is_delivered() -> None:
    sink = Sink()
    app = round_app(sink, rounds=1)
    await play(app.run(new_run()))
    await app.close_runtime_timing()
    await app.close_runtime_timing()
    assert len(sink.taken) == 3
    await play(app.resume(next_turn()))
    await app.flush_runtime_timing()
    assert len(sink.taken) == 3
    assert app.runtime_timing_status().dropped_records == 1
    assert app.runtime_timing_status().recent_records == 4
    assert workers() == set()


@pytest.mark.requirement("A142")
async def test_closing_the_application_closes_delivery() -> None:
    sink, tasks = Sink(stuck), asyncio.all_tasks()
    async with round_app(sink, runtime_timing=QUICK) as app:
        await play(app.run(new_run()))
        assert len(workers()) == 1
    assert asyncio.all_tasks() == tasks
    assert app.runtime_timing_status().queued_records == 0
    assert app.runtime_timing_status().dropped_records == 3


# Event loops


@pytest.mark.requirement("A144")
@pytest.mark.parametrize("again", ["flush", "run"])
def test_what_is_queued_follows_to_the_next_loop(again: str) -> None:
    hold = True

    async def wait_at_first(record: TimingRecord) -> None:
        if hold:
            await asyncio.Event().wait()

    sink = Sink(wait_at_first)
    app = round_app(sink, rounds=1, runtime_timing=RuntimeTimingConfig(sink_timeout_seconds=30))

    async def first() -> None:
        await play(app.run(new_run()))
        await asyncio.sleep(0)
        assert (sink.tried, app.runtime_timing_status().queued_records) == (1, 3)

    async def second() -> None:
        if again == "run":
            await play(app.resume(next_turn()))
        await app.flush_runtime_timing()

    asyncio.run(first())
    assert (sink.taken, app.runtime_timing_status().queued_records) == ([], 3)
    assert app.runtime_timing_status().dropped_records == 0
    hold = False
    asyncio.run(second())
    expected = 4 if again == "run" else 3
    assert len(sink.taken) == len({record.model_dump_json() for record in sink.taken}) == expected
    status = app.runtime_timing_status()
    assert (status.queued_records, status.dropped_records, status.failed_deliveries) == (0, 0, 0)


@pytest.mark.requirement("A144")
def test_a_loop_that_was_left_as_it_was_keeps_nothing() -> None:
    hold = True

    async def wait_at_first(record: TimingRecord) -> None:
        if hold:
            await asyncio.Event().wait()

    sink = Sink(wait_at_first)
    app = round_app(sink, runtime_timing=RuntimeTimingConfig(sink_timeout_seconds=30))
    left = asyncio.new_event_loop()
    left.run_until_complete(play(app.run(new_run())))
    left.close()
    hold = False
    asyncio.run(asyncio.wait_for(app.flush_runtime_timing(), 5))
    assert len(sink.taken) == 3
    assert app.runtime_timing_status().queued_records == 0


@pytest.mark.requirement("A144")
def test_each_loop_of_many_delivers_its_own(tmp_path: Path) -> None:
    sink = Sink()
    app = round_app(sink, store=SQLiteSessionStore(tmp_path / "s.db"))

    async def turn(number: int) -> None:
        await play(app.resume(next_turn()) if number else app.run(new_run()))

    for number in range(3):
        asyncio.run(turn(number))
    asyncio.run(app.aclose())
    assert len(sink.taken) == 3 + 1 + 1


# Who is asked


class Plain(EventSink):
    """Takes events only."""

    async def emit(self, event: Event) -> None:
        """Take it."""


@pytest.mark.requirement("A136")
async def test_a_sink_that_does_not_want_timing_gets_none_and_starts_nobody() -> None:
    seen: set[str] = set()
    tasks = asyncio.all_tasks()
    app = round_app(Plain(), event_sinks=[Plain()], rounds=2)
    app.add_timing_sink(Plain())
    async for _ in app.run(new_run()):
        seen |= {task.get_name() for task in asyncio.all_tasks()}
    assert not any(name.startswith(WORKER) for name in seen)
    assert asyncio.all_tasks() == tasks
    status = app.runtime_timing_status()
    assert (status.queued_records, status.dropped_records, status.recent_records) == (0, 0, 5)


@pytest.mark.requirement("A135")
async def test_sinks_of_both_kinds_receive_what_can_be_inspected() -> None:
    class Own(EventSink):
        def __init__(self) -> None:
            self.taken: list[TimingRecord] = []

        async def emit(self, event: Event) -> None:
            """Take it."""

        async def emit_timing(self, record: TimingRecord) -> None:
            self.taken.append(record)

    own, sink, memory = Own(), Sink(), InMemoryEventSink()
    app = round_app(sink, rounds=2, event_sinks=[own, memory])
    await play(app.run(new_run()))
    await app.flush_runtime_timing()
    assert own.taken == sink.taken == memory.timings
    rounds = await app.inspect_recent_tool_round_timing("s")
    prepared = await app.inspect_recent_model_step_preparation_timing("s")
    assert [record for record in sink.taken if record.kind == "tool_round"] == list(reversed(rounds))
    assert [record for record in sink.taken if record.kind != "tool_round"] == list(reversed(prepared))


@pytest.mark.requirement("A135")
async def test_a_sink_that_is_added_gets_what_comes_after() -> None:
    app = round_app()
    await play(app.run(new_run()))
    sink = Sink()
    app.add_timing_sink(sink)
    await play(app.resume(next_turn()))
    await app.flush_runtime_timing()
    assert [record.model_step_id.rpartition(".")[2] for record in sink.taken] == ["m3"]


@pytest.mark.requirement("A095")
async def test_without_timing_nobody_is_started() -> None:
    sink, seen = Sink(), set[str]()
    app = round_app(sink, runtime_timing=RuntimeTimingConfig(enabled=False))
    async for _ in app.run(new_run()):
        seen |= {task.get_name() for task in asyncio.all_tasks()}
    await app.flush_runtime_timing()
    await app.close_runtime_timing()
    assert not any(name.startswith(WORKER) for name in seen)
    assert sink.tried == 0
    status = app.runtime_timing_status()
    assert (status.recent_records, status.queued_records, status.dropped_records) == (0, 0, 0)


# What sinks do


async def test_what_a_sink_writes_is_nobodys(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "s.db")

    async def write(record: TimingRecord) -> None:
        await store.transact("timings", record.model_step_id, lambda current, now: "x" * 10_000)

    app = round_app(sink := Sink(write), rounds=4, store=store)
    async for _ in app.run(new_run()):
        await asyncio.sleep(0.002)
    await app.flush_runtime_timing()
    assert len(sink.taken) == 9
    for record in await app.inspect_recent_tool_round_timing("s"):
        counted = {phase.name: phase.store_transaction_count for phase in record.phases}
        assert {name: count for name, count in counted.items() if count} == {STARTED_PERSISTENCE: 1, ROUND_COMMIT: 1}
        assert sum(phase.store_bytes_written for phase in record.phases) < 10_000
    for prepared in await app.inspect_recent_model_step_preparation_timing("s"):
        assert not any(phase.store_transaction_count for phase in prepared.phases)
    await app.aclose()


@pytest.mark.requirement("A140")
async def test_a_failure_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(record: TimingRecord) -> None:
        raise ValueError("CANARY")

    with caplog.at_level(logging.DEBUG, "cayu.timing"):
        await deliver(1, Sink(fail)).flush()
    [line] = caplog.records
    assert line.getMessage() == "sink Sink failed on a timing record: ValueError"
    assert line.exc_info is None


class HoldingBack(InMemoryEventSink):
    """Lets go of what it holds back in its own way."""

    def __init__(self, let_go: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._let_go = let_go

    async def close_timing(self) -> None:
        await self._let_go()


async def _raise() -> None:
    raise ValueError("x")


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.requirement("A142")
@pytest.mark.parametrize("let_go", [_raise, _forever])
async def test_a_sink_that_cannot_let_go_keeps_no_other_from_it(let_go: Callable[[], Awaitable[None]]) -> None:
    told: list[str] = []

    async def tell() -> None:
        told.append("let go")

    delivery = deliver(1, HoldingBack(let_go), good := HoldingBack(tell), config=QUICK)
    async with at_most(0.05):
        await delivery.close()
        await delivery.close()
    assert told == ["let go"]
    assert len(good.timings) == 1
    assert delivery.failed == 1


# Loops that end in the middle


class Late(Sink):
    """Is stuck with whatever it is given before it is opened; after that it waits for a gate."""

    def __init__(self) -> None:
        super().__init__(self._pass)
        self.opened = False
        self.gate = asyncio.Event()

    async def _pass(self, record: TimingRecord) -> None:
        await (self.gate.wait() if self.opened else stuck(record))


def throw_away(worker: asyncio.Task[Any]) -> None:
    """Do what the collector does with a task of a loop that is no more."""
    worker._log_destroy_pending = False  # type: ignore[attr-defined]
    worker.get_coro().close()  # type: ignore[union-attr]


@pytest.mark.requirement("A144")
def test_a_queue_that_is_full_when_its_loop_ends_is_worked_off_in_the_next() -> None:
    sink, kept = Late(), attempts(6)
    sink.gate.set()
    delivery = TimingDelivery(RuntimeTimingConfig(sink_queue_capacity=2, sink_timeout_seconds=30), [sink])

    async def first() -> None:
        for attempt in kept[:3]:
            delivery.add(attempt)
        await asyncio.sleep(0)

    async def second() -> None:
        delivery.add(kept[3])
        async with asyncio.timeout(5):
            while delivery.queued:
                await asyncio.sleep(0)
        for attempt in kept[4:]:
            delivery.add(attempt)
        await delivery.flush()

    asyncio.run(first())
    assert (delivery.queued, delivery.dropped, sink.taken) == (2, 1, [])
    sink.opened = True
    asyncio.run(second())
    assert steps(sink.taken) == [1, 2, 5, 6]
    assert (delivery.queued, delivery.dropped, delivery.failed) == (0, 2, 0)


@pytest.mark.requirement("A144")
@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_worker_that_is_thrown_away_leaves_its_record_to_the_next_loop_once(when: str) -> None:
    sink, left = Late(), asyncio.new_event_loop()
    delivery = TimingDelivery(RuntimeTimingConfig(sink_timeout_seconds=30), [sink])

    async def first() -> asyncio.Task[Any]:
        for attempt in attempts(3):
            delivery.add(attempt)
        await asyncio.sleep(0)
        [worker] = workers()
        return worker

    async def second() -> None:
        flushing = asyncio.ensure_future(delivery.flush())
        async with asyncio.timeout(5):
            while sink.tried < 2:
                await asyncio.sleep(0)
            if when == "meanwhile":
                throw_away(worker)
            sink.gate.set()
            await flushing

    worker = left.run_until_complete(first())
    left.close()
    if when == "before":
        throw_away(worker)
        assert (delivery.queued, delivery.failed) == (3, 0)
    sink.opened = True
    asyncio.run(second())
    if when == "after":
        throw_away(worker)
    assert steps(sink.taken) == [1, 2, 3]
    assert (delivery.queued, delivery.dropped, delivery.failed) == (0, 0, 0)


@pytest.mark.requirement("A144")
def test_a_loop_that_only_pauses_holds_up_no_flush_in_another() -> None:
    sink = Sink(lambda record: asyncio.sleep(0.02))
    app, paused = round_app(sink), asyncio.new_event_loop()
    paused.run_until_complete(play(app.run(new_run())))
    try:
        asyncio.run(asyncio.wait_for(app.flush_runtime_timing(), 2))
    finally:
        paused.run_until_complete(asyncio.sleep(0.1))
        paused.close()
    steps_taken = [(record.kind, record.model_step_id) for record in sink.taken]
    assert len(steps_taken) == len(set(steps_taken)) == 3
    assert app.runtime_timing_status().dropped_records == 0


@pytest.mark.requirement("A144")
def test_two_threads_with_a_loop_each_deliver_every_record_once(tmp_path: Path) -> None:
    sink = Sink(lambda record: asyncio.sleep(0.001))
    app = round_app(sink, store=SQLiteSessionStore(tmp_path / "s.db"))
    together = threading.Barrier(2)

    async def sessions(name: str) -> None:
        for number in range(10):
            await play(app.run(new_run(f"{name}{number}")))
        await asyncio.wait_for(app.flush_runtime_timing(), 10)

    def work(name: str) -> None:
        together.wait()
        asyncio.run(sessions(name))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, "ab"))
    delivered = [(record.kind, record.model_step_id) for record in sink.taken]
    status = app.runtime_timing_status()
    assert len(delivered) == len(set(delivered))
    lost = status.dropped_records + status.failed_deliveries + status.queued_records
    assert len(delivered) + lost == status.recent_records == 60
    asyncio.run(app.aclose())


@pytest.mark.requirement("A144")
@pytest.mark.parametrize("enabled", [False, True])
def test_a_drive_whose_loop_is_no_more_gives_up_its_claim_when_it_is_thrown_away(enabled: bool) -> None:
    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        return ToolResult(content="never")

    store, act, left = InMemorySessionStore(), FakeTool("act", work), asyncio.new_event_loop()
    timing = RuntimeTimingConfig(enabled=enabled, sink_timeout_seconds=30)
    app = make_app(store, [calls("act")], [act], timing_sinks=[Sink(stuck)], runtime_timing=timing)
    thrown_away: list[asyncio.Task[Any]] = []

    async def first() -> None:
        thrown_away.append(asyncio.ensure_future(play(app.run(new_run()))))
        await act.entered.wait()

    async def second() -> list[Event]:
        async with make_app(store, [calls("act"), "done"], [FakeTool("act")]) as other:
            return await play(other.recover_incomplete_session("s"))

    left.run_until_complete(first())
    others = asyncio.all_tasks(left)
    left.close()
    [drive] = app.services.begun
    owner = drive.log.lease.owner
    assert drive._task is not None
    assert not is_gone(owner)
    with pytest.raises(RuntimeError, match="loop is closed"):
        drive._task.get_coro().close()  # type: ignore[union-attr]
    assert is_gone(owner)
    assert asyncio.run(second())[-1].type == E.SESSION_COMPLETED
    for task in others:
        with suppress(RuntimeError):
            throw_away(task)


# Closings that are cancelled


class Counted(InMemorySessionStore):
    """Counts how often it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    async def aclose(self) -> None:
        await super().aclose()
        self.closed += 1


class CountedLedger(InMemoryBudgetLedger):
    """Counts how often it is closed."""

    closed = 0

    async def aclose(self) -> None:
        await super().aclose()
        self.closed += 1


async def _cancelled() -> None:
    raise asyncio.CancelledError("x")


@pytest.mark.requirement("A142")
@pytest.mark.parametrize("let_go", [_raise, _cancelled, _forever])
async def test_a_sink_that_cannot_let_go_keeps_no_store_open(let_go: Callable[[], Awaitable[None]]) -> None:
    store, ledger = Counted(), CountedLedger()
    app = round_app(store=store, budget_ledger=ledger, event_sinks=[HoldingBack(let_go)], runtime_timing=QUICK)
    await play(app.run(new_run()))
    async with at_most(0.1):
        await app.aclose()
    assert (store.closed, ledger.closed) == (1, 1)
    assert app.runtime_timing_status().failed_deliveries == 1
    assert app.runtime_timing_status().queued_records == 0


@pytest.mark.requirement("A142")
async def test_a_closing_of_the_application_that_is_cancelled_still_closes_the_stores() -> None:
    store, ledger, sink = Counted(), CountedLedger(), Gated()
    app = round_app(sink, store=store, budget_ledger=ledger, runtime_timing=RuntimeTimingConfig(sink_timeout_seconds=9))
    await play(app.run(new_run()))
    closing = asyncio.create_task(app.aclose())
    while not app.services.timing.delivery._closed:
        await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert (store.closed, ledger.closed) == (1, 1)
    sink.gate.set()
    await app.aclose()
    assert app.runtime_timing_status().queued_records == 0
    assert workers() == set()


@pytest.mark.requirement("A142")
@pytest.mark.parametrize("where", ["delivering", "stopping", "letting go"])
async def test_a_close_that_is_cancelled_is_finished_by_the_next(where: str) -> None:
    begun, told = asyncio.Event(), list[str]()
    gate = asyncio.Event()

    async def let_go() -> None:
        told.append("begun")
        begun.set()
        if where == "letting go":
            await gate.wait()
        told.append("done")

    async def take(record: TimingRecord) -> None:
        if where == "stopping":
            begun.set()
            await stubborn(record)
        elif where == "delivering":
            begun.set()
            await stuck(record)

    sink, other = HoldingBack(let_go), Sink(take)
    seconds = 0.15 if where == "stopping" else 5
    delivery = deliver(3, sink, other, config=RuntimeTimingConfig(sink_timeout_seconds=seconds))
    closing = asyncio.create_task(delivery.close())
    await begun.wait()
    if where == "stopping":
        await asyncio.sleep(0.2)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    for queue in delivery._queues:
        queue._config = QUICK
    delivery._config = QUICK
    async with at_most(0.2):
        await delivery.close()
        await delivery.close()
    assert told == ["begun", "done"]
    assert delivery.queued == 0
    assert len(sink.timings) == 3
    assert len(other.taken) + delivery.dropped == 3
    await asyncio.sleep(0.5 if where == "stopping" else 0)
    assert workers() == set()


@pytest.mark.requirement("A142", "A144")
def test_a_close_that_ended_with_its_loop_is_finished_in_the_next() -> None:
    told: list[str] = []

    async def let_go() -> None:
        told.append("begun")
        if len(told) == 1:
            await asyncio.Event().wait()
        told.append("done")

    async def first() -> TimingDelivery:
        delivery = deliver(1, HoldingBack(let_go), config=RuntimeTimingConfig(sink_timeout_seconds=30))
        closing = asyncio.create_task(delivery.close())
        while not told:
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        return delivery

    delivery = asyncio.run(first())
    asyncio.run(asyncio.wait_for(delivery.close(), 5))
    assert told == ["begun", "begun", "done"], "the first try was cut off, so there is another"
    assert (delivery.queued, delivery.failed) == (0, 0)


@pytest.mark.requirement("A140")
@pytest.mark.parametrize("error", [ValueError("CANARY"), asyncio.CancelledError("CANARY"), Odd("CANARY")])
async def test_sinks_that_fail_are_logged_once_each_and_counted_always(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    async def fail(record: TimingRecord) -> None:
        raise error

    class Other(Sink):
        """Another one."""

    with caplog.at_level(logging.DEBUG, "cayu.timing"):
        delivery = deliver(3, Sink(fail), Other(fail))
        await delivery.flush()
    assert delivery.failed == 6
    lines = sorted(line.getMessage() for line in caplog.records if line.name == "cayu.timing")
    name = type(error).__name__
    assert lines == [f"sink {sink} failed on a timing record: {name}" for sink in ("Other", "Sink")]
