"""Documents in a SQLite file, each replaced in one transaction."""

from __future__ import annotations

from pathlib import Path

from cayu.canonical import JSON, dumps, loads
from cayu.clock import Clock, SystemClock
from cayu.errors import StoredDocumentDamaged
from cayu.sessions.streams import Decide
from cayu.storage.sql.sqlite.database import QUERIES, Database
from cayu.storage.sql.sqlite.metering import MeteredConnection


class SQLiteDocuments:
    """Documents in one file, shared safely between processes of one machine; the file may be a session store's."""

    def __init__(self, place: str | Path | Database, *, clock: Clock | None = None) -> None:
        """`place` is a path, or the open database of another store, whose connections are shared and left open."""
        self._shares = isinstance(place, Database)
        self._database = place if isinstance(place, Database) else Database(place)
        self._clock = clock or SystemClock()

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document by what `decide` answers, and return what stands."""
        return await self._database.write(lambda raw: transact(raw, collection, id, decide, self._clock.now_us()))

    async def read(self, collection: str, id: str) -> JSON:
        """Return one document, None when there is none."""
        return await self._database.read(lambda raw: _document(raw, collection, id))

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the primary file."""
        return (self._database.path,)

    async def aclose(self) -> None:
        """Close the connections, unless they are another store's."""
        if not self._shares:
            await self._database.aclose()


def transact(raw: MeteredConnection, collection: str, id: str, decide: Decide, now: int) -> JSON:
    """Replace one document inside a unit of work, and return what stands."""
    current = _document(raw, collection, id)
    desired = decide(current, now)
    if desired is None:
        return current
    body = dumps(desired)
    raw.execute(QUERIES["put_document"], (collection, id, body))
    return loads(body)


def _document(raw: MeteredConnection, collection: str, id: str) -> JSON:
    found = raw.execute(QUERIES["document"], (collection, id)).fetchone()
    try:
        return None if found is None else loads(found[0])
    except (ValueError, TypeError):
        raise StoredDocumentDamaged(collection=collection, id=id) from None
