"""Whether two trials differ in nothing but the intervention; if not, in what."""

from __future__ import annotations

from enum import StrEnum

from cayu.interventions.base import ExecutionModel
from cayu.interventions.evidence import MemoryInterventionReceiptStatus, MemoryInterventionTrialBinding
from cayu.interventions.specs import MemoryInterventionKind
from cayu.snapshots.records import AgentSnapshotTrialStateMode


class MemoryInterventionMismatch(StrEnum):
    """What keeps two trials from being compared."""

    BASELINE_MEMORY_STATE = "baseline_memory_state"
    """They begin from different memories, or the baseline is none."""
    INTERVENTION_IDENTITY = "intervention_identity"
    """Case, evaluator or application differ, or the intervention changes nothing."""
    RECALL_POLICY = "recall_policy"
    MATERIALIZATION_OVERLAY = "materialization_overlay"
    """They share one copy, although each trial has its own."""
    CHANGED_ITEM_REVISIONS = "changed_item_revisions"
    """The intervention did not do what it says."""
    TRIAL_MODE = "trial_mode"
    REQUIRED_ATTRIBUTION_AVAILABILITY = "required_attribution_availability"
    """What the model saw of memory is not fully known."""


class MemoryInterventionComparability(ExecutionModel):
    """The verdict on one pair of trials."""

    baseline_fingerprint: str
    intervention_fingerprint: str
    mismatches: tuple[MemoryInterventionMismatch, ...] = ()

    @property
    def comparable(self) -> bool:
        """True when the difference of the two results is the intervention's."""
        return not self.mismatches

    @classmethod
    def create(
        cls, *, baseline: MemoryInterventionTrialBinding, intervention: MemoryInterventionTrialBinding
    ) -> MemoryInterventionComparability:
        """Compare an intervention's trial with the baseline's."""
        found = _faults(baseline, intervention)
        return cls(
            baseline_fingerprint=baseline.fingerprint,
            intervention_fingerprint=intervention.fingerprint,
            mismatches=tuple(reason for reason in MemoryInterventionMismatch if found[reason]),
        )


_M = MemoryInterventionMismatch


def _faults(
    baseline: MemoryInterventionTrialBinding, other: MemoryInterventionTrialBinding
) -> dict[MemoryInterventionMismatch, bool]:
    before, after = baseline.spec, other.spec
    reset = AgentSnapshotTrialStateMode.RESET_EACH_TRIAL
    shared = baseline.trial.memory_overlay_fingerprint == other.trial.memory_overlay_fingerprint
    kept = before.trial_recall_policy_fingerprint == before.starting_recall_policy_fingerprint
    none = (MemoryInterventionKind.AS_DECLARED, MemoryInterventionKind.AUTOMATIC_RECALL_OFF)
    promised = (
        MemoryInterventionReceiptStatus.VERIFIED_NO_CHANGE
        if after.kind in none
        else MemoryInterventionReceiptStatus.APPLIED
    )
    return {
        _M.BASELINE_MEMORY_STATE: not baseline.is_baseline
        or before.snapshot_fingerprint != after.snapshot_fingerprint
        or before.memory_state_fingerprint != after.memory_state_fingerprint
        or before.authority_scope_fingerprint != after.authority_scope_fingerprint,
        _M.INTERVENTION_IDENTITY: other.is_baseline
        or before.execution_profile_fingerprint != after.execution_profile_fingerprint
        or baseline.trial.case_id != other.trial.case_id
        or baseline.trial.evaluator_fingerprint != other.trial.evaluator_fingerprint,
        _M.RECALL_POLICY: not kept
        or before.starting_recall_policy_fingerprint != after.starting_recall_policy_fingerprint,
        _M.MATERIALIZATION_OVERLAY: shared and reset in (before.trial_state_mode, after.trial_state_mode),
        _M.CHANGED_ITEM_REVISIONS: other.receipt.status is not promised
        or baseline.receipt.status is not MemoryInterventionReceiptStatus.VERIFIED_NO_CHANGE,
        _M.TRIAL_MODE: before.trial_state_mode is not after.trial_state_mode,
        _M.REQUIRED_ATTRIBUTION_AVAILABILITY: {baseline.attribution.status, other.attribution.status} != {"complete"},
    }
