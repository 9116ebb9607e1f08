"""The events of a session: their types, and the record in which callers and sinks receive them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from cayu.messages import Frozen


class EventType(StrEnum):
    """Every type of event. A log may hold types of a later release; those read back as plain strings."""

    SESSION_STARTED = "session.started"
    SESSION_RESUMED = "session.resumed"
    SESSION_COMPLETED = "session.completed"
    SESSION_FAILED = "session.failed"
    SESSION_INTERRUPTED = "session.interrupted"
    SESSION_INTERRUPT_REQUESTED = "session.interrupt_requested"
    SESSION_AWAITING_USER_INPUT = "session.awaiting_user_input"
    SESSION_LIMIT_REACHED = "session.limit_reached"
    SESSION_RUN_FENCED = "session.run_fenced"
    SESSION_PROFILE_DECIDED = "session.execution_profile.decided"
    SESSION_PROFILE_REJECTED = "session.execution_profile.rejected"
    SESSION_CASCADE_COMPLETED = "session.interruption_cascade_completed"
    SESSION_CASCADE_FAILED = "session.interruption_cascade_failed"
    MODEL_STARTED = "model.started"
    MODEL_TEXT_DELTA = "model.text.delta"
    MODEL_THINKING_DELTA = "model.thinking.delta"
    MODEL_COMPLETED = "model.completed"
    MODEL_ERROR = "model.error"
    MODEL_RETRY = "model.retry"
    TOOL_APPROVAL_REQUESTED = "tool.call.approval_requested"
    TOOL_APPROVED = "tool.call.approved"
    TOOL_APPROVAL_DENIED = "tool.call.approval_denied"
    TOOL_APPROVAL_EXPIRED = "tool.call.approval_expired"
    TOOL_BLOCKED = "tool.call.blocked"
    TOOL_SKIPPED = "tool.call.skipped"
    TOOL_STARTED = "tool.call.started"
    TOOL_STAGED = "tool.call.staged"
    TOOL_COMPLETED = "tool.call.completed"
    TOOL_FAILED = "tool.call.failed"
    ROUND_OPENED = "tool.round.opened"
    ROUND_COMMITTED = "tool.round.committed"
    EFFECT_INTENT_RECORDED = "tool.effect.intent_recorded"
    EFFECT_OUTCOME_UNKNOWN = "tool.effect.outcome_unknown"
    EFFECT_RECONCILED = "tool.effect.reconciled"
    CONTEXT_COUNTED = "context.counted"
    RECALL_COMPLETED = "memory.recall.completed"
    RECALL_FAILED = "memory.recall.failed"
    EXPOSURE_RECORDED = "memory.exposure.recorded"
    BUDGET_RESERVED = "budget.reserved"
    BUDGET_RECONCILED = "budget.reconciled"
    BUDGET_LIMIT_REACHED = "budget.limit_reached"
    RECOVERY_ITEM_EXECUTED = "recovery.plan.item.executed"


LIVE_ONLY = frozenset({EventType.MODEL_TEXT_DELTA, EventType.MODEL_THINKING_DELTA})
"""Types that are delivered as they happen and never stored."""

_BY_VALUE: dict[str, str] = {str(item): item for item in EventType}


def event_type(value: str) -> str:
    """Return the `EventType` of `value`, or `value` itself when this release does not know it."""
    return _BY_VALUE.get(value, value)


class Event(Frozen):
    """One thing that happened in a session."""

    id: str
    """Derived from the session instance and the sequence, so that a second reader names the same event alike."""
    type: str
    """An `EventType`, or the plain string of a later release."""
    session_id: str
    sequence: int | None
    """Position in the session's log, from 1; None for events that are only live."""
    timestamp: datetime
    """When it was committed, by the store's clock; for live events, when it was seen."""
    agent_name: str
    environment_name: str | None = None
    tool_name: str | None = None
    payload: dict[str, Any] = {}


_FIELDS = set(Event.model_fields)


def trusted_event(fields: dict[str, Any]) -> Event:
    """Return an event of fields that are known to be right and complete.

    What `model_construct` does, without its walk over the fields, which took a tenth of a round's time.
    """
    event = Event.__new__(Event)
    object.__setattr__(event, "__dict__", fields)
    object.__setattr__(event, "__pydantic_fields_set__", _FIELDS)
    object.__setattr__(event, "__pydantic_extra__", None)
    object.__setattr__(event, "__pydantic_private__", None)
    return event
