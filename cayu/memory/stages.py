"""One trial from phase to phase. Each step is repeatable: what it does is known by an identity that was durable before.

A record that another process has taken on meanwhile is read again, and the trial goes on from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol

from cayu.canonical import dumps, fingerprint
from cayu.crashpoints import reach
from cayu.errors import MemoryInterventionExecutionConflict
from cayu.evals.results import EvalTrialResult
from cayu.interventions.evidence import MemoryInterventionOperation, MemoryInterventionTrialBinding
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.phases import FAILURE_OF, ORDER, STATUS_OF_DISPOSITION, STATUS_OF_RECEIPT
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import (
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    RuntimeSessionCreateClaimReference,
)
from cayu.interventions.results import (
    MemoryInterventionRuntimeResult,
    MemoryInterventionTrialOutcome,
    memory_intervention_eval_result_revision,
)
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.memory.capabilities import (
    MemoryInterventionEvaluator,
    MemoryInterventionOverlayProvider,
    MemoryInterventionRuntimeRunner,
    MemoryInterventionRuntimeView,
)
from cayu.memory.dispatch import Dispatch
from cayu.snapshots.components import EXECUTION_PROFILE, KNOWLEDGE_FRONTIER
from cayu.snapshots.coordinator import AgentSnapshotCoordinator
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import (
    AgentSnapshot,
    AgentSnapshotMaterialization,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotTrialBinding,
)


class Components(Protocol):
    """What carries a trial out."""

    @property
    def snapshots(self) -> AgentSnapshotCoordinator:
        """Where trials start from."""
        ...

    @property
    def executions(self) -> MemoryInterventionExecutionStore:
        """The journal."""
        ...

    @property
    def overlay_provider(self) -> MemoryInterventionOverlayProvider:
        """What changes memory."""
        ...

    @property
    def runtime_runner(self) -> MemoryInterventionRuntimeRunner:
        """What runs sessions."""
        ...

    @property
    def evaluator(self) -> MemoryInterventionEvaluator:
        """What evaluates them."""
        ...


class Trial:
    """The execution of one request, from wherever its record stands."""

    def __init__(
        self,
        components: Components,
        request: MemoryInterventionTrialRequest,
        record: MemoryInterventionExecutionRecord,
        key: MemoryInterventionRequestFingerprintKey,
        snapshot: AgentSnapshot,
        clock: Callable[[], datetime],
    ) -> None:
        self._with = components
        self._request = request
        self.record = record
        self._key = key
        self._snapshot = snapshot
        self._clock = clock
        self._fresh = record.phase is Phase.PREPARED
        self._bound: tuple[AgentSnapshotMaterialization, AgentSnapshotTrialBinding, MemoryInterventionOperation] | None
        self._bound = None
        self._view: MemoryInterventionRuntimeView | None = None
        self._result: MemoryInterventionRuntimeResult | None = None
        self._evaluated: EvalTrialResult | None = None

    async def through(self) -> MemoryInterventionTrialOutcome:
        """Go on until the execution is terminal, and return its outcome."""
        steps = {
            Phase.PREPARED: self._bind,
            Phase.TRIAL_BOUND: self._resolve,
            Phase.EFFECT_RESOLVED: self._claim,
            Phase.SESSION_BOUND: self._run,
            Phase.RUNTIME_TERMINAL: self._evaluate,
            Phase.EVALUATED: self._finalize,
        }
        while not self.record.is_terminal:
            await steps[self.record.phase]()
        return await self._outcome()

    async def _bind(self) -> None:
        request = self._request
        materialization = await self._with.snapshots.materialize(
            AgentSnapshotMaterializationRequest(
                snapshot_fingerprint=request.spec.snapshot_fingerprint,
                candidate_id=request.candidate_id,
                trial_id=request.trial_id,
                state_mode=request.spec.trial_state_mode,
                access=self._access,
            )
        )
        trial = await self._with.snapshots.begin_trial(
            materialization,
            case_id=request.case.case_id,
            trial_id=request.trial_id,
            evaluator_fingerprint=self.record.evaluator_fingerprint,
        )
        operation = MemoryInterventionOperation.of(request.spec, materialization, trial)
        self._bound = (materialization, trial, operation)
        await self._advance(
            Phase.TRIAL_BOUND,
            materialization_fingerprint=materialization.fingerprint,
            trial_binding_fingerprint=trial.fingerprint,
            operation_fingerprint=operation.fingerprint,
        )
        reach("trial.bound")

    async def _resolve(self) -> None:
        receipt = (await self._opened(first=self._fresh)).receipt
        status = STATUS_OF_RECEIPT[receipt.status]
        await self._advance(
            Phase.EFFECT_RESOLVED,
            receipt_fingerprint=receipt.fingerprint,
            status=status,
            failure_code=FAILURE_OF[status],
        )
        reach("trial.effect_resolved")

    async def _claim(self) -> None:
        record = self.record
        assert record.operation_fingerprint is not None
        claim = RuntimeSessionCreateClaimReference.made(
            self._key.runtime_session_create_reference_key(),
            record.session_id,
            record.operation_fingerprint,
            f"session-claim-{secrets.token_hex(12)}",
        )
        deadline = max(self._clock(), record.updated_at) + timedelta(seconds=self._request.timeout_seconds)
        await self._advance(Phase.SESSION_BOUND, runtime_session_create_claim=claim, runtime_deadline_at=deadline)
        reach("trial.session_bound")

    async def _run(self) -> None:
        """Own the dispatch, run the session, and take over what the journal says then."""
        _, trial, operation = await self._parts()
        view = await self._opened()
        runner = self._with.runtime_runner
        given = {
            "request": self._request,
            "starting_execution_profile": self._profile,
            "trial": trial,
            "operation": operation,
            "view": view,
            "reference_key": self._key.runtime_session_create_reference_key(),
        }

        async def start(record: MemoryInterventionExecutionRecord) -> MemoryInterventionRuntimeResult:
            return await runner.run(execution=record, **given)  # type: ignore[arg-type]

        async def recover(record: MemoryInterventionExecutionRecord) -> MemoryInterventionRuntimeResult:
            return await runner.recover(execution=record, **given)  # type: ignore[arg-type]

        dispatch = Dispatch(self._with.executions, self.record, self._clock)
        try:
            ours = await dispatch.own() and await dispatch.run(start if self._fresh else recover, recover)
        finally:
            dispatch.leave()
        if ours:
            self.record = dispatch.record
        else:
            await self._read_again()

    async def _evaluate(self) -> None:
        evaluated = await self._evaluation(first=self._fresh)
        reach("trial.evaluating")
        await self._advance(Phase.EVALUATED, eval_result_revision=memory_intervention_eval_result_revision(evaluated))
        reach("trial.evaluated")

    async def _finalize(self) -> None:
        result = await self._with.snapshots.record_result(await self._result_binding())
        reach("trial.finalizing")
        binding = await self._binding(result)
        status = STATUS_OF_DISPOSITION[result.terminal_disposition]
        await self._advance(
            Phase.FINALIZED,
            snapshot_result_fingerprint=result.fingerprint,
            final_binding_fingerprint=binding.fingerprint,
            status=status,
            failure_code=FAILURE_OF[status],
        )
        reach("trial.finalized")

    async def _outcome(self) -> MemoryInterventionTrialOutcome:
        """Assemble the outcome from the evidence, each part of which is checked against the record."""
        receipt = (await self._opened()).receipt
        if self.record.phase is not Phase.FINALIZED:
            return MemoryInterventionTrialOutcome(execution=self.record, receipt=receipt)
        _, trial, _ = await self._parts()
        result = await self._with.snapshots.load_result(trial.fingerprint)
        return MemoryInterventionTrialOutcome(
            execution=self.record,
            receipt=receipt,
            eval_result=await self._evaluation(),
            snapshot_result=result,
            binding=await self._binding(result),
        )

    async def _parts(
        self,
    ) -> tuple[AgentSnapshotMaterialization, AgentSnapshotTrialBinding, MemoryInterventionOperation]:
        """Return copy, trial and operation, which are those that the record names."""
        if self._bound is None:
            record, request = self.record, self._request
            assert record.materialization_fingerprint is not None
            materialization = await self._with.snapshots.recover_materialization(
                record.materialization_fingerprint, access=self._access
            )
            trial = await self._with.snapshots.load_trial(
                request.spec.snapshot_fingerprint, request.candidate_id, request.trial_id
            )
            self._bound = (materialization, trial, MemoryInterventionOperation.of(request.spec, materialization, trial))
        materialization, trial, operation = self._bound
        named = (self.record.trial_binding_fingerprint, self.record.operation_fingerprint)
        if named != (trial.fingerprint, operation.fingerprint):
            raise self._conflict("the trial in the snapshot store is another one than the journal's")
        return self._bound

    async def _opened(self, first: bool = False) -> MemoryInterventionRuntimeView:
        """Return the overlay with the operation applied; `first` says that nobody can have applied it before."""
        if self._view is None:
            materialization, trial, operation = await self._parts()
            act = self._with.overlay_provider.apply if first else self._with.overlay_provider.recover
            self._view = await act(
                spec=self._request.spec, operation=operation, materialization=materialization, trial=trial
            )
        known = self.record.receipt_fingerprint
        if known not in (None, self._view.receipt.fingerprint):
            raise self._conflict("the overlay gives another receipt than the journal has")
        return self._view

    async def _evaluation(self, first: bool = False) -> EvalTrialResult:
        """Return the evaluation; `first` says that nobody can have asked for it before."""
        if self._evaluated is None:
            operation_id = fingerprint("cayu.memory-intervention-evaluation", self.record.execution_id)
            act = self._with.evaluator.evaluate if first else self._with.evaluator.recover
            found = await act(operation_id=operation_id, case=self._request.case, runtime=self._runtime)
            self._evaluated = EvalTrialResult.model_validate(found)
        known = self.record.eval_result_revision
        if known not in (None, memory_intervention_eval_result_revision(self._evaluated)):
            raise self._conflict("the evaluator gives another result than the journal has")
        return self._evaluated

    async def _result_binding(self) -> AgentSnapshotResultBinding:
        _, trial, _ = await self._parts()
        runtime = self._runtime
        memory = fingerprint("cayu.memory-evidence", runtime.attribution.model_dump(mode="json"))
        return AgentSnapshotResultBinding.create(
            trial_fingerprint=trial.fingerprint,
            session_id=runtime.session_id,
            terminal_disposition=runtime.terminal_disposition,
            runtime_evidence_fingerprint=runtime.runtime_evidence_fingerprint,
            eval_result_revision=self.record.eval_result_revision,
            memory_evidence_fingerprint=memory if runtime.terminal_evidence_available else None,
            usage_fingerprint=runtime.usage_fingerprint,
            cost_fingerprint=runtime.cost_fingerprint,
            recorded_at=self._clock(),
        )

    async def _binding(self, result: AgentSnapshotResultBinding) -> MemoryInterventionTrialBinding:
        _, trial, operation = await self._parts()
        return MemoryInterventionTrialBinding.create(
            spec=self._request.spec,
            operation=operation,
            receipt=(await self._opened()).receipt,
            trial=trial,
            result=result,
            attribution=self._runtime.attribution,
        )

    async def _advance(self, phase: Phase, **known: Any) -> None:
        """Write the next phase; when another process was faster, go on from where it is."""
        moment = max(self._clock(), self.record.updated_at)
        desired = self.record.advanced(phase, updated_at=moment, **known)
        try:
            self.record = await self._with.executions.compare_and_set(self.record, desired)
        except MemoryInterventionExecutionConflict:
            before = ORDER[self.record.phase]
            await self._read_again()
            if ORDER[self.record.phase] <= before:
                raise

    async def _read_again(self) -> None:
        found = await self._with.executions.load(self.record.execution_id)
        if found is None or found.immutable_identity() != self.record.immutable_identity():
            raise self._conflict("its row is gone, or is another execution's")
        self.record, self._fresh = found, False

    @property
    def _runtime(self) -> MemoryInterventionRuntimeResult:
        """What the session came to, as the journal has it."""
        if self._result is None:
            self._result = MemoryInterventionRuntimeResult.model_validate_json(
                dumps(self.record.runtime_result_payload)
            )
        return self._result

    @property
    def _access(self) -> KnowledgeAccessScope:
        return KnowledgeAccessScope.model_validate(self._snapshot.component(KNOWLEDGE_FRONTIER).material["access"])

    @property
    def _profile(self) -> AgentSnapshotExecutionProfileRef:
        return AgentSnapshotExecutionProfileRef.model_validate(self._snapshot.component(EXECUTION_PROFILE).material)

    def _conflict(self, reason: str) -> MemoryInterventionExecutionConflict:
        return MemoryInterventionExecutionConflict(execution_id=self.record.execution_id, reason=reason)
