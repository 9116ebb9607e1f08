"""Everything that trials on one agent need, wired together: its snapshot, the executor, and requests for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.canonical import fingerprint, keyed_fingerprint
from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.arms import Intervention, Memories
from cayu.experiments.design import CONTENT_CHARS, Experiment, PlannedTrial
from cayu.experiments.subjects import StudyStores, Subject, probe
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey, MemoryInterventionTrialRequest
from cayu.interventions.specs import MemoryInterventionKind, MemoryInterventionSpec
from cayu.knowledge.records import Selection
from cayu.memory.applications import TrialApplicationFactory
from cayu.memory.capabilities import MemoryInterventionEvaluator
from cayu.memory.evaluators import AnswerEvaluator
from cayu.memory.executor import MemoryInterventionExecutor
from cayu.memory.overlays import KnowledgeOverlayProvider
from cayu.memory.runner import CayuMemoryInterventionRuntimeRunner
from cayu.messages import Message
from cayu.runtime.registry import Assembly
from cayu.sessions.requests import MAX_ID, RunRequest
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
    POSITION,
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotTrialStateMode,
)
from cayu.snapshots.store import AgentSnapshotStore

KEYS = "request-keys"
"""The collection of the marks by which request keys are known again."""


class MemoryStudy:
    """One captured agent, ready for trials on its memory."""

    def __init__(
        self,
        executor: MemoryInterventionExecutor,
        snapshot: AgentSnapshot,
        subject: Subject,
        memories: Memories,
        cases: Sequence[EvalCase],
    ) -> None:
        """Use `open`, unless the parts are your own."""
        self.executor = executor
        self.subject = subject
        self.snapshot = snapshot
        self.memories = memories
        """What the agent may read, as captured, by entry id."""
        self._recall = subject.recall
        self._known = {case.case_id: case.contract for case in cases}
        self._specs: dict[tuple[Intervention, str], MemoryInterventionSpec] = {}

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
        before, though the knowledge has grown since. Raises `InvalidInput` for an application that does not use what it
        is given or has a component without an identity, and for another key than the store's; `SnapshotNotFound` and
        `SnapshotConflict`.
        """
        listed, sessions, knowledge = tuple(cases), stores.sessions, subject.knowledge
        _check_parts(listed, key, scoring)
        access = knowledge.bound_access_scope()
        assert access is not None
        await _keep_key(stores.snapshots, key)
        ledger = DocumentBudgetLedger(sessions)
        app = await probe(subject, sessions, ledger)
        assembly = app.assembly(subject.agent_name, subject.environment_name)
        entries = await knowledge.select(Selection(scope=access))
        revisions = {entry.id: entry.revision for entry in entries}
        evaluator = evaluator or AnswerEvaluator(listed, sessions, scoring=scoring, revisions=revisions)
        parts = [FixedComponent(kind, value) for kind, value in _material(assembly, evaluator).items()]
        coordinator = AgentSnapshotCoordinator(stores.snapshots, [*parts, KnowledgeComponent(knowledge, access)])
        if snapshot_fingerprint is None:
            snapshot = await coordinator.capture(AgentSnapshotCaptureRequest(access=access))
        else:
            snapshot = await coordinator.load(snapshot_fingerprint)
            await coordinator.verify(snapshot)
        factory = TrialApplicationFactory(
            subject.build_app, assembly, session_store=sessions, budget_ledger=ledger, hermetic=app.is_hermetic
        )
        documents, recall = stores.snapshots, subject.recall
        executor = MemoryInterventionExecutor(
            snapshots=coordinator,
            executions=stores.executions,
            overlay_provider=KnowledgeOverlayProvider(knowledge, access, documents=documents, recall=recall),
            runtime_runner=CayuMemoryInterventionRuntimeRunner(factory),
            evaluator=evaluator,
            request_keys={key.key_id: key},
            current_request_key_id=key.key_id,
        )
        frontier = snapshot.component(KNOWLEDGE_FRONTIER).material[POSITION]
        captured = await knowledge.select(Selection(scope=access, frontier=frontier, as_of=snapshot.created_at))
        if assembly.environment is not None:
            subject = replace(subject, environment_name=assembly.environment.spec.name)
        return cls(executor, snapshot, subject, {entry.id: entry for entry in captured}, listed)

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
            changes=tuple(intervention.changes_for(case, self.memories)),
            negative_control_kind=intervention.control,
        )

    def check(self, experiment: Experiment) -> None:
        """Make sure that every arm fits every case, and the study knows the cases.

        Raises `InvalidInput`, which names the first that does not fit.
        """
        for case in experiment.cases:
            if self._known.get(case.case_id) != case.contract:
                words = "is not one that this study was opened with, or has changed since"
                raise InvalidInput(f"Case {case.case_id!r} {words}; open the study again with the cases of today.")
        for arm in experiment.interventions:
            if arm.kind is MemoryInterventionKind.AUTOMATIC_RECALL_OFF and self._recall.mode == "off":
                raise InvalidInput(f"The agent's recall is off already; leave {arm.name!r} out.")
            for case in experiment.cases:
                if arm.applies_to(case, self.memories):
                    self._spec(arm, case)

    def _spec(self, arm: Intervention, case: EvalCase) -> MemoryInterventionSpec:
        """Return the spec of an arm for a case, made once."""
        name = (arm, case.contract.case_revision)
        if name not in self._specs:
            try:
                self._specs[name] = self.spec(arm, case)
            except ValidationError as refused:
                told = refused.errors(include_input=False, include_url=False)
                reasons = "; ".join(error["msg"].removeprefix("Value error, ") for error in told)
                words = f"Intervention {arm.name!r} does not fit case {case.case_id!r}"
                raise InvalidInput(f"{words}: {reasons}.") from None
            self._check_scope(arm, case, self._specs[name])
        return self._specs[name]

    def _check_scope(self, arm: Intervention, case: EvalCase, spec: MemoryInterventionSpec) -> None:
        """Refuse a fixture that the agent could not see, so that it would have no effect."""
        access = self.subject.knowledge.bound_access_scope()
        for change in spec.changes:
            entry = change.fixture.entry(change.entry_id, 1) if change.fixture is not None else None
            if access is not None and entry is not None and not access.admits(entry, self.snapshot.created_at):
                words = f"lies in namespace {entry.namespace!r} with visibility {entry.visibility!r}"
                raise InvalidInput(
                    f"The fixture for {change.entry_id!r} of arm {arm.name!r} and case {case.case_id!r} {words}, "
                    "which the agent may not read; give it those of what it replaces or stands beside."
                )

    def request(self, planned: PlannedTrial, attempt: int = 1) -> MemoryInterventionTrialRequest:
        """Return the request for one planned trial: the case's question, put to the agent.

        `attempt`, from 1, is counted up for a trial whose attempts so far came to no result.
        """
        subject, arm, case = self.subject, planned.intervention.name, planned.case
        return MemoryInterventionTrialRequest(
            spec=self._spec(planned.intervention, planned.case),
            candidate_id=arm,
            trial_id=f"{planned.trial_id}@{self._content(planned, attempt)}",
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

    def _content(self, planned: PlannedTrial, attempt: int) -> str:
        """Return a digest of what is asked, so that an arm or a case that has changed has trials of its own."""
        subject, case = self.subject, planned.case.contract
        budgets = [limit.model_dump(mode="json") for limit in subject.budget_limits]
        limits = [subject.limits.model_dump(mode="json"), budgets, subject.timeout_seconds]
        spec = self._spec(planned.intervention, planned.case).fingerprint
        asked = [spec, case.case_revision, limits, *([attempt] if attempt > 1 else [])]
        return fingerprint("cayu.experiment-trial", asked)[:CONTENT_CHARS]


def _check_parts(cases: Sequence[EvalCase], key: object, scoring: object) -> None:
    """Raise `InvalidInput` for what a study cannot be opened with."""
    if not cases or not all(isinstance(case, EvalCase) for case in cases):
        raise InvalidInput("A study has at least one EvalCase, such as those of question_cases(...).")
    if not isinstance(key, MemoryInterventionRequestFingerprintKey):
        wanted = "key_beside(path), or a MemoryInterventionRequestFingerprintKey"
        raise InvalidInput(f"The key of a study is {wanted}, not a {type(key).__name__}.")
    if scoring not in tuple(map(str, AnswerScoring)):
        raise InvalidInput(f"{scoring!r} is no scoring; there are {', '.join(AnswerScoring)}.")


async def _keep_key(documents: AgentSnapshotStore, key: MemoryInterventionRequestFingerprintKey) -> None:
    """Make sure that a key's id means the secret that it has always meant in this store."""
    mark = {"mark": keyed_fingerprint(key.secret, "cayu.request-key-mark", key.key_id)}
    found = await documents.read(KEYS, key.key_id)
    if found is None:
        found = await documents.transact(KEYS, key.key_id, lambda current, _: mark if current is None else None)
    if found != mark:
        words = "is not the one that the trials of this store were begun under"
        raise InvalidInput(
            f"The secret of request key {key.key_id!r} {words}; put the key file back, or pass that key."
        )


def _material(assembly: Assembly, evaluator: MemoryInterventionEvaluator) -> Mapping[str, Any]:
    """Return what the snapshot keeps of the components that cannot change."""
    assert assembly.recall is not None
    profile = AgentSnapshotExecutionProfileRef.of(assembly.profile)
    return {
        AGENT: assembly.agent.model_dump(mode="json", exclude={"metadata"}),
        EVALUATOR: {"fingerprint": evaluator.evaluator_fingerprint},
        EXECUTION_PROFILE: profile.model_dump(mode="json"),
        RECALL_POLICY: assembly.recall.model_dump(mode="json"),
        TOOL_CATALOGUE: [tool.spec.model_dump(mode="json") for tool in assembly.tools.values()],
    }
