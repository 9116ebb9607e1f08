"""What to do with a session whose process was lost: one pure decision over what its log says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from cayu.effects import MAX_ATTEMPTS, ToolEffect
from cayu.sessions.states import CallState, SessionStatus
from cayu.sessions.view import CallView, SessionView


class CallRecovery(StrEnum):
    """What becomes of one call of the round that was open."""

    KEEP = "keep"
    """Its result is staged, or its refusal decided: nothing is done again."""
    REPLAY = "replay"
    """It began, and may be done once more under the same key."""
    FAIL = "fail"
    """It began and is lost, and leaves nothing behind."""
    MARK_UNKNOWN = "mark_unknown"
    """It began, and whether it acted has to be found out."""
    CLOSE_UNEXECUTED = "close_unexecuted"
    """It never began."""
    AWAIT = "await"
    """It waits for an operator already."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The decisions for one session."""

    session_id: str
    calls: tuple[tuple[str, CallRecovery], ...]
    """(call id, decision) in model order; empty when no round was open."""
    goes_on: bool
    """True when the run continues by itself, False when it ends as interrupted."""

    def of(self, decision: CallRecovery) -> tuple[str, ...]:
        """Return the ids of the calls with that decision, in model order."""
        return tuple(call_id for call_id, found in self.calls if found is decision)


def plan_recovery(view: SessionView, registrations: Collection[str]) -> RecoveryPlan:
    """Decide per call, from the log and the names of the registered tools, what recovery does.

    A session that was being interrupted ends as interrupted, and nothing of it is replayed; so does one with a call
    whose outcome has to be found out by a human.
    """
    stopping = view.status == SessionStatus.INTERRUPTING
    opened = view.open_round
    calls = [(call.id, _decide(call, stopping, registrations)) for call in opened.calls] if opened else []
    needs_operator = any(found in (CallRecovery.MARK_UNKNOWN, CallRecovery.AWAIT) for _, found in calls)
    return RecoveryPlan(view.row.id, tuple(calls), goes_on=not (stopping or needs_operator))


def _decide(call: CallView, stopping: bool, registrations: Collection[str]) -> CallRecovery:
    if call.state == CallState.UNKNOWN:
        return CallRecovery.AWAIT
    if call.state in (CallState.PROPOSED, CallState.APPROVED):
        return CallRecovery.KEEP if call.code else CallRecovery.CLOSE_UNEXECUTED
    if call.state != CallState.STARTED:
        return CallRecovery.KEEP
    if call.effect is ToolEffect.EXTERNAL:
        return CallRecovery.MARK_UNKNOWN
    if not stopping and call.attempt < MAX_ATTEMPTS and call.name in registrations:
        return CallRecovery.REPLAY
    return CallRecovery.FAIL if call.effect is ToolEffect.NONE else CallRecovery.MARK_UNKNOWN
