"""What an intervention leaves: its precommitted operation, the receipt of its effect, and the whole trial."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cayu.canonical import fingerprint
from cayu.evals.fields import Count, Exactly, Fingerprint, Id
from cayu.interventions.base import ExecutionModel
from cayu.interventions.specs import MOST_EFFECT_RECEIPTS, MemoryInterventionKind, MemoryInterventionSpec
from cayu.recall.attribution import MemoryAttribution
from cayu.snapshots.records import (
    Addressed,
    AgentSnapshotMaterialization,
    AgentSnapshotResultBinding,
    AgentSnapshotTrialBinding,
)


class MemoryInterventionReceiptStatus(StrEnum):
    """What the overlay did with an operation."""

    VERIFIED_NO_CHANGE = "verified_no_change"
    """Nothing was to be changed, and nothing was."""
    APPLIED = "applied"
    MATCHED_NO_ITEMS = "matched_no_items"
    """None of the items is there."""
    INDETERMINATE = "indeterminate"
    """Only some of the items are there, so that the effect would not be the one that was specified."""
    CONFLICTING = "conflicting"
    """An item stands at another revision, or is there and should not be."""


class MemoryInterventionOperation(Addressed):
    """The commitment to one effect on one overlay, made durable before it is applied."""

    kind_of_record = "cayu.memory-intervention-operation"

    record_type: Literal["cayu.memory-intervention-operation"] = "cayu.memory-intervention-operation"
    schema_version: Annotated[Literal[1], Exactly] = 1
    spec_fingerprint: Fingerprint
    materialization_fingerprint: Fingerprint
    trial_fingerprint: Fingerprint
    memory_overlay_fingerprint: Fingerprint
    state_scope_id: Id

    @classmethod
    def of(
        cls,
        spec: MemoryInterventionSpec,
        materialization: AgentSnapshotMaterialization,
        trial: AgentSnapshotTrialBinding,
    ) -> MemoryInterventionOperation:
        """Return the operation of a spec on a copy for a trial."""
        return cls.create(
            spec_fingerprint=spec.fingerprint,
            materialization_fingerprint=materialization.fingerprint,
            trial_fingerprint=trial.fingerprint,
            memory_overlay_fingerprint=materialization.memory_overlay_fingerprint,
            state_scope_id=materialization.state_scope_id,
        )


def revision_fingerprint(entry_id: str, revision: int) -> str:
    """Return the identity of one revision of an item."""
    return fingerprint("cayu.memory-revision", [entry_id, revision])


class MemoryInterventionReceipt(Addressed):
    """What came of one operation."""

    kind_of_record = "cayu.memory-intervention-receipt"

    record_type: Literal["cayu.memory-intervention-receipt"] = "cayu.memory-intervention-receipt"
    schema_version: Annotated[Literal[1], Exactly] = 1
    operation_fingerprint: Fingerprint
    memory_overlay_fingerprint: Fingerprint
    status: MemoryInterventionReceiptStatus
    requested_count: Count
    matched_count: Count
    """Items that stand as the spec says."""
    changed_count: Count
    changed_revision_fingerprints: tuple[Fingerprint, ...] = Field(default=(), max_length=MOST_EFFECT_RECEIPTS)
    effect_fingerprints: tuple[Fingerprint, ...] = Field(default=(), max_length=MOST_EFFECT_RECEIPTS)

    @model_validator(mode="after")
    def _agrees_with_its_status(self) -> Self:
        status, applied = self.status, self.status is MemoryInterventionReceiptStatus.APPLIED
        if not (self.changed_count <= self.matched_count <= self.requested_count):
            raise ValueError("at most what was asked for is found, and at most what was found is changed")
        if {len(self.changed_revision_fingerprints), len(self.effect_fingerprints)} != {self.changed_count}:
            raise ValueError("each changed item has its revision and its effect")
        if applied != (self.changed_count > 0) or (applied and self.changed_count != self.requested_count):
            raise ValueError("an applied operation has changed all of its items, and any other none")
        if (status is MemoryInterventionReceiptStatus.VERIFIED_NO_CHANGE) != (self.requested_count == 0):
            raise ValueError("no change is verified exactly when none was asked for")
        if status is MemoryInterventionReceiptStatus.MATCHED_NO_ITEMS and self.matched_count:
            raise ValueError("an operation that matched no items has matched none")
        return self


class MemoryInterventionIsolationAuthority(ExecutionModel):
    """Says that a store is an overlay: made only by who has opened it above a production store that it cannot write."""

    materialization_fingerprint: Fingerprint
    memory_overlay_fingerprint: Fingerprint
    state_scope_id: Id


class MemoryInterventionTrialBinding(Addressed):
    """A whole trial: what was changed, what the session saw of memory, and what came of it."""

    kind_of_record = "cayu.memory-intervention-trial"

    record_type: Literal["cayu.memory-intervention-trial"] = "cayu.memory-intervention-trial"
    schema_version: Annotated[Literal[1], Exactly] = 1
    spec: MemoryInterventionSpec
    operation: MemoryInterventionOperation
    receipt: MemoryInterventionReceipt
    trial: AgentSnapshotTrialBinding
    result: AgentSnapshotResultBinding
    attribution: MemoryAttribution

    @property
    def proves_no_memory_exposure(self) -> bool:
        """True when it is certain that no memory stood before the model.

        Automatic recall and the built-in knowledge tools say what they bring; a tool of one's own says it with the
        same artifact, or is not seen.
        """
        return self.attribution.is_empty

    def digest(self) -> str:
        """Return what the fingerprint has to be: the parts by their own fingerprints, and the attribution."""
        parts = (self.spec, self.operation, self.receipt, self.trial, self.result)
        material = [*(part.fingerprint for part in parts), self.attribution.model_dump(mode="json")]
        return fingerprint(self.kind_of_record, material)

    @model_validator(mode="after")
    def _is_one_trial(self) -> Self:
        operation, trial = self.operation, self.trial
        agrees = (
            operation.spec_fingerprint == self.spec.fingerprint
            and operation.trial_fingerprint == trial.fingerprint
            and operation.materialization_fingerprint == trial.materialization_fingerprint
            and operation.memory_overlay_fingerprint == trial.memory_overlay_fingerprint
            and self.receipt.operation_fingerprint == operation.fingerprint
            and self.receipt.memory_overlay_fingerprint == operation.memory_overlay_fingerprint
            and self.result.trial_fingerprint == trial.fingerprint
            and self.spec.snapshot_fingerprint == trial.snapshot_fingerprint
            and self.receipt.requested_count == len(self.spec.changes)
        )
        if not agrees:
            raise ValueError("the parts are not of one trial")
        return self

    @property
    def is_baseline(self) -> bool:
        """True for a trial in which nothing was changed."""
        return self.spec.kind is MemoryInterventionKind.AS_DECLARED
