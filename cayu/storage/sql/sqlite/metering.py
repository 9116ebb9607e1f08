"""A driver connection that measures what runs on it, for as long as somebody has asked for it.

While nobody has, statements go straight to the driver, and the cursors are the driver's own. While somebody has, this
code runs at every statement of every commit, so it is written for speed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter_ns
from typing import Any

from cayu.timing.costs import StoreCost

Bound = Any
"""Values bound to one statement: a sequence, or a mapping of names."""
WRITING, READING = "BEGIN IMMEDIATE", "BEGIN"


class MeteredConnection(sqlite3.Connection):
    """The driver's connection, with a place for the costs of the present unit of work."""

    cost: StoreCost | None = None
    """Where what runs is counted; None does not measure."""
    _changes_before = 0
    """Rows changed by this connection before the present transaction."""

    def begin(self, how: str) -> None:
        """Begin a transaction; `WRITING` takes the write lock, and waits for it."""
        cost = self.cost
        if cost is None:
            _execute(self, how)
            return
        self._changes_before = self.total_changes
        begun = perf_counter_ns()
        try:
            _execute(self, how)
            cost.transactions += 1
        finally:
            spent = perf_counter_ns() - begun
            cost.execution_ns += spent
            cost.lock_wait_ns += spent if how is WRITING else 0

    def execute(self, sql: str, parameters: Bound = (), /) -> Any:
        """Run one statement; while measuring, rows come through a `MeteredRows`."""
        cost = self.cost
        if cost is None:
            return _execute(self, sql, parameters)
        inside = self.in_transaction
        if not inside:
            self._changes_before = self.total_changes
        begun = perf_counter_ns()
        try:
            cursor = _execute(self, sql, parameters)
        finally:
            cost.execution_ns += perf_counter_ns() - begun
        if not inside:
            cost.transactions += 1
        if cursor.description is not None:
            return MeteredRows(cursor, cost)
        if cursor.rowcount > 0:
            cost.bytes_written += _size(parameters.values() if parameters.__class__ is dict else parameters)
        return cursor

    def one(self, sql: str, parameters: Bound) -> Any:
        """Run one reading statement inside a transaction and return its first row, None without one."""
        cost = self.cost
        if cost is None:
            return _execute(self, sql, parameters).fetchone()
        begun = perf_counter_ns()
        row = _execute(self, sql, parameters).fetchone()
        cost.execution_ns += perf_counter_ns() - begun
        return row

    def executemany(self, sql: str, rows: Iterable[Bound], /) -> sqlite3.Cursor:
        """Run one writing statement for many rows."""
        cost = self.cost
        if cost is None:
            return _executemany(self, sql, rows)
        inside, listed = self.in_transaction, list(rows)
        if not inside:
            self._changes_before = self.total_changes
        begun = perf_counter_ns()
        try:
            cursor = _executemany(self, sql, listed)
        finally:
            cost.execution_ns += perf_counter_ns() - begun
        if not inside:
            cost.transactions += 1
        if cursor.rowcount > 0:
            cost.bytes_written += _size(chain.from_iterable(listed))
        return cursor

    def commit(self) -> None:
        """Commit, if a transaction is open; one that changed nothing costs no commit."""
        cost = self.cost
        if cost is None:
            _commit(self)
            return
        begun = perf_counter_ns()
        _commit(self)
        if self.total_changes != self._changes_before:
            cost.commit_ns += perf_counter_ns() - begun
            self._changes_before = self.total_changes

    def turn(self, cost: StoreCost | None, queued_ns: int) -> None:
        """Measure for one unit of work from now on, which has waited since `queued_ns`; None stops."""
        self.cost = cost
        if cost is not None:
            cost.lock_wait_ns += perf_counter_ns() - queued_ns


class MeteredRows:
    """The rows of one statement; reading them runs the statement on, and counts as running it."""

    __slots__ = ("_cost", "_cursor")

    def __init__(self, cursor: sqlite3.Cursor, cost: StoreCost) -> None:
        self._cursor = cursor
        self._cost = cost

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""
        begun = perf_counter_ns()
        row = self._cursor.fetchone()
        self._cost.execution_ns += perf_counter_ns() - begun
        return row

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        begun = perf_counter_ns()
        rows = self._cursor.fetchall()
        self._cost.execution_ns += perf_counter_ns() - begun
        return rows

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows that are left."""
        return self

    def __next__(self) -> Any:
        """Return the next row, or stop."""
        begun = perf_counter_ns()
        try:
            return next(self._cursor)
        finally:
            self._cost.execution_ns += perf_counter_ns() - begun

    def __getattr__(self, name: str) -> Any:
        """Leave the rest to the driver's cursor."""
        return getattr(self._cursor, name)


_execute, _executemany = sqlite3.Connection.execute, sqlite3.Connection.executemany
_commit = sqlite3.Connection.commit


def _size(values: Iterable[Any]) -> int:
    """Return the bytes of text and of blobs; numbers are not counted."""
    total = 0
    for value in values:
        kind = value.__class__
        if kind is bytes:
            total += len(value)
        elif kind is not int and isinstance(value, _PAYLOADS):
            total += len(value.encode()) if isinstance(value, str) and not value.isascii() else len(value)
    return total


_PAYLOADS = (str, bytes, bytearray, memoryview)
