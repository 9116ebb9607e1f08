"""What readers get of a session without its log: the session's record and what waits for a human."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from cayu.clock import as_datetime
from cayu.messages import Frozen
from cayu.sessions.requests import MAX_SESSION_ID
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import StreamHead

PendingActionKind = Literal["tool_approval", "user_input", "manual_recovery"]
PENDING_KINDS: tuple[PendingActionKind, ...] = ("tool_approval", "user_input", "manual_recovery")
PENDING = "pending"
"""The state of an item that still waits."""


RESERVED_FOR = "cayu.reserved_for"
"""The key of a session's metadata that names the one piece of work whose application may go on with the session."""


class Session(Frozen):
    """One session as its head row shows it."""

    id: str
    instance_id: str
    """Names this very session in the world; safe to show and to log."""
    agent_name: str
    provider_name: str
    model: str
    environment_name: str | None
    parent_session_id: str | None
    causal_budget_id: str | None
    status: SessionStatus
    run_epoch: int
    """How many times the session was claimed."""
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    title: str | None = None
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}


def session_record(head: StreamHead) -> Session:
    """Return the public record of a stream's head."""
    row, state = head.row, head.state
    updated = as_datetime(state.updated_at)
    return Session(
        id=row.id,
        instance_id=row.instance_id,
        agent_name=row.agent_name,
        provider_name=row.provider_name,
        model=row.model,
        environment_name=row.environment_name,
        parent_session_id=row.parent_session_id,
        causal_budget_id=row.causal_budget_id,
        status=SessionStatus(state.status),
        run_epoch=state.epoch,
        created_at=as_datetime(state.created_at),
        updated_at=updated,
        last_activity_at=updated,
        title=row.title,
        labels=dict(row.labels or {}),
        metadata=dict(row.metadata or {}),
    )


class PendingAction(Frozen):
    """Something that a session waits for a human to do."""

    id: str
    kind: PendingActionKind
    session: str
    """The session's id."""
    title: str
    detail: str | None = None
    """Why it is asked: the policy's reason, or what is not known."""
    agent_name: str | None = None
    tool_name: str | None = None
    tool_effect: str | None = None
    approval_id: str | None = None
    input_id: str | None = None
    round_id: str | None = None
    tool_call_id: str | None = None
    question: str | None = None
    options: tuple[str, ...] = ()
    allow_other: bool = True
    """False when the answer must be one of `options`."""
    arguments: dict[str, Any] | None = None
    arguments_digest: str | None = None
    """SHA-256 of the arguments; a decision covers exactly these."""
    requested_at: datetime | None = None
    expires_at: datetime | None = None

    @classmethod
    def from_body(cls, session_id: str, body: Mapping[str, Any]) -> PendingAction:
        """Return the action that an item's stored body describes."""
        times = {name: as_datetime(body[name]) for name in ("requested_at", "expires_at") if body.get(name) is not None}
        return cls(session=session_id, **{**body, **times})


class PendingActionQuery(Frozen):
    """Which pending actions to list."""

    session_id: str | None = Field(default=None, max_length=MAX_SESSION_ID)
    kind: PendingActionKind | None = None
    limit: int = Field(default=50, ge=1, le=1000)
    cursor: str | None = None
    """`next_cursor` of the page before."""


class PendingActionPage(Frozen):
    """A page of pending actions, oldest session first."""

    actions: tuple[PendingAction, ...]
    next_cursor: str | None = None
    total: int
    """How many wait in all."""
