"""The execution journal: compare-and-set on one record per execution, and its rules as pure functions.

A backend reads the row, asks the rule, and writes what it answers, all in one transaction whose time it samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from cayu.canonical import JSON, dumps, fingerprint
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.base import ExecutionModel
from cayu.interventions.ownership import (
    DurableOperationOwnershipDisposition,
    DurableOperationOwnershipResult,
    DurableOperationOwnershipTransition,
    decide_ownership,
)
from cayu.interventions.phases import FIELDS_OF, ORDER, MemoryInterventionExecutionPhase
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES

_P = MemoryInterventionExecutionPhase
_FLAGS = ("runtime_cancellation_observed", "runtime_timeout_observed")
_OWNERSHIP = "runtime_dispatch_ownership"


class MemoryInterventionRuntimeOwnershipResult(ExecutionModel):
    """What came of a transition of the dispatch ownership, with the record as it stands then."""

    execution: MemoryInterventionExecutionRecord
    ownership: DurableOperationOwnershipResult


class MemoryInterventionExecutionStore(ABC):
    """The journal of executions."""

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold this store's state; none by default."""
        return ()

    @abstractmethod
    async def begin(self, record: MemoryInterventionExecutionRecord) -> MemoryInterventionExecutionRecord:
        """Write a first record, or return what stands when it is of the same request and components.

        Raises `MemoryInterventionExecutionConflict` when something else stands under the id.
        """

    @abstractmethod
    async def load(self, execution_id: str) -> MemoryInterventionExecutionRecord | None:
        """Return the record of an execution, None when there is none.

        Raises `MemoryInterventionExecutionConflict` for a row that was edited.
        """

    @abstractmethod
    async def compare_and_set(
        self, expected: MemoryInterventionExecutionRecord, desired: MemoryInterventionExecutionRecord
    ) -> MemoryInterventionExecutionRecord:
        """Take an execution from one exact revision to the next, and return what stands then.

        What is published of a claimed session - an observed control, its end - needs the dispatch ownership to be live
        at the time of this very write; its end settles the ownership. Raises `MemoryInterventionExecutionConflict`.
        """

    async def aclose(self) -> None:  # noqa: B027 - a store that holds nothing has nothing to give up
        """Give up connections and files; safe to call twice."""

    async def transition_runtime_dispatch_ownership(
        self, execution_id: str, request: DurableOperationOwnershipTransition
    ) -> MemoryInterventionRuntimeOwnershipResult:
        """Compare and write the dispatch ownership in the transaction that samples the store's time.

        A store without this method of its own can be constructed, and nothing is dispatched over it. Raises
        `MemoryInterventionExecutionConflict`.
        """
        reason = f"{type(self).__name__} cannot transfer the ownership of a dispatch; let it implement the transition"
        raise MemoryInterventionExecutionConflict(execution_id=execution_id, reason=reason)


def as_row(record: MemoryInterventionExecutionRecord) -> JSON:
    """Return what a store keeps of a record.

    Raises `InvalidInput` for one of more than 1 MiB, and `MemoryInterventionExecutionConflict` for one that does not
    agree with itself.
    """
    body = record.model_dump(mode="json", warnings=False)
    try:
        MemoryInterventionExecutionRecord.model_validate_json(dumps(body))
    except ValidationError:
        raise _conflict(record.execution_id, "the record does not agree with itself") from None
    size, most = len(dumps(body)), MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES
    if size > most:
        words = f"Execution {record.execution_id!r} would have {size} bytes, and a record has at most {most}"
        raise InvalidInput(f"{words}; give the runner smaller attribution bounds. Nothing was written.")
    return {"record": body, "sha256": fingerprint("cayu.execution-row", body)}


def from_row(execution_id: str, row: JSON) -> MemoryInterventionExecutionRecord:
    """Return the record that a row keeps. Raises `MemoryInterventionExecutionConflict` for one that was edited."""
    try:
        record = MemoryInterventionExecutionRecord.model_validate_json(dumps(row["record"]))
        if row["sha256"] == fingerprint("cayu.execution-row", row["record"]) and record.execution_id == execution_id:
            return record
    except (ValidationError, KeyError, TypeError):
        pass
    raise _conflict(execution_id, "its row in the journal was edited, or is damaged")


