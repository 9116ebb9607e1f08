"""Stores of snapshots: in this process, or in a SQLite file that several processes share."""

from __future__ import annotations

from cayu.snapshots.store import AgentSnapshotStore
from cayu.storage.memory import InMemoryDocuments
from cayu.storage.sql.sqlite.documents import SQLiteDocuments


class InMemoryAgentSnapshotStore(InMemoryDocuments, AgentSnapshotStore):
    """Snapshots in this process only."""


class SQLiteAgentSnapshotStore(SQLiteDocuments, AgentSnapshotStore):
    """Snapshots in one SQLite file."""
