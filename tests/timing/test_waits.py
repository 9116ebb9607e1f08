"""The two waits of a call: for its last sibling's stage, and from there for its own publication."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime.support import FakeTool, calls, new_run, play
from timing.support import TickingClock, lasting, ns, round_of, serial, slow_store, timed_app, told, took

from cayu.testing import FakeClock
from cayu.timing.phases import (
    EXECUTION,
    PUBLICATION,
    PUBLICATION_QUEUE_WAIT,
    SIBLING_WAIT,
    UNATTRIBUTED,
)
from cayu.tools import ToolContext, ToolResult


@pytest.mark.requirement("A105")
async def test_the_only_call_of_a_round_waits_for_nobody() -> None:
    clock = TickingClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)])
    await play(app.run(new_run()))
    record = await round_of(app)
    assert took(record, SIBLING_WAIT) == took(record.calls[0], SIBLING_WAIT) == 0
    assert record.phase(SIBLING_WAIT).first_started_at is None


@pytest.mark.requirement("A105")
async def test_the_first_of_two_serial_calls_waits_while_the_second_runs() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("quick", "slow"), "done"], [serial(clock, "quick", 0), serial(clock, "slow", 2)])
    await play(app.run(new_run()))
    quick, slow = (await round_of(app)).calls
    assert told(quick) == {SIBLING_WAIT: 2}
    assert told(slow) == {EXECUTION: 2}


@pytest.mark.requirement("A105")
@pytest.mark.parametrize("order", [("quick", "slow"), ("slow", "quick")])
async def test_of_two_parallel_calls_the_one_that_ends_first_waits_for_the_other(order: tuple[str, str]) -> None:
    clock = FakeClock()
    quick = FakeTool("quick")

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await quick.entered.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(2)
        return ToolResult(content="at last")

    app = timed_app(clock, [calls(*order), "done"], [quick, FakeTool("slow", work)])
    await play(app.run(new_run()))
    record = await round_of(app)
    waits = {call.tool_name: took(call, SIBLING_WAIT) for call in record.calls}
    assert waits == {"quick": ns(2), "slow": 0}
    assert record.duration_seconds == 2


async def test_the_first_of_three_waits_for_the_stage_of_the_last_and_for_the_writes_between() -> None:
    clock = FakeClock()
    store = slow_store(clock, stage=0.5, close=8)
    app = timed_app(clock, [calls("t", "t", "t"), "done"], [serial(clock, "t", 2)], store=store)
    await play(app.run(new_run()))
    first, second, third = (await round_of(app)).calls
    assert took(first, SIBLING_WAIT) == ns(2 + 0.5 + 2)
    assert took(second, SIBLING_WAIT) == ns(2)
    assert took(third, SIBLING_WAIT) == 0
    assert [took(call, PUBLICATION_QUEUE_WAIT) for call in (first, second, third)] == [0, 0, 0]


@pytest.mark.requirement("A106")
@pytest.mark.parametrize("make", [lasting, serial])
async def test_a_call_waits_for_the_publication_of_those_before_it_in_model_order(make: Any) -> None:
    clock = TickingClock()
    app = timed_app(clock, [calls("t", "t", "t"), "done"], [make(clock, "t", 0.001)])
    await play(app.run(new_run()))
    record = await round_of(app)
    moments = [call.tool_terminal_publication_started_at for call in record.calls]
    assert None not in moments
    assert moments == sorted(moments), "the model's order, whoever ended first"  # type: ignore[type-var]
    assert None not in [call.tool_terminal_staged_at for call in record.calls]
    waits = [took(call, PUBLICATION_QUEUE_WAIT) for call in record.calls]
    last = max(call.tool_terminal_staged_at for call in record.calls)  # type: ignore[type-var]
    assert waits == [ns((moment - last).total_seconds()) for moment in moments]  # type: ignore[operator]
    assert 0 < waits[0] < waits[1] < waits[2]
    assert took(record, PUBLICATION_QUEUE_WAIT) == sum(waits)


async def test_what_the_queue_wait_spans_is_accounted_for_by_the_others() -> None:
    """A large queue wait of a later call is the earlier calls' publication, and work that is in no phase."""
    clock = TickingClock()
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 0)])
    await play(app.run(new_run()))
    record = await round_of(app)
    first, second = record.calls
    spanned = took(second, PUBLICATION_QUEUE_WAIT) - took(first, PUBLICATION_QUEUE_WAIT)
    assert spanned <= took(first, PUBLICATION) + took(record, UNATTRIBUTED)
