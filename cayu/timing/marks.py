"""Recording: while the runtime works, a moment is one mark in a list and nothing more; `fold` makes phases of marks.

Marks belong to lines of work. A line is in one phase at a time: entering one stops the one around it until it is left.
Line 0 is the session's own, and each call that is dispatched has one beside it. All of this runs several times in a
round, so it allocates next to nothing: a mark is four items of one flat list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from cayu.clock import Clock
from cayu.timing.costs import Meter, StoreCost, metered
from cayu.timing.records import TimingRecord

LEAVE, CLOSE = "<leave", "<close"
STAGED = "<staged"
"""A call's result is staged."""
STORE = "<store"
"""The line begins to have costs in a store; the mark holds the account on which they are counted."""
WROTE = "<wrote"
"""Events were written: the mark holds type, call id and bytes of each. No phase is called like one of these words."""

Sizes = list[Any]
"""Type, call id and bytes of one event after the other, flat."""
MARK_ITEMS = 4
Mark = tuple[int, int, str, Any]
"""Moment in monotonic nanoseconds, line, what (a phase is entered, or one of the words above), and its object."""


class Line:
    """One line of work; a context manager that leaves the phase which was entered last."""

    __slots__ = ("_marks", "_now", "_number", "cost")

    def __init__(self, marks: list[Any], now: Callable[[], int], number: int) -> None:
        self._marks = marks
        self._now = now
        self._number = number
        self.cost: StoreCost | None = None
        """The latest account of the present stretch of the present phase, if it has one."""

    def enter(self, phase: str, call_id: str | None = None) -> Self:
        """Enter a phase of the whole, and of one call if one is named."""
        self.cost = None
        self._marks += (self._now(), self._number, phase, call_id)
        return self

    def note(self, word: str, subject: Any) -> None:
        """Note one of the words above at this moment."""
        self._marks += (self._now(), self._number, word, subject)

    def __enter__(self) -> Self:
        """Go on in the phase that was entered."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it."""
        self.cost = None
        self._marks += (self._now(), self._number, LEAVE, None)

    def measure(self) -> StoreCost | None:
        """Begin to measure one unit of work in the present stretch of the present phase."""
        cost = self._account()
        cost.in_use = True
        return cost

    def take(self, cost: StoreCost) -> None:
        """Take in what work has cost that was measured for somebody inside."""
        self._account().add(cost)

    def _account(self) -> StoreCost:
        """Return an account of the present stretch that nobody is using."""
        cost = self.cost
        if cost is None or cost.in_use:
            cost = self.cost = StoreCost()
            self._marks += (0, self._number, STORE, cost)
        return cost


class Attempt(Line):
    """One stretch of work under observation: a round, or the preparation of a model step. It is its own first line."""

    recovered = False
    continued = False
    """A continuation does not observe its remaining orchestration."""
    launched = False
    """True once a call was dispatched in this attempt."""
    incomplete = False
    closed = False
    truncated = 0
    """Calls beyond the bound."""
    record: TimingRecord | None = None
    """What callers read, once somebody has read it."""
    _lines = 1

    def __init__(self, clock: Clock, ids: tuple[str, str], step: int, round_id: str | None, *, is_round: bool) -> None:
        """`ids` are the session's own and its public reference; `step` is the model step, from 1.

        `round_id` is the round, or of a preparation the one before it whose commit was seen in this claim.
        """
        self._marks, self._now, self._number, self.cost = [], clock.monotonic_ns, 0, None
        self.session_id, self.instance_id = ids
        self.step = step
        self.round_id = round_id
        self.is_round = is_round
        self.calls: list[tuple[str, str | None]] = []
        """Ids in the model's order, each with the name of its tool if one of that name is registered."""
        self.wall_us = clock.now_us()
        self.wall_ns = self.begun_ns = self._now()
        """The wall times of the record are counted from this pair, on the monotonic clock."""

    @property
    def step_id(self) -> str:
        """The public name of the model step."""
        return f"{self.instance_id}.m{self.step}"

    @property
    def marks(self) -> Sequence[Mark]:
        """What was noted, in order."""
        flat = self._marks
        return [(flat[at], flat[at + 1], flat[at + 2], flat[at + 3]) for at in range(0, len(flat), MARK_ITEMS)]

    def call_line(self, call_id: str, outer: Meter | None) -> CallLine:
        """Return the line of a call that is being dispatched."""
        self.launched = True
        number, self._lines = self._lines, self._lines + 1
        return CallLine(self, number, call_id, outer)

    def past(self, phase: str, call_id: str | None, begun_ns: int, ended_ns: int) -> None:
        """Take in a stretch from before the attempt was begun; the attempt runs from its beginning then."""
        number, self._lines = self._lines, self._lines + 1
        self._marks += (begun_ns, number, phase, call_id, ended_ns, number, LEAVE, None)
        self.begun_ns = min(self.begun_ns, begun_ns)

    def close(self) -> int:
        """End the attempt and return when.

        Marks that come later are not looked at, and a unit of work that is still at it counts with what it took so far.
        """
        now = self._now()
        for place, subject in enumerate(self._marks):
            if subject.__class__ is StoreCost and subject.in_use:
                self._marks[place] = subject.so_far()
        self._marks += (now, 0, CLOSE, None)
        self.closed = True
        return now

    def forget(self) -> None:
        """Let go of the marks, once the record is made."""
        self._marks.clear()


class CallLine(Line):
    """The line of one call, in the task in which its tool runs."""

    __slots__ = ("_attempt", "_call_id", "_outer")

    def __init__(self, attempt: Attempt, number: int, call_id: str, outer: Meter | None) -> None:
        """`outer` is charged too, as that of the call which runs this session."""
        self._attempt = attempt
        self._marks, self._now, self._number, self.cost = attempt._marks, attempt._now, number, None
        self._call_id = call_id
        self._outer = outer

    def begin(self) -> None:
        """Charge what the present task does in stores to the call's phases."""
        metered(self)

    def within(self, phase: str) -> Self:
        """Enter a phase of the call."""
        return self.enter(phase, self._call_id)

    def measure(self) -> StoreCost | None:
        """Begin to measure one unit of work; after the end of the attempt nothing is measured for it."""
        if self._outer is not None:
            return StoreCost(self)
        return None if self._attempt.closed else super().measure()

    def take(self, cost: StoreCost) -> None:
        """Take in what a session that the tool runs has cost."""
        if not self._attempt.closed:
            super().take(cost)
        if self._outer is not None:
            self._outer.take(cost)
