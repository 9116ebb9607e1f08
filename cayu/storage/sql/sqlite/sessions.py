"""Sessions in a SQLite file: the stream and document primitives as single units of work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cayu.canonical import JSON, dumps, loads
from cayu.clock import Clock, SystemClock
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
from cayu.storage.sql.sqlite.database import DEFAULT_BUSY_SECONDS, QUERIES, Database, Mode
from cayu.storage.sql.sqlite.documents import transact
from cayu.storage.sql.sqlite.metering import MeteredConnection

EMPTY = b"{}"
ALL = -1
"""SQLite's word for no LIMIT."""


class SQLiteSessionStore(SessionStore):
    """Sessions in one file, shared safely between processes of one machine.

    `path` is created with its schema at the first use; `mode="ro"` only looks and creates nothing. `busy_seconds` is
    how long a write waits for another process. Raises the `StoreError` that says what is wrong with the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        mode: Mode = "rw",
        busy_seconds: float = DEFAULT_BUSY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._database = Database(path, mode=mode, busy_seconds=busy_seconds)
        self._clock = clock or SystemClock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    @property
    def database(self) -> Database:
        """The connections to the file, for stores beside this one."""
        return self._database

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        """Write one unit in one transaction."""
        return await self._database.write(lambda raw: _append(raw, unit, self._clock.now_us()))

    async def renew(self, stream: str, held: Held, lease_seconds: float = LEASE_SECONDS) -> StreamState:
        """Prolong a claim in one transaction."""
        return await self._database.write(
            lambda raw: _renew(raw, stream, held, self._clock.now_us(), lease_seconds),
        )

    async def load(self, stream: str, after: int = 0) -> Loaded | None:
        """Return head and records from one snapshot."""
        return await self._database.read(lambda raw: _load(raw, stream, after, self._clock.now_us()))

    async def heads(self, query: HeadQuery) -> Page[StreamHead]:
        """List heads by key, newest first."""
        return await self._database.read(lambda raw: _heads(raw, query))

    async def records(self, query: RecordQuery) -> Sequence[tuple[str, StoredRecord]]:
        """Scan records in key order."""
        return await self._database.read(lambda raw: _records(raw, query))

    async def items(self, query: ItemQuery) -> Page[StoredItem]:
        """List items by their keys."""
        return await self._database.read(lambda raw: _items(raw, query))

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document in one transaction."""
        return await self._database.write(lambda raw: transact(raw, collection, id, decide, self._clock.now_us()))

    async def now(self) -> int:
        """Return this machine's wall clock, which is the clock of a local file."""
        return self._clock.now_us()

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the primary file."""
        return (self._database.path,)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._database.aclose()


def _state(raw: MeteredConnection, stream: str) -> tuple[int | None, StreamState | None]:
    found = raw.one(QUERIES["head_state"], (stream,))
    return (None, None) if found is None else (found[0], StreamState(*found[1:]))


def _append(raw: MeteredConnection, unit: Unit, now: int) -> tuple[StreamState, int]:
    key, before = _state(raw, unit.stream)
    after = decide_append(before, unit, now)
    if unit.create is not None:
        key = raw.execute(QUERIES["insert_head"], (*_columns(unit.create), *after)).lastrowid
    else:
        raw.execute(QUERIES["update_head"], (*after, key))
    first = after.version - len(unit.records) + 1
    raw.executemany(
        QUERIES["insert_event"],
        [(key, first + index, record.type, now, record.body) for index, record in enumerate(unit.records)],
    )
    if unit.items:
        raw.executemany(
            QUERIES["upsert_item"],
            [(key, item.kind, item.key, item.state, item.due_at, item.body) for item in unit.items],
        )
    return after, now


def _renew(raw: MeteredConnection, stream: str, held: Held, now: int, seconds: float) -> StreamState:
    key, before = _state(raw, stream)
    after = decide_renewal(before, stream, held, now, seconds)
    raw.execute(QUERIES["update_head"], (*after, key))
    return after


def _columns(row: StreamRow) -> tuple[Any, ...]:
    return (
        row.id,
        row.instance_id,
        row.agent_name,
        row.provider_name,
        row.model,
        row.environment_name,
        row.parent_session_id,
        row.causal_budget_id,
        row.title,
        dumps(dict(row.labels or {})),
        dumps(dict(row.metadata or {})),
    )


def _head(found: tuple[Any, ...]) -> StreamHead:
    row = StreamRow(*found[1:10], *(loads(text) if text != EMPTY else {} for text in found[10:12]))
    return StreamHead(row, StreamState(*found[12:]))


def _load(raw: MeteredConnection, stream: str, after: int, now: int) -> Loaded | None:
    found = raw.execute(QUERIES["head"], (stream,)).fetchone()
    if found is None:
        return None
    records = [StoredRecord(*record) for record in raw.execute(QUERIES["events_after"], (found[0], after))]
    return Loaded(_head(found), records, now)


def _heads(raw: MeteredConnection, query: HeadQuery) -> Page[StreamHead]:
    wanted = {
        "id": query.session_id,
        "agent_name": query.agent_name,
        "status": query.status,
        "text": query.text.casefold() if query.text else None,
        "parent": query.parent_session_id,
    }
    names = ("count_heads", "heads") if query.parent_session_id is None else ("count_child_heads", "child_heads")
    total = raw.execute(QUERIES[names[0]], wanted).fetchone()[0]
    (before,) = cursor_position(query.after, int) if query.after is not None else (None,)
    found = raw.execute(QUERIES[names[1]], {**wanted, "after": before, "limit": query.limit + 1}).fetchall()
    page = found[: query.limit]
    following = cursor(page[-1][0]) if page and len(found) > len(page) else None
    return Page([_head(row) for row in page], following, total)


def _records(raw: MeteredConnection, query: RecordQuery) -> Sequence[tuple[str, StoredRecord]]:
    wanted = {
        "id": query.session_id,
        "types": dumps(list(query.types)).decode() if query.types else None,
        "bodies": query.bodies,
        "limit": ALL if query.limit is None else query.limit,
    }
    cursor = raw.execute(QUERIES["scan_events"], wanted)
    return [(found[0], StoredRecord(*found[1:])) for found in cursor]


def _items(raw: MeteredConnection, query: ItemQuery) -> Page[StoredItem]:
    stream, kind, key = cursor_position(query.after, int, str, str) if query.after is not None else (0, "", "")
    wanted = {
        "id": query.session_id,
        "kinds": dumps(list(query.kinds)).decode() if query.kinds else None,
        "state": query.state,
    }
    name = "pending_items" if query.state == "pending" else "items"
    total = raw.execute(QUERIES[f"count_{name}"], wanted).fetchone()[0]
    place = {"stream": stream, "kind": kind, "key": key, "limit": query.limit + 1}
    found = raw.execute(QUERIES[name], {**wanted, **place}).fetchall()
    listed = [StoredItem(row[1], Item(*row[2:])) for row in found[: query.limit]]
    last = found[len(listed) - 1] if len(found) > query.limit and listed else None
    return Page(listed, cursor(last[0], last[2], last[3]) if last else None, total)
