"""Runs a trial's session through the ordinary runtime, over an application that is checked before it is used."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

from cayu.canonical import fingerprint
from cayu.errors import (
    InvalidInput,
    InvalidSessionLog,
    MemoryInterventionExecutionConflict,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionNotRunning,
    SessionRunning,
)
from cayu.events import Event
from cayu.interventions.evidence import MemoryInterventionOperation
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import (
    MemoryInterventionTrialRequest,
    RuntimeSessionCreateClaimReferenceKey,
)
from cayu.interventions.results import MemoryInterventionRuntimeResult
from cayu.interventions.specs import MemoryInterventionSpec
from cayu.memory.capabilities import (
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRuntimeApplicationFactory,
    MemoryInterventionRuntimeRunner,
    MemoryInterventionRuntimeView,
)
from cayu.memory.checks import check_application, check_view
from cayu.memory.evidence import runtime_result
from cayu.recall.attribution import MemoryAttributionBounds
from cayu.runtime.app import CayuApp
from cayu.runtime.lineage import descendants, head_of
from cayu.runtime.outcome import session_standing, session_view
from cayu.sessions.records import RESERVED_FOR
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest, ResumeRequest
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import AgentSnapshotTrialBinding

logger = logging.getLogger("cayu.memory")

MOST_PROJECTION_BYTES = 524_288
"""Bytes of an attribution, so that it has room in a journal record."""
DEFAULT_BOUNDS = MemoryAttributionBounds(max_projection_bytes=MOST_PROJECTION_BYTES)
WAIT_SECONDS = 0.2
"""Between two looks at a session that another process still holds."""
CLAIM = "memory_intervention"
"""The key of a session's metadata under which its trial's claim stands."""


class _Trial(NamedTuple):
    """What the runner is given of one trial."""

    request: MemoryInterventionTrialRequest
    execution: MemoryInterventionExecutionRecord
    starting_execution_profile: AgentSnapshotExecutionProfileRef
    trial: AgentSnapshotTrialBinding
    operation: MemoryInterventionOperation
    view: MemoryInterventionRuntimeView
    reference_key: RuntimeSessionCreateClaimReferenceKey

    @property
    def stopping(self) -> bool:
        """True when the session is only to be brought to its end."""
        return self.execution.runtime_cancellation_observed or self.execution.runtime_timeout_observed


class CayuMemoryInterventionRuntimeRunner(MemoryInterventionRuntimeRunner):
    """Runs trials as ordinary sessions. Their ids, labels and log are read like any other's."""

    def __init__(
        self,
        factory: MemoryInterventionRuntimeApplicationFactory,
        *,
        attribution_bounds: MemoryAttributionBounds | None = None,
    ) -> None:
        """`attribution_bounds` say how much of what a session saw is kept, by default half a MiB.

        The provider's configuration and mode are bound here, and checked against the factory's at each trial. Raises
        `InvalidInput` for bounds that leave no room in a journal record.
        """
        self._factory = factory
        self._bounds = attribution_bounds or DEFAULT_BOUNDS
        if self._bounds.max_projection_bytes > MOST_PROJECTION_BYTES:
            raise InvalidInput(f"An attribution of a trial has at most {MOST_PROJECTION_BYTES} bytes.")
        self._used: weakref.WeakSet[CayuApp] = weakref.WeakSet()
        self.provider_configuration_fingerprint = factory.provider_configuration_fingerprint
        self.provider_execution_mode = factory.provider_execution_mode
        self.execution_profile_fingerprint = fingerprint(
            "cayu.memory-intervention-runner",
            {
                "factory": [factory.factory_id, factory.execution_profile_fingerprint],
                "provider": [self.provider_configuration_fingerprint, str(self.provider_execution_mode)],
                "bounds": self._bounds.model_dump(mode="json"),
            },
        )

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files of the factory's session store."""
        return self._factory.runtime_session_store.durable_state_paths()

    def durable_budget_ledger_paths(self) -> tuple[Path, ...]:
        """Return the local files of the factory's budget ledger."""
        return self._factory.runtime_budget_ledger.durable_state_paths()

    def current_provider_configuration_fingerprint(self) -> str:
        """Return the factory's configuration. Raises `MemoryInterventionExecutionConflict` when it has changed."""
        found = self._factory.provider_configuration_fingerprint
        if found != self.provider_configuration_fingerprint:
            raise _drifted("configuration")
        return found

    def current_provider_execution_mode(self) -> MemoryInterventionProviderExecutionMode:
        """Return the factory's mode. Raises `MemoryInterventionExecutionConflict` when it has changed."""
        found = self._factory.provider_execution_mode
        if found != self.provider_execution_mode:
            raise _drifted("mode")
        return found

    def required_execution_profile_fingerprint(self, spec: MemoryInterventionSpec) -> str:
        """Return what the factory says of the spec."""
        return self._factory.expected_execution_profile_fingerprint(spec)

    async def check_request(self, request: MemoryInterventionTrialRequest) -> None:
        """Raise `InvalidInput` for an application that cannot do what is asked for."""
        await self._factory.check_request(request)

    async def accounting_sessions_belong_to_trial(
        self, execution: MemoryInterventionExecutionRecord, session_ids: Sequence[str]
    ) -> bool:
        """Return whether each session is the trial's own, or was begun below it and spends on its account."""
        store = self._factory.runtime_session_store
        below = {head.row.id: head.row.causal_budget_id for head in await descendants(store, execution.session_id)}
        known = {execution.session_id: execution.causal_budget_id, **below}
        return bool(session_ids) and all(known.get(name) == execution.causal_budget_id for name in session_ids)

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
        """Run the session. A cancellation interrupts it, and is raised once that is durable."""
        given = _Trial(request, execution, starting_execution_profile, trial, operation, view, reference_key)
        app = await self._application(given)
        await self._begin(app, given)
        return await self._result(app, given)

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
        """Start, go on with, or end the claimed session, and return how it ended."""
        given = _Trial(request, execution, starting_execution_profile, trial, operation, view, reference_key)
        app = await self._application(given)
        try:
            if not await self._exists(app, given):
                if not given.stopping:
                    await self._begin(app, given)
            elif given.stopping:
                await _stop(app, execution.session_id)
            else:
                await self._go_on(app, given)
        except InvalidSessionLog:
            logger.warning("the log of trial session %r cannot be read", execution.session_id)
        return await self._result(app, given)

    async def _application(self, given: _Trial) -> CayuApp:
        """Return the trial's application, of which everything that was promised has been checked."""
        check_view(given.execution, given.trial, given.operation, given.view)
        claim = given.execution.runtime_session_create_claim
        if claim is None or not claim.is_of(given.reference_key):
            raise _conflict(given.execution.execution_id, "the session was not claimed under this key")
        self.current_provider_configuration_fingerprint()
        self.current_provider_execution_mode()
        app = await self._factory.create(
            request=given.request,
            execution=given.execution,
            trial=given.trial,
            operation=given.operation,
            view=given.view,
        )
        if not isinstance(app, CayuApp) or app in self._used:
            raise _conflict(given.execution.execution_id, "the factory gave no newly built CayuApp")
        self._used.add(app)
        app.serve(given.execution.execution_id)
        check_application(app, self._factory, given.request, given.execution, given.view)
        return app

    async def _begin(self, app: CayuApp, given: _Trial) -> None:
        """Run the session from its start."""
        request, execution = given.request.run_request, given.execution
        messages = request.messages
        compacts = given.request.context_preparation == "compact_then_resume"
        claimed = request.model_copy(
            update={
                "session_id": execution.session_id,
                "causal_budget_id": execution.causal_budget_id,
                "metadata": request.metadata | {RESERVED_FOR: execution.execution_id, CLAIM: _claim(given)},
                "messages": messages[:-1] if compacts else messages,
            }
        )
        await _through(app.run(claimed))
        if compacts:
            await self._resume_compacted(app, given)

    async def _resume_compacted(self, app: CayuApp, given: _Trial) -> None:
        """Compact the conversation and put the last message, unless that was done or the session has failed."""
        view = await session_view(app, given.execution.session_id)
        request = given.request.run_request
        if view.status != "completed" or view.run.resumed:
            return
        resumed = ResumeRequest(
            session_id=given.execution.session_id,
            messages=request.messages[-1:],
            max_steps=request.max_steps,
            limits=request.limits,
            budget_limits=request.budget_limits,
            compact_context=True,
        )
        await _through(app.resume(resumed))

    async def _go_on(self, app: CayuApp, given: _Trial) -> None:
        """Bring a session that was cut off to its end, by the rules of recovery."""
        session_id = given.execution.session_id
        while (await session_view(app, session_id)).status in UNFINISHED:
            try:
                await _through(app.recover_incomplete_session(session_id))
            except SessionRunning:
                await asyncio.sleep(WAIT_SECONDS)
            except SessionNotRunning:
                continue
            except SessionNeedsRecovery:
                return
        if given.request.context_preparation == "compact_then_resume":
            await self._resume_compacted(app, given)

    async def _exists(self, app: CayuApp, given: _Trial) -> bool:
        """Return whether the trial's session was started. Raises for one that belongs to somebody else."""
        execution = given.execution
        try:
            head = await head_of(app.session_store, execution.session_id)
        except SessionNotFound:
            return False
        if (head.row.metadata or {}).get(CLAIM) != _claim(given):
            raise _conflict(execution.execution_id, "a session of another origin stands under the trial's session id")
        return True

    async def _result(self, app: CayuApp, given: _Trial) -> MemoryInterventionRuntimeResult:
        resumes = given.request.context_preparation == "compact_then_resume"
        return await runtime_result(app.session_store, given.execution, given.reference_key, self._bounds, resumes)


