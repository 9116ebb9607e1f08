"""Time, as a value that tests can replace: wall time in integer microseconds and a monotonic second counter."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECOND = 1_000_000
"""Microseconds in a second."""
MILLI = 1000.0
"""Milliseconds in a second."""
NANOSECOND = 1_000_000_000
"""Nanoseconds in a second."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where the runtime and the stores read time."""

    def now_us(self) -> int:
        """Return wall time as microseconds since 1970 in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary origin."""
        ...

    def monotonic_ns(self) -> int:
        """Return the same counter in nanoseconds."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        """Return wall time as microseconds since 1970 in UTC."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return time.monotonic()

    monotonic_ns = staticmethod(time.monotonic_ns)
    """The machine's monotonic clock in nanoseconds; the function itself, since timing calls it all the time."""


def as_datetime(microseconds: int) -> datetime:
    """Return the aware UTC datetime of a count of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def as_microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970 of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
