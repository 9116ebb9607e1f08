"""A slow disk, for showing and testing where the time of a commit goes."""

from __future__ import annotations

import time
from pathlib import Path

from cayu.clock import NANOSECOND
from cayu.errors import InvalidInput
from cayu.storage.sql.sqlite.database import Database
from cayu.storage.sql.sqlite.metering import MeteredConnection
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore


class SlowSQLiteSessionStore(SQLiteSessionStore):
    """Sessions in a SQLite file each of whose commits takes `commit_seconds` longer, as on a network drive."""

    def __init__(self, path: str | Path, *, commit_seconds: float) -> None:
        """Open the file at `path` with the first use. Raises `InvalidInput` for a negative time."""
        if not commit_seconds >= 0:
            raise InvalidInput(f"commit_seconds is a number of seconds, not {commit_seconds!r}.")
        super().__init__(path)
        self._database = Database(path, writer=type("SlowCommits", (_SlowCommits,), {"commit_seconds": commit_seconds}))


class _SlowCommits(MeteredConnection):
    """A connection whose commits wait."""

    commit_seconds = 0.0

    def commit(self) -> None:
        """Wait, and commit."""
        time.sleep(self.commit_seconds)
        if self.cost is not None:
            self.cost.commit_ns += round(self.commit_seconds * NANOSECOND)
        super().commit()
