"""The active phases of a serial live round add up to its duration, to the nanosecond, but for the consumer's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from runtime.support import FakePolicy, calls, make_app, new_run, play, types_of
from timing.support import (
    TickingClock,
    active,
    consume,
    lasted,
    lasting,
    ns,
    round_of,
    rounds_of,
    serial,
    slow_store,
    timed_app,
    took,
)

from cayu import CayuApp, Event
from cayu.events import EventType as E
from cayu.testing import FakeClock
from cayu.timing.phases import EXECUTION, PUBLICATION_QUEUE_WAIT, SIBLING_WAIT, UNATTRIBUTED
from cayu.tools import ToolPolicyDecision

THREE = calls("t", "t", "t")
SECOND_OF_CONSUMER = 1.5


def slow_app(clock: FakeClock) -> CayuApp:
    """An application in which everything takes time: policy, tool, and each kind of write."""

    def decide(request: Any) -> ToolPolicyDecision:
        clock.advance(0.25)
        return ToolPolicyDecision.ALLOW

    store = slow_store(clock, open=0.5, stage=0.75, close=1.25)
    return timed_app(clock, [THREE, "done"], [serial(clock, "t", 1)], FakePolicy(decide), store)


def inside(events: Sequence[Event]) -> int:
    """How many events of the only round the consumer had before it was closed: those of all commits but the last."""
    types = types_of(events)
    last_stage = max(index for index, type in enumerate(types) if type == E.TOOL_STAGED)
    return last_stage - types.index(E.MODEL_STARTED)


@pytest.mark.requirement("A109", "A113")
@pytest.mark.parametrize("clock", [FakeClock(), TickingClock()], ids=["still", "ticking"])
async def test_a_serial_live_round_adds_up(clock: FakeClock) -> None:
    app = slow_app(clock)
    await play(app.run(new_run()))
    record = await round_of(app)
    assert took(record, EXECUTION) >= ns(3)
    assert (took(record, UNATTRIBUTED) > 0) is isinstance(clock, TickingClock)
    consumer = 0 if not isinstance(clock, TickingClock) else 3 * 1000
    """Three times the events are handed over, and each time the ticking clock is looked at once."""
    assert active(record) + consumer == lasted(record)


@pytest.mark.requirement("A111", "A113")
async def test_a_slow_consumer_is_in_the_duration_and_in_no_active_phase() -> None:
    quick, slow = slow_app(FakeClock()), FakeClock()
    await play(quick.run(new_run()))
    app = slow_app(slow)
    events = await consume(app.run(new_run()), slow, SECOND_OF_CONSUMER)
    undisturbed, record = await round_of(quick), await round_of(app)
    consumed = inside(events) * ns(SECOND_OF_CONSUMER)
    assert consumed > 0
    assert lasted(record) - active(record) == consumed
    assert lasted(record) - lasted(undisturbed) == consumed
    assert active(record) == active(undisturbed) == lasted(undisturbed)
    first, second, third = record.calls
    for call, before in zip(record.calls, undisturbed.calls, strict=True):
        assert active(call) == active(before)
    extra = [
        took(call, SIBLING_WAIT) - took(before, SIBLING_WAIT)
        for call, before in zip(record.calls, undisturbed.calls, strict=True)
    ]
    stage = 2 * ns(SECOND_OF_CONSUMER)
    """A stage and the next start are handed over together, after the result is durable."""
    assert extra == [2 * stage, stage, 0], "a wait runs between marks, and the consumer's time is in it"
    assert took(first, PUBLICATION_QUEUE_WAIT) == took(second, PUBLICATION_QUEUE_WAIT) == 0
    assert took(third, SIBLING_WAIT) == 0


async def test_one_call_adds_up_as_well() -> None:
    clock = TickingClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    events = await consume(app.run(new_run()), clock, 2)
    record = await round_of(app)
    assert lasted(record) - active(record) == inside(events) * ns(2) + 1000


async def test_the_calls_of_a_serial_round_have_what_the_round_has_of_their_own_phases() -> None:
    clock = TickingClock()
    app = slow_app(clock)
    await play(app.run(new_run()))
    record = await round_of(app)
    for name in ("execution", "result_processing", "publication", "staging", "sibling_wait", "publication_queue_wait"):
        assert sum(took(call, name) for call in record.calls) == took(record, name), name


@pytest.mark.requirement("A109", "A113")
async def test_a_round_on_the_real_clock_adds_up_but_for_a_moment() -> None:
    """The consumer takes its events at once, so what is left is how long the loop needs to hand them over."""
    app = make_app(None, [*[THREE] * 10, "done"], [serial(FakeClock(), "t", 0)])
    await play(app.run(new_run()))
    left = [lasted(record) - active(record) for record in await rounds_of(app)]
    assert len(left) == 10
    assert min(left) >= 0
    assert min(left) < ns(0.000_2)
