"""What work in a store costs, and how that reaches the phase on whose behalf it is done.

A context variable names the meter of the running task. A store asks for a measurement when a unit of work comes in,
takes it along into whatever thread does the work, and ends it when the unit's result is back.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class StoreCost:
    """Costs of work in a store; integers, times in nanoseconds. One unit of work at a time counts on it."""

    __slots__ = ("_taker", "bytes_written", "commit_ns", "execution_ns", "in_use", "lock_wait_ns", "transactions")

    def __init__(self, taker: Meter | None = None) -> None:
        """`taker` takes the costs in when the unit has ended; without one the account itself is where they count."""
        self._taker = taker
        self.transactions = 0
        """Transactions begun: explicit ones, implicit ones, and statements that ran outside any."""
        self.lock_wait_ns = 0
        """Waiting for the connection's thread and for the write lock."""
        self.execution_ns = 0
        """Running statements and reading their rows; taking the write lock is in here too."""
        self.commit_ns = 0
        """Commits that had something to commit."""
        self.bytes_written = 0
        """Size of the text and the blobs that were bound to statements which changed rows."""
        self.in_use = False
        """True while a unit of work counts on it."""

    def add(self, other: StoreCost) -> None:
        """Take in what another one counts."""
        self.transactions += other.transactions
        self.lock_wait_ns += other.lock_wait_ns
        self.execution_ns += other.execution_ns
        self.commit_ns += other.commit_ns
        self.bytes_written += other.bytes_written

    def so_far(self) -> StoreCost:
        """Return a copy of what is counted by now."""
        copy = StoreCost()
        copy.add(self)
        return copy

    def end(self) -> None:
        """Say that the unit of work has ended; on the loop on which it came in."""
        self.in_use = False
        if self._taker is not None:
            self._taker.take(self)


class Meter(Protocol):
    """What a task's work in stores is charged to."""

    def measure(self) -> StoreCost | None:
        """Begin to measure one unit of work; None where nothing is measured."""
        ...

    def take(self, cost: StoreCost) -> None:
        """Take in what a unit of work has cost, and pass it on to whoever is charged as well."""
        ...


_METER: ContextVar[Meter | None] = ContextVar("cayu_meter", default=None)


def measure() -> StoreCost | None:
    """Begin to measure one unit of work for the present task; None where no phase can be active."""
    meter = _METER.get()
    return None if meter is None else meter.measure()


def metered(meter: Meter | None) -> None:
    """Charge what this task does from now on, and what it starts, to a meter; None for nobody."""
    _METER.set(meter)


def present_meter() -> Meter | None:
    """Return the meter of this task."""
    return _METER.get()
