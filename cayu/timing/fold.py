"""From marks to records: what each phase took, in integer nanoseconds, and what it cost in stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cayu.clock import NANOSECOND, as_datetime
from cayu.timing.costs import StoreCost
from cayu.timing.marks import (
    CLOSE,
    LEAVE,
    STAGED,
    STORE,
    WROTE,
    Attempt,
    Sizes,
)
from cayu.timing.phases import (
    CONSUMER,
    HANDOFF,
    PHASE_OF_EVENT,
    PREPARATION,
    PREPARATION_PHASES,
    PUBLICATION,
    PUBLICATION_QUEUE_WAIT,
    RESULT_PROCESSING,
    ROUND_PHASES,
    SIBLING_WAIT,
    UNATTRIBUTED,
)
from cayu.timing.records import (
    ModelStepPreparationTiming,
    RuntimePhaseTiming,
    TimingRecord,
    ToolCallTiming,
    ToolRoundTiming,
)


class PhaseTime:
    """What was observed of one phase."""

    __slots__ = ("cost", "first_ns", "last_ns", "total_ns")

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.total_ns = 0
        self.cost = StoreCost()

    def saw(self, begun: int, ended: int) -> None:
        """Widen the window of the phase."""
        self.first_ns = begun if self.first_ns is None else min(self.first_ns, begun)
        self.last_ns = ended if self.last_ns is None else max(self.last_ns, ended)


Phases = defaultdict[str, PhaseTime]
"""By name; a phase that is asked for is there."""


class Fold:
    """Plays the marks of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.ended_ns = attempt.begun_ns
        self.whole: Phases = defaultdict(PhaseTime)
        self.calls: dict[str, Phases] = {call_id: defaultdict(PhaseTime) for call_id, _ in attempt.calls}
        self.moments: dict[tuple[str, str], int] = {}
        """When a call was staged, and when it entered a phase first."""
        self._stacks: dict[int, list[tuple[str, str | None]]] = {}
        self._since: dict[int, int] = {}
        self._busy = 0
        self._idle_since = attempt.wall_ns
        remainder = UNATTRIBUTED if attempt.is_round else PREPARATION
        self._remainder = None if attempt.continued else remainder
        if attempt.begun_ns < attempt.wall_ns and not attempt.is_round:
            self._count(HANDOFF, None, attempt.begun_ns, attempt.wall_ns)
        for now, line, what, subject in attempt.marks:
            if what == CLOSE:
                self._close(now)
                break
            self._play(now, line, what, subject)
        self._measure_waits()

    def _play(self, now: int, line: int, what: str, subject: Any) -> None:
        if what == LEAVE:
            self._leave(now, line)
        elif what == STAGED:
            self.moments.setdefault((STAGED, subject), now)
        elif what == STORE:
            for time in self._charged(line):
                time.cost.add(subject)
        elif what == WROTE:
            self._spread(line, subject)
        else:
            self._enter(now, line, what, subject)

    def _enter(self, now: int, line: int, phase: str, call_id: str | None) -> None:
        stack = self._stacks.setdefault(line, [])
        if stack:
            self._count(*stack[-1], self._since[line], now)
        else:
            self._count_remainder(now)
            self._busy += 1
        stack.append((phase, call_id))
        if call_id is not None:
            self.moments.setdefault((phase, call_id), now)
        self._since[line] = now

    def _leave(self, now: int, line: int) -> None:
        stack = self._stacks[line]
        self._count(*stack.pop(), self._since[line], now)
        self._since[line] = now
        if not stack:
            self._busy -= 1
            self._idle_since = now

    def _close(self, now: int) -> None:
        """Count what is still running; phases around it have run up to now as well."""
        for line, stack in self._stacks.items():
            if stack:
                self._count(*stack[-1], self._since[line], now)
                for phase, call_id in stack:
                    self._count(phase, call_id, now, now)
        self._count_remainder(now)
        self.ended_ns = now

    def _count(self, phase: str, call_id: str | None, begun: int, ended: int) -> None:
        for time in self._times(phase, call_id):
            time.saw(begun, ended)
            time.total_ns += ended - begun

    def _count_remainder(self, now: int) -> None:
        """Count the time up to now in which no line was in a phase, if that is so."""
        if not self._busy and self._remainder is not None and now > self._idle_since:
            self._count(self._remainder, None, self._idle_since, now)

    def _times(self, phase: str, call_id: str | None) -> list[PhaseTime]:
        if phase == CONSUMER:
            return []
        call = self.calls.get(call_id) if call_id is not None else None
        return [self.whole[phase]] if call is None else [self.whole[phase], call[phase]]

    def _charged(self, line: int) -> list[PhaseTime]:
        """Return where a line's costs count now."""
        stack = self._stacks.get(line)
        if stack:
            return self._times(*stack[-1])
        return [self.whole[self._remainder]] if line == 0 and self._remainder is not None else []

    def _spread(self, line: int, sizes: Sizes) -> None:
        """Move the bytes of events from the phase that was charged with their write to the ones they belong to."""
        charged = self._charged(line)
        if any(time.cost.bytes_written < sum(sizes[2::3]) for time in charged):
            return  # a store of one's own that counts something else
        for type, call_id, size in zip(sizes[::3], sizes[1::3], sizes[2::3], strict=True):
            phase = PHASE_OF_EVENT.get(type)
            if phase is None:
                continue
            for time in charged:
                time.cost.bytes_written -= size
            for time in self._times(phase, call_id):
                time.cost.bytes_written += size

    def _measure_waits(self) -> None:
        staged = [moment for (what, _), moment in self.moments.items() if what == STAGED]
        for call_id in self.calls:
            own, last = self.moments.get((STAGED, call_id)), max(staged, default=0)
            if own is None:
                continue
            if last > own:
                self._count(SIBLING_WAIT, call_id, own, last)
            published = self.moments.get((PUBLICATION, call_id), 0)
            if published > last:
                self._count(PUBLICATION_QUEUE_WAIT, call_id, last, published)


