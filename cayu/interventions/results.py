"""What the runtime reports of a trial's session, and the whole outcome with its parts."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import StrictBool, model_validator

from cayu.canonical import fingerprint
from cayu.evals.evidence import EvalMemoryEvidenceLimitation, EvalMemorySourceAliasV1
from cayu.evals.fields import Count, Fingerprint, SessionId
from cayu.evals.results import EvalTrialResult, eval_trial_result_revision
from cayu.interventions.base import Copied, Detached, ExecutionModel
from cayu.interventions.evidence import MemoryInterventionReceipt, MemoryInterventionTrialBinding
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.recall.attribution import MemoryAttribution, MemoryAttributionBounds
from cayu.snapshots.records import AgentSnapshotResultBinding, AgentSnapshotTerminalDisposition


class MemoryInterventionRuntimeResult(ExecutionModel):
    """How a trial's session ended, and what it saw of memory."""

    session_id: SessionId
    terminal_disposition: AgentSnapshotTerminalDisposition
    runtime_evidence_fingerprint: Fingerprint
    """Of the final conversation, receipts, exposures and usage; no time is in it."""
    terminal_evidence_available: StrictBool
    """False when the session's log could not be read to its end."""
    terminal_evidence_limitation: EvalMemoryEvidenceLimitation | None = None
    expected_receipt_count: Count | None = None
    """Recalls that the log holds, whether or not the attribution has room for them."""
    expected_exposure_count: Count | None = None
    effective_attribution_bounds: Annotated[MemoryAttributionBounds, Copied]
    source_alias: Annotated[EvalMemorySourceAliasV1 | None, Copied] = None
    attribution: Annotated[MemoryAttribution, Detached]
    usage_fingerprint: Fingerprint | None = None
    cost_fingerprint: Fingerprint | None = None

    @model_validator(mode="after")
    def _has_the_evidence_that_it_says(self) -> Self:
        there = self.terminal_evidence_available
        if (self.terminal_evidence_limitation is None) != there:
            raise ValueError("evidence that is not available has its limitation, and other evidence has none")
        for name in ("expected_receipt_count", "expected_exposure_count", "source_alias"):
            if (getattr(self, name) is not None) != there:
                raise ValueError(f"{name} is given exactly with evidence")
        if not there and (self.usage_fingerprint or self.cost_fingerprint):
            raise ValueError("usage and cost are known with evidence only")
        if (self.attribution.status == "unavailable") == there:
            raise ValueError("an attribution is unavailable exactly when the evidence is")
        return self

    @model_validator(mode="after")
    def _has_an_attribution_that_fits(self) -> Self:
        found, bounds = self.attribution, self.effective_attribution_bounds
        over = (
            len(found.receipts) > bounds.max_receipts
            or len(found.exposures) > bounds.max_exposures
            or found.observed_items > bounds.max_items
        )
        if over:
            raise ValueError("the attribution holds more than its bounds admit")
        pairs = (
            (self.expected_receipt_count, found.observed_receipts, found.omitted_receipts_at_least),
            (self.expected_exposure_count, found.observed_exposures, found.omitted_exposures_at_least),
        )
        for expected, observed, omitted in pairs:
            if expected is None:
                continue
            if observed + omitted > expected or (found.status == "complete" and observed != expected):
                raise ValueError("the attribution does not agree with what the log holds")
        return self


def memory_intervention_runtime_result_fingerprint(result: MemoryInterventionRuntimeResult) -> str:
    """Return the identity of a runtime result, 64 hexadecimal digits."""
    return fingerprint("cayu.memory-intervention-runtime-result", result.model_dump(mode="json"))


def memory_intervention_eval_result_revision(result: EvalTrialResult) -> str:
    """Return the identity of an evaluation: that of `cayu.evals`, under its earlier name."""
    return eval_trial_result_revision(result)


class MemoryInterventionTrialOutcome(ExecutionModel):
    """Everything about one execution, as far as it has come."""

    execution: Annotated[MemoryInterventionExecutionRecord, Detached]
    receipt: Annotated[MemoryInterventionReceipt | None, Copied] = None
    eval_result: Annotated[EvalTrialResult | None, Detached] = None
    snapshot_result: Annotated[AgentSnapshotResultBinding | None, Copied] = None
    binding: Annotated[MemoryInterventionTrialBinding | None, Detached] = None

    @model_validator(mode="after")
    def _is_one_execution(self) -> Self:
        evaluated, result, binding = self.eval_result, self.snapshot_result, self.binding
        found = {
            "receipt_fingerprint": self.receipt.fingerprint if self.receipt else None,
            "eval_result_revision": eval_trial_result_revision(evaluated) if evaluated else None,
            "snapshot_result_fingerprint": result.fingerprint if result else None,
            "final_binding_fingerprint": binding.fingerprint if binding else None,
        }
        for name, value in found.items():
            if getattr(self.execution, name) != value:
                raise ValueError(f"the part that {name} names is another one, or missing")
        if evaluated is not None and evaluated.session_id not in (None, self.execution.session_id):
            raise ValueError("the evaluation is of another session")
        return self
