"""What the tests of interventions share: small well-formed records, each made from the one before it.

`make_parts()` gives all records of one trial, and `make_record(phase)` the journal's record at a phase of that trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cayu.canonical import fingerprint
from cayu.evals import EvalCaseContractV1, EvalMemorySourceAliasV1, EvalTrialResult
from cayu.interventions.evidence import (
    MemoryInterventionOperation,
    MemoryInterventionReceipt,
    MemoryInterventionTrialBinding,
    revision_fingerprint,
)
from cayu.interventions.evidence import MemoryInterventionReceiptStatus as ReceiptStatus
from cayu.interventions.ownership import DurableOperationOwnership
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.phases import MemoryInterventionExecutionStatus as Status
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import (
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    RuntimeSessionCreateClaimReference,
)
from cayu.interventions.results import (
    MemoryInterventionRuntimeResult,
    MemoryInterventionTrialOutcome,
    memory_intervention_eval_result_revision,
    memory_intervention_runtime_result_fingerprint,
)
from cayu.interventions.specs import (
    MemoryInterventionChange,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryInterventionSpec,
)
from cayu.messages import Message
from cayu.recall.attribution import MemoryAttribution, MemoryAttributionBounds, MemoryExposure, MemoryReceipt
from cayu.sessions.requests import RunRequest
from cayu.snapshots.records import (
    AgentSnapshotMaterialization,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotTrialBinding,
    MaterializedComponent,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRET = b"a secret of the root key that nobody may see"
KEY = MemoryInterventionRequestFingerprintKey(key_id="key-1", secret=SECRET)
CODES = {
    Status.ACTIVE: None,
    Status.COMPLETED: None,
    Status.FAILED: "runtime_failed",
    Status.CANCELLED: "runtime_cancelled",
    Status.TIMED_OUT: "runtime_timed_out",
    Status.OUTCOME_UNKNOWN: "runtime_outcome_unknown",
    Status.CONFLICTING: "intervention_conflicting",
    Status.INDETERMINATE: "intervention_indeterminate",
}
"""Each status with its failure code."""
ADDED: dict[Phase, tuple[str, ...]] = {
    Phase.PREPARED: (),
    Phase.TRIAL_BOUND: ("materialization_fingerprint", "trial_binding_fingerprint", "operation_fingerprint"),
    Phase.EFFECT_RESOLVED: ("receipt_fingerprint",),
    Phase.SESSION_BOUND: ("runtime_session_create_claim", "runtime_deadline_at"),
    Phase.RUNTIME_TERMINAL: (
        *("runtime_evidence_fingerprint", "runtime_result_fingerprint", "runtime_result_payload"),
        "runtime_dispatch_ownership",
    ),
    Phase.EVALUATED: ("eval_result_revision",),
    Phase.FINALIZED: ("snapshot_result_fingerprint", "final_binding_fingerprint"),
}
"""Each phase with the fields that a record has from then on."""


def digest(name: str) -> str:
    """A well-formed fingerprint that is another one for each name."""
    return fingerprint("tests", name)


def make_fixture(text: str = "Tea is served at four.", **fields: Any) -> MemoryInterventionFixture:
    return MemoryInterventionFixture.create(**{"text": text, **fields})


def changes_of(kind: MemoryInterventionKind) -> dict[str, Any]:
    """The fields that a spec of a kind has besides those of every spec."""
    match kind:
        case MemoryInterventionKind.AUTOMATIC_RECALL_OFF:
            return {"trial_recall_policy_fingerprint": digest("recall off"), "trial_recall_mode": "off"}
        case MemoryInterventionKind.OMIT_ITEMS:
            return {"changes": (MemoryInterventionChange(entry_id="tea", revision=1),)}
        case MemoryInterventionKind.REPLACE_ITEMS:
            return {"changes": (MemoryInterventionChange(entry_id="tea", revision=1, fixture=make_fixture()),)}
        case MemoryInterventionKind.NEGATIVE_CONTROL:
            change = MemoryInterventionChange(entry_id="noise", revision=0, fixture=make_fixture("Cats purr."))
            return {"changes": (change,), "negative_control_kind": "irrelevant"}
    return {}


def make_spec(kind: str = "as_declared", **fields: Any) -> MemoryInterventionSpec:
    """A spec of a kind; `fields` go over what such a spec has here."""
    found = MemoryInterventionKind(kind)
    common: dict[str, Any] = {
        "spec_id": f"spec-{kind}",
        "snapshot_fingerprint": digest("snapshot"),
        "memory_state_fingerprint": digest("memory"),
        "execution_profile_fingerprint": digest("profile"),
        "starting_recall_policy_fingerprint": digest("recall"),
        "trial_recall_policy_fingerprint": digest("recall"),
        "starting_recall_mode": "strong_matches",
        "trial_recall_mode": "strong_matches",
        "authority_scope_fingerprint": digest("scope"),
        "kind": found,
    }
    return MemoryInterventionSpec.create(**(common | changes_of(found) | fields))


def make_run_request(text: str = "When is tea served?", **fields: Any) -> RunRequest:
    return RunRequest(**{"agent_name": "reader", "messages": (Message.text("user", text),), **fields})


def make_request(spec: MemoryInterventionSpec | None = None, **fields: Any) -> MemoryInterventionTrialRequest:
    common: dict[str, Any] = {
        "spec": spec or make_spec(),
        "candidate_id": "candidate",
        "trial_id": "trial-1",
        "case": EvalCaseContractV1(case_id="tea-time", case_revision=digest("case")),
        "run_request": make_run_request(),
    }
    return MemoryInterventionTrialRequest(**(common | fields))


def make_materialization(request: MemoryInterventionTrialRequest, **fields: Any) -> AgentSnapshotMaterialization:
    """The copy that a request's trial works on; its only component is the memory's overlay."""
    spec = request.spec
    meant = AgentSnapshotMaterializationRequest(
        snapshot_fingerprint=spec.snapshot_fingerprint,
        candidate_id=request.candidate_id,
        trial_id=request.trial_id,
        state_mode=spec.trial_state_mode,
        access={"allowed_namespaces": ["default"]},
    )
    overlay = MaterializedComponent(
        kind="knowledge_frontier",
        baseline_fingerprint=spec.memory_state_fingerprint,
        materialization_ref=digest(meant.state_scope_id),
        overlay=True,
    )
    common: dict[str, Any] = {
        "progress_id": meant.progress_id,
        "snapshot_fingerprint": spec.snapshot_fingerprint,
        "candidate_id": request.candidate_id,
        "state_scope_id": meant.state_scope_id,
        "state_mode": spec.trial_state_mode,
        "authority_scope_fingerprint": spec.authority_scope_fingerprint,
        "created_at": AT,
        "components": (overlay,),
    }
    return AgentSnapshotMaterialization.create(**(common | fields))


def make_trial(
    request: MemoryInterventionTrialRequest, materialization: AgentSnapshotMaterialization, **fields: Any
) -> AgentSnapshotTrialBinding:
    common: dict[str, Any] = {
        "snapshot_fingerprint": materialization.snapshot_fingerprint,
        "materialization_fingerprint": materialization.fingerprint,
        "candidate_id": request.candidate_id,
        "case_id": request.case.case_id,
        "trial_id": request.trial_id,
        "evaluator_fingerprint": digest("evaluator"),
        "memory_overlay_fingerprint": materialization.memory_overlay_fingerprint,
        "created_at": AT,
    }
    return AgentSnapshotTrialBinding.create(**(common | fields))


def make_receipt(
    operation: MemoryInterventionOperation, spec: MemoryInterventionSpec, status: str | None = None
) -> MemoryInterventionReceipt:
    """What came of an operation: everything that the spec says, unless a status says otherwise."""
    asked = len(spec.changes)
    found = ReceiptStatus(status or ("applied" if asked else "verified_no_change"))
    done = spec.changes if found is ReceiptStatus.APPLIED else ()
    revisions = [revision_fingerprint(change.entry_id, change.revision + 1) for change in done]
    return MemoryInterventionReceipt.create(
        operation_fingerprint=operation.fingerprint,
        memory_overlay_fingerprint=operation.memory_overlay_fingerprint,
        status=found,
        requested_count=asked,
        matched_count=len(done),
        changed_count=len(done),
        changed_revision_fingerprints=tuple(revisions),
        effect_fingerprints=tuple(digest(f"effect of {revision}") for revision in revisions),
    )


def make_attribution(**fields: Any) -> MemoryAttribution:
    """One recall and one exposure of one item, all of which is known."""
    common: dict[str, Any] = {
        "status": "complete",
        "observed_receipts": 1,
        "observed_exposures": 1,
        "observed_items": 2,
        "receipts": (MemoryReceipt(recall=1, step=1, mode="strong_matches", considered=3, injected=("a" * 32,)),),
        "exposures": (MemoryExposure(step=1, origin="recall", injected=("a" * 32,)),),
    }
    return MemoryAttribution(**(common | fields))


def make_runtime_result(
    request: MemoryInterventionTrialRequest | None = None, **fields: Any
) -> MemoryInterventionRuntimeResult:
    """How a session ended of which everything is known; the counts are those of its attribution."""
    seen: MemoryAttribution = fields.get("attribution") or make_attribution()
    common: dict[str, Any] = {
        "session_id": (request or make_request()).session_id,
        "terminal_disposition": "completed",
        "runtime_evidence_fingerprint": digest("evidence"),
        "terminal_evidence_available": True,
        "expected_receipt_count": seen.observed_receipts + seen.omitted_receipts_at_least,
        "expected_exposure_count": seen.observed_exposures + seen.omitted_exposures_at_least,
        "effective_attribution_bounds": MemoryAttributionBounds(),
        "source_alias": EvalMemorySourceAliasV1(key_id="key-1", digest=digest("source")),
        "attribution": seen,
        "usage_fingerprint": digest("usage"),
    }
    return MemoryInterventionRuntimeResult(**(common | fields))


@dataclass(frozen=True)
class Parts:
    """The records of one trial, which all agree."""

    request: MemoryInterventionTrialRequest
    materialization: AgentSnapshotMaterialization
    trial: AgentSnapshotTrialBinding
    operation: MemoryInterventionOperation
    receipt: MemoryInterventionReceipt
    runtime: MemoryInterventionRuntimeResult
    evaluation: EvalTrialResult
    result: AgentSnapshotResultBinding
    binding: MemoryInterventionTrialBinding


def make_parts(
    request: MemoryInterventionTrialRequest | None = None,
    *,
    receipt_status: str | None = None,
    attribution: MemoryAttribution | None = None,
    disposition: str = "completed",
    materialized: dict[str, Any] | None = None,
    bound: dict[str, Any] | None = None,
) -> Parts:
    """All records of the trial of a request. `materialized` and `bound` go over the fields of copy and trial."""
    asked = request or make_request()
    materialization = make_materialization(asked, **(materialized or {}))
    trial = make_trial(asked, materialization, **(bound or {}))
    operation = MemoryInterventionOperation.of(asked.spec, materialization, trial)
    receipt = make_receipt(operation, asked.spec, receipt_status)
    runtime = make_runtime_result(
        asked, terminal_disposition=disposition, attribution=attribution or make_attribution()
    )
    evaluation = EvalTrialResult(status="passed", session_id=asked.session_id, score=1.0, final_output="At four.")
    result = AgentSnapshotResultBinding.create(
        trial_fingerprint=trial.fingerprint,
        session_id=asked.session_id,
        terminal_disposition=disposition,
        runtime_evidence_fingerprint=runtime.runtime_evidence_fingerprint,
        eval_result_revision=memory_intervention_eval_result_revision(evaluation),
        usage_fingerprint=runtime.usage_fingerprint,
        recorded_at=AT,
    )
    binding = MemoryInterventionTrialBinding.create(
        spec=asked.spec,
        operation=operation,
        receipt=receipt,
        trial=trial,
        result=result,
        attribution=runtime.attribution,
    )
    return Parts(asked, materialization, trial, operation, receipt, runtime, evaluation, result, binding)


def make_ownership(execution_id: str, state: str = "active", **fields: Any) -> DurableOperationOwnership:
    """The ownership of an execution's dispatch, of generation 1."""
    common: dict[str, Any] = {
        "operation_id": dispatch_operation(execution_id),
        "claim_id": "claim-1",
        "owner_id": "owner-1",
        "generation": 1,
        "state": state,
        "acquired_at": AT,
        "renewed_at": AT,
        "lease_expires_at": AT + timedelta(seconds=10),
        "released_at": AT if state == "released" else None,
        "settled_at": AT if state == "settled" else None,
    }
    return DurableOperationOwnership(**(common | fields))