def record_of(attempt: Attempt) -> TimingRecord:
    """Return what callers read of an attempt that is closed; it is made when somebody first wants it, and stays."""
    if attempt.record is None:
        fold = Fold(attempt)
        attempt.record = _round(attempt, fold) if attempt.is_round else _preparation(attempt, fold)
        attempt.forget()
    return attempt.record


def _preparation(attempt: Attempt, fold: Fold) -> ModelStepPreparationTiming:
    return ModelStepPreparationTiming(
        session_id=attempt.session_id,
        model_step_id=attempt.step_id,
        after_tool_round_id=attempt.round_id,
        started_at=_moment(attempt, attempt.begun_ns),
        completed_at=_moment(attempt, fold.ended_ns),
        duration_seconds=(fold.ended_ns - attempt.begun_ns) / NANOSECOND,
        incomplete=attempt.incomplete,
        phases=_phases(attempt, fold.whole, PREPARATION_PHASES),
    )


def _round(attempt: Attempt, fold: Fold) -> ToolRoundTiming:
    return ToolRoundTiming(
        session_id=attempt.session_id,
        tool_round_id=attempt.round_id or "",
        model_step_id=attempt.step_id,
        model_attempt_id=f"{attempt.step_id}.a1",
        started_at=_moment(attempt, attempt.begun_ns),
        completed_at=_moment(attempt, fold.ended_ns),
        duration_seconds=(fold.ended_ns - attempt.begun_ns) / NANOSECOND,
        incomplete=attempt.incomplete,
        recovered=attempt.recovered,
        calls_truncated=attempt.truncated,
        phases=_phases(attempt, fold.whole, ROUND_PHASES),
        calls=tuple(_call(attempt, fold, call_id, name) for call_id, name in attempt.calls),
    )


def _call(attempt: Attempt, fold: Fold, call_id: str, name: str | None) -> ToolCallTiming:
    def noted(what: str) -> datetime | None:
        moment = fold.moments.get((what, call_id))
        return None if moment is None else _moment(attempt, moment)

    return ToolCallTiming(
        session_id=attempt.session_id,
        tool_round_id=attempt.round_id or "",
        tool_call_id=call_id,
        tool_name=name,
        phases=_phases(attempt, fold.calls[call_id], ROUND_PHASES),
        tool_effect_completed_at=noted(RESULT_PROCESSING),
        tool_terminal_staged_at=noted(STAGED),
        tool_terminal_publication_started_at=noted(PUBLICATION),
    )


def _phases(attempt: Attempt, found: Mapping[str, PhaseTime], names: Sequence[str]) -> tuple[RuntimePhaseTiming, ...]:
    return tuple(_phase(attempt, name, found.get(name)) for name in names)


def _phase(attempt: Attempt, name: str, time: PhaseTime | None) -> RuntimePhaseTiming:
    if time is None:
        return RuntimePhaseTiming(name=name)
    return RuntimePhaseTiming(
        name=name,
        first_started_at=None if time.first_ns is None else _moment(attempt, time.first_ns),
        last_completed_at=None if time.last_ns is None else _moment(attempt, time.last_ns),
        duration_seconds=time.total_ns / NANOSECOND,
        store_transaction_count=time.cost.transactions,
        store_lock_wait_seconds=time.cost.lock_wait_ns / NANOSECOND,
        store_execution_seconds=time.cost.execution_ns / NANOSECOND,
        store_commit_seconds=time.cost.commit_ns / NANOSECOND,
        store_bytes_written=time.cost.bytes_written,
    )


def _moment(attempt: Attempt, moment_ns: int) -> datetime:
    return as_datetime(attempt.wall_us + (moment_ns - attempt.wall_ns) // 1000)
