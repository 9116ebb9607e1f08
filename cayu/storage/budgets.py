"""Ledgers with a store of their own: in this process, or in a SQLite file that several applications share."""

from __future__ import annotations

from pathlib import Path

from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.storage.memory import InMemorySessionStore
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore


class InMemoryBudgetLedger(DocumentBudgetLedger):
    """Budgets in this process only."""

    def __init__(self) -> None:
        super().__init__(InMemorySessionStore())


class SQLiteBudgetLedger(DocumentBudgetLedger):
    """Budgets in one SQLite file, shared safely between processes of one machine.

    `path` may be that of a session store. An application without a ledger keeps its budgets beside its sessions.
    """

    def __init__(self, path: str | Path) -> None:
        self._store = SQLiteSessionStore(path)
        super().__init__(self._store)

    async def aclose(self) -> None:
        """Close the file."""
        await self._store.aclose()
