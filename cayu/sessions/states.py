"""The state machines: which event may follow which state, and where it leads. Nothing else changes a state.

Each machine is one table `state -> event -> state`; `advance` reads it, `diagram` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cayu.effects import EffectState
from cayu.errors import IllegalTransition
from cayu.events import EventType as E


class SessionStatus(StrEnum):
    """Where a session stands. One that waits for a human is `interrupted` and has pending actions."""

    PENDING = "pending"
    RUNNING = "running"
    INTERRUPTING = "interrupting"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class CallState(StrEnum):
    """Where one tool call of a round stands."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_INPUT = "awaiting_input"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    STARTED = "started"
    UNKNOWN = "unknown"
    STAGED = "staged"
    COMPLETED = "completed"
    FAILED = "failed"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


class RoundState(StrEnum):
    """Where a tool round stands."""

    OPEN = "open"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Machine:
    """A named table of transitions."""

    name: str
    table: Mapping[str, Mapping[str, str]]

    def advance(self, state: str, event: str, session_id: str = "") -> str:
        """Return the state after `event`, or raise `IllegalTransition` when the table does not admit it."""
        after = self.table.get(state, {}).get(event)
        if after is None:
            raise IllegalTransition(session_id=session_id, machine=self.name, state=str(state), event=str(event))
        return after

    def diagram(self) -> str:
        """Return the machine as a Mermaid state diagram, without the events that leave the state as it is."""
        lines = ["stateDiagram-v2"]
        for state, row in self.table.items():
            lines += [f"    {state} --> {after}: {event}" for event, after in row.items() if after != state]
        return "\n".join(lines)


def _stay(state: str, events: Iterable[str]) -> dict[str, str]:
    return {str(event): state for event in events}


_WORK = (
    *(E.MODEL_STARTED, E.MODEL_COMPLETED, E.MODEL_ERROR, E.ROUND_OPENED, E.ROUND_COMMITTED, E.SESSION_LIMIT_REACHED),
    *(E.TOOL_APPROVAL_REQUESTED, E.SESSION_AWAITING_USER_INPUT, E.TOOL_STARTED, E.TOOL_STAGED, E.TOOL_COMPLETED),
    *(E.TOOL_FAILED, E.TOOL_BLOCKED, E.TOOL_SKIPPED, E.EFFECT_INTENT_RECORDED, E.EFFECT_OUTCOME_UNKNOWN),
    *(E.EFFECT_RECONCILED, E.RECOVERY_ITEM_EXECUTED, E.BUDGET_RESERVED, E.BUDGET_RECONCILED, E.BUDGET_LIMIT_REACHED),
    *(E.SESSION_CASCADE_COMPLETED, E.SESSION_CASCADE_FAILED),
    *(E.RECALL_COMPLETED, E.RECALL_FAILED, E.EXPOSURE_RECORDED),
)
_SETTLING = (E.EFFECT_RECONCILED, E.RECOVERY_ITEM_EXECUTED)
_DECISIONS = (
    *(E.TOOL_APPROVED, E.TOOL_APPROVAL_DENIED, E.TOOL_APPROVAL_EXPIRED, E.TOOL_STAGED),
    *_SETTLING,
)
_PROFILE = (E.SESSION_PROFILE_DECIDED, E.SESSION_PROFILE_REJECTED)
_S = SessionStatus
_ENDED: dict[str, str] = {E.SESSION_RESUMED: _S.RUNNING}

SESSION = Machine(
    "session",
    {
        _S.PENDING: {E.SESSION_STARTED: _S.RUNNING},
        _S.RUNNING: {
            E.SESSION_COMPLETED: _S.COMPLETED,
            E.SESSION_FAILED: _S.FAILED,
            E.SESSION_INTERRUPTED: _S.INTERRUPTED,
            E.SESSION_INTERRUPT_REQUESTED: _S.INTERRUPTING,
            **_stay(_S.RUNNING, (*_WORK, *_PROFILE)),
        },
        _S.INTERRUPTING: {
            E.SESSION_COMPLETED: _S.COMPLETED,
            E.SESSION_FAILED: _S.FAILED,
            E.SESSION_INTERRUPTED: _S.INTERRUPTED,
            **_stay(_S.INTERRUPTING, (E.SESSION_INTERRUPT_REQUESTED, *_WORK, *_PROFILE)),
        },
        _S.COMPLETED: {**_ENDED, **_stay(_S.COMPLETED, _PROFILE)},
        _S.FAILED: {**_ENDED, **_stay(_S.FAILED, (*_PROFILE, *_SETTLING))},
        _S.INTERRUPTED: {**_ENDED, **_stay(_S.INTERRUPTED, (*_PROFILE, *_DECISIONS))},
    },
)