def prepare(
    request: MemoryInterventionTrialRequest | None = None,
    key: MemoryInterventionRequestFingerprintKey = KEY,
    **fields: Any,
) -> MemoryInterventionExecutionRecord:
    """The first record of a request."""
    common: dict[str, Any] = {
        "overlay_provider_id": "overlay",
        "overlay_provider_fingerprint": digest("overlay provider"),
        "runtime_runner_fingerprint": digest("runner"),
        "runtime_execution_profile_fingerprint": digest("profile"),
        "evaluator_fingerprint": digest("evaluator"),
        "created_at": AT,
    }
    return MemoryInterventionExecutionRecord.prepare(request or make_request(), key=key, **(common | fields))


def known_fields(parts: Parts) -> dict[str, Any]:
    """Every field that the record of a trial gains, with its value."""
    request, runtime = parts.request, parts.runtime
    claim = RuntimeSessionCreateClaimReference.made(
        KEY.runtime_session_create_reference_key(), request.session_id, parts.operation.fingerprint, "session-claim-1"
    )
    return {
        "materialization_fingerprint": parts.materialization.fingerprint,
        "trial_binding_fingerprint": parts.trial.fingerprint,
        "operation_fingerprint": parts.operation.fingerprint,
        "receipt_fingerprint": parts.receipt.fingerprint,
        "runtime_session_create_claim": claim,
        "runtime_deadline_at": AT + timedelta(seconds=request.timeout_seconds),
        "runtime_evidence_fingerprint": runtime.runtime_evidence_fingerprint,
        "runtime_result_fingerprint": memory_intervention_runtime_result_fingerprint(runtime),
        "runtime_result_payload": runtime.model_dump(mode="json"),
        "runtime_dispatch_ownership": make_ownership(request.execution_id, "settled"),
        "eval_result_revision": memory_intervention_eval_result_revision(parts.evaluation),
        "snapshot_result_fingerprint": parts.result.fingerprint,
        "final_binding_fingerprint": parts.binding.fingerprint,
    }


