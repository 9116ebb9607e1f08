"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import UTC, datetime

from cayu.clock import MICROSECOND, NANOSECOND, as_microseconds

START = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """Wall and monotonic time under a test's control, for stores and runtimes alike."""

    def __init__(self, start: datetime = START) -> None:
        """Stand at `start`, an aware datetime."""
        self._now = as_microseconds(start)
        self._monotonic_ns = 1000 * NANOSECOND

    def now_us(self) -> int:
        """Return wall time in microseconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._monotonic_ns / NANOSECOND

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now += round(seconds * MICROSECOND)
        self._monotonic_ns += round(seconds * NANOSECOND)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator would; monotonic time does not notice."""
        self._now += round(seconds * MICROSECOND)