_C = CallState

CALL = Machine(
    "tool call",
    {
        _C.PROPOSED: {
            E.TOOL_APPROVAL_REQUESTED: _C.AWAITING_APPROVAL,
            E.SESSION_AWAITING_USER_INPUT: _C.AWAITING_INPUT,
            E.TOOL_STARTED: _C.STARTED,
            E.TOOL_BLOCKED: _C.BLOCKED,
            E.TOOL_SKIPPED: _C.SKIPPED,
            E.TOOL_FAILED: _C.FAILED,
        },
        _C.AWAITING_APPROVAL: {
            E.TOOL_APPROVED: _C.APPROVED,
            E.TOOL_APPROVAL_DENIED: _C.DENIED,
            E.TOOL_APPROVAL_EXPIRED: _C.EXPIRED,
        },
        _C.AWAITING_INPUT: {E.TOOL_STAGED: _C.STAGED, E.TOOL_APPROVAL_EXPIRED: _C.EXPIRED},
        _C.APPROVED: {
            E.TOOL_STARTED: _C.STARTED,
            E.TOOL_BLOCKED: _C.BLOCKED,
            E.TOOL_SKIPPED: _C.SKIPPED,
            E.TOOL_FAILED: _C.FAILED,
        },
        _C.DENIED: {E.TOOL_BLOCKED: _C.BLOCKED},
        _C.EXPIRED: {E.TOOL_BLOCKED: _C.BLOCKED},
        _C.STARTED: {
            E.TOOL_STARTED: _C.STARTED,
            E.EFFECT_INTENT_RECORDED: _C.STARTED,
            E.TOOL_STAGED: _C.STAGED,
            E.EFFECT_OUTCOME_UNKNOWN: _C.UNKNOWN,
        },
        _C.UNKNOWN: {E.EFFECT_RECONCILED: _C.STAGED},
        _C.STAGED: {E.TOOL_COMPLETED: _C.COMPLETED, E.TOOL_FAILED: _C.FAILED},
        _C.COMPLETED: {},
        _C.FAILED: {},
        _C.BLOCKED: {},
        _C.SKIPPED: {},
    },
)

ROUND = Machine("tool round", {RoundState.OPEN: {E.ROUND_COMMITTED: RoundState.COMMITTED}, RoundState.COMMITTED: {}})

EFFECT = Machine(
    "tool effect",
    {
        EffectState.STARTED: {
            E.TOOL_STARTED: EffectState.STARTED,
            E.TOOL_COMPLETED: EffectState.COMPLETED,
            E.TOOL_FAILED: EffectState.FAILED,
            E.EFFECT_OUTCOME_UNKNOWN: EffectState.UNKNOWN,
        },
        EffectState.UNKNOWN: {E.TOOL_COMPLETED: EffectState.COMPLETED, E.TOOL_FAILED: EffectState.FAILED},
        EffectState.COMPLETED: {},
        EffectState.FAILED: {},
    },
)

MACHINES = (SESSION, ROUND, CALL, EFFECT)
"""Every machine, in the order in which a reader meets them."""

TERMINAL_CALLS = frozenset({CallState.COMPLETED, CallState.FAILED, CallState.BLOCKED, CallState.SKIPPED})
UNEXECUTED_WAITING = frozenset({CallState.PROPOSED, CallState.APPROVED})
"""States of a call that may still be dispatched."""
AWAITING_HUMAN = frozenset({CallState.AWAITING_APPROVAL, CallState.AWAITING_INPUT})
