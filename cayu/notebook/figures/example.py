"""A made-up round whose numbers can be checked by hand, for reading the figures with and for trying them out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cayu.timing.phases import PUBLICATION_QUEUE_WAIT, ROUND_PHASES, SIBLING_WAIT
from cayu.timing.records import RuntimePhaseTiming, ToolCallTiming, ToolRoundTiming

BEGUN = datetime(2025, 3, 14, 9, 0, tzinfo=UTC)
ROUND = "round"
FIRST, SECOND = "call-1", "call-2"
_NAMES = {FIRST: "read_sensor", SECOND: "wait_for_centrifuge"}

# What happens one after the other: phase, the call it is for ("" for the round alone), milliseconds, commits, bytes.
_COURSE: tuple[tuple[str, str, float, int, int], ...] = (
    ("authorization", FIRST, 0.4, 0, 0),
    ("authorization", SECOND, 0.3, 0, 0),
    ("admission", "", 0.2, 0, 310),
    ("started_persistence", "", 3.0, 0, 240),
    ("execution", FIRST, 50.0, 0, 0),
    ("result_processing", FIRST, 0.6, 0, 0),
    ("staging", FIRST, 304.0, 3, 1_850),
    ("execution", SECOND, 1_990.0, 0, 0),
    ("result_processing", SECOND, 1.0, 0, 0),
    ("staging", SECOND, 9.0, 0, 960),
    ("unattributed", "", 2.5, 0, 0),
    ("publication", FIRST, 203.0, 2, 720),
    ("publication", SECOND, 2.0, 0, 680),
    ("round_commit", "", 104.0, 1, 2_400),
)
COMMIT_MS = 100.0


class _Course:
    """Adds up spans by line and phase."""

    def __init__(self) -> None:
        self.phases: dict[tuple[str, str], list[float]] = {}
        self.moments: dict[tuple[str, str], float] = {}
        self.now = 0.0

    def step(self, phase: str, call: str, length: float, commits: int, size: int) -> None:
        start, self.now = self.now, self.now + length
        self.moments.setdefault((call, phase), start)
        self.span(phase, call, start, self.now, commits, size)

    def span(self, phase: str, call: str, start: float, end: float, commits: int = 0, size: int = 0) -> None:
        for line in {ROUND, call or ROUND}:
            first, last, total, before, written = self.phases.get((line, phase), [start, end, 0.0, 0, 0])
            known = [min(first, start), max(last, end), total + end - start, before + commits, written + size]
            self.phases[line, phase] = known

    def timings(self, line: str) -> tuple[RuntimePhaseTiming, ...]:
        return tuple(self._timing(line, name) for name in ROUND_PHASES)

    def _timing(self, line: str, name: str) -> RuntimePhaseTiming:
        if (line, name) not in self.phases:
            return RuntimePhaseTiming(name=name)
        start, end, total, commits, size = self.phases[line, name]
        return RuntimePhaseTiming(
            name=name,
            first_started_at=_moment(start),
            last_completed_at=_moment(end),
            duration_seconds=total / 1000,
            store_transaction_count=int(commits),
            store_execution_seconds=commits * 0.0005,
            store_commit_seconds=commits * COMMIT_MS / 1000,
            store_bytes_written=int(size),
        )


def worked_example() -> ToolRoundTiming:
    """Return the round: two serial calls, and a store whose commits take 100 ms each.

    The first call executes for 50 ms. Staging its result makes three commits in 300 ms, publishing it two in 200 ms,
    and the round's own commit one in 100 ms: 600 ms are the price of keeping things. The first call waits 2 s for its
    sibling, which is the second call at work, and none of it is the first tool's time or that of keeping its result.
    """
    course = _Course()
    for step in _COURSE:
        course.step(*step)
    staged = course.moments[SECOND, "execution"]
    last = course.moments["", "unattributed"]
    course.span(SIBLING_WAIT, FIRST, staged, last)
    for call in (FIRST, SECOND):
        course.span(PUBLICATION_QUEUE_WAIT, call, last, course.moments[call, "publication"])
    ends = {FIRST: staged, SECOND: last}
    return ToolRoundTiming(
        session_id="worked-example",
        tool_round_id="worked-example.r1",
        model_step_id="worked-example.m1",
        model_attempt_id="worked-example.m1.a1",
        started_at=BEGUN,
        completed_at=_moment(course.now),
        duration_seconds=course.now / 1000,
        phases=course.timings(ROUND),
        calls=tuple(
            ToolCallTiming(
                session_id="worked-example",
                tool_round_id="worked-example.r1",
                tool_call_id=call,
                tool_name=_NAMES[call],
                phases=course.timings(call),
                tool_effect_completed_at=_moment(course.moments[call, "result_processing"]),
                tool_terminal_staged_at=_moment(ends[call]),
                tool_terminal_publication_started_at=_moment(course.moments[call, "publication"]),
            )
            for call in (FIRST, SECOND)
        ),
    )


def _moment(milliseconds: float) -> datetime:
    return BEGUN + timedelta(milliseconds=milliseconds)
