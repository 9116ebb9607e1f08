"""What has to hold before a trial is dispatched: the overlay is the trial's, the application the one promised."""

from __future__ import annotations

from cayu.errors import CayuError, MemoryInterventionExecutionConflict
from cayu.interventions.evidence import MemoryInterventionOperation
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import MemoryInterventionTrialRequest
from cayu.memory.capabilities import (
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRuntimeApplicationFactory,
    MemoryInterventionRuntimeView,
)
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.app import CayuApp
from cayu.snapshots.components import EVALUATOR, EXECUTION_PROFILE, KNOWLEDGE_FRONTIER, RECALL_POLICY
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import AgentSnapshot, AgentSnapshotTrialBinding


def check_snapshot(
    request: MemoryInterventionTrialRequest, snapshot: AgentSnapshot, prepared: MemoryInterventionExecutionRecord
) -> None:
    """Raise `MemoryInterventionExecutionConflict` unless a request is about its snapshot as it was captured."""
    spec, held = request.spec, snapshot.component
    recall = AutomaticRecallPolicy.model_validate(held(RECALL_POLICY).material)
    ends = {"off": recall.switched_off().fingerprint()} if spec.trial_recall_mode == "off" else {}
    agrees = {
        "memory": spec.memory_state_fingerprint == held(KNOWLEDGE_FRONTIER).fingerprint,
        "execution profile": spec.execution_profile_fingerprint == held(EXECUTION_PROFILE).material["fingerprint"],
        "access scope": spec.authority_scope_fingerprint == snapshot.authority_scope_fingerprint,
        "recall policy": (spec.starting_recall_policy_fingerprint, spec.starting_recall_mode)
        == (recall.fingerprint(), recall.mode),
        "recall policy of the trial": spec.trial_recall_policy_fingerprint
        == ends.get(spec.trial_recall_mode, recall.fingerprint()),
        "evaluator": prepared.evaluator_fingerprint == held(EVALUATOR).material["fingerprint"],
    }
    for name, holds in agrees.items():
        if not holds:
            raise _conflict(prepared, f"the {name} is not the one that the snapshot holds")
    same = prepared.runtime_execution_profile_fingerprint == prepared.required_execution_profile_fingerprint
    if same and spec.trial_recall_policy_fingerprint != spec.starting_recall_policy_fingerprint:
        raise _conflict(prepared, "the factory does not say which execution profile a changed recall policy gives")


def check_view(
    execution: MemoryInterventionExecutionRecord,
    trial: AgentSnapshotTrialBinding,
    operation: MemoryInterventionOperation,
    view: MemoryInterventionRuntimeView,
) -> None:
    """Raise `MemoryInterventionExecutionConflict` unless the view is the overlay of this very trial, and says so."""
    authority, receipt = view.isolation_authority, view.receipt
    materializations = {
        view.materialization_fingerprint,
        authority.materialization_fingerprint,
        operation.materialization_fingerprint,
        trial.materialization_fingerprint,
        execution.materialization_fingerprint,
    }
    overlays = {
        view.memory_overlay_fingerprint,
        authority.memory_overlay_fingerprint,
        operation.memory_overlay_fingerprint,
        trial.memory_overlay_fingerprint,
        receipt.memory_overlay_fingerprint,
    }
    held = {
        "materialization": len(materializations) == 1,
        "overlay": len(overlays) == 1,
        "state scope": {view.state_scope_id, authority.state_scope_id} == {operation.state_scope_id},
        "operation": operation.fingerprint == execution.operation_fingerprint == receipt.operation_fingerprint,
        "trial": trial.fingerprint == execution.trial_binding_fingerprint == operation.trial_fingerprint,
        "receipt": execution.receipt_fingerprint in (None, receipt.fingerprint),
        "access scope": view.knowledge_store.bound_access_scope() == view.knowledge_access_scope,
    }
    for name, holds in held.items():
        if not holds:
            raise _conflict(execution, f"the overlay's {name} is not the trial's")


def check_application(
    app: CayuApp,
    factory: MemoryInterventionRuntimeApplicationFactory,
    request: MemoryInterventionTrialRequest,
    execution: MemoryInterventionExecutionRecord,
    view: MemoryInterventionRuntimeView,
) -> None:
    """Raise `MemoryInterventionExecutionConflict` unless the application is what the factory promised for the trial."""
    run = request.run_request
    if app.session_store is not factory.runtime_session_store:
        raise _conflict(execution, "the application has another session store than the factory names")
    if app.budget_ledger is not factory.runtime_budget_ledger:
        raise _conflict(execution, "the application has another budget ledger than the factory names")
    try:
        assembly = app.assembly(run.agent_name, run.environment_name)
    except CayuError as error:
        raise _conflict(execution, f"the application cannot run the agent: {type(error).__name__}") from error
    environment = assembly.environment
    if environment is None or environment.knowledge_store is not view.knowledge_store:
        raise _conflict(execution, "the selected environment does not hold the trial's overlay")
    profile = AgentSnapshotExecutionProfileRef.of(assembly.profile)
    if profile.unavailable:
        names = ", ".join(profile.unavailable)
        raise _conflict(execution, f"the application declares no identity for {names}")
    if profile.fingerprint != execution.runtime_execution_profile_fingerprint:
        raise _conflict(execution, "the application's execution profile is not the one that the trial requires")
    hermetic = factory.provider_execution_mode == MemoryInterventionProviderExecutionMode.HERMETIC
    if hermetic and not app.is_hermetic:
        raise _conflict(execution, "the trial is hermetic, and a provider works outside this process")


def _conflict(execution: MemoryInterventionExecutionRecord, reason: str) -> MemoryInterventionExecutionConflict:
    return MemoryInterventionExecutionConflict(execution_id=execution.execution_id, reason=reason)
