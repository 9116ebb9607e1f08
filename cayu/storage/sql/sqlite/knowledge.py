"""Knowledge in a SQLite file: full-text search selects candidates inside the scope, revisions are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cayu.canonical import dumps, loads
from cayu.clock import Clock, SystemClock, as_datetime, as_microseconds
from cayu.knowledge.ranking import tokens
from cayu.knowledge.records import KnowledgeEntry, Selection
from cayu.knowledge.revisions import decide_revision
from cayu.knowledge.store import KnowledgeStore
from cayu.storage.sql.sqlite.database import DEFAULT_BUSY_SECONDS, QUERIES, Database, Mode
from cayu.storage.sql.sqlite.metering import MeteredConnection


class SQLiteKnowledgeStore(KnowledgeStore):
    """Knowledge in one file, which may be the file of a session store."""

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

    async def select(self, selection: Selection) -> Sequence[KnowledgeEntry]:
        """Select in one query that states scope, filters and frontier."""
        if selection.tokens == ():
            return []
        now = self._clock.now_us() if selection.as_of is None else as_microseconds(selection.as_of)
        wanted = _parameters(selection, now)
        found = await self._database.read(lambda raw: raw.execute(QUERIES["knowledge_select"], wanted).fetchall())
        return [KnowledgeEntry.model_validate(loads(body)) for (body,) in found]

    async def write(self, entry: KnowledgeEntry, expected_revision: int, *, delete: bool = False) -> KnowledgeEntry:
        """Append a revision and its index row in one transaction."""
        return await self._database.write(
            lambda raw: _write(raw, entry, expected_revision, self._clock.now_us(), delete)
        )

    async def write_many(self, entries: Iterable[KnowledgeEntry]) -> int:
        """Add new entries in one transaction, for loading a collection; return how many."""
        loaded = list(entries)

        def work(raw: MeteredConnection) -> int:
            for entry in loaded:
                _write(raw, entry, 0, self._clock.now_us(), delete=False)
            return len(loaded)

        return await self._database.write(work)

    async def frontier(self) -> int:
        """Return the last change sequence."""
        found: int = await self._database.read(_frontier)
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._database.aclose()


def _frontier(raw: MeteredConnection) -> int:
    found: int = raw.execute(QUERIES["knowledge_frontier"]).fetchone()[0]
    return found


def _write(
    raw: MeteredConnection, entry: KnowledgeEntry, expected_revision: int, now: int, delete: bool
) -> KnowledgeEntry:
    found = raw.execute(QUERIES["knowledge_current"], (entry.id,)).fetchone()
    current = None if found is None else KnowledgeEntry.model_validate(loads(found[3]))
    written = decide_revision(current, bool(found and found[2]), entry, expected_revision, as_datetime(now))
    change = _frontier(raw) + 1
    if found is not None:
        raw.execute(QUERIES["knowledge_supersede"], (change, found[0]))
    expires = as_microseconds(written.expires_at) if written.expires_at else None
    labels = dumps([[_exact(name), _exact(value)] for name, value in sorted(written.labels.items())]).decode()
    columns = (written.id, written.revision, change, delete, _exact(written.namespace), labels, _exact(written.kind))
    sources = (*map(_exact, (written.visibility, written.status, written.source_type, written.source_id)), expires)
    body = dumps(written.model_dump(mode="json"))
    key = raw.execute(QUERIES["knowledge_insert"], (*columns, *sources, body)).lastrowid
    indexed = " ".join(dict.fromkeys(tokens(f"{written.title} {written.text}")))
    raw.execute(QUERIES["knowledge_index"], (key, indexed))
    return written


def _parameters(selection: Selection, now: int) -> dict[str, Any]:
    scope = selection.scope
    needed = [[_exact(name), _exact(value)] for name, value in (*selection.labels, *scope.required_labels.items())]
    return {
        "tokens": None if selection.tokens is None else " OR ".join(f'"{token}"' for token in selection.tokens),
        "frontier": selection.frontier,
        "entry_id": selection.entry_id,
        "namespace": None if selection.namespace is None else _exact(selection.namespace),
        "kinds": _list(selection.kinds) if selection.kinds else None,
        "all_namespaces": scope.allow_all_namespaces,
        "namespaces": _list(scope.allowed_namespaces),
        "visibilities": _list(scope.allowed_visibilities),
        "statuses": _list(scope.allowed_statuses),
        "source_types": None if scope.allowed_source_types is None else _list(scope.allowed_source_types),
        "source_ids": None if scope.allowed_source_ids is None else _list(scope.allowed_source_ids),
        "expired": scope.include_expired,
        "now": now,
        "labels": dumps(needed).decode(),
    }


def _list(values: Iterable[str]) -> str:
    return dumps([_exact(value) for value in values]).decode()


def _exact(text: str) -> str:
    """Return text as it is compared in SQL, where a NUL character would end it."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")
