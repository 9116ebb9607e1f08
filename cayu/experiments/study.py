"""Everything that trials on one agent need, wired together: its snapshot, the executor, and requests for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.arms import Intervention, Memories
from cayu.experiments.design import Experiment, PlannedTrial
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey, MemoryInterventionTrialRequest
from cayu.interventions.specs import MemoryInterventionKind, MemoryInterventionSpec
from cayu.knowledge.records import Selection
from cayu.knowledge.store import KnowledgeStore
from cayu.memory.applications import BuildApp, TrialApplicationFactory, built
from cayu.memory.capabilities import MemoryInterventionEvaluator
from cayu.memory.evaluators import AnswerEvaluator
from cayu.memory.executor import MemoryInterventionExecutor
from cayu.memory.overlays import KnowledgeOverlayProvider
from cayu.memory.runner import CayuMemoryInterventionRuntimeRunner
from cayu.messages import Message
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.registry import Assembly
from cayu.sessions.limits import BudgetLimit, RunLimits
from cayu.sessions.requests import MAX_ID, RunRequest
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
from cayu.storage.interventions import (
    InMemoryMemoryInterventionExecutionStore,
    SQLiteMemoryInterventionExecutionStore,
)
from cayu.storage.memory import InMemorySessionStore
from cayu.storage.snapshots import InMemoryAgentSnapshotStore, SQLiteAgentSnapshotStore
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

DEFAULT_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Subject:
    """The agent that is studied."""

    build_app: BuildApp
    """`build_app(*, session_store, knowledge_store, budget_ledger, recall) -> CayuApp`, called for each trial."""
    agent_name: str
    knowledge: KnowledgeStore
    """Bound to what the agent may read; it is never written."""
    recall: AutomaticRecallPolicy = field(default_factory=AutomaticRecallPolicy)
    environment_name: str | None = None
    """None takes the application's default."""
    limits: RunLimits = field(default_factory=RunLimits)
    """Of each trial's session."""
    budget_limits: tuple[BudgetLimit, ...] = ()
    """What each trial's session may spend; one without a budget id counts for the trial alone."""
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    """How long each trial's session may take, from 1 to 3600."""


@dataclass(frozen=True, slots=True)
class StudyStores:
    """Where trials stand: their sessions, the snapshots with their overlays, and the journal."""

    sessions: SessionStore
    snapshots: AgentSnapshotStore
    executions: MemoryInterventionExecutionStore

    @classmethod
    def in_memory(cls) -> StudyStores:
        """Return stores in this process only."""
        return cls(InMemorySessionStore(), InMemoryAgentSnapshotStore(), InMemoryMemoryInterventionExecutionStore())

    @classmethod
    def in_file(cls, path: str | Path) -> StudyStores:
        """Return stores in one SQLite file, made when it is new."""
        return cls.beside(SQLiteSessionStore(path))

    @classmethod
    def beside(cls, sessions: SessionStore) -> StudyStores:
        """Return stores in the file of a session store. Raises `InvalidInput` for one that is no SQLite store."""
        if not isinstance(sessions, SQLiteSessionStore):
            words = "keeps nothing else; give the snapshots and the journal stores of their own"
            raise InvalidInput(f"A {type(sessions).__name__} {words}: StudyStores(sessions, snapshots, executions).")
        return cls(
            sessions,
            SQLiteAgentSnapshotStore.beside(sessions),
            SQLiteMemoryInterventionExecutionStore.beside(sessions),
        )

    async def aclose(self) -> None:
        """Close what was opened; safe to call twice."""
        for store in (self.executions, self.snapshots, self.sessions):
            await store.aclose()


