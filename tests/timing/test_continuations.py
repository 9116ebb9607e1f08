"""A round that waited for a human: the attempt that paused and the one that goes on, each with a record of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime.support import (
    SESSION,
    FakePolicy,
    FakeTool,
    approval,
    calls,
    make_app,
    new_run,
    next_turn,
    play,
    types_of,
    waiting_ids,
)
from timing.support import (
    TickingClock,
    active,
    consume,
    flags,
    lasted,
    lasting,
    ns,
    rounds_of,
    serial,
    slow_store,
    steps_of,
    timed_app,
    told,
    took,
)

from cayu.errors import AlreadyDecided
from cayu.events import EventType as E
from cayu.sessions import UserInputResponse
from cayu.testing import FakeClock
from cayu.timing.phases import (
    AUTHORIZATION,
    EXECUTION,
    HANDOFF,
    PUBLICATION,
    ROUND_COMMIT,
    SIBLING_WAIT,
    STAGING,
    STARTED_PERSISTENCE,
    UNATTRIBUTED,
)
from cayu.tools import AlwaysRequireApprovalToolPolicy, AskUserTool, ToolPolicyDecision

APPROVE = AlwaysRequireApprovalToolPolicy()
COMPLETE, INCOMPLETE = (False, False), (True, False)


@pytest.mark.requirement("A107", "A117")
async def test_an_approved_round_has_two_records_of_one_id() -> None:
    clock = FakeClock()

    def decide(request: Any) -> ToolPolicyDecision:
        clock.advance(0.125)
        return ToolPolicyDecision.REQUIRE_APPROVAL

    store = slow_store(clock, pause=0.25, open=0.5, stage=0.75, close=1.25)
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 2)], FakePolicy(decide), store)
    await play(app.run(new_run()))
    first, second = await waiting_ids(app)
    clock.advance(20)
    await play(app.resolve_tool_approval(approval(first)))
    assert len(await rounds_of(app)) == 1, "a decision that is not the last attempts nothing"
    clock.advance(5)
    await play(app.resolve_tool_approval(approval(second)))
    went_on, paused = await rounds_of(app)
    assert went_on.tool_round_id == paused.tool_round_id
    assert went_on.model_step_id == paused.model_step_id
    assert (flags(paused), flags(went_on)) == (INCOMPLETE, COMPLETE)
    assert told(paused) == {AUTHORIZATION: 0.25, ROUND_COMMIT: 0.25}
    assert told(went_on) == {
        AUTHORIZATION: 0.25,
        STARTED_PERSISTENCE: 0.5,
        EXECUTION: 4,
        STAGING: 0.75,
        SIBLING_WAIT: 2,
        ROUND_COMMIT: 1.25,
    }
    assert [told(call)[AUTHORIZATION] for call in went_on.calls] == [0.125, 0.125], "the policy is asked again"
    assert (went_on.started_at - paused.completed_at).total_seconds() == 25, "the human's time is in neither"
    assert [call.tool_call_id for call in went_on.calls] == [call.tool_call_id for call in paused.calls]


@pytest.mark.requirement("A107", "A117")
async def test_an_answered_round_has_two_records_of_one_id() -> None:
    clock = FakeClock()
    store = slow_store(clock, pause=0.25, close=1.25)
    app = timed_app(clock, [calls(("ask_user", {"question": "Why?"})), "done"], [AskUserTool()], store=store)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    await play(app.resolve_user_input(UserInputResponse(session_id=SESSION, input_id=waiting, answer="so")))
    went_on, paused = await rounds_of(app)
    assert went_on.tool_round_id == paused.tool_round_id
    assert (flags(paused), flags(went_on)) == (INCOMPLETE, COMPLETE)
    assert (told(paused), told(went_on)) == ({ROUND_COMMIT: 0.25}, {ROUND_COMMIT: 1.25})
    assert went_on.calls[0].tool_name == "ask_user"


@pytest.mark.requirement("A107", "A117")
async def test_a_denied_round_is_closed_by_its_own_attempt() -> None:
    clock = FakeClock()
    tool = lasting(clock, "t", 1)
    app = timed_app(clock, [calls("t"), "done"], [tool], APPROVE, slow_store(clock, pause=0.25, close=1.25))
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting, "deny")))
    went_on, paused = await rounds_of(app)
    assert (tool.calls, went_on.tool_round_id) == ([], paused.tool_round_id)
    assert (flags(went_on), told(went_on)) == (COMPLETE, {ROUND_COMMIT: 1.25})
    [call] = went_on.calls
    assert (told(call), call.tool_terminal_staged_at) == ({}, None)
    assert call.tool_terminal_publication_started_at is not None


@pytest.mark.requirement("A117")
async def test_a_round_whose_approval_expired_is_continued_by_the_next_turn() -> None:
    clock = FakeClock()
    app = timed_app(
        clock, [calls(("ask_user", {"question": "Why?"})), "done"], [AskUserTool(expires_in_seconds=0.000_001)]
    )
    await play(app.run(new_run()))
    await play(app.resume(next_turn()))
    went_on, paused = await rounds_of(app)
    assert went_on.tool_round_id == paused.tool_round_id
    assert (flags(paused), flags(went_on)) == (INCOMPLETE, COMPLETE)


@pytest.mark.requirement("A115")
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_continuation_charges_nothing_to_unattributed_and_may_add_up_to_less(decision: str) -> None:
    clock = TickingClock()
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)], APPROVE)
    await play(app.run(new_run()))
    for waiting in await waiting_ids(app):
        await play(app.resolve_tool_approval(approval(waiting, decision)))
    went_on, paused = await rounds_of(app)
    assert took(paused, UNATTRIBUTED) > 0
    for part in (went_on, *went_on.calls):
        phase = part.phase(UNATTRIBUTED)
        assert (phase.duration_seconds, phase.first_started_at) == (0, None)
    assert active(went_on) < lasted(went_on)


@pytest.mark.requirement("A111")
async def test_the_consumers_time_is_outside_the_phases_of_a_continuation_too() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], APPROVE)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    events = await consume(app.resolve_tool_approval(approval(waiting)), clock, 2)
    went_on, _ = await rounds_of(app)
    opening = types_of(events).index(E.TOOL_STAGED)
    assert told(went_on) == {EXECUTION: 1}
    assert lasted(went_on) == ns(1 + 2 * opening)


async def test_a_continuation_serves_the_next_step_as_any_round() -> None:
    clock = FakeClock()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], APPROVE)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    clock.advance(10)
    await consume(app.resolve_tool_approval(approval(waiting)), clock, 2, lambda event: event.type == E.ROUND_COMMITTED)
    first, second = await steps_of(app)
    went_on, _ = await rounds_of(app)
    assert first.after_tool_round_id is None
    assert (second.after_tool_round_id, second.started_at) == (went_on.tool_round_id, went_on.completed_at)
    assert told(second) == {HANDOFF: 2}


async def test_a_repeated_decision_attempts_nothing() -> None:
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")], APPROVE)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    before = await rounds_of(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    with pytest.raises(AlreadyDecided):
        await play(app.resolve_tool_approval(approval(waiting, "deny")))
    assert await rounds_of(app) == before
    assert len(before) == 2


async def test_of_two_who_decide_at_once_only_one_completes_the_round() -> None:
    app = make_app(slow_store(FakeClock()), [calls("t"), "done"], [FakeTool("t")], APPROVE)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    await asyncio.gather(*(play(app.resolve_tool_approval(approval(waiting))) for _ in range(3)))
    went_on = (await rounds_of(app))[:-1]
    assert [flags(record) for record in went_on].count(COMPLETE) == 1
    assert all(took(record, EXECUTION) == 0 for record in went_on if record.incomplete)


async def test_an_answer_beside_an_approval_is_published_with_the_round() -> None:
    clock = TickingClock()
    app = timed_app(
        clock,
        [calls(("ask_user", {"question": "Why?"}), "t"), "done"],
        [AskUserTool(), lasting(clock, "t", 1)],
        APPROVE,
    )
    await play(app.run(new_run()))
    asked, wanted = await app_waits(app)
    await play(app.resolve_user_input(UserInputResponse(session_id=SESSION, input_id=asked, answer="so")))
    await play(app.resolve_tool_approval(approval(wanted)))
    went_on, _ = await rounds_of(app)
    assert flags(went_on) == COMPLETE
    answered, ran = went_on.calls
    assert (took(answered, EXECUTION), took(ran, EXECUTION)) == (0, ns(1) + 1000)
    assert all(took(call, PUBLICATION) > 0 for call in went_on.calls)
    assert took(answered, SIBLING_WAIT) == 0, "it was staged before this attempt"


async def app_waits(app: Any) -> tuple[str, str]:
    """The ids of the question and of the approval that wait."""
    found = {action.kind: action.id for action in (await app.list_pending_actions()).actions}
    return found["user_input"], found["tool_approval"]
