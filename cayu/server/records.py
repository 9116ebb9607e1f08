"""What the routes take and give beyond the records of sessions and recovery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from cayu.events import Event
from cayu.messages import Frozen
from cayu.sessions import RecoveryExecutionRequest, Session, SessionStatus
from cayu.sessions.requests import MAX_ID, MAX_REASON, MAX_SESSION_ID

NO_NUL = r"^[^\x00]*$"
"""Ids and searches hold any character but NUL, which not every store can hold."""

MAX_CURSOR = 4096
"""Characters of a cursor."""

SessionId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID, pattern=NO_NUL)]
ActionId = Annotated[str, Field(min_length=1, max_length=MAX_ID, pattern=NO_NUL)]
Reason = Annotated[str | None, Field(max_length=MAX_REASON)]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before")]


class Approval(Frozen):
    """Let a call run."""

    session_id: SessionId
    approval_id: ActionId
    arguments: dict[str, Any] | None = None
    """Edited arguments; without them the model's are kept."""
    reason: Reason = None


class Denial(Frozen):
    """Refuse a call."""

    session_id: SessionId
    approval_id: ActionId
    reason: Reason = None
    """Read by the model."""


class Answer(Frozen):
    """Answer a question."""

    session_id: SessionId
    input_id: ActionId
    answer: str


class Interruption(Frozen):
    """Stop a session and everything below it."""

    session_id: SessionId
    reason: Reason = None


class RecoveryExecutionBody(RecoveryExecutionRequest):
    """Execute a plan that was reviewed; whoever sends it is recorded as the one who asked."""

    requested_by: SkipJsonSchema[None] = None
    """Taken from the principal, never from the body."""


class Decided(Frozen):
    """A decision that stands in the session's log; the run may go on for long after it."""

    session_id: str
    action_id: str
    decision: Literal["approved", "denied", "answered"]
    event_id: str
    """The event that records it."""
    decided_at: datetime
    """By the store's clock; of the first time, when the decision is a repeat."""


class Interrupted(Frozen):
    """What became of a request to stop."""

    session_id: str
    status: SessionStatus
    """`interrupting` while whoever works on the session has yet to notice."""


class SessionPage(Frozen):
    """A page of sessions, newest first."""

    sessions: tuple[Session, ...]
    next_cursor: str | None
    total: int
    """How many sessions match in all."""


class EventPage(Frozen):
    """A page of a session's log."""

    events: tuple[Event, ...]
    next_after: int | None
    """`after` of the next page; None at the end of the log as it stands."""
