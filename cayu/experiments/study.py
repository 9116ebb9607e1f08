"""Everything that trials on one agent need, wired together: its snapshot, the executor, and requests for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cayu.budgets.ledger import BudgetLedger, DocumentBudgetLedger
from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.arms import Intervention, Memories
from cayu.experiments.design import PlannedTrial
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey, MemoryInterventionTrialRequest
from cayu.interventions.specs import MemoryInterventionKind, MemoryInterventionSpec
from cayu.knowledge.records import Selection
from cayu.knowledge.store import KnowledgeStore
from cayu.memory.applications import BuildApp, TrialApplicationFactory, built
from cayu.memory.evaluators import AnswerEvaluator
from cayu.memory.executor import MemoryInterventionExecutor
from cayu.memory.overlays import KnowledgeOverlayProvider
from cayu.memory.runner import CayuMemoryInterventionRuntimeRunner
from cayu.messages import Message
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.registry import Assembly
from cayu.sessions.requests import RunRequest
from cayu.sessions.streams import SessionStore
from cayu.snapshots.components import (
    AGENT,
    EVALUATOR,
    EXECUTION_PROFILE,
    KNOWLEDGE_FRONTIER,
    RECALL_POLICY,
    TOOL_CATALOGUE,
    FixedComponent,
    KnowledgeComponent,
)
from cayu.snapshots.coordinator import AgentSnapshotCoordinator
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import (
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotTrialStateMode,
)
from cayu.snapshots.store import AgentSnapshotStore

DEFAULT_TIMEOUT_SECONDS = 300


class MemoryStudy:
    """One captured agent, ready for trials on its memory."""

    def __init__(
        self, executor: MemoryInterventionExecutor, snapshot: AgentSnapshot, assembly: Assembly, memories: Memories
    ) -> None:
        self.executor = executor
        self.snapshot = snapshot
        self.memories = memories
        """What the agent may read, as captured, by entry id."""
        self._agent = assembly.agent.name
        self._environment = assembly.environment.spec.name if assembly.environment is not None else None
        assert assembly.recall is not None
        self._recall: AutomaticRecallPolicy = assembly.recall

    @classmethod
    async def open(
        cls,
        build_app: BuildApp,
        *,
        agent_name: str,
        knowledge: KnowledgeStore,
        recall: AutomaticRecallPolicy,
        cases: Iterable[EvalCase],
        session_store: SessionStore,
        snapshots: AgentSnapshotStore,
        executions: MemoryInterventionExecutionStore,
        key: MemoryInterventionRequestFingerprintKey,
        budget_ledger: BudgetLedger | None = None,
        environment_name: str | None = None,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
    ) -> MemoryStudy:
        """Capture an agent and return a study of it.

        `build_app(*, session_store, knowledge_store, budget_ledger, recall)` builds the application of each trial;
        `knowledge` is bound to what the agent may read, and is never written. Raises `InvalidInput` for an unbound
        store, and for an application with a component that declares no identity.
        """
        access = knowledge.bound_access_scope()
        if access is None:
            raise InvalidInput("The knowledge store of a study is bound to what the agent may read; pass bind(scope).")
        ledger = budget_ledger or DocumentBudgetLedger(session_store)
        app = await built(build_app, session_store, ledger, knowledge, recall)
        assembly = app.assembly(agent_name, environment_name)
        profile = AgentSnapshotExecutionProfileRef.of(assembly.profile)
        if profile.unavailable:
            words = "declares no identity, so no second application can be known to be the same"
            raise InvalidInput(f"In this application {', '.join(profile.unavailable)} {words}.")
        evaluator = AnswerEvaluator(cases, session_store, scoring=scoring)
        material = _material(assembly, profile, recall, evaluator)
        parts = [FixedComponent(kind, value) for kind, value in material.items()]
        coordinator = AgentSnapshotCoordinator(snapshots, [*parts, KnowledgeComponent(knowledge, access)])
        snapshot = await coordinator.capture(AgentSnapshotCaptureRequest(access=access))
        executor = MemoryInterventionExecutor(
            snapshots=coordinator,
            executions=executions,
            overlay_provider=KnowledgeOverlayProvider(knowledge, access, documents=snapshots, recall=recall),
            runtime_runner=CayuMemoryInterventionRuntimeRunner(
                TrialApplicationFactory(build_app, assembly, session_store=session_store, budget_ledger=ledger)
            ),
            evaluator=evaluator,
            request_keys={key.key_id: key},
            current_request_key_id=key.key_id,
        )
        frontier = snapshot.component(KNOWLEDGE_FRONTIER).material["frontier"]
        entries = await knowledge.select(Selection(scope=access, frontier=frontier))
        return cls(executor, snapshot, assembly, {entry.id: entry for entry in entries})

    def spec(
        self,
        intervention: Intervention,
        case: EvalCase,
        state_mode: AgentSnapshotTrialStateMode = AgentSnapshotTrialStateMode.RESET_EACH_TRIAL,
    ) -> MemoryInterventionSpec:
        """Return what an arm does to the memory of a case."""
        held = self.snapshot.component
        off = intervention.kind is MemoryInterventionKind.AUTOMATIC_RECALL_OFF
        trial = self._recall.switched_off() if off else self._recall
        return MemoryInterventionSpec.create(
            spec_id=f"{intervention.name}/{case.case_id}",
            snapshot_fingerprint=self.snapshot.fingerprint,
            memory_state_fingerprint=held(KNOWLEDGE_FRONTIER).fingerprint,
            execution_profile_fingerprint=held(EXECUTION_PROFILE).material["fingerprint"],
            starting_recall_policy_fingerprint=self._recall.fingerprint(),
            trial_recall_policy_fingerprint=trial.fingerprint(),
            starting_recall_mode=self._recall.mode,
            trial_recall_mode=trial.mode,
            trial_state_mode=state_mode,
            authority_scope_fingerprint=self.snapshot.authority_scope_fingerprint,
            kind=intervention.kind,
            changes=tuple(intervention.changes(case, self.memories)),
            negative_control_kind=intervention.control,
        )

    def request(
        self, planned: PlannedTrial, timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    ) -> MemoryInterventionTrialRequest:
        """Return the request for one planned trial: the case's question, put to the agent."""
        return MemoryInterventionTrialRequest(
            spec=self.spec(planned.intervention, planned.case),
            candidate_id=planned.intervention.name,
            trial_id=planned.trial_id,
            case=planned.case.contract,
            run_request=RunRequest(
                agent_name=self._agent,
                environment_name=self._environment,
                messages=(Message.text("user", planned.case.question),),
                labels={"experiment": planned.trial_id.partition("/")[0], "intervention": planned.intervention.name},
            ),
            timeout_seconds=timeout_seconds,
        )


def _material(
    assembly: Assembly,
    profile: AgentSnapshotExecutionProfileRef,
    recall: AutomaticRecallPolicy,
    evaluator: AnswerEvaluator,
) -> Mapping[str, Any]:
    """Return what the snapshot keeps of the components that cannot change."""
    return {
        AGENT: assembly.agent.model_dump(mode="json", exclude={"metadata"}),
        EVALUATOR: {"fingerprint": evaluator.evaluator_fingerprint},
        EXECUTION_PROFILE: profile.model_dump(mode="json"),
        RECALL_POLICY: recall.model_dump(mode="json"),
        TOOL_CATALOGUE: [tool.spec.model_dump(mode="json") for tool in assembly.tools.values()],
    }
