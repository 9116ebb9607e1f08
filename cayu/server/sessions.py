"""The routes of sessions: list them, read one and its log, and stop one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.convertors import PathConvertor, register_url_convertor

from cayu.errors import SessionNotFound
from cayu.runtime.log import build_event
from cayu.server.background import TheServed
from cayu.server.documents import told
from cayu.server.gate import JsonRoute, ThePrincipal
from cayu.server.records import NO_NUL, Cursor, EventPage, Interrupted, Interruption, SessionId, SessionPage
from cayu.sessions import InterruptSessionRequest, Session, SessionStatus, session_record
from cayu.sessions.requests import MAX_ID, MAX_SESSION_ID
from cayu.sessions.streams import HeadQuery

router = APIRouter(prefix="/api/sessions", tags=["sessions"], route_class=JsonRoute)

MAX_SESSIONS = 200
"""Sessions of one page."""
MAX_EVENTS = 500
"""Events of one page."""
MAX_SEQUENCE = 2**63 - 1

Text = Annotated[
    str | None,
    Query(max_length=MAX_SESSION_ID, pattern=NO_NUL, description="part of an id, a title or an agent's name"),
]


class _AnyText(PathConvertor):
    """A part of a path that may hold line breaks as well as slashes, as session ids may."""

    regex = r"[\s\S]+"


register_url_convertor("cayu_session_id", _AnyText())


@router.get("", operation_id="list_sessions", responses=told())
async def list_sessions(
    served: TheServed,
    session_id: Annotated[SessionId | None, Query(description="exactly this session")] = None,
    agent: Annotated[str | None, Query(max_length=MAX_ID, pattern=NO_NUL, description="an agent's name")] = None,
    status: SessionStatus | None = None,
    text: Text = None,
    limit: Annotated[int, Query(ge=1, le=MAX_SESSIONS)] = 50,
    cursor: Cursor = None,
) -> SessionPage:
    """List sessions, newest first."""
    query = HeadQuery(
        session_id=session_id, agent_name=agent, status=status, text=text or None, after=cursor, limit=limit
    )
    page = await served.app.session_store.heads(query)
    return SessionPage(sessions=tuple(map(session_record, page.rows)), next_cursor=page.next, total=page.total)


@router.get("/{session_id:cayu_session_id}/events", operation_id="list_events", responses=told(404))
async def list_events(
    served: TheServed,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, le=MAX_SEQUENCE, description="sequence after which to begin")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 100,
) -> EventPage:
    """Read a session's log as it stands: prompts, arguments and results included."""
    loaded = await served.app.session_store.load(session_id, after)
    if loaded is None:
        raise SessionNotFound(session_id=session_id)
    page = loaded.records[:limit]
    more = len(loaded.records) > limit
    events = tuple(build_event(loaded.head.row, record) for record in page)
    return EventPage(events=events, next_after=page[-1].sequence if more else None)


@router.get("/{session_id:cayu_session_id}", operation_id="get_session", responses=told(404))
async def get_session(served: TheServed, session_id: SessionId) -> Session:
    """Return one session. An id that ends in `/events` is found with the `session_id` of the list."""
    return await served.app.get_session(session_id)


@router.post("/interrupt", operation_id="interrupt_session", responses=told(404, 409))
async def interrupt_session(served: TheServed, who: ThePrincipal, body: Interruption) -> Interrupted:
    """Ask a session and everything below it to stop; the answer does not wait until it has."""
    request = InterruptSessionRequest(session_id=body.session_id, reason=body.reason, requested_by=who.subject)
    async for _ in served.app.interrupt_session(request):
        pass
    session = await served.app.get_session(body.session_id)
    return Interrupted(session_id=session.id, status=session.status)
