"""The SQLite engine: stores for sessions and knowledge over one file."""

from cayu.storage.sql.sqlite.knowledge import SQLiteKnowledgeStore
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

__all__ = ["SQLiteKnowledgeStore", "SQLiteSessionStore"]
