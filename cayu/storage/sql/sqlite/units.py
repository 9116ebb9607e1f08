"""Units of work: functions that run from BEGIN to COMMIT inside a connection's thread.

Units that have come together while the thread was busy share one transaction, each under a savepoint of its own, and
one commit: a refused unit leaves nothing behind and the others stand. Nobody is told of a unit before its commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cayu.crashpoints import reach
from cayu.shielding import Unstoppable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MOST_TOGETHER = 64
"""Units that share one commit at most."""
WRITING, READING = "BEGIN IMMEDIATE", "BEGIN"


def in_transaction(raw: sqlite3.Connection, begin: str, work: Work[T]) -> T:
    """Run one unit in a transaction of its own and return its result; an error leaves nothing behind."""
    raw.execute(begin)
    try:
        result = work(raw)
        _commit(raw, begin)
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return result


def _commit(raw: sqlite3.Connection, begin: str) -> None:
    if begin is WRITING:
        reach("commit.prepared")
    raw.execute("COMMIT")
    if begin is WRITING:
        reach("commit.durable")


@dataclass(slots=True)
class Waiting:
    """One unit with whoever waits for it."""

    work: Work[Any]
    future: Unstoppable[Any]
    result: Any = None
    error: BaseException | None = None

    def run(self, raw: sqlite3.Connection) -> None:
        """Do the work as it is, outside any transaction of ours, and tell at once."""
        try:
            self.result = self.work(raw)
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
            self.error = error
        self.tell()

    def tell(self) -> None:
        """Settle the future on its own loop; a loop that has gone has nobody to tell."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._settle)
        except RuntimeError:
            return

    def _settle(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class UnitQueue:
    """The writing units of one connection, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._units: deque[Waiting] = deque()
        self._draining = False

    def add(self, work: Work[T], loop: asyncio.AbstractEventLoop) -> tuple[Unstoppable[T], bool]:
        """Append a unit; return its future, and whether the connection's thread has to be sent to `drain`."""
        future: Unstoppable[T] = Unstoppable(loop=loop)
        with self._lock:
            self._units.append(Waiting(work, future))
            idle, self._draining = not self._draining, True
        return future, idle

    def drain(self, raw: sqlite3.Connection) -> None:
        """Run what waits, in the connection's thread, until nothing does."""
        while units := self._take():
            if len(units) == 1:
                _alone(raw, units[0])
            else:
                _together(raw, units)
            for unit in units:
                unit.tell()

    def _take(self) -> list[Waiting]:
        with self._lock:
            units = [self._units.popleft() for _ in range(min(len(self._units), MOST_TOGETHER))]
            self._draining = bool(units)
            return units


def _alone(raw: sqlite3.Connection, unit: Waiting) -> None:
    try:
        unit.result = in_transaction(raw, WRITING, unit.work)
    except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
        unit.error = error


def _together(raw: sqlite3.Connection, units: list[Waiting]) -> None:
    try:
        raw.execute(WRITING)
        for unit in units:
            _under_savepoint(raw, unit)
        _commit(raw, WRITING)
    except BaseException as error:  # noqa: BLE001 - it is raised to everybody who waits
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        for unit in units:
            unit.error = unit.error or error


def _under_savepoint(raw: sqlite3.Connection, unit: Waiting) -> None:
    """Run one of several units; its own error undoes it alone, one that ends the transaction is everybody's."""
    raw.execute("SAVEPOINT unit")
    try:
        unit.result = unit.work(raw)
    except BaseException as error:
        if not raw.in_transaction:
            raise
        unit.error = error
        raw.execute("ROLLBACK TO unit")
    raw.execute("RELEASE unit")
