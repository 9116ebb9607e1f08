"""The recent view: what was timed last in this process, of all sessions together."""

from __future__ import annotations

from collections import deque
from itertools import islice

from cayu.errors import InvalidInput
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt
from cayu.timing.records import ModelStepPreparationTiming, TimingRecord, ToolRoundTiming


class RecentTimings:
    """A bounded view; the oldest makes room for the newest."""

    def __init__(self, capacity: int) -> None:
        self._attempts: deque[Attempt] = deque(maxlen=capacity)

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        """Keep one more."""
        self._attempts.append(attempt)

    def rounds(self, session: str | None, limit: int) -> tuple[ToolRoundTiming, ...]:
        """Return attempts at rounds, newest first; `session` is a session's id or public reference, None for all."""
        found = self._find(session, limit, is_round=True)
        return tuple(record for record in found if isinstance(record, ToolRoundTiming))

    def preparations(self, session: str | None, limit: int) -> tuple[ModelStepPreparationTiming, ...]:
        """Return preparations of model steps in the same way."""
        found = self._find(session, limit, is_round=False)
        return tuple(record for record in found if isinstance(record, ModelStepPreparationTiming))

    def _find(self, session: str | None, limit: int, *, is_round: bool) -> list[TimingRecord]:
        if type(limit) is not int or limit < 1:
            raise InvalidInput(f"limit is a whole number of at least 1, not {limit!r}.")
        wanted = (
            attempt
            for attempt in reversed(self._attempts)
            if attempt.is_round is is_round and session in (None, attempt.session_id, attempt.instance_id)
        )
        return [record_of(attempt) for attempt in islice(wanted, limit)]
