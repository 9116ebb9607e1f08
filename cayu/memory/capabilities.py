"""What an application gives the executor: an overlay of memory, a runtime, and an evaluator, each with its identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from cayu.budgets.ledger import BudgetLedger
from cayu.canonical import fingerprint
from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCaseContractV1
from cayu.evals.fields import Exactly, Fingerprint, Id
from cayu.evals.results import EvalTrialResult
from cayu.interventions.evidence import (
    MemoryInterventionIsolationAuthority,
    MemoryInterventionOperation,
    MemoryInterventionReceipt,
)
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import MemoryInterventionTrialRequest, RuntimeSessionCreateClaimReferenceKey
from cayu.interventions.results import MemoryInterventionRuntimeResult
from cayu.interventions.specs import MemoryInterventionSpec
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.knowledge.store import KnowledgeStore
from cayu.messages import Frozen
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.sessions.streams import SessionStore
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import AgentSnapshotMaterialization, AgentSnapshotTrialBinding


class MemoryInterventionProviderExecutionMode(StrEnum):
    """Whether a runtime may ask a model outside this process."""

    HERMETIC = "hermetic"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class MemoryInterventionRuntimeView:
    """An overlay with everything that shows what it is, for the time of one trial; it is never stored."""

    materialization_fingerprint: str
    memory_overlay_fingerprint: str
    state_scope_id: str
    knowledge_store: KnowledgeStore
    """The overlay, bound to `knowledge_access_scope`."""
    knowledge_access_scope: KnowledgeAccessScope
    isolation_authority: MemoryInterventionIsolationAuthority
    trial_recall_policy: AutomaticRecallPolicy
    receipt: MemoryInterventionReceipt


class MemoryInterventionOverlayProvider(ABC):
    """Opens overlays, and is the authority on what was done to them."""

    provider_id: str
    execution_profile_fingerprint: str
    """Identity of the provider's behaviour, 64 hexadecimal digits."""

    @abstractmethod
    async def apply(
        self,
        *,
        spec: MemoryInterventionSpec,
        operation: MemoryInterventionOperation,
        materialization: AgentSnapshotMaterialization,
        trial: AgentSnapshotTrialBinding,
    ) -> MemoryInterventionRuntimeView:
        """Apply an effect that was committed to, once, and open the overlay. A repeat gives the same receipt."""

    @abstractmethod
    async def recover(
        self,
        *,
        spec: MemoryInterventionSpec,
        operation: MemoryInterventionOperation,
        materialization: AgentSnapshotMaterialization,
        trial: AgentSnapshotTrialBinding,
    ) -> MemoryInterventionRuntimeView:
        """Apply the effect if there is no receipt of the operation yet, else return what that receipt says."""


