"""One row of the execution journal, which refuses to say what its phase cannot know."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, model_validator

from cayu.canonical import normalise
from cayu.evals.fields import Count, ExactBool, Exactly, Fingerprint, Id, SessionId
from cayu.interventions.base import Copied, ExecutionModel
from cayu.interventions.ownership import DurableOperationOwnership, DurableOperationOwnershipState
from cayu.interventions.phases import (
    FAILURE_OF,
    FIELDS_OF,
    ORDER,
    STATUSES_IN,
    FailureCode,
    MemoryInterventionExecutionPhase,
    MemoryInterventionExecutionStatus,
    is_terminal,
)
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION,
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    RuntimeSessionCreateClaimReference,
)

_IDENTITY = (
    *("record_type", "schema_version", "execution_id", "request_key_id", "request_fingerprint", "spec_fingerprint"),
    *("candidate_id", "trial_id", "case_id", "case_revision", "required_execution_profile_fingerprint"),
    *("runtime_execution_profile_fingerprint", "overlay_provider_id", "overlay_provider_fingerprint"),
    *("runtime_runner_fingerprint", "evaluator_fingerprint", "session_id", "causal_budget_id"),
)


class MemoryInterventionExecutionRecord(ExecutionModel):
    """One execution as it stands: what was asked for, how far it has come, and what is known by then."""

    record_type: Literal["cayu.memory-intervention-execution"] = "cayu.memory-intervention-execution"
    schema_version: Annotated[Literal[2], Exactly] = MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION
    execution_id: Id
    request_key_id: Id
    """The key that the request's fingerprint was made with."""
    request_fingerprint: Fingerprint
    spec_fingerprint: Fingerprint
    candidate_id: Id
    trial_id: Id
    case_id: Id
    case_revision: Fingerprint
    required_execution_profile_fingerprint: Fingerprint
    """Of the snapshot."""
    runtime_execution_profile_fingerprint: Fingerprint
    """Of the application that runs the session; another one when the recall policy is changed."""
    overlay_provider_id: Id
    overlay_provider_fingerprint: Fingerprint
    runtime_runner_fingerprint: Fingerprint
    evaluator_fingerprint: Fingerprint
    session_id: SessionId
    causal_budget_id: SessionId
    phase: MemoryInterventionExecutionPhase
    status: MemoryInterventionExecutionStatus = MemoryInterventionExecutionStatus.ACTIVE
    revision: Count
    """Rises by one with every step; an ownership changes beside it."""
    runtime_cancellation_observed: ExactBool = False
    runtime_timeout_observed: ExactBool = False
    runtime_session_create_claim: Annotated[RuntimeSessionCreateClaimReference | None, Copied] = None
    runtime_deadline_at: AwareDatetime | None = None
    """The first one that was set; a recovery keeps it."""
    runtime_dispatch_ownership: Annotated[DurableOperationOwnership | None, Copied] = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    materialization_fingerprint: Fingerprint | None = None
    trial_binding_fingerprint: Fingerprint | None = None
    operation_fingerprint: Fingerprint | None = None
    receipt_fingerprint: Fingerprint | None = None
    runtime_evidence_fingerprint: Fingerprint | None = None
    runtime_result_fingerprint: Fingerprint | None = None
    runtime_result_payload: Annotated[dict[str, Any] | None, BeforeValidator(normalise)] = None
    eval_result_revision: Fingerprint | None = None
    snapshot_result_fingerprint: Fingerprint | None = None
    final_binding_fingerprint: Fingerprint | None = None
    failure_code: FailureCode | None = None

    @model_validator(mode="after")
    def _says_what_its_phase_knows(self) -> Self:
        here = ORDER[self.phase]
        for phase, names in FIELDS_OF.items():
            for name in names:
                present = getattr(self, name) is not None
                early = name == "runtime_dispatch_ownership" and self.phase is _P.SESSION_BOUND
                if present != (ORDER[phase] <= here) and not early:
                    raise ValueError(f"an execution that is {self.phase} has {'no' if present else 'a'} {name}")
        if self.status not in STATUSES_IN[self.phase]:
            raise ValueError(f"an execution that is {self.phase} is not {self.status}")
        if self.failure_code != FAILURE_OF[self.status]:
            raise ValueError(f"an execution that is {self.status} has the failure code {FAILURE_OF[self.status]}")
        if self.updated_at < self.created_at:
            raise ValueError("an execution is updated after it was created")
        return self

    @model_validator(mode="after")
    def _has_an_ownership_that_fits(self) -> Self:
        observed = self.runtime_cancellation_observed or self.runtime_timeout_observed
        if observed and ORDER[self.phase] < ORDER[_P.SESSION_BOUND]:
            raise ValueError("a control is observed of a session that was claimed")
        owner, claim = self.runtime_dispatch_ownership, self.runtime_session_create_claim
        if owner is not None and owner.operation_id != dispatch_operation(self.execution_id):
            raise ValueError("the ownership is of another operation")
        settled = owner is not None and owner.state is DurableOperationOwnershipState.SETTLED
        if settled != (ORDER[self.phase] >= ORDER[_P.RUNTIME_TERMINAL]):
            raise ValueError("the ownership is settled when the session has ended, and not before")
        if claim is not None and claim.request_authority_key_id != self.request_key_id:
            raise ValueError("the session is claimed under another key than the request's")
        if self.runtime_deadline_at is not None and self.runtime_deadline_at < self.created_at:
            raise ValueError("a deadline lies after the request")
        if claim is not None and (claim.session_id, claim.operation_id) != (
            self.session_id,
            self.operation_fingerprint,
        ):
            raise ValueError("the session's claim is of another trial")
        return self

    @classmethod
    def prepare(
        cls,
        request: MemoryInterventionTrialRequest,
        *,
        key: MemoryInterventionRequestFingerprintKey,
        overlay_provider_fingerprint: str,
        overlay_provider_id: str,
        runtime_runner_fingerprint: str,
        runtime_execution_profile_fingerprint: str,
        evaluator_fingerprint: str,
        created_at: datetime,
    ) -> MemoryInterventionExecutionRecord:
        """Return the first record of a request. Raises `ValidationError` for what is not well formed."""
        return cls(
            execution_id=request.execution_id,
            request_key_id=key.key_id,
            request_fingerprint=key.fingerprint(request),
            spec_fingerprint=request.spec.fingerprint,
            candidate_id=request.candidate_id,
            trial_id=request.trial_id,
            case_id=request.case.case_id,
            case_revision=request.case.case_revision,
            required_execution_profile_fingerprint=request.spec.execution_profile_fingerprint,
            runtime_execution_profile_fingerprint=runtime_execution_profile_fingerprint,
            overlay_provider_id=overlay_provider_id,
            overlay_provider_fingerprint=overlay_provider_fingerprint,
            runtime_runner_fingerprint=runtime_runner_fingerprint,
            evaluator_fingerprint=evaluator_fingerprint,
            session_id=request.session_id,
            causal_budget_id=request.causal_budget_id,
            phase=MemoryInterventionExecutionPhase.PREPARED,
            revision=0,
            created_at=created_at,
            updated_at=created_at,
        )

    def replay_identity(self) -> tuple[object, ...]:
        """Return what is equal exactly for the same request to the same components."""
        return tuple(getattr(self, name) for name in _IDENTITY)

    def immutable_identity(self) -> tuple[object, ...]:
        """Return what stays the same from the first phase to the last."""
        return (*self.replay_identity(), self.created_at)

    def advanced(
        self, phase: MemoryInterventionExecutionPhase | None = None, **known: Any
    ) -> MemoryInterventionExecutionRecord:
        """Return the next record: one revision on, with what is known by then."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields |= {"phase": phase or self.phase, "revision": self.revision + 1, **known}
        return type(self)(**fields)

    @property
    def is_terminal(self) -> bool:
        """True when the execution goes no further."""
        return is_terminal(self.status)


_P = MemoryInterventionExecutionPhase


def dispatch_operation(execution_id: str) -> str:
    """Return the id of the operation that whoever dispatches the session owns."""
    return f"{execution_id}.dispatch"
