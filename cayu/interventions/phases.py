"""The phases of an execution, and the tables that say which fields and which statuses each of them admits."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from cayu.interventions.evidence import MemoryInterventionReceiptStatus as Receipt
from cayu.snapshots.records import AgentSnapshotTerminalDisposition as Disposition


class MemoryInterventionExecutionPhase(StrEnum):
    """How far an execution has come; the values are in order."""

    PREPARED = "prepared"
    """The request is on record, nothing is begun."""
    TRIAL_BOUND = "trial_bound"
    """The copy is open, and the effect on it is committed to."""
    EFFECT_RESOLVED = "effect_resolved"
    """It is known what the effect has come to."""
    SESSION_BOUND = "session_bound"
    """The session's claim and deadline are on record; it may have been dispatched."""
    RUNTIME_TERMINAL = "runtime_terminal"
    """The session has ended, and what it saw is on record."""
    EVALUATED = "evaluated"
    FINALIZED = "finalized"


class MemoryInterventionExecutionStatus(StrEnum):
    """What has become of an execution."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CONFLICTING = "conflicting"
    INDETERMINATE = "indeterminate"


_P = MemoryInterventionExecutionPhase
_S = MemoryInterventionExecutionStatus

FailureCode = Literal[
    "intervention_conflicting",
    "intervention_indeterminate",
    "runtime_cancelled",
    "runtime_failed",
    "runtime_outcome_unknown",
    "runtime_timed_out",
]

FAILURE_OF: Mapping[MemoryInterventionExecutionStatus, FailureCode | None] = MappingProxyType(
    {
        _S.ACTIVE: None,
        _S.COMPLETED: None,
        _S.FAILED: "runtime_failed",
        _S.CANCELLED: "runtime_cancelled",
        _S.TIMED_OUT: "runtime_timed_out",
        _S.OUTCOME_UNKNOWN: "runtime_outcome_unknown",
        _S.CONFLICTING: "intervention_conflicting",
        _S.INDETERMINATE: "intervention_indeterminate",
    }
)
"""The failure code of each status."""

STATUS_OF_RECEIPT: Mapping[Receipt, MemoryInterventionExecutionStatus] = MappingProxyType(
    {
        Receipt.VERIFIED_NO_CHANGE: _S.ACTIVE,
        Receipt.APPLIED: _S.ACTIVE,
        Receipt.MATCHED_NO_ITEMS: _S.ACTIVE,
        Receipt.INDETERMINATE: _S.INDETERMINATE,
        Receipt.CONFLICTING: _S.CONFLICTING,
    }
)
"""What a receipt makes of the execution; anything but `active` ends it before a session is begun."""

STATUS_OF_DISPOSITION: Mapping[Disposition, MemoryInterventionExecutionStatus] = MappingProxyType(
    {
        Disposition.COMPLETED: _S.COMPLETED,
        Disposition.FAILED: _S.FAILED,
        Disposition.CANCELLED: _S.CANCELLED,
        Disposition.TIMED_OUT: _S.TIMED_OUT,
        Disposition.OUTCOME_UNKNOWN: _S.OUTCOME_UNKNOWN,
    }
)
"""What the session's end makes of a finalized execution."""

_ENDS = frozenset(STATUS_OF_DISPOSITION.values())
_REFUSED = frozenset({_S.CONFLICTING, _S.INDETERMINATE})

STATUSES_IN: Mapping[MemoryInterventionExecutionPhase, frozenset[MemoryInterventionExecutionStatus]] = MappingProxyType(
    {phase: frozenset({_S.ACTIVE}) for phase in _P}
    | {_P.EFFECT_RESOLVED: frozenset({_S.ACTIVE}) | _REFUSED, _P.FINALIZED: _ENDS}
)
"""The statuses that each phase admits."""

FIELDS_OF: Mapping[MemoryInterventionExecutionPhase, tuple[str, ...]] = MappingProxyType(
    {
        _P.PREPARED: (),
        _P.TRIAL_BOUND: ("materialization_fingerprint", "trial_binding_fingerprint", "operation_fingerprint"),
        _P.EFFECT_RESOLVED: ("receipt_fingerprint",),
        _P.SESSION_BOUND: ("runtime_session_create_claim", "runtime_deadline_at"),
        _P.RUNTIME_TERMINAL: (
            "runtime_evidence_fingerprint",
            "runtime_result_fingerprint",
            "runtime_result_payload",
            "runtime_dispatch_ownership",
        ),
        _P.EVALUATED: ("eval_result_revision",),
        _P.FINALIZED: ("snapshot_result_fingerprint", "final_binding_fingerprint"),
    }
)
"""The fields that an execution gains with each phase; it has them from then on, and not before.

The ownership is the exception: it may stand from the session's claim on, and is settled when the session has ended.
"""

ORDER = {phase: place for place, phase in enumerate(_P)}
"""Phase -> its place, from 0."""


def is_terminal(status: MemoryInterventionExecutionStatus) -> bool:
    """True for the status of an execution that goes no further."""
    return status is not _S.ACTIVE
