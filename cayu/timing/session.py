"""Timing of what one claim does in one session: one attempt at a time, a round or the preparation of a step.

Everything here costs next to nothing while nothing is timed, so that the runtime asks without looking whether it is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from cayu.clock import Clock
from cayu.events import Event
from cayu.events import EventType as E
from cayu.timing.costs import Meter, StoreCost, metered, present_meter
from cayu.timing.marks import STAGED, WROTE, Attempt, CallLine, Sizes
from cayu.timing.phases import PHASE_OF_EVENT, STAGING

Within = AbstractContextManager[object]
Stretch = tuple[str, str | None, int, int]
"""Phase, call, beginning and end in monotonic nanoseconds."""
NOTHING: Within = nullcontext()
_ROUND_COMMITTED = E.ROUND_COMMITTED
_ENDS = (E.SESSION_INTERRUPTED, E.SESSION_FAILED, E.SESSION_COMPLETED)


class NoTimer:
    """Times nothing."""

    def begin(self) -> None:
        """Charge nothing."""

    def within(self, phase: str) -> Within:
        """Enter nothing."""
        return NOTHING


CallTimer = CallLine | NoTimer
NO_TIMER = NoTimer()


def _nothing(phase: str, call_id: str | None = None) -> Within:
    return NOTHING


class SessionTiming:
    """Times the attempts of one claim on one session, and hands each over when it has ended."""

    def __init__(self, clock: Clock, max_calls: int, keep: Callable[[Attempt], None] | None) -> None:
        """`keep` takes what was timed; without it nothing is."""
        self._clock = clock
        self._max_calls = max_calls
        self._keep = keep
        self._ids = ("", "")
        self._attempt: Attempt | None = None
        self._round: Attempt | None = None
        """The attempt, when it is a round."""
        self.within: Callable[[str, str | None], Within] = _nothing
        """Enters a phase of what is at work, and of one call of a round."""
        self._committed: tuple[int, str | None] | None = None
        """Moment and round of the last commit of a round in this claim; used once."""
        self._past: Sequence[Stretch] = ()
        self._staging: str | None = None
        """The call whose result is being written."""
        self._outer: Meter | None = None

    def begin(self) -> None:
        """Charge what the present task does in stores to the phases of this session."""
        if self._keep is not None:
            self._outer = present_meter()
            metered(self)

    def attach(self, session_id: str, instance_id: str) -> None:
        """Set the session that is timed; an entry that has to begin anew leaves no attempt behind."""
        self.drop()
        self._ids = (session_id, instance_id)

    # Attempts.

    def begin_round(self, round_id: str, step: int, *, recovered: bool = False, continued: bool = False) -> None:
        """Begin an attempt at a round."""
        if self._attempt is not None:
            self.end()
        if self._keep is not None:
            begun = Attempt(self._clock, self._ids, step, round_id, is_round=True)
            begun.recovered, begun.continued = recovered, continued
            for stretch in self._past:
                begun.past(*stretch)
            self._past = ()
            self._attempt = self._round = begun
            self.within = begun.enter

    def preceded_by(self, phase: str, stretches: Iterable[tuple[str | None, int, int]]) -> None:
        """Let the next round take in what was done for it before the session was entered.

        A stretch is the call or None, its beginning and its end in monotonic nanoseconds.
        """
        self._past = [(phase, *stretch) for stretch in stretches]

    def begin_step(self, step: int) -> None:
        """Begin the preparation of a model step; a commit of a round since the last one is where it runs from."""
        if self._attempt is not None:
            self.end()
        if self._keep is not None:
            (moment, round_id), self._committed = self._committed or (None, None), None
            begun = Attempt(self._clock, self._ids, step, round_id, is_round=False)
            begun.begun_ns = begun.begun_ns if moment is None else moment
            self._attempt, self.within = begun, begun.enter

    def asked(self) -> None:
        """End the preparation: the provider is about to be asked."""
        if self._round is None:
            self._close()

    def end(self) -> None:
        """End whatever is at work as incomplete; called when the claim ends, in whatever way."""
        if self._attempt is not None:
            self._attempt.incomplete = True
            self._close()

    def drop(self) -> None:
        """Forget what is at work: nothing of it was written."""
        self._attempt, self._round, self._staging, self.within = None, None, None, _nothing

    def stopping(self) -> None:
        """Note that what is at work is being interrupted; a round of which nothing was dispatched is only closed."""
        if self._round is None:
            self.end()
        elif self._round.launched:
            self._round.incomplete = True

    def name_calls(self, calls: Iterable[tuple[str, str | None]]) -> None:
        """Take in the round's calls by id, in the model's order; a name is that of a registered tool, or None."""
        for call_id, name in calls:
            self.name_call(call_id, name)

    def name_call(self, call_id: str, name: str | None) -> None:
        """Take in the next call."""
        if self._round is None:
            return
        if len(self._round.calls) < self._max_calls:
            self._round.calls.append((call_id, name))
        else:
            self._round.truncated += 1

    # Phases.

    def within_round(self, phase: str, call_id: str | None = None) -> Within:
        """Enter a phase if a round is at work."""
        return NOTHING if self._round is None else self.within(phase, call_id)

    def delivering(self, event: Event) -> Within:
        """Enter the phase to which the delivery of an event belongs."""
        phase = PHASE_OF_EVENT.get(event.type)
        return NOTHING if phase is None else self.within_round(phase, event.payload.get("tool_call_id"))

    def staging(self, call_id: str, *, is_result: bool = True) -> Within:
        """Enter the write of what a call came to; a result is noted as staged when that write is durable."""
        self._staging = call_id if is_result else None
        return self.within_round(STAGING, call_id)

    def tool(self, call_id: str) -> CallTimer:
        """Return the timer of a call that is being dispatched."""
        if self._round is None:
            return NO_TIMER
        return self._round.call_line(call_id, self._outer)

    # Moments.

    def staged(self, call_id: str) -> None:
        """Note that a call's result is staged; the first time counts."""
        if self._round is not None:
            self._round.note(STAGED, call_id)

    def durable(self) -> None:
        """Note that a write is durable; a result that was being staged is staged."""
        if self._staging is not None:
            self.staged(self._staging)
            self._staging = None

    def delivered(self, events: Sequence[Event]) -> None:
        """End the round that events have closed or paused; what the consumer does with them comes after it."""
        if self._round is None:
            return
        last = events[-1].type if events else None
        if last is _ROUND_COMMITTED or (last in _ENDS and any(event.type is _ROUND_COMMITTED for event in events)):
            round_id = self._round.round_id
            self._committed = (self._close(), round_id)
        elif last in _ENDS:
            self.end()

    # Costs.

    def measure(self) -> StoreCost | None:
        """Begin to measure one unit of work; between attempts it is only charged to the call that runs the session."""
        if self._outer is not None:
            return StoreCost(self)
        return None if self._attempt is None else self._attempt.measure()

    def take(self, cost: StoreCost) -> None:
        """Take in what was measured for somebody inside, and pass it on."""
        if self._attempt is not None:
            self._attempt.take(cost)
        if self._outer is not None:
            self._outer.take(cost)

    @property
    def measures_writes(self) -> bool:
        """True when the store has counted bytes that were written in the present phase of a round."""
        cost = self._round.cost if self._round is not None else None
        return cost is not None and cost.bytes_written > 0

    def wrote(self, sizes: Sizes) -> None:
        """Note which events the last write held: each counts where it belongs, whatever was charged with the write."""
        if self._round is not None:
            self._round.note(WROTE, sizes)

    def _close(self) -> int:
        attempt, self._attempt, self._round, self.within = self._attempt, None, None, _nothing
        if attempt is None or self._keep is None:
            return 0
        ended = attempt.close()
        self._keep(attempt)
        return ended
