"""What to do with a session whose process was lost: pure decisions over what its log says.

`plan_recovery` decides what recovery does with each call; `assess` says what stands in its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cayu.effects import MAX_ATTEMPTS, ToolEffect
from cayu.sessions.plans import BlockerCode, RecoveryAction
from cayu.sessions.states import CallState, SessionStatus
from cayu.sessions.view import CallView, SessionView

UNFINISHED = (SessionStatus.RUNNING, SessionStatus.INTERRUPTING)
"""Statuses of a session that is at work, or was cut off at it."""


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
    """It waits for its outcome to be found out already."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """What an application brings to one session."""

    tools: frozenset[str] = frozenset()
    reconciled: frozenset[str] = frozenset()
    """Tools whose outcome a registered reconciler can find out."""
    asks_again: bool = False
    """True when asking the provider has no effect outside, so that a step which was cut off may simply be repeated."""
    available: bool = True
    """False when the session's agent, provider or environment is not registered."""
    compatible: bool = True
    """False when its execution profile is another than the session's."""


@dataclass(frozen=True, slots=True)
class SessionRecovery:
    """The decisions for one session."""

    session_id: str
    calls: tuple[tuple[str, CallRecovery], ...]
    """(call id, decision) in model order; empty when no round was open."""

    def of(self, decision: CallRecovery) -> tuple[str, ...]:
        """Return the ids of the calls with that decision, in model order."""
        return tuple(call_id for call_id, found in self.calls if found is decision)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The calls whose outcome has to be found out."""
        return (*self.of(CallRecovery.AWAIT), *self.of(CallRecovery.MARK_UNKNOWN))


def plan_recovery(view: SessionView, registrations: Registrations) -> SessionRecovery:
    """Decide per call, from the log and the registered tools, what recovery does.

    Nothing of a session that was being interrupted is replayed.
    """
    stopping = view.status == SessionStatus.INTERRUPTING
    opened = view.open_round
    calls = [(call.id, _decide(call, stopping, registrations)) for call in opened.calls] if opened else []
    return SessionRecovery(view.row.id, tuple(calls))


def _decide(call: CallView, stopping: bool, registrations: Registrations) -> CallRecovery:
    if call.state == CallState.UNKNOWN:
        return CallRecovery.AWAIT
    if call.state in (CallState.PROPOSED, CallState.APPROVED):
        return CallRecovery.KEEP if call.code else CallRecovery.CLOSE_UNEXECUTED
    if call.state != CallState.STARTED:
        return CallRecovery.KEEP
    if call.effect is ToolEffect.EXTERNAL:
        return CallRecovery.MARK_UNKNOWN
    if not stopping and call.attempt < MAX_ATTEMPTS and call.name in registrations.tools:
        return CallRecovery.REPLAY
    return CallRecovery.FAIL if call.effect is ToolEffect.NONE else CallRecovery.MARK_UNKNOWN


@dataclass(frozen=True, slots=True)
class Assessment:
    """What would be done with a session, and what stands in the way."""

    action: RecoveryAction
    blockers: tuple[BlockerCode, ...] = ()
    unknown: tuple[str, ...] = ()
    """Calls whose outcome an operator may settle, by id."""


def assess(
    view: SessionView, registrations: Registrations, *, owner: BlockerCode | None = None, cascade_is_valid: bool = True
) -> Assessment:
    """Say what recovery would do with a session by itself; `owner` says that somebody has it in hand."""
    opened = view.open_round
    at_work = view.status in UNFINISHED
    if not at_work and opened is None:
        return Assessment(RecoveryAction.LEAVE_INTACT)
    if owner is not None:
        return _blocked(owner)
    if not cascade_is_valid:
        return _blocked(BlockerCode.INVALID_CASCADE_MARKER)
    blockers = []
    if not registrations.available:
        blockers.append(BlockerCode.REGISTRATION_UNAVAILABLE)
    elif not registrations.compatible:
        blockers.append(BlockerCode.REGISTRATION_INCOMPATIBLE)
    unknown: tuple[str, ...] = ()
    if opened is None:
        blockers += [BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN] if is_lost_step(view, registrations) else []
    else:
        states = {call.state for call in opened.calls}
        blockers += [BlockerCode.TOOL_APPROVAL_REQUIRED] if CallState.AWAITING_APPROVAL in states else []
        blockers += [BlockerCode.USER_INPUT_REQUIRED] if CallState.AWAITING_INPUT in states else []
        unknown = plan_recovery(view, registrations).unknown
        if any(opened.call(name).name not in registrations.reconciled for name in unknown):
            blockers.append(BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN)
        elif not at_work and not unknown and not blockers:
            blockers.append(BlockerCode.TOOL_EFFECT_CONTINUATION_REQUIRED)
    if blockers:
        return _blocked(*blockers, unknown=unknown)
    if view.status == SessionStatus.INTERRUPTING and opened is None:
        return Assessment(RecoveryAction.TERMINALIZE_ZERO_WORK)
    return Assessment(RecoveryAction.AUTOMATIC_REPAIR, unknown=unknown)


def is_lost_step(view: SessionView, registrations: Registrations) -> bool:
    """True when a model step was cut off of which it has to be decided what came of it.

    A step whose start is not durable is repeated, and so is one of a provider that works in this process alone, unless
    something was set aside for it in a budget.
    """
    again = registrations.asks_again and not view.reservations
    return view.model_in_flight and view.open_round is None and not again


def _blocked(*codes: BlockerCode, unknown: tuple[str, ...] = ()) -> Assessment:
    return Assessment(RecoveryAction.LEAVE_INTACT, codes, unknown)
