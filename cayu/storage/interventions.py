"""Execution journals: in this process, or in a SQLite file that several processes share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from cayu.canonical import JSON
from cayu.clock import SystemClock, as_datetime, as_microseconds
from cayu.errors import MemoryInterventionExecutionConflict, StoredDocumentDamaged
from cayu.interventions.journal import (
    MemoryInterventionExecutionStore,
    MemoryInterventionRuntimeOwnershipResult,
    as_row,
    decide_begin,
    decide_compare_and_set,
    decide_transition,
    from_row,
)
from cayu.interventions.ownership import DurableOperationOwnershipTransition
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.sessions.streams import Decide
from cayu.storage.memory import InMemoryDocuments
from cayu.storage.sql.sqlite.database import Database
from cayu.storage.sql.sqlite.documents import SQLiteDocuments
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

COLLECTION = "memory-intervention-executions"


class _OwnershipClock(SystemClock):
    """The store's time as a caller's clock tells it."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def now_us(self) -> int:
        """Return the caller's time in microseconds since 1970."""
        return as_microseconds(self._clock())


class _DocumentExecutionStore(MemoryInterventionExecutionStore):
    """A journal of one document per execution."""

    def __init__(self, documents: InMemoryDocuments | SQLiteDocuments) -> None:
        self._documents = documents

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold this store's state."""
        return self._documents.durable_state_paths()

    async def begin(self, record: MemoryInterventionExecutionRecord) -> MemoryInterventionExecutionRecord:
        """Write a first record in one transaction, or return its exact replay."""

        stands: list[MemoryInterventionExecutionRecord | None] = []

        def decide(row: JSON, now: int) -> JSON:
            stands[:] = [_record(record.execution_id, row)]
            begun = decide_begin(stands[0], record)
            return as_row(begun) if begun is not None else None

        await self._transact(record.execution_id, decide)
        return stands[0] or record

    async def load(self, execution_id: str) -> MemoryInterventionExecutionRecord | None:
        """Read one record."""
        try:
            return _record(execution_id, await self._documents.read(COLLECTION, execution_id))
        except StoredDocumentDamaged as damaged:
            raise _damaged(execution_id) from damaged

    async def compare_and_set(
        self, expected: MemoryInterventionExecutionRecord, desired: MemoryInterventionExecutionRecord
    ) -> MemoryInterventionExecutionRecord:
        """Take an execution to its next revision in one transaction."""
        name = desired.execution_id
        written: list[MemoryInterventionExecutionRecord] = []

        def decide(row: JSON, now: int) -> JSON:
            written[:] = [decide_compare_and_set(_record(name, row), expected, desired, as_datetime(now))]
            return as_row(written[0])

        await self._transact(name, decide)
        return written[0]

    async def transition_runtime_dispatch_ownership(
        self, execution_id: str, request: DurableOperationOwnershipTransition
    ) -> MemoryInterventionRuntimeOwnershipResult:
        """Decide and write one transition in one transaction."""
        results: list[MemoryInterventionRuntimeOwnershipResult] = []

        def decide(row: JSON, now: int) -> JSON:
            stands = _record(execution_id, row)
            results.append(decide_transition(stands, execution_id, request, as_datetime(now)))
            after = results[-1].execution
            return as_row(after) if after is not stands else None

        await self._transact(execution_id, decide)
        return results[-1]

    async def aclose(self) -> None:
        """Give up connections and files; safe to call twice."""
        await self._documents.aclose()

    async def _transact(self, execution_id: str, decide: Decide) -> JSON:
        try:
            return await self._documents.transact(COLLECTION, execution_id, decide)
        except StoredDocumentDamaged as damaged:
            raise _damaged(execution_id) from damaged


class InMemoryMemoryInterventionExecutionStore(_DocumentExecutionStore):
    """A journal in this process only."""

    def __init__(self, *, ownership_clock: Callable[[], datetime] | None = None) -> None:
        """`ownership_clock` gives the store's time, by default this machine's, as an aware datetime."""
        super().__init__(InMemoryDocuments(clock=_OwnershipClock(ownership_clock) if ownership_clock else None))


class SQLiteMemoryInterventionExecutionStore(_DocumentExecutionStore):
    """A journal in one SQLite file: one JSON document per execution, which each revision replaces whole."""

    def __init__(self, path: str | Path, *, ownership_clock: Callable[[], datetime] | None = None) -> None:
        """`path` may be that of a session store; `ownership_clock` gives the store's time, else this machine does."""
        super().__init__(_sqlite(path, ownership_clock))

    @classmethod
    def beside(cls, sessions: SQLiteSessionStore) -> SQLiteMemoryInterventionExecutionStore:
        """Return a journal in the file of a session store and over its connections, which closing it leaves open.

        Stores of one process on one file get on better over one connection: they share commits instead of waiting for
        each other's.
        """
        store = cls.__new__(cls)
        _DocumentExecutionStore.__init__(store, _sqlite(sessions.database, None))
        return store


def _sqlite(place: str | Path | Database, clock: Callable[[], datetime] | None) -> SQLiteDocuments:
    return SQLiteDocuments(place, clock=_OwnershipClock(clock) if clock else None)


def _damaged(execution_id: str) -> MemoryInterventionExecutionConflict:
    reason = "its row in the journal was edited, or is damaged"
    return MemoryInterventionExecutionConflict(execution_id=execution_id, reason=reason)


def _record(execution_id: str, row: JSON) -> MemoryInterventionExecutionRecord | None:
    return from_row(execution_id, row) if row is not None else None
