"""What the tests of timing share: clocks that move by themselves, slow parts of a runtime, and sums in nanoseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from runtime.support import SESSION, FakeTool, StoreProxy, has, make_app

from cayu import CayuApp, Event
from cayu.clock import NANOSECOND
from cayu.events import EventType as E
from cayu.observability import ModelStepPreparationTiming, RuntimePhaseTiming, ToolCallTiming, ToolRoundTiming
from cayu.providers.scripted import Batch
from cayu.sessions.streams import SessionStore, Unit
from cayu.storage import InMemorySessionStore
from cayu.testing import FakeClock
from cayu.timing.phases import ROUND_PHASES, WAITS
from cayu.tools import Tool, ToolContext, ToolPolicy, ToolResult

Timed = ToolRoundTiming | ToolCallTiming | ModelStepPreparationTiming
ACTIVE = tuple(name for name in ROUND_PHASES if name not in WAITS)
"""The phases of a round that add up to its duration when its calls are dispatched one after the other."""
TICK = 0.000_001
"""Seconds that one look at a ticking clock takes."""


class TickingClock(FakeClock):
    """A clock on which every look takes a microsecond, so that whatever is observed has lasted."""

    def monotonic_ns(self) -> int:
        self.advance(TICK)
        return super().monotonic_ns()


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * NANOSECOND)


def took(record: Timed, name: str) -> int:
    """Nanoseconds that a record tells of one phase."""
    return ns(record.phase(name).duration_seconds)


def active(record: Timed) -> int:
    """Nanoseconds of all phases but the two waits."""
    return sum(took(record, name) for name in ACTIVE)


def lasted(record: ToolRoundTiming | ModelStepPreparationTiming) -> int:
    """Nanoseconds from the beginning of a record to its end."""
    return ns(record.duration_seconds)


def told(record: Timed) -> dict[str, float]:
    """The phases of a record that took time, with their seconds."""
    return {phase.name: phase.duration_seconds for phase in record.phases if phase.duration_seconds}


def window(phase: RuntimePhaseTiming) -> float:
    """Seconds from the first entry of a phase to its last exit."""
    assert phase.first_started_at is not None
    assert phase.last_completed_at is not None
    return (phase.last_completed_at - phase.first_started_at).total_seconds()


def timed_app(
    clock: FakeClock,
    batches: Sequence[Batch] = ("done",),
    tools: Sequence[Tool] = (),
    policy: ToolPolicy | None = None,
    store: SessionStore | StoreProxy | None = None,
    **options: Any,
) -> CayuApp:
    """An application on a clock of its own; its store has another, so that only what a test moves takes time."""
    app = make_app(store, batches, tools, policy, **options)
    app.services.clock = clock
    return app


def lasting(clock: FakeClock, name: str, seconds: float, **options: Any) -> FakeTool:
    """A tool that takes so long."""

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        clock.advance(seconds)
        return ToolResult(content=f"{name} did it")

    return FakeTool(name, work, **options)


def serial(clock: FakeClock, name: str, seconds: float, **options: Any) -> FakeTool:
    """The same, dispatched alone."""
    return lasting(clock, name, seconds, parallel_safe=False, **options)


def write_of(unit: Unit) -> str:
    """Which write of a round a unit is; empty for any other."""
    for kind, type in (("close", E.ROUND_COMMITTED), ("pause", E.SESSION_INTERRUPTED), ("stage", E.TOOL_STAGED)):
        if has(unit, type):
            return kind
    return "open" if has(unit, E.TOOL_STARTED) else ""


def slow_store(clock: FakeClock, **seconds: float) -> StoreProxy:
    """A store in memory whose writes take time: `open`, `stage`, `close` and `pause` in seconds."""

    async def wait(unit: Unit) -> None:
        clock.advance(seconds.get(write_of(unit), 0.0))

    return StoreProxy(InMemorySessionStore(), before=wait)


def failing_store(kind: str, error: Exception) -> StoreProxy:
    """A store in memory that once raises on a write of that kind, as `write_of` names it, and then goes on."""
    left = [error]

    async def fail(unit: Unit) -> None:
        if write_of(unit) == kind and left:
            raise left.pop()

    return StoreProxy(InMemorySessionStore(), before=fail)


async def consume(
    stream: AsyncIterator[Event], clock: FakeClock, seconds: float, only: Callable[[Event], bool] = lambda event: True
) -> list[Event]:
    """Take all events of a stream, and so much time for each."""
    events = []
    async for event in stream:
        events.append(event)
        if event.sequence is not None and only(event):
            clock.advance(seconds)
    return events


async def rounds_of(app: CayuApp, session_id: str | None = SESSION) -> tuple[ToolRoundTiming, ...]:
    """Every attempt at a round that was seen, newest first."""
    return await app.inspect_recent_tool_round_timing(session_id, limit=64)


async def round_of(app: CayuApp, session_id: str | None = SESSION) -> ToolRoundTiming:
    """The only attempt at a round that was seen."""
    [record] = await rounds_of(app, session_id)
    return record


async def steps_of(app: CayuApp, session_id: str | None = SESSION) -> list[ModelStepPreparationTiming]:
    """Every preparation that was seen, oldest first."""
    return list(reversed(await app.inspect_recent_model_step_preparation_timing(session_id, limit=64)))


def flags(record: ToolRoundTiming) -> tuple[bool, bool]:
    """Whether a record is incomplete, and whether it is recovered."""
    return record.incomplete, record.recovered