async def _through(events: AsyncGenerator[Event, None]) -> None:
    """Take in everything that a call of the application yields; closing it on the way out interrupts the session."""
    async with aclosing(events) as stream:
        async for _ in stream:
            pass


async def _stop(app: CayuApp, session_id: str) -> None:
    """Interrupt the session wherever it runs, and wait until it has ended; its owner is asked once."""
    asked = False
    while True:
        standing = await session_standing(app, session_id)
        if standing.view.status not in UNFINISHED:
            return
        if not (asked and standing.owned):
            try:
                await _through(app.interrupt_session(InterruptSessionRequest(session_id=session_id)))
            except SessionNotRunning:
                return
            asked = True
        await asyncio.sleep(WAIT_SECONDS)


def _claim(given: _Trial) -> dict[str, Any]:
    claim = given.execution.runtime_session_create_claim
    assert claim is not None
    return {"execution_id": given.execution.execution_id, "claim": claim.model_dump(mode="json")}


def _drifted(what: str) -> MemoryInterventionExecutionConflict:
    reason = f"the provider's {what} is another one than when the runner was made"
    words = f"No trial runs over this runner any more: {reason}. Make a new runner and executor; nothing was changed."
    return MemoryInterventionExecutionConflict(words, execution_id=None, reason=reason)


def _conflict(execution_id: str, reason: str) -> MemoryInterventionExecutionConflict:
    return MemoryInterventionExecutionConflict(execution_id=execution_id, reason=reason)
