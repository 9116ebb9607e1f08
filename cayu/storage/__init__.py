"""Every backend of every store, and the data files that come with the package."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from cayu.storage.memory import InMemoryKnowledgeStore, InMemorySessionStore
from cayu.storage.sql.sqlite import SQLiteKnowledgeStore, SQLiteSessionStore

if TYPE_CHECKING:
    from cayu.storage.interventions import (
        InMemoryMemoryInterventionExecutionStore,
        SQLiteMemoryInterventionExecutionStore,
    )
    from cayu.storage.snapshots import InMemoryAgentSnapshotStore, SQLiteAgentSnapshotStore

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

_LATE = {
    "InMemoryAgentSnapshotStore": "snapshots",
    "InMemoryMemoryInterventionExecutionStore": "interventions",
    "SQLiteAgentSnapshotStore": "snapshots",
    "SQLiteMemoryInterventionExecutionStore": "interventions",
}
"""Name -> the module that owns it, loaded when it is asked for, so that a first application starts without it."""


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