def decide_begin(
    stands: MemoryInterventionExecutionRecord | None, record: MemoryInterventionExecutionRecord
) -> MemoryInterventionExecutionRecord | None:
    """Return the record to write, None when its replay stands already. Raises for anything else that stands."""
    if record.phase is not _P.PREPARED or record.revision != 0:
        raise InvalidInput("An execution begins with a prepared record of revision 0.")
    if stands is None:
        return record
    if stands.replay_identity() != record.replay_identity():
        raise _conflict(record.execution_id, "it was begun for another request, or over other components")
    return None


def decide_compare_and_set(
    stands: MemoryInterventionExecutionRecord | None,
    expected: MemoryInterventionExecutionRecord,
    desired: MemoryInterventionExecutionRecord,
    now: datetime,
) -> MemoryInterventionExecutionRecord:
    """Return the record to write at `now`, the store's time. Raises `MemoryInterventionExecutionConflict`."""
    execution_id = desired.execution_id
    if stands is None:
        raise _conflict(execution_id, "nothing was begun under this id")
    if _without_ownership(stands) != _without_ownership(expected):
        raise _conflict(execution_id, f"it stands at revision {stands.revision}, not where the caller read it")
    _check_step(stands, desired)
    if stands.phase is not _P.SESSION_BOUND:
        if any(getattr(stands, name) != getattr(desired, name) for name in (*_FLAGS, _OWNERSHIP)):
            raise _conflict(execution_id, "controls and ownership change while a session is bound, and not otherwise")
        return desired
    owner, holder = stands.runtime_dispatch_ownership, desired.runtime_dispatch_ownership
    if owner is None or holder is None or not owner.is_held_by(holder) or not owner.is_live(now):
        raise _conflict(execution_id, "the ownership of its dispatch is not, or no longer, the caller's")
    kept = owner.settled(now) if desired.phase is _P.RUNTIME_TERMINAL else owner
    return desired.model_copy(update={_OWNERSHIP: kept})


def decide_transition(
    stands: MemoryInterventionExecutionRecord | None,
    execution_id: str,
    request: DurableOperationOwnershipTransition,
    now: datetime,
) -> MemoryInterventionRuntimeOwnershipResult:
    """Return what comes of a transition at `now`, with the record to write. Raises for an unknown execution."""
    if stands is None:
        raise _conflict(execution_id, "nothing was begun under this id")
    current = stands.runtime_dispatch_ownership
    if request.operation_id != dispatch_operation(execution_id):
        disposition, after = DurableOperationOwnershipDisposition.IDENTITY_CONFLICT, current
    elif stands.phase is not _P.SESSION_BOUND or request.action == "settle":
        disposition, after = DurableOperationOwnershipDisposition.OPERATION_ADVANCED, current
    else:
        disposition, after = decide_ownership(current, request, now)
    return MemoryInterventionRuntimeOwnershipResult(
        execution=stands.model_copy(update={_OWNERSHIP: after}) if after is not current else stands,
        ownership=DurableOperationOwnershipResult(disposition=disposition, observed_at=now, ownership=after),
    )


def _without_ownership(record: MemoryInterventionExecutionRecord) -> MemoryInterventionExecutionRecord:
    return record.model_copy(update={_OWNERSHIP: None})


def _check_step(stands: MemoryInterventionExecutionRecord, desired: MemoryInterventionExecutionRecord) -> None:
    """Raise unless `desired` is a legal next step."""
    here, there = ORDER[stands.phase], ORDER[desired.phase]
    changes = [name for name in _FLAGS if getattr(stands, name) != getattr(desired, name)]
    known = [name for phase, names in FIELDS_OF.items() if ORDER[phase] <= here for name in names if name != _OWNERSHIP]
    reason = None
    if desired.immutable_identity() != stands.immutable_identity():
        reason = "its identity would change"
    elif desired.revision != stands.revision + 1:
        reason = f"revision {desired.revision} does not follow {stands.revision}"
    elif stands.is_terminal:
        reason = f"it has ended as {stands.status}"
    elif there - here not in (0, 1) or (there == here and not changes):
        reason = f"it does not go from {stands.phase} to {desired.phase}"
    elif any(getattr(stands, name) and not getattr(desired, name) for name in _FLAGS):
        reason = "an observed control would be forgotten"
    elif any(getattr(desired, name) != getattr(stands, name) for name in known):
        reason = "what is known of it would change"
    if reason is not None:
        raise _conflict(stands.execution_id, reason)


def _conflict(execution_id: str, reason: str) -> MemoryInterventionExecutionConflict:
    return MemoryInterventionExecutionConflict(execution_id=execution_id, reason=reason)