class MemoryInterventionEvaluator(ABC):
    """Evaluates sessions by rules that have an identity."""

    evaluator_fingerprint: str
    """Identity of the rules, 64 hexadecimal digits; the one that the snapshot holds."""

    @abstractmethod
    async def evaluate(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        """Evaluate one session. Called at most once for an operation."""

    @abstractmethod
    async def recover(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        """Return the result of an evaluation that was begun, completing it if need be."""


class MemoryInterventionRuntimeRunner(ABC):
    """Runs the session of a trial. It gets a key that names sessions, and never the one that identifies requests."""

    execution_profile_fingerprint: str
    """Identity of the runner, 64 hexadecimal digits."""
    provider_configuration_fingerprint: str | None = None
    provider_execution_mode: MemoryInterventionProviderExecutionMode | None = None

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files of the session store; none by default."""
        return ()

    def durable_budget_ledger_paths(self) -> tuple[Path, ...]:
        """Return the local files of the budget ledger; none by default."""
        return ()

    def current_provider_configuration_fingerprint(self) -> str | None:
        """Return the identity of the provider's configuration as it is now, if there is one."""
        return self.provider_configuration_fingerprint

    def current_provider_execution_mode(self) -> MemoryInterventionProviderExecutionMode | None:
        """Return whether the provider works in this process alone, as it is now."""
        return self.provider_execution_mode

    def required_execution_profile_fingerprint(self, spec: MemoryInterventionSpec) -> str:
        """Return the execution profile that a spec's session runs under; the snapshot's by default."""
        return spec.execution_profile_fingerprint

    async def check_request(self, request: MemoryInterventionTrialRequest) -> None:
        """Raise `InvalidInput` for a request that this runner cannot carry out; asked before anything is written."""
        if request.context_preparation != "none":
            raise InvalidInput(f"{type(self).__name__} cannot prepare a context by {request.context_preparation!r}.")

    async def accounting_sessions_belong_to_trial(
        self, execution: MemoryInterventionExecutionRecord, session_ids: Sequence[str]
    ) -> bool:
        """Return whether what these sessions spent is the trial's. Without lineage only the root session is."""
        return bool(session_ids) and set(session_ids) == {execution.session_id}

    @abstractmethod
    async def run(
        self,
        *,
        request: MemoryInterventionTrialRequest,
        execution: MemoryInterventionExecutionRecord,
        starting_execution_profile: AgentSnapshotExecutionProfileRef,
        trial: AgentSnapshotTrialBinding,
        operation: MemoryInterventionOperation,
        view: MemoryInterventionRuntimeView,
        reference_key: RuntimeSessionCreateClaimReferenceKey,
    ) -> MemoryInterventionRuntimeResult:
        """Run the session to its end. When cancelled, return only once what was dispatched is settled or durable."""

    @abstractmethod
    async def recover(
        self,
        *,
        request: MemoryInterventionTrialRequest,
        execution: MemoryInterventionExecutionRecord,
        starting_execution_profile: AgentSnapshotExecutionProfileRef,
        trial: AgentSnapshotTrialBinding,
        operation: MemoryInterventionOperation,
        view: MemoryInterventionRuntimeView,
        reference_key: RuntimeSessionCreateClaimReferenceKey,
    ) -> MemoryInterventionRuntimeResult:
        """Start the claimed session if it was not, go on with it if it was cut off, and return how it ended.

        With an observed cancellation or timeout in `execution`, bring the session to its end instead.
        """


class MemoryInterventionRuntimeApplicationFactory(ABC):
    """Builds the application of one trial. Whatever it builds is checked before anything is dispatched."""

    factory_id: str
    execution_profile_fingerprint: str
    """Identity of the factory, with how it changes the recall policy, 64 hexadecimal digits."""

    @property
    @abstractmethod
    def provider_configuration_fingerprint(self) -> str:
        """Identity of the provider's configuration that applications get now."""

    @property
    @abstractmethod
    def provider_execution_mode(self) -> MemoryInterventionProviderExecutionMode:
        """Whether applications may ask a model outside this process."""

    @property
    @abstractmethod
    def runtime_session_store(self) -> SessionStore:
        """The store of every application."""

    @property
    @abstractmethod
    def runtime_budget_ledger(self) -> BudgetLedger:
        """The ledger of every application."""

    def expected_execution_profile_fingerprint(self, spec: MemoryInterventionSpec) -> str:
        """Return the profile of the application that is built for a spec; by default the snapshot's.

        A factory that can switch recall off says here what the profile is then.
        """
        return spec.execution_profile_fingerprint

    async def check_request(self, request: MemoryInterventionTrialRequest) -> None:
        """Raise `InvalidInput` for a request that no application of this factory can carry out.

        Asked before anything is written; by default for a context preparation.
        """
        if request.context_preparation != "none":
            raise InvalidInput(f"{type(self).__name__} registers no context policy to compact by.")

    @abstractmethod
    async def create(
        self,
        *,
        request: MemoryInterventionTrialRequest,
        execution: MemoryInterventionExecutionRecord,
        trial: AgentSnapshotTrialBinding,
        operation: MemoryInterventionOperation,
        view: MemoryInterventionRuntimeView,
    ) -> object:
        """Return a new `CayuApp` whose selected environment holds `view.knowledge_store`."""


class MemoryInterventionExecutorAuthority(Frozen):
    """The identities of everything that carries trials out."""

    schema_version: Annotated[Literal[1], Exactly] = 1
    overlay_provider_id: Id
    overlay_provider_fingerprint: Fingerprint
    runtime_runner_fingerprint: Fingerprint
    evaluator_fingerprint: Fingerprint
    provider_configuration_fingerprint: Fingerprint | None = None
    provider_execution_mode: MemoryInterventionProviderExecutionMode | None = None

    @property
    def fingerprint(self) -> str:
        """The identity of all of them together, 64 hexadecimal digits."""
        return fingerprint("cayu.memory-intervention-executor", self.model_dump(mode="json"))


@dataclass(frozen=True, slots=True, repr=False)
class MemoryInterventionExecutorStatePaths:
    """The local files in which an executor keeps state; they do not show in its representation."""

    snapshot_store: tuple[Path, ...]
    execution_store: tuple[Path, ...]
    runtime_session_store: tuple[Path, ...]
    runtime_budget_ledger: tuple[Path, ...]
