"""Stores of snapshots: in this process, or in a SQLite file that several processes share."""

from __future__ import annotations

from cayu.snapshots.store import AgentSnapshotStore
from cayu.storage.memory import InMemoryDocuments
from cayu.storage.sql.sqlite.documents import SQLiteDocuments
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore


class InMemoryAgentSnapshotStore(InMemoryDocuments, AgentSnapshotStore):
    """Snapshots in this process only."""


class SQLiteAgentSnapshotStore(SQLiteDocuments, AgentSnapshotStore):
    """Snapshots in one SQLite file."""

    @classmethod
    def beside(cls, sessions: SQLiteSessionStore) -> SQLiteAgentSnapshotStore:
        """Return a store in the file of a session store and over its connections, which closing it leaves open."""
        return cls(sessions.database)