class MemoryStudy:
    """One captured agent, ready for trials on its memory."""

    def __init__(
        self, executor: MemoryInterventionExecutor, snapshot: AgentSnapshot, subject: Subject, memories: Memories
    ) -> None:
        """Use `open`, unless the parts are your own."""
        self.executor = executor
        self.subject = subject
        self.snapshot = snapshot
        self.memories = memories
        """What the agent may read, as captured, by entry id."""
        self._recall = subject.recall
        self._specs: dict[tuple[str, str], MemoryInterventionSpec] = {}

    @classmethod
    async def open(
        cls,
        subject: Subject,
        cases: Iterable[EvalCase],
        stores: StudyStores,
        key: MemoryInterventionRequestFingerprintKey,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
        *,
        evaluator: MemoryInterventionEvaluator | None = None,
        snapshot_fingerprint: str | None = None,
    ) -> MemoryStudy:
        """Capture an agent and return a study of it; the same agent over the same memory gives the same trials.

        `key` identifies requests, and has to be the same whenever trials are gone on with. `evaluator` stands in for
        the one that compares answers by `scoring`. `snapshot_fingerprint` goes on with a snapshot that was captured
        before, though the knowledge has grown since. Raises `InvalidInput` for an unbound knowledge store, and for an
        application with a component that declares no identity; `SnapshotNotFound` and `SnapshotConflict`.
        """
        knowledge, recall, sessions = subject.knowledge, subject.recall, stores.sessions
        access = knowledge.bound_access_scope()
        if access is None:
            raise InvalidInput("The knowledge store of a study is bound to what the agent may read; pass bind(scope).")
        ledger = DocumentBudgetLedger(sessions)
        app = await built(subject.build_app, sessions, ledger, knowledge, recall)
        assembly = app.assembly(subject.agent_name, subject.environment_name)
        if assembly.recall != recall:
            raise InvalidInput("build_app registers the agent without the recall policy that it is given; pass it on.")
        profile = AgentSnapshotExecutionProfileRef.of(assembly.profile)
        if profile.unavailable:
            words = "declares no identity, so no second application can be known to be the same"
            raise InvalidInput(f"In this application {', '.join(profile.unavailable)} {words}.")
        evaluator = evaluator or AnswerEvaluator(cases, sessions, scoring=scoring)
        parts = [FixedComponent(kind, value) for kind, value in _material(assembly, profile, recall, evaluator).items()]
        coordinator = AgentSnapshotCoordinator(stores.snapshots, [*parts, KnowledgeComponent(knowledge, access)])
        if snapshot_fingerprint is None:
            snapshot = await coordinator.capture(AgentSnapshotCaptureRequest(access=access))
        else:
            snapshot = await coordinator.load(snapshot_fingerprint)
            await coordinator.verify(snapshot)
        factory = TrialApplicationFactory(
            subject.build_app, assembly, session_store=sessions, budget_ledger=ledger, hermetic=app.is_hermetic
        )
        executor = MemoryInterventionExecutor(
            snapshots=coordinator,
            executions=stores.executions,
            overlay_provider=KnowledgeOverlayProvider(knowledge, access, documents=stores.snapshots, recall=recall),
            runtime_runner=CayuMemoryInterventionRuntimeRunner(factory),
            evaluator=evaluator,
            request_keys={key.key_id: key},
            current_request_key_id=key.key_id,
        )
        frontier = snapshot.component(KNOWLEDGE_FRONTIER).material["frontier"]
        entries = await knowledge.select(Selection(scope=access, frontier=frontier))
        if assembly.environment is not None:
            subject = replace(subject, environment_name=assembly.environment.spec.name)
        return cls(executor, snapshot, subject, {entry.id: entry for entry in entries})

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

    def check(self, experiment: Experiment) -> None:
        """Make sure that every arm fits every case. Raises `InvalidInput`, which names the first that does not."""
        for arm in experiment.interventions:
            for case in experiment.cases:
                if arm.applies_to(case, self.memories):
                    self._spec(arm, case)

    def _spec(self, arm: Intervention, case: EvalCase) -> MemoryInterventionSpec:
        """Return the spec of an arm for a case, made once."""
        name = (arm.name, case.contract.case_revision)
        if name not in self._specs:
            try:
                self._specs[name] = self.spec(arm, case)
            except ValidationError as refused:
                told = refused.errors(include_input=False, include_url=False)
                reasons = "; ".join(error["msg"].removeprefix("Value error, ") for error in told)
                words = f"Intervention {arm.name!r} does not fit case {case.case_id!r}"
                raise InvalidInput(f"{words}: {reasons}.") from None
        return self._specs[name]

    def request(self, planned: PlannedTrial) -> MemoryInterventionTrialRequest:
        """Return the request for one planned trial: the case's question, put to the agent."""
        subject, arm, case = self.subject, planned.intervention.name, planned.case
        return MemoryInterventionTrialRequest(
            spec=self._spec(planned.intervention, planned.case),
            candidate_id=arm,
            trial_id=planned.trial_id,
            case=case.contract,
            run_request=RunRequest(
                agent_name=subject.agent_name,
                environment_name=subject.environment_name,
                title=f"{arm}, {case.case_id}, {planned.repeat}"[:MAX_ID],
                messages=(Message.text("user", case.question),),
                labels={"experiment": planned.experiment, "intervention": arm},
                limits=subject.limits,
                budget_limits=subject.budget_limits,
            ),
            timeout_seconds=subject.timeout_seconds,
        )


def _material(
    assembly: Assembly,
    profile: AgentSnapshotExecutionProfileRef,
    recall: AutomaticRecallPolicy,
    evaluator: MemoryInterventionEvaluator,
) -> Mapping[str, Any]:
    """Return what the snapshot keeps of the components that cannot change."""
    return {
        AGENT: assembly.agent.model_dump(mode="json", exclude={"metadata"}),
        EVALUATOR: {"fingerprint": evaluator.evaluator_fingerprint},
        EXECUTION_PROFILE: profile.model_dump(mode="json"),
        RECALL_POLICY: recall.model_dump(mode="json"),
        TOOL_CATALOGUE: [tool.spec.model_dump(mode="json") for tool in assembly.tools.values()],
    }
