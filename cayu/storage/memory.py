"""Stores that live in this process: the default of a new application, and the reference for the others."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cayu.canonical import JSON, dumps, loads
from cayu.clock import Clock, SystemClock, as_datetime
from cayu.errors import SessionNotFound
from cayu.knowledge.ranking import tokens
from cayu.knowledge.records import KnowledgeEntry, Selection
from cayu.knowledge.revisions import decide_revision
from cayu.knowledge.store import KnowledgeStore
from cayu.sessions.streams import (
    LEASE_SECONDS,
    Decide,
    HeadQuery,
    Held,
    Item,
    ItemQuery,
    Loaded,
    Page,
    RecordQuery,
    SessionStore,
    StoredItem,
    StoredRecord,
    StreamHead,
    StreamRow,
    StreamState,
    Unit,
    cursor,
    cursor_position,
    decide_append,
    decide_renewal,
)


@dataclass(slots=True)
class _Stream:
    key: int
    row: StreamRow
    state: StreamState
    records: list[StoredRecord] = field(default_factory=list)
    items: dict[tuple[str, str], Item] = field(default_factory=dict)

    @property
    def head(self) -> StreamHead:
        return StreamHead(self.row, self.state)


class InMemoryDocuments:
    """Documents in this process only."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._bodies: dict[tuple[str, str], bytes] = {}

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document by what `decide` answers, and return what stands."""
        current = await self.read(collection, id)
        desired = decide(current, self._clock.now_us())
        if desired is None:
            return current
        self._bodies[collection, id] = dumps(desired)
        return loads(self._bodies[collection, id])

    async def read(self, collection: str, id: str) -> JSON:
        """Return one document, None when there is none."""
        found = self._bodies.get((collection, id))
        return loads(found) if found is not None else None

    def durable_state_paths(self) -> tuple[Path, ...]:
        """There are none."""
        return ()

    async def aclose(self) -> None:
        """Nothing to give up."""


class InMemorySessionStore(SessionStore):
    """Sessions in this process only. Each method runs without a suspension point, which makes it one transaction."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._streams: dict[str, _Stream] = {}
        self._documents = InMemoryDocuments(clock=self._clock)

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        """Write one unit."""
        now = self._clock.now_us()
        found = self._streams.get(unit.stream)
        state = decide_append(found.state if found else None, unit, now)
        if unit.create is not None:
            found = self._streams[unit.stream] = _Stream(len(self._streams) + 1, unit.create, state)
        elif found is None:
            raise SessionNotFound(session_id=unit.stream)
        found.state = state
        first = state.version - len(unit.records) + 1
        found.records += [StoredRecord(first + i, r.type, now, r.body) for i, r in enumerate(unit.records)]
        found.items.update({(item.kind, item.key): item for item in unit.items})
        return state, now

    async def renew(self, stream: str, held: Held, lease_seconds: float = LEASE_SECONDS) -> StreamState:
        """Prolong a claim."""
        found = self._streams.get(stream)
        state = decide_renewal(found.state if found else None, stream, held, self._clock.now_us(), lease_seconds)
        if found is not None:
            found.state = state
        return state

    async def load(self, stream: str, after: int = 0) -> Loaded | None:
        """Return head and records."""
        found = self._streams.get(stream)
        return Loaded(found.head, found.records[after:], self._clock.now_us()) if found else None

    async def heads(self, query: HeadQuery) -> Page[StreamHead]:
        """List heads, newest first."""
        matching = [stream for stream in reversed(self._streams.values()) if _matches(stream, query)]
        (before,) = cursor_position(query.after, int) if query.after is not None else (len(self._streams) + 1,)
        rest = [stream for stream in matching if stream.key < before]
        page = rest[: query.limit]
        following = cursor(page[-1].key) if page and len(page) < len(rest) else None
        return Page([stream.head for stream in page], following, len(matching))

    async def records(self, query: RecordQuery) -> Sequence[tuple[str, StoredRecord]]:
        """Scan records in the order of creation."""
        streams = [s for s in self._streams.values() if query.session_id in (None, s.row.id)]
        found = (
            (stream.row.id, record)
            for stream in streams
            for record in stream.records
            if not query.types or record.type in query.types
        )
        return list(itertools.islice(found, query.limit))

    async def items(self, query: ItemQuery) -> Page[StoredItem]:
        """List items by their keys."""
        found = [
            ((stream.key, *key), StoredItem(stream.row.id, item))
            for stream in self._streams.values()
            for key, item in sorted(stream.items.items())
            if query.session_id in (None, stream.row.id)
            and (not query.kinds or item.kind in query.kinds)
            and query.state in (None, item.state)
        ]
        after = cursor_position(query.after, int, str, str) if query.after is not None else (0, "", "")
        rest = [entry for entry in found if entry[0] > after]
        page = rest[: query.limit]
        following = cursor(*page[-1][0]) if page and len(page) < len(rest) else None
        return Page([item for _, item in page], following, len(found))

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document."""
        return await self._documents.transact(collection, id, decide)

    async def now(self) -> int:
        """Return this process's wall clock."""
        return self._clock.now_us()

    def durable_state_paths(self) -> tuple[Path, ...]:
        """There are none."""
        return ()

    async def aclose(self) -> None:
        """Nothing to give up."""


def _matches(stream: _Stream, query: HeadQuery) -> bool:
    row = stream.row
    text = f"{row.id} {row.agent_name} {row.title or ''}".casefold()
    return (
        query.session_id in (None, row.id)
        and query.agent_name in (None, row.agent_name)
        and query.status in (None, stream.state.status)
        and query.parent_session_id in (None, row.parent_session_id)
        and (query.text is None or query.text.casefold() in text)
    )


@dataclass(slots=True)
class _Revision:
    change: int
    entry: KnowledgeEntry
    deleted: bool
    tokens: frozenset[str]


class InMemoryKnowledgeStore(KnowledgeStore):
    """Knowledge in this process only."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._revisions: dict[str, list[_Revision]] = {}
        self._change = 0

    async def select(self, selection: Selection) -> Sequence[KnowledgeEntry]:
        """Select by walking every entry, with the scope's own rule."""
        if selection.tokens == ():
            return []
        frontier = self._change if selection.frontier is None else selection.frontier
        now = selection.as_of or as_datetime(self._clock.now_us())
        return [
            revision.entry.model_copy(deep=True)
            for _, revisions in sorted(self._revisions.items())
            if (revision := _at(revisions, frontier)) is not None
            and not revision.deleted
            and selection.admits(revision.entry, revision.tokens, now)
        ]

    async def write(self, entry: KnowledgeEntry, expected_revision: int, *, delete: bool = False) -> KnowledgeEntry:
        """Append a revision."""
        revisions = self._revisions.get(entry.id, [])
        last = revisions[-1] if revisions else None
        now = as_datetime(self._clock.now_us())
        written = decide_revision(
            last.entry if last else None, bool(last and last.deleted), entry, expected_revision, now
        )
        self._change += 1
        found = frozenset(tokens(f"{written.title} {written.text}"))
        self._revisions.setdefault(entry.id, []).append(
            _Revision(self._change, written.model_copy(deep=True), delete, found)
        )
        return written

    async def frontier(self) -> int:
        """Return the last change sequence."""
        return self._change

    async def aclose(self) -> None:
        """Nothing to give up."""


def _at(revisions: list[_Revision], frontier: int) -> _Revision | None:
    position = bisect.bisect_right(revisions, frontier, key=lambda revision: revision.change)
    return revisions[position - 1] if position else None
