"""Plans as records: their ids follow from what they say, an edited one is refused, and requests are checked first."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from cayu.effects import ToolEffectReceipt
from cayu.sessions.plans import (
    DECIDABLE,
    MAX_PLANNED,
    MODEL_ACTIONS,
    TOOL_ACTIONS,
    BlockerCode,
    NeededDecision,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
    StartupRecoveryResult,
    decisions_digest,
)

AT = datetime(2030, 1, 1, tzinfo=UTC)
CALL = NeededDecision(subject="tool_call", allowed_actions=TOOL_ACTIONS, tool_call_id="c1", tool_name="act")
STEP = NeededDecision(subject="model_step", allowed_actions=MODEL_ACTIONS)
COMPLETED, FAILED = TOOL_ACTIONS


def an_item(session_id: str = "s", **changes: Any) -> RecoveryPlanItem:
    fields: dict[str, Any] = {
        "session_id": session_id,
        "instance_id": "i",
        "agent_name": "a",
        "status": "running",
        "version": 3,
        "run_epoch": 1,
        "action": RecoveryAction.LEAVE_INTACT,
        "blocker_codes": (BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN,),
        "needed_decisions": (CALL,),
    }
    return RecoveryPlanItem.create(**(fields | changes))


def a_plan(*items: RecoveryPlanItem, at: datetime = AT, **changes: Any) -> RecoveryPlan:
    request = RecoveryPlanRequest(**changes)
    return RecoveryPlan.create(request, items, created_at=at, inspected=len(items), next_cursor=None)


def test_the_id_of_a_plan_follows_from_what_it_says_and_not_from_when() -> None:
    plan = a_plan(an_item())
    assert a_plan(an_item(), at=AT + timedelta(days=1)).plan_id == plan.plan_id
    others = [
        a_plan(),
        a_plan(an_item(version=4)),
        a_plan(an_item(), an_item("t")),
        a_plan(an_item(), limit=7),
        a_plan(an_item(needed_decisions=())),
    ]
    assert len({plan.plan_id, *(other.plan_id for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("field", [name for name in RecoveryPlanItem.model_fields if name != "item_id"])
def test_the_id_of_an_item_covers_every_field(field: str) -> None:
    other: dict[str, Any] = {
        "version": 9,
        "run_epoch": 9,
        "action": RecoveryAction.AUTOMATIC_REPAIR,
        "blocker_codes": (),
        "needed_decisions": (STEP,),
    }
    assert an_item(**{field: other.get(field, "other")}).item_id != an_item().item_id


def test_a_plan_comes_back_from_json_as_it_was() -> None:
    plan = a_plan(an_item(), an_item("t", needed_decisions=(STEP,)), inactive_for_seconds=1.5, agent_name="a")
    assert RecoveryPlan.model_validate_json(plan.model_dump_json()) == plan
    indented = json.dumps(plan.model_dump(mode="json"), indent=2, sort_keys=True)
    assert RecoveryPlan.model_validate_json(indented) == plan


@pytest.mark.parametrize(
    "path, value",
    [
        (("items", 0, "action"), "automatic_repair"),
        (("items", 0, "version"), 99),
        (("items", 0, "needed_decisions", 0, "tool_call_id"), "c2"),
        (("items", 0, "blocker_codes"), []),
        (("items", 0, "item_id"), "0" * 64),
        (("items",), []),
        (("request", "inactive_for_seconds"), 5.0),
        (("inspected_session_count",), 5),
        (("next_cursor",), "[0,1]"),
        (("plan_id",), "0" * 64),
    ],
    ids=str,
)
def test_an_edited_plan_is_refused(path: tuple[str | int, ...], value: object) -> None:
    edited = a_plan(an_item()).model_dump(mode="json")
    place: Any = edited
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValidationError, match="make a new one instead of editing it"):
        RecoveryPlan.model_validate(edited)


@pytest.mark.parametrize(
    "fields",
    [
        {"session_ids": ("s",), "agent_name": "a"},
        {"session_ids": ("s",), "cursor": "[0,1]"},
        {"session_ids": ("s", "s")},
        {"session_ids": tuple(map(str, range(MAX_PLANNED + 1)))},
        {"limit": 0},
        {"limit": MAX_PLANNED + 1},
        {"inactive_for_seconds": -1.0},
        {"inactive_for_seconds": float("inf")},
        {"inactive_for_seconds": float("nan")},
        {"surprise": 1},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RecoveryPlanRequest(**fields)


RECEIPT = ToolEffectReceipt(idempotency_key="k", arguments_digest="0" * 64, reference="order-1")


@pytest.mark.parametrize(
    "fields",
    [
        {"action": COMPLETED},
        {"action": RecoveryAction.MODEL_MARK_FAILED, "tool_call_id": "c1"},
        {"action": FAILED, "tool_call_id": "c1", "content": "x"},
        {"action": FAILED, "tool_call_id": "c1", "structured": 0},
        {"action": FAILED, "tool_call_id": "c1", "receipt": RECEIPT},
        {"action": RecoveryAction.MODEL_MARK_INTERRUPTED, "content": "x"},
        {"action": COMPLETED, "tool_call_id": "c1", "structured": float("nan")},
        {"action": COMPLETED, "tool_call_id": "c1", "structured": {1, 2}},
        {"action": COMPLETED, "tool_call_id": "c1", "content": 5},
        {"action": COMPLETED, "tool_call_id": "c1", "reason": "x" * 100_000},
        *(
            {"action": action}
            for action in RecoveryAction
            if action not in (*TOOL_ACTIONS, *MODEL_ACTIONS)
        ),
    ],
    ids=lambda fields: "-".join(f"{name}={value!s:.20}" for name, value in fields.items()),
)  # fmt: skip
def test_a_decision_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RecoveryDecision(session_id="s", **fields)


def test_words_that_no_store_keeps_become_words_that_it_does() -> None:
    made = RecoveryDecision(
        session_id="s",
        action=COMPLETED,
        tool_call_id="c1",
        content="a\ud800b",
        structured={"x": "\ud800"},
    )
    assert (made.content, made.structured) == ("a\ufffdb", {"x": "\ufffd"})
    assert len(decisions_digest([made])) == 64


def decided(action: RecoveryAction = COMPLETED, call: str | None = "c1", session_id: str = "s") -> RecoveryDecision:
    return RecoveryDecision(session_id=session_id, action=action, tool_call_id=call)


@pytest.mark.parametrize(
    "decisions, problem",
    [
        ((decided(call="c2"),), "asks for no decision on 'c2'"),
        ((decided(session_id="t"),), "asks for no decision on 'c1'"),
        ((decided(RecoveryAction.MODEL_MARK_FAILED, None),), "asks for no decision on 's'"),
        ((decided(), decided(FAILED)), "'c1' is decided twice"),
        ((decided(), decided()), "'c1' is decided twice"),
    ],
    ids=["another call", "another session", "a step", "two answers", "twice the same"],
)
def test_only_what_the_plan_asks_for_is_decided_and_once(decisions: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RecoveryExecutionRequest(plan=a_plan(an_item()), execution_id="e", decisions=decisions)


def test_an_execution_takes_a_decision_on_each_thing_that_the_plan_asks_for() -> None:
    plan = a_plan(an_item(), an_item("t", needed_decisions=(STEP,)))
    given = (decided(), decided(RecoveryAction.MODEL_MARK_FAILED, None, "t"))
    request = RecoveryExecutionRequest(plan=plan, execution_id="e", decisions=given)
    assert (request.decided("s"), request.decided("t"), request.decided("u")) == (given[:1], given[1:], ())


def test_what_a_repeat_is_compared_by_covers_the_whole_decision() -> None:
    variants = [
        (),
        (decided(),),
        (decided(FAILED),),
        (decided(call="c2"),),
        (decided().model_copy(update={"content": "x"}),),
        (decided().model_copy(update={"structured": {"a": 1}}),),
        (decided().model_copy(update={"receipt": RECEIPT}),),
        (decided().model_copy(update={"reason": "why"}),),
        (decided(), decided(call="c2")),
    ]
    assert len({decisions_digest(each) for each in variants}) == len(variants)


@pytest.mark.parametrize("code", BlockerCode)
def test_only_unknown_outcomes_can_be_decided(code: BlockerCode) -> None:
    decidable = code in (BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN, BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN)
    assert (code in DECIDABLE) is decidable
    assert an_item(blocker_codes=(code,)).hard_blockers == (() if decidable else (code,))


def test_the_words_of_actions_and_blockers_are_fixed() -> None:
    assert {str(action) for action in RecoveryAction} == {
        "terminalize_zero_work", "automatic_repair", "leave_intact", "model_mark_failed", "model_mark_interrupted",
        "tool_mark_completed", "tool_mark_failed",
    }  # fmt: skip
    assert {str(code) for code in BlockerCode} == {
        "invalid_cascade_marker", "registration_unavailable", "registration_incompatible", "active_recovery_claim",
        "active_execution_owner", "model_effect_outcome_unknown", "tool_effect_outcome_unknown",
        "tool_effect_continuation_required", "tool_approval_required", "user_input_required", "invalid_durable_state",
    }  # fmt: skip


def test_a_process_that_has_not_swept_says_so() -> None:
    assert StartupRecoveryResult().model_dump(mode="json") == {
        "schema_version": 1,
        "completed": False,
        "status": "not_run",
        "sweep_count": 0,
        "scheduled_roots": 0,
        "blocked_session_count": 0,
        "blocked_sessions": [],
        "blocked_sessions_truncated": False,
    }
