"""Reading heads: one, those of a status, and the tree of sessions - who works for whom."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from cayu.errors import SessionNotFound, StoreError
from cayu.events import EventType as E
from cayu.sessions.projection import Draft
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.streams import HeadQuery, SessionStore, StreamHead

logger = logging.getLogger("cayu.runtime")

PAGE = 200
MOST_GENERATIONS = 64
"""How far up or down a tree is followed."""


async def head_of(store: SessionStore, session_id: str) -> StreamHead:
    """Return the head of one session. Raises `SessionNotFound`."""
    page = await store.heads(HeadQuery(session_id=session_id, limit=1))
    if not page.rows:
        raise SessionNotFound(session_id=session_id)
    return page.rows[0]


async def heads_of(store: SessionStore, status: str) -> AsyncIterator[StreamHead]:
    """Yield the sessions of one status, newest first, page by page."""
    after: str | None = None
    while True:
        page = await store.heads(HeadQuery(status=status, after=after, limit=PAGE))
        for head in page.rows:
            yield head
        after = page.next
        if after is None:
            return


async def children(store: SessionStore, session_id: str) -> AsyncIterator[StreamHead]:
    """Yield the sessions that work directly for one, newest first."""
    after: str | None = None
    while True:
        page = await store.heads(HeadQuery(parent_session_id=session_id, after=after, limit=PAGE))
        for head in page.rows:
            yield head
        after = page.next
        if after is None:
            return


async def descendants(store: SessionStore, session_id: str) -> list[StreamHead]:
    """Return every session below one, parents before their children."""
    found: list[StreamHead] = []
    seen = {session_id}
    generation = [session_id]
    for _ in range(MOST_GENERATIONS):
        below = [head for name in generation async for head in children(store, name) if head.row.id not in seen]
        if not below:
            break
        found += below
        generation = [head.row.id for head in below]
        seen.update(generation)
    return found


async def ancestors(store: SessionStore, parent_id: str | None) -> list[str]:
    """Return the ids above a session, from `parent_id` up."""
    found: list[str] = []
    while parent_id is not None and parent_id not in found and len(found) < MOST_GENERATIONS:
        found.append(parent_id)
        try:
            parent_id = (await head_of(store, parent_id)).row.parent_session_id
        except SessionNotFound:
            break
    return found


async def cascade_drafts(store: SessionStore, session_id: str) -> list[Draft]:
    """Return what an interrupted session writes of those that worked for it; nothing when nobody did."""
    try:
        below = await descendants(store, session_id)
    except StoreError:
        logger.warning("the sessions below %s could not be read while it was interrupted", session_id)
        return []
    if not below:
        return []
    running = sum(head.state.status in UNFINISHED for head in below)
    told = {"sessions": len(below), "unfinished": running}
    return [Draft(E.SESSION_CASCADE_FAILED if running else E.SESSION_CASCADE_COMPLETED, told)]
