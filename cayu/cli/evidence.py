"""The files of a recovery: plans as they were written, and decisions as operators fill them in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cayu.cli.documents import parse, read_bytes
from cayu.errors import InvalidInput
from cayu.sessions.plans import NeededDecision, RecoveryDecision, RecoveryPlan

PLAN_EXAMPLE = """a plan is expected, as `cayu recovery plan --output FILE` wrote it; decisions go in with --decisions:
  {"record_type": "recovery_plan", "plan_id": "...",
   "items": [...], ...}"""
DECISIONS_EXAMPLE = """a list of decisions is expected, one object for each; the plan itself is the command's FILE:
  [{"session_id": "...", "tool_call_id": "...", "action": "tool_mark_completed",
    "reason": "asked the service"}]"""

_PLAN = TypeAdapter(RecoveryPlan)
_DECISIONS = TypeAdapter(tuple[RecoveryDecision, ...])
Decidable = tuple[str, NeededDecision]
"""A session's id, and something of it that an operator can decide."""


def decidable(made: RecoveryPlan, *, optional: bool) -> list[Decidable]:
    """Return what an operator has to decide, or (`optional`) may; behind a hard blocker a decision changes nothing."""
    open_items = [item for item in made.items if not item.hard_blockers]
    return [
        (item.session_id, need) for item in open_items for need in item.needed_decisions if need.optional is optional
    ]


def skeleton(made: RecoveryPlan) -> list[dict[str, str | None]]:
    """Return the decisions to fill in; none of them is made here."""
    return [
        {"session_id": name, "tool_call_id": need.tool_call_id, "action": ""}
        for name, need in decidable(made, optional=False)
    ]


def read_plan(file: Path) -> RecoveryPlan:
    """Return the plan in a file. Raises `InvalidInput`, which shows what a plan looks like."""
    data = read_bytes(file)
    try:
        return parse(_PLAN, data, str(file))
    except InvalidInput as error:
        found = _json(data)
        is_plan = isinstance(found, dict) and found.get("record_type") == "recovery_plan"
        raise InvalidInput(str(error), **({} if is_plan else {"hint": PLAN_EXAMPLE})) from None


def read_decisions(file: Path, made: RecoveryPlan) -> tuple[RecoveryDecision, ...]:
    """Return the decisions in a file. Raises `InvalidInput`, with the actions that the plan allows for a call."""
    data = read_bytes(file)
    found = _json(data)
    if isinstance(found, list):
        for index, each in enumerate(found):
            _refuse_action(file, index, each, made)
    try:
        return parse(_DECISIONS, data, str(file))
    except InvalidInput as error:
        raise InvalidInput(str(error), **({} if isinstance(found, list) else {"hint": DECISIONS_EXAMPLE})) from None


def _refuse_action(file: Path, index: int, given: Any, made: RecoveryPlan) -> None:
    """Raise when a decision's action is none that the plan allows for what it names."""
    if not isinstance(given, dict):
        return
    session_id, call_id, action = (given.get(name) for name in ("session_id", "tool_call_id", "action"))
    allowed, of = _allowed(made, session_id, call_id)
    if allowed and action not in allowed:
        raise InvalidInput(f"{file}: {index}.action: the plan allows {' or '.join(allowed)}{of}. Nothing was written.")


def _allowed(made: RecoveryPlan, session_id: Any, call_id: Any) -> tuple[list[str], str]:
    """Return the actions for the call or step that is named, or for all when it is none of the plan's; and for what."""
    needs = [(item.session_id, need) for item in made.items for need in item.needed_decisions]
    named = [need for name, need in needs if (name, need.tool_call_id) == (session_id, call_id)]
    if named and call_id is not None:
        return _actions(named), f" for call {call_id!r}"
    return _actions(named or [need for _, need in needs]), ""


def _actions(needs: Iterable[NeededDecision]) -> list[str]:
    return list(dict.fromkeys(str(action) for need in needs for action in need.allowed_actions))


def _json(data: bytes) -> Any:
    """Return what JSON text holds, None for anything else."""
    try:
        return json.loads(data)
    except ValueError:
        return None
