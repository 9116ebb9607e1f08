"""The routes of what waits for a human: list it, and decide it.

A decision is answered as soon as it is durable. The run that it sets going is held by the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from cayu.events import Event, EventType
from cayu.server.background import Served, TheServed
from cayu.server.documents import told
from cayu.server.gate import JsonRoute, ThePrincipal
from cayu.server.problems import Refusal
from cayu.server.records import Answer, Approval, Cursor, Decided, Denial, SessionId
from cayu.sessions import (
    PendingActionPage,
    PendingActionQuery,
    ToolApprovalDecision,
    ToolApprovalRequest,
    UserInputResponse,
)
from cayu.sessions.records import PendingActionKind

router = APIRouter(prefix="/api/pending", tags=["decisions"], route_class=JsonRoute)

MAX_ACTIONS = 200
"""Actions of one page."""
DECISIONS: dict[str, Literal["approved", "denied", "answered"]] = {
    EventType.TOOL_APPROVED: "approved",
    EventType.TOOL_APPROVAL_DENIED: "denied",
    EventType.TOOL_STAGED: "answered",
}
"""How a decision reads in the log, when it was not too late."""


@router.get("", operation_id="list_pending_actions", responses=told())
async def list_pending_actions(
    served: TheServed,
    session_id: Annotated[SessionId | None, Query(description="of this session only")] = None,
    kind: PendingActionKind | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ACTIONS)] = 50,
    cursor: Cursor = None,
) -> PendingActionPage:
    """List what waits for a human, from the oldest session on."""
    query = PendingActionQuery(session_id=session_id, kind=kind, limit=limit, cursor=cursor)
    return await served.app.list_pending_actions(query)


@router.post("/approve", operation_id="approve", responses=told(404, 409))
async def approve(served: TheServed, who: ThePrincipal, body: Approval) -> Decided:
    """Let a call run, with the model's arguments or with edited ones."""
    request = ToolApprovalRequest(
        session_id=body.session_id,
        approval_id=body.approval_id,
        decision=ToolApprovalDecision.APPROVE,
        arguments=body.arguments,
        reason=body.reason,
        resolved_by=who.actor,
    )
    return await _decided(served, body.session_id, body.approval_id, served.app.resolve_tool_approval(request))


@router.post("/deny", operation_id="deny", responses=told(404, 409))
async def deny(served: TheServed, who: ThePrincipal, body: Denial) -> Decided:
    """Refuse a call; the model reads that it was refused."""
    request = ToolApprovalRequest(
        session_id=body.session_id,
        approval_id=body.approval_id,
        decision=ToolApprovalDecision.DENY,
        reason=body.reason,
        resolved_by=who.actor,
    )
    return await _decided(served, body.session_id, body.approval_id, served.app.resolve_tool_approval(request))


@router.post("/answer", operation_id="answer", responses=told(404, 409))
async def answer(served: TheServed, who: ThePrincipal, body: Answer) -> Decided:
    """Answer a question."""
    response = UserInputResponse(
        session_id=body.session_id, input_id=body.input_id, answer=body.answer, resolved_by=who.actor
    )
    return await _decided(served, body.session_id, body.input_id, served.app.resolve_user_input(response))


async def _decided(served: Served, session_id: str, action_id: str, events: AsyncGenerator[Event, None]) -> Decided:
    """Set a run going and tell of the decision that begins it. Raises `Refusal` when it came too late."""

    def is_decision(event: Event) -> bool:
        return event.type in (*DECISIONS, EventType.TOOL_APPROVAL_EXPIRED) and event.payload.get("action") == action_id

    event = await served.background.begin(events, is_decision)
    decision = DECISIONS.get(event.type)
    if decision is None:
        detail = f"{action_id!r} of session {session_id!r} had to be decided earlier; it has expired, undecided."
        raise Refusal(409, "action_expired", detail, session_id=session_id, action_id=action_id)
    return Decided(
        session_id=session_id,
        action_id=action_id,
        decision=decision,
        event_id=event.id,
        decided_at=event.timestamp,
    )
