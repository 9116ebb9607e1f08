"""Where a request for a decision stands, read off the session's log, and the decision as a value.

`standing` is the one place that says what a prompt shows: the recorded decision and the call's state are facts of the
log, so a prompt that was open before a kernel restart and one that was made after it say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from cayu.errors import InvalidInput
from cayu.notebook import Lab, SessionHandle
from cayu.notebook.html import clock_time
from cayu.sessions.records import PendingAction
from cayu.sessions.states import TERMINAL_CALLS, CallState, SessionStatus
from cayu.sessions.view import CallView, Decision, SessionView
from cayu_widgets.markup import took


class PromptState(StrEnum):
    """What a prompt says of itself; the value is the word that stands in the card."""

    PENDING = "pending"
    SUBMITTING = "submitting"
    APPROVED = "approved"
    EDITED = "edited"
    DENIED = "denied"
    EXPIRED = "expired"
    ANSWERED = "answered"
    APPLIED = "applied"
    SUPERSEDED = "superseded"
    ELSEWHERE = "decided elsewhere"
    UNREACHABLE = "unreachable"
    HEADLESS = "headless"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a prompt shows."""

    state: PromptState
    badge: str
    """The state in words: "approved, applied"."""
    note: str = ""
    """By whom, when, and what came of it."""

    @property
    def kind(self) -> str:
        """The word that picks the badge's colour."""
        return self.badge.partition(",")[0].replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision that somebody made, before it is sent."""

    verb: Literal["approve", "deny", "answer"]
    arguments: dict[str, Any] | None = None
    """Edited arguments of an approval; None keeps the model's."""
    text: str = ""
    """The answer to a question."""
    by: str | None = None
    """Who decides; None is the user of this process."""

    @classmethod
    def scripted(cls, action: PendingAction, decision: str) -> Choice:
        """Return what a script says of an action. Raises `InvalidInput` unless it approves or denies a call."""
        if action.kind == "user_input":
            return cls("answer", text=decision, by=SCRIPT)
        if decision == "approve":
            return cls("approve", by=SCRIPT)
        if decision == "deny":
            return cls("deny", by=SCRIPT)
        raise InvalidInput(f"The script's decision on {action.id!r} is neither 'approve' nor 'deny'; nothing was sent.")

    async def send(self, lab: Lab, action: PendingAction) -> SessionHandle:
        """Hand the decision to the runtime; returns when the session pauses or ends."""
        match self.verb:
            case "approve":
                return await lab.aapprove(action, arguments=self.arguments, by=self.by)
            case "deny":
                return await lab.adeny(action, by=self.by)
            case "answer":
                return await lab.aanswer(action, self.text, by=self.by)


SCRIPT = "headless script"
"""Who decides when a script does."""
PENDING = Shown(PromptState.PENDING, PromptState.PENDING)
SUPERSEDED = Shown(
    PromptState.SUPERSEDED, PromptState.SUPERSEDED, "The session went on without this decision; nothing was sent."
)
_MADE = {
    "approve": PromptState.APPROVED,
    "deny": PromptState.DENIED,
    "expired": PromptState.EXPIRED,
    "answer": PromptState.ANSWERED,
}


def standing(view: SessionView, action: PendingAction, *, ours: bool) -> Shown:
    """Return what a prompt for `action` shows; `ours` says that this very prompt sent the decision."""
    decision = view.decisions.get(action.id)
    if decision is None:
        return PENDING if is_waiting(view, action) else SUPERSEDED
    call = next(call for opened in view.rounds for call in opened.calls if call.id == decision.tool_call_id)
    if call.settlement is not None and decision.action_id == call.recovery_id:
        outcome = "that it acted" if call.settlement.outcome == "completed" else "that it did not act"
        found = f"Found {outcome}, by {decision.by} at {clock_time(decision.at)}"
        return Shown(PromptState.ELSEWHERE, PromptState.ELSEWHERE, found)
    made = PromptState.EDITED if call.edited and decision.decision == "approve" else _MADE[decision.decision]
    note = f"{_who(made, decision)}; {_what_came(view, call)}"
    if not ours and made is not PromptState.EXPIRED:
        return Shown(PromptState.ELSEWHERE, PromptState.ELSEWHERE, note)
    if call.state in TERMINAL_CALLS:
        return Shown(PromptState.APPLIED, f"{made}, {PromptState.APPLIED}", note)
    return Shown(made, made, note)


def is_waiting(view: SessionView, action: PendingAction) -> bool:
    """True while the session still waits for this action."""
    if action.kind == "manual_recovery":
        unknown = view.open_round.unknown if view.open_round else []
        return any(call.id == action.tool_call_id for call in unknown)
    return any(call.action_id == action.id for call in view.awaiting)


def _who(made: PromptState, decision: Decision) -> str:
    moment = clock_time(decision.at)
    if made is PromptState.EXPIRED:
        return f"Expired at {moment}"
    words = "Approved with edited arguments" if made is PromptState.EDITED else made.capitalize()
    return f"{words} by {decision.by} at {moment}"


def _what_came(view: SessionView, call: CallView) -> str:
    if call.question is not None and call.result is not None:
        return "the agent has the answer" if call.state in TERMINAL_CALLS else _what_next(view, "it goes to the agent")
    if call.state not in TERMINAL_CALLS:
        return _what_next(view, "the call ends unexecuted" if call.code else "the call runs")
    if call.started_at is None:
        return f"it did not run ({call.code.replace('_', ' ')})" if call.code else "it did not run"
    if call.state == CallState.FAILED or (call.result is not None and call.result.is_error):
        return f"ran in {took(call)} and ended with an error"
    return f"ran in {took(call)}"


def _what_next(view: SessionView, what: str) -> str:
    if view.awaiting:
        others = len(view.awaiting)
        return f"{what} when the round's other decision{'s are' if others > 1 else ' is'} made ({others} pending)"
    if view.status == SessionStatus.RUNNING:
        return f"{what} now"
    return f"{what} when the session goes on"