def reached(phase: Phase) -> list[str]:
    """The fields that a record has gained at a phase."""
    order = list(Phase)
    return [name for past in order[: order.index(phase) + 1] for name in ADDED[past]]


def record_fields(phase: Phase | str, status: Status | str | None = None, parts: Parts | None = None) -> dict[str, Any]:
    """The fields of a trial's record at a phase; None for the status that such a record usually has."""
    here, made = Phase(phase), parts or make_parts()
    usual = Status.COMPLETED if here is Phase.FINALIZED else Status.ACTIVE
    found = Status(status) if status is not None else usual
    first = prepare(made.request)
    known = known_fields(made)
    return {
        **{name: getattr(first, name) for name in type(first).model_fields},
        **{name: known[name] for name in reached(here)},
        "phase": here,
        "revision": list(Phase).index(here),
        "status": found,
        "failure_code": CODES[found],
    }


def make_record(
    phase: Phase | str = Phase.PREPARED,
    status: Status | str | None = None,
    parts: Parts | None = None,
    **fields: Any,
) -> MemoryInterventionExecutionRecord:
    """The record of a trial at a phase; `fields` go over what it has there."""
    return MemoryInterventionExecutionRecord(**(record_fields(phase, status, parts) | fields))


def walk(parts: Parts | None = None) -> list[MemoryInterventionExecutionRecord]:
    """The records of a whole trial, each made from the one before it and a second later."""
    made = parts or make_parts()
    known = known_fields(made)
    records = [prepare(made.request)]
    for phase in list(Phase)[1:]:
        fields = {name: known[name] for name in ADDED[phase]}
        if phase is Phase.FINALIZED:
            fields["status"] = Status.COMPLETED
        records.append(records[-1].advanced(phase, updated_at=records[-1].updated_at + timedelta(seconds=1), **fields))
    return records


def make_outcome(parts: Parts | None = None) -> MemoryInterventionTrialOutcome:
    """The whole outcome of a trial that has come to its end."""
    made = parts or make_parts()
    return MemoryInterventionTrialOutcome(
        execution=make_record(Phase.FINALIZED, parts=made),
        receipt=made.receipt,
        eval_result=made.evaluation,
        snapshot_result=made.result,
        binding=made.binding,
    )
