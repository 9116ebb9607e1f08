"""Named places where a process may be made to die, so that recovery is tested at real boundaries.

A child process armed by the environment (`CAYU_CRASH_AT=name` or `name:N` for the N-th time) kills itself with SIGKILL
when it reaches the place. Unarmed, a crash point costs one comparison.
"""

from __future__ import annotations

import os
import signal

ARMED_BY = "CAYU_CRASH_AT"

CRASH_POINTS: dict[str, str] = {
    "session.created": "the first commit of a run is durable, the model has not been asked",
    "model.answered": "the model has answered, nothing of its answer is durable",
    "round.opened": "the round, its starts and intents are durable, nothing is dispatched",
    "tool.dispatched": "a call is about to enter the tool's own code",
    "tool.returned": "the tool has done its work, its result is not durable",
    "result.staged": "a result is durable while a sibling is still open",
    "round.closing": "every result is known, the closing commit has not been written",
    "round.closed": "the round is committed, the model has not been asked again",
    "session.paused": "the pause is durable, the lease is released",
    "decision.recorded": "a decision that is not the last is durable",
    "round.continued": "the last decision, the starts and intents are durable, nothing is dispatched",
    "session.closing": "the final answer is known, its commit has not been written",
    "session.closed": "the final commit is durable",
    "materialization.claimed": "the parts of a memory copy are claimed, none is made",
    "materialization.made": "a memory copy is made, that it is complete is not recorded",
    "trial.prepared": "a trial's request is durable, nothing is begun",
    "trial.bound": "the trial's effect is committed to, nothing is applied",
    "overlay.applying": "the effect on the overlay is worked out, nothing is written",
    "overlay.applied": "the effect and its receipt are durable in the overlay, not in the journal",
    "trial.effect_resolved": "the effect's receipt is in the journal",
    "trial.session_bound": "the claim and the deadline of the trial's session are durable",
    "trial.dispatching": "the dispatch is owned, the session does not exist",
    "trial.settled": "the trial's session has ended, its result is not in the journal",
    "trial.runtime_terminal": "the session's result is in the journal, nothing is evaluated",
    "trial.evaluating": "the evaluator has answered, nothing of it is durable",
    "trial.evaluated": "the evaluation is in the journal",
    "trial.finalizing": "the result is bound to the snapshot, the journal does not say so",
    "trial.finalized": "the execution is final in the journal",
    "commit.prepared": "a unit of work is written inside its transaction, before COMMIT",
    "commit.durable": "COMMIT has returned, the acknowledgement has not reached the runtime",
}
"""Every crash point with what holds at it."""


def _armed() -> tuple[str, int] | None:
    name, _, count = os.environ.get(ARMED_BY, "").partition(":")
    if not name:
        return None
    if name not in CRASH_POINTS:
        raise ValueError(f"{ARMED_BY} names {name!r}, which is no crash point; known: {', '.join(CRASH_POINTS)}")
    return name, int(count or 1)


_target = _armed()
_reached = 0


def reach(name: str) -> None:
    """Die here if this process is armed for `name` and has come here often enough."""
    if _target is not None and _target[0] == name:
        _die_when_due(_target[1])


def _die_when_due(count: int) -> None:
    global _reached  # noqa: PLW0603 - one counter per process, like the process's one life
    _reached += 1
    if _reached == count:
        os.kill(os.getpid(), signal.SIGKILL)
