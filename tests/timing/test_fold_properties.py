"""Any well-formed interleaving of lines folds to what a slow count, interval by interval, says."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing.support import lasted, ns, took

from cayu.observability import ToolRoundTiming
from cayu.testing import FakeClock
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt, Line
from cayu.timing.phases import CONSUMER, ROUND_PHASES, UNATTRIBUTED, WAITS

pytestmark = pytest.mark.exhaustive

CALLS = ("c1", "c2")
PHASES = tuple(name for name in ROUND_PHASES if name not in WAITS and name != UNATTRIBUTED)
LINES = 3
Step = tuple[int, int, str, str | None]
"""Microseconds that pass, then a line that enters a phase for a call, or leaves one where the phase is empty."""

steps = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, LINES - 1),
        st.one_of(st.just("leave"), st.just(CONSUMER), st.sampled_from(PHASES)),
        st.one_of(st.none(), st.sampled_from(CALLS)),
    ),
    max_size=40,
)


@dataclass
class Played:
    """An attempt that was played, and what a count in microseconds of each interval says of it."""

    attempt: Attempt
    whole: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    consumer: int = 0
    busy: int = 0
    """Time in which some line was in a phase, or the consumer had the events."""
    passed: int = 0
    homes: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The lines on which each phase was entered."""


def play(given: list[Step], lines: int = LINES) -> Played:
    """Play steps; a leave on a line that is in no phase, and a consumer beside the first line, are left out."""
    clock = FakeClock()
    attempt = Attempt(clock, ("s", "i"), 1, "r", is_round=True)
    attempt.calls = [(call, None) for call in CALLS]
    workers: list[Line] = [attempt, *(attempt.call_line(CALLS[0], None) for _ in range(LINES - 1))]
    stacks: list[list[tuple[str, str | None]]] = [[] for _ in workers]
    played = Played(attempt)
    for passes, line, phase, call in given:
        clock.advance(passes / 1_000_000)
        _count(played, stacks, passes)
        line %= lines
        if phase == "leave":
            if stacks[line]:
                stacks[line].pop()
                workers[line].__exit__(None, None, None)
        elif phase != CONSUMER or line == 0:
            entered = None if phase == CONSUMER else call
            stacks[line].append((phase, entered))
            played.homes[phase].add(line)
            workers[line].enter(phase, entered)
    attempt.close()
    return played


def _count(played: Played, stacks: list[list[tuple[str, str | None]]], passes: int) -> None:
    played.passed += passes
    played.busy += passes if any(stacks) else 0
    for stack in stacks:
        if not stack:
            continue
        phase, call = stack[-1]
        if phase == CONSUMER:
            played.consumer += passes
            continue
        played.whole[phase] += passes
        if call is not None:
            played.calls[phase, call] += passes


def folded(played: Played) -> ToolRoundTiming:
    record = record_of(played.attempt)
    assert isinstance(record, ToolRoundTiming)
    return record


@given(steps)
def test_every_phase_is_what_the_intervals_say(given: list[Step]) -> None:
    played = play(given)
    record = folded(played)
    for name in PHASES:
        assert took(record, name) == played.whole[name] * 1000
        for call in record.calls:
            assert took(call, name) == played.calls[name, call.tool_call_id] * 1000
    assert took(record, UNATTRIBUTED) + played.busy * 1000 == lasted(record) == played.passed * 1000


@given(steps)
def test_nothing_is_negative_and_every_window_lies_inside_the_round(given: list[Step]) -> None:
    played = play(given)
    record = folded(played)
    for phase in record.phases:
        assert phase.duration_seconds >= 0
        if phase.first_started_at is None or phase.last_completed_at is None:
            assert phase.duration_seconds == 0
            continue
        assert record.started_at <= phase.first_started_at <= phase.last_completed_at <= record.completed_at
        if len(played.homes[phase.name]) == 1:
            window = phase.last_completed_at - phase.first_started_at
            assert window >= timedelta(microseconds=ns(phase.duration_seconds) // 1000)


@given(steps)
def test_on_one_line_the_phases_the_consumer_and_the_remainder_are_the_round(given: list[Step]) -> None:
    played = play(given, lines=1)
    record = folded(played)
    phases = sum(took(record, name) for name in PHASES)
    assert phases + played.consumer * 1000 == played.busy * 1000
    assert phases + played.consumer * 1000 + took(record, UNATTRIBUTED) == lasted(record)
