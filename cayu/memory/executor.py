"""The executor: takes a request, makes sure that it may be carried out as it says, and sees it through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from cayu.crashpoints import reach
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import (
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    memory_intervention_request_key,
)
from cayu.interventions.results import MemoryInterventionTrialOutcome
from cayu.memory.capabilities import (
    MemoryInterventionEvaluator,
    MemoryInterventionExecutorAuthority,
    MemoryInterventionExecutorStatePaths,
    MemoryInterventionOverlayProvider,
    MemoryInterventionRuntimeRunner,
)
from cayu.memory.checks import check_snapshot
from cayu.memory.stages import Trial
from cayu.snapshots.coordinator import AgentSnapshotCoordinator
from cayu.snapshots.records import AgentSnapshot


class MemoryInterventionExecutor:
    """Executes fixed interventions, each exactly once, however often it is asked to and wherever it was cut off."""

    def __init__(
        self,
        *,
        snapshots: AgentSnapshotCoordinator,
        executions: MemoryInterventionExecutionStore,
        overlay_provider: MemoryInterventionOverlayProvider,
        runtime_runner: MemoryInterventionRuntimeRunner,
        evaluator: MemoryInterventionEvaluator,
        request_keys: Mapping[str, MemoryInterventionRequestFingerprintKey],
        current_request_key_id: str,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Bind the components.

        New requests are identified under the current key; a record made under an earlier one replays for as long as
        that key is among `request_keys`. `clock` gives aware datetimes. Raises `InvalidInput` for a current key that is
        not there.
        """
        memory_intervention_request_key(request_keys, current_request_key_id)
        self._snapshots = snapshots
        self._executions = executions
        self._overlay_provider = overlay_provider
        self._runtime_runner = runtime_runner
        self._evaluator = evaluator
        self._keys = dict(request_keys)
        self._current = current_request_key_id
        self._clock = clock or _now
        self._known: dict[str, AgentSnapshot] = {}

    @property
    def snapshots(self) -> AgentSnapshotCoordinator:
        """The snapshots that trials start from."""
        return self._snapshots

    @property
    def executions(self) -> MemoryInterventionExecutionStore:
        """The journal."""
        return self._executions

    @property
    def overlay_provider(self) -> MemoryInterventionOverlayProvider:
        """What changes memory."""
        return self._overlay_provider

    @property
    def runtime_runner(self) -> MemoryInterventionRuntimeRunner:
        """What runs sessions."""
        return self._runtime_runner

    @property
    def evaluator(self) -> MemoryInterventionEvaluator:
        """What evaluates sessions."""
        return self._evaluator

    @property
    def execution_authority(self) -> MemoryInterventionExecutorAuthority:
        """The identities of all components as they are now.

        Raises what the runner raises when its provider is not the one that it was made with.
        """
        runner = self._runtime_runner
        return MemoryInterventionExecutorAuthority(
            overlay_provider_id=self._overlay_provider.provider_id,
            overlay_provider_fingerprint=self._overlay_provider.execution_profile_fingerprint,
            runtime_runner_fingerprint=runner.execution_profile_fingerprint,
            evaluator_fingerprint=self._evaluator.evaluator_fingerprint,
            provider_configuration_fingerprint=runner.current_provider_configuration_fingerprint(),
            provider_execution_mode=runner.current_provider_execution_mode(),
        )

    def durable_state_paths(self) -> MemoryInterventionExecutorStatePaths:
        """Return the local files of the stores that this executor uses."""
        return MemoryInterventionExecutorStatePaths(
            snapshot_store=self._snapshots.store.durable_state_paths(),
            execution_store=self._executions.durable_state_paths(),
            runtime_session_store=self._runtime_runner.durable_state_paths(),
            runtime_budget_ledger=self._runtime_runner.durable_budget_ledger_paths(),
        )

    async def execute_trial(
        self, request: MemoryInterventionTrialRequest, *, admission_check: Callable[[], None] | None = None
    ) -> MemoryInterventionTrialOutcome:
        """Execute a trial, or go on with it, or return what came of it before.

        `admission_check` is asked before anything is written or started; what it raises is raised. A cancellation is
        raised once the session is at its end, or can be brought there by the same call again. Raises
        `MemoryInterventionExecutionConflict` when the execution was begun otherwise, `SnapshotConflict` when the
        snapshot does not hold any more, and `InvalidInput`.
        """
        if not isinstance(request, MemoryInterventionTrialRequest):
            raise InvalidInput(f"{type(request).__name__} is not a MemoryInterventionTrialRequest.")
        stands = await self._executions.load(request.execution_id)
        key = self._key(stands, request)
        prepared = self._prepared(request, key)
        snapshot = await self._snapshot(request)
        if stands is None or not stands.is_terminal:
            await self._runtime_runner.check_request(request)
            check_snapshot(request, snapshot, prepared)
            if admission_check is not None:
                admission_check()
        if stands is None:
            stands = await self._begun(prepared, request)
            key = self._key(stands, request)
        else:
            _check_replay(stands, prepared)
        return await Trial(self, request, stands, key, snapshot, self._clock).through()

    async def _begun(
        self, prepared: MemoryInterventionExecutionRecord, request: MemoryInterventionTrialRequest
    ) -> MemoryInterventionExecutionRecord:
        """Write the first record, or take the one that another process has written meanwhile."""
        try:
            stands = await self._executions.begin(prepared)
        except MemoryInterventionExecutionConflict:
            found = await self._executions.load(request.execution_id)
            if found is None:
                raise
            stands = found
            _check_replay(stands, self._prepared(request, self._key(stands, request)))
        reach("trial.prepared")
        return stands

    def _key(
        self, stands: MemoryInterventionExecutionRecord | None, request: MemoryInterventionTrialRequest
    ) -> MemoryInterventionRequestFingerprintKey:
        """Return the key under which the request has its identity. Raises for a record whose key was taken away."""
        key_id = stands.request_key_id if stands is not None else self._current
        try:
            return memory_intervention_request_key(self._keys, key_id)
        except InvalidInput:
            reason = f"it was begun under the request key {key_id!r}, which is not among the keys any more"
            raise MemoryInterventionExecutionConflict(execution_id=request.execution_id, reason=reason) from None

    def _prepared(
        self, request: MemoryInterventionTrialRequest, key: MemoryInterventionRequestFingerprintKey
    ) -> MemoryInterventionExecutionRecord:
        """Return the first record of the request over the components as they are now."""
        authority = self.execution_authority
        return MemoryInterventionExecutionRecord.prepare(
            request,
            key=key,
            overlay_provider_fingerprint=authority.overlay_provider_fingerprint,
            overlay_provider_id=authority.overlay_provider_id,
            runtime_runner_fingerprint=authority.runtime_runner_fingerprint,
            runtime_execution_profile_fingerprint=self._runtime_runner.required_execution_profile_fingerprint(
                request.spec
            ),
            evaluator_fingerprint=authority.evaluator_fingerprint,
            created_at=self._clock(),
        )

    async def _snapshot(self, request: MemoryInterventionTrialRequest) -> AgentSnapshot:
        name = request.spec.snapshot_fingerprint
        if name not in self._known:
            self._known[name] = await self._snapshots.load(name)
        return self._known[name]


def _check_replay(stands: MemoryInterventionExecutionRecord, prepared: MemoryInterventionExecutionRecord) -> None:
    """Raise unless a record is of the same request, carried out by the same components."""
    if stands.replay_identity() == prepared.replay_identity():
        return
    differing = [name for name in type(stands).model_fields if name in _WHAT and _differ(stands, prepared, name)]
    what = ", ".join(dict.fromkeys(_WHAT[name] for name in differing)) or "the request"
    reason = f"it was begun with another identity of {what}"
    raise MemoryInterventionExecutionConflict(execution_id=stands.execution_id, reason=reason)


def _differ(one: MemoryInterventionExecutionRecord, other: MemoryInterventionExecutionRecord, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


_WHAT = {
    "request_fingerprint": "the request",
    "overlay_provider_id": "the overlay provider",
    "overlay_provider_fingerprint": "the overlay provider",
    "runtime_runner_fingerprint": "the runtime runner",
    "runtime_execution_profile_fingerprint": "the application",
    "evaluator_fingerprint": "the evaluator",
}


def _now() -> datetime:
    return datetime.now(UTC)
