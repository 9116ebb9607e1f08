"""What rides beside the events of a unit of work: counters of the session's row, and items listed across sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cayu.canonical import dumps
from cayu.effects import EffectState, ToolEffect
from cayu.events import EventType as E
from cayu.sessions.records import PENDING
from cayu.sessions.states import EFFECT
from cayu.sessions.streams import Item
from cayu.sessions.view import CallView, RoundView

EFFECT_KIND = "effect"
CHILD_STOPPED = "child_stopped"
"""Code of a call whose child session has stopped before its end."""
FAILED_CODES = frozenset(
    {"raised", "lost", "interrupted", "timed_out", "cancelled_itself", "outcome_unknown", "settled_failed"}
)
"""Codes of staged results that stand for a call which did not return; any other call has done its work."""


FIND_OUT = "The call was cut off after it began; find out whether it acted, and execute a recovery plan with that."
CHILD_FIRST = "The child session has stopped before its end; bring it there, then execute a recovery plan of this one."


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that is about to be written."""

    type: str
    payload: dict[str, Any]


_PENDING_STEP: dict[str, int] = {
    E.TOOL_APPROVAL_REQUESTED: 1,
    E.SESSION_AWAITING_USER_INPUT: 1,
    E.EFFECT_OUTCOME_UNKNOWN: 1,
    E.TOOL_APPROVED: -1,
    E.TOOL_APPROVAL_DENIED: -1,
    E.TOOL_APPROVAL_EXPIRED: -1,
    E.EFFECT_RECONCILED: -1,
}


def counters(drafts: Iterable[Draft]) -> dict[str, int]:
    """Return what the drafts add to the counters of the session's row."""
    added: dict[str, int] = {}

    def add(name: str, amount: int) -> None:
        added[name] = added.get(name, 0) + amount

    for draft in drafts:
        if draft.type == E.MODEL_COMPLETED:
            usage = draft.payload.get("usage") or {}
            add("model_steps", 1)
            add("input_tokens", usage.get("input_tokens", 0))
            add("output_tokens", usage.get("output_tokens", 0))
        elif draft.type == E.TOOL_STARTED and draft.payload["attempt"] == 1:
            add("tool_calls", 1)
        elif draft.type == E.TOOL_STAGED and "action" in draft.payload:
            add("pending", -1)
        elif draft.type in _PENDING_STEP:
            add("pending", _PENDING_STEP[draft.type])
    return added


def asks_human(drafts: Iterable[Draft]) -> bool:
    """True when one of the drafts opens a pending action."""
    return any(_PENDING_STEP.get(draft.type, 0) > 0 for draft in drafts)


def items(drafts: Iterable[Draft], opened: RoundView | None, agent_name: str, now: int) -> tuple[Item, ...]:
    """Return the items that the drafts open or settle; `now` is the store's clock in microseconds."""
    if opened is None:
        return ()
    found: dict[tuple[str, str], Item] = {}
    for draft in drafts:
        call_id = draft.payload.get("tool_call_id")
        if call_id is None:
            continue
        call = opened.call(call_id)
        before = found.get((EFFECT_KIND, call_id))
        for item in (_action_item(draft, opened, call, agent_name, now), _effect_item(draft, call, before)):
            if item is not None:
                found[item.kind, item.key] = item
    return tuple(found.values())


def _action_item(draft: Draft, opened: RoundView, call: CallView, agent_name: str, now: int) -> Item | None:
    payload = draft.payload
    match draft.type:
        case E.TOOL_APPROVAL_REQUESTED:
            body = _asked(opened, call, agent_name, now) | {
                "kind": "tool_approval",
                "title": f"Run {call.name}?",
                "detail": payload.get("reason"),
                "approval_id": call.approval_id,
                "arguments": call.arguments,
            }
            return _pending(call.approval_id, body, payload.get("expires_at"))
        case E.SESSION_AWAITING_USER_INPUT:
            body = _asked(opened, call, agent_name, now) | {
                "kind": "user_input",
                "title": "A question from the agent",
                "input_id": call.input_id,
                **payload["question"],
            }
            return _pending(call.input_id, body, payload.get("expires_at"))
        case E.EFFECT_OUTCOME_UNKNOWN:
            stopped = payload.get("code") == CHILD_STOPPED
            body = _asked(opened, call, agent_name, now) | {
                "kind": "manual_recovery",
                "title": f"{call.name} waits for its child session" if stopped else f"Did {call.name} act?",
                "detail": CHILD_FIRST if stopped else FIND_OUT,
                "arguments": call.arguments,
            }
            return _pending(call.recovery_id, body, None)
        case E.EFFECT_RECONCILED:
            return Item("manual_recovery", call.recovery_id, payload["outcome"])
        case E.TOOL_APPROVED | E.TOOL_APPROVAL_DENIED | E.TOOL_APPROVAL_EXPIRED:
            kind = "user_input" if call.question is not None else "tool_approval"
            return Item(kind, payload["action"], draft.type.rpartition(".")[2])
        case E.TOOL_STAGED if "action" in payload:
            return Item("user_input", payload["action"], "answered")
    return None


def _effect_item(draft: Draft, call: CallView, before: Item | None) -> Item | None:
    """Return the call's effect as the draft leaves it; `before` is what an earlier draft of the unit made of it."""
    if call.effect is ToolEffect.NONE:
        return None
    if draft.type == E.EFFECT_INTENT_RECORDED:
        return Item(EFFECT_KIND, call.id, EffectState.STARTED, body=_named(call))
    if draft.type == E.EFFECT_OUTCOME_UNKNOWN:
        return Item(EFFECT_KIND, call.id, EFFECT.advance(EffectState.STARTED, draft.type), body=_named(call))
    if draft.type in (E.TOOL_STAGED, E.EFFECT_RECONCILED):
        event = E.TOOL_FAILED if draft.payload.get("code") in FAILED_CODES else E.TOOL_COMPLETED
        unknown = draft.type == E.EFFECT_RECONCILED
        state = before.state if before is not None else EffectState.UNKNOWN if unknown else EffectState.STARTED
        return Item(EFFECT_KIND, call.id, EFFECT.advance(state, event), body=_named(call))
    return None


def _named(call: CallView) -> bytes:
    return dumps({"tool_name": call.name, "effect": call.effect})


def _asked(opened: RoundView, call: CallView, agent_name: str, now: int) -> dict[str, Any]:
    return {
        "id": call.action_id,
        "agent_name": agent_name,
        "tool_name": call.name,
        "tool_effect": call.effect,
        "round_id": opened.id,
        "tool_call_id": call.id,
        "arguments_digest": call.digest,
        "requested_at": now,
    }


def _pending(key: str, body: Mapping[str, Any], expires_at: int | None) -> Item:
    return Item(body["kind"], key, PENDING, expires_at, dumps({**body, "id": key, "expires_at": expires_at}))
