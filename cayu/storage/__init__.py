"""Every backend of every store, and the data files that come with the package."""

from cayu.sessions.streams import SessionStore
from cayu.storage.budgets import InMemoryBudgetLedger, SQLiteBudgetLedger
from cayu.storage.datasets import (
    Control,
    Question,
    handbook_controls,
    handbook_entries,
    handbook_questions,
    manifest,
    python_topics,
)
from cayu.storage.interventions import (
    InMemoryMemoryInterventionExecutionStore,
    SQLiteMemoryInterventionExecutionStore,
)
from cayu.storage.memory import InMemoryKnowledgeStore, InMemorySessionStore
from cayu.storage.snapshots import InMemoryAgentSnapshotStore, SQLiteAgentSnapshotStore
from cayu.storage.sql.sqlite import SQLiteKnowledgeStore, SQLiteSessionStore

__all__ = [
    "Control",
    "InMemoryAgentSnapshotStore",
    "InMemoryBudgetLedger",
    "InMemoryKnowledgeStore",
    "InMemoryMemoryInterventionExecutionStore",
    "InMemorySessionStore",
    "Question",
    "SQLiteAgentSnapshotStore",
    "SQLiteBudgetLedger",
    "SQLiteKnowledgeStore",
    "SQLiteMemoryInterventionExecutionStore",
    "SQLiteSessionStore",
    "SessionStore",
    "handbook_controls",
    "handbook_entries",
    "handbook_questions",
    "manifest",
    "python_topics",
]
