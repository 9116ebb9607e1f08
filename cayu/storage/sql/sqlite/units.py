"""Units of work: functions that run from BEGIN to COMMIT inside a connection's thread.

Units that have come together while the thread was busy share one transaction, each under a savepoint of its own, and
one commit: a refused unit leaves nothing behind and the others stand. Nobody is told of a unit before its commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cayu.crashpoints import reach
from cayu.shielding import Unstoppable
from cayu.storage.sql.sqlite.metering import WRITING, MeteredConnection
from cayu.timing.costs import StoreCost

T = TypeVar("T")
Work = Callable[[MeteredConnection], T]

MOST_TOGETHER = 64
"""Units that share one commit at most."""


def in_transaction(raw: MeteredConnection, begin: str, work: Work[T]) -> T:
    """Run one unit in a transaction of its own and return its result; an error leaves nothing behind."""
    raw.begin(begin)
    try:
        result = work(raw)
        _commit(raw, begin)
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return result


def _commit(raw: MeteredConnection, begin: str) -> None:
    if begin is WRITING:
        reach("commit.prepared")
    raw.commit()
    if begin is WRITING:
        reach("commit.durable")


@dataclass(slots=True)
class Waiting:
    """One unit with whoever waits for it."""

    work: Work[Any] = field(repr=False)
    future: Unstoppable[Any]
    cost: StoreCost | None = None
    """Where the unit's costs are counted, if anybody wants to know."""
    queued_ns: int = field(default_factory=time.perf_counter_ns)
    result: Any = field(default=None, repr=False)
    error: BaseException | None = field(default=None, repr=False)

    def run(self, raw: MeteredConnection) -> None:
        """Do the work as it is, outside any transaction of ours, and tell at once."""
        raw.turn(self.cost, self.queued_ns)
        try:
            self.result = self.work(raw)
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
            self.error = error
        raw.cost = None
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

    def add(
        self, work: Work[T], loop: asyncio.AbstractEventLoop, cost: StoreCost | None = None
    ) -> tuple[Unstoppable[T], bool]:
        """Append a unit; return its future, and whether the connection's thread has to be sent to `drain`."""
        future: Unstoppable[T] = Unstoppable(loop=loop)
        with self._lock:
            self._units.append(Waiting(work, future, cost))
            idle, self._draining = not self._draining, True
        return future, idle

    def drain(self, raw: MeteredConnection) -> None:
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


def _alone(raw: MeteredConnection, unit: Waiting) -> None:
    raw.turn(unit.cost, unit.queued_ns)
    try:
        unit.result = in_transaction(raw, WRITING, unit.work)
    except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
        unit.error = error
    raw.cost = None


def _together(raw: MeteredConnection, units: list[Waiting]) -> None:
    """Run units under one commit. Each is charged with the whole of what they share: it has waited for all of it."""
    measured = [unit.cost for unit in units if unit.cost is not None]
    shared = raw.cost = StoreCost() if measured else None
    try:
        raw.begin(WRITING)
        for unit in units:
            raw.turn(unit.cost, unit.queued_ns + (shared.lock_wait_ns if shared else 0))
            _under_savepoint(raw, unit)
        raw.cost = shared
        _commit(raw, WRITING)
    except BaseException as error:  # noqa: BLE001 - it is raised to everybody who waits
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        for unit in units:
            unit.error = unit.error or error
    raw.cost = None
    for cost in measured:
        cost.add(shared or StoreCost())


def _under_savepoint(raw: MeteredConnection, unit: Waiting) -> None:
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
