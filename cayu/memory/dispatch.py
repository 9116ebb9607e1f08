"""Runs the session of a trial as its one owner, within its deadline, and puts its end into the journal.

Whatever ends the wait - the deadline, a cancellation of the caller - is made durable first. Then the session is brought
to its end, and only then is anybody told.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from cayu.crashpoints import reach
from cayu.errors import MemoryInterventionExecutionConflict
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.ownership import (
    DEFAULT_LEASE_SECONDS,
    Action,
    DurableOperationOwnership,
    DurableOperationOwnershipResult,
    DurableOperationOwnershipTransition,
)
from cayu.interventions.ownership import DurableOperationOwnershipDisposition as Disposition
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.results import (
    MemoryInterventionRuntimeResult,
    memory_intervention_runtime_result_fingerprint,
)
from cayu.runtime.ownership import forget, is_gone, new_owner
from cayu.shielding import finish

logger = logging.getLogger("cayu.memory")

RENEW_SECONDS = DEFAULT_LEASE_SECONDS / 3
WAIT_SECONDS = 0.1
"""Between two looks at a dispatch that another process owns."""
MOST_WRITES = 3
"""Attempts at one step, each under an ownership that was taken anew."""
_TAKEN = (Disposition.ACQUIRED, Disposition.EXPIRED_TAKEN_OVER)

Work = Callable[[MemoryInterventionExecutionRecord], Awaitable[MemoryInterventionRuntimeResult]]


class Dispatch:
    """One attempt at running a trial's session."""

    def __init__(
        self,
        store: MemoryInterventionExecutionStore,
        record: MemoryInterventionExecutionRecord,
        clock: Callable[[], datetime],
    ) -> None:
        """`record` is at `session_bound`."""
        self._store = store
        self._clock = clock
        self.record = record
        self._claim_id = f"claim-{secrets.token_hex(12)}"
        self._owner_id = new_owner()

    def leave(self) -> None:
        """Say that this attempt is over, whatever became of it."""
        forget(self._owner_id)

    async def own(self) -> bool:
        """Wait until the dispatch is ours. False when the execution has gone on without us.

        An owner whose process is provably gone is not waited for: its ownership is released in its name.
        """
        while True:
            found = await self._transition("claim")
            if found.disposition in _TAKEN:
                return True
            if found.disposition in (Disposition.OPERATION_ADVANCED, Disposition.SETTLED):
                return False
            owner = found.ownership
            if found.disposition is not Disposition.EQUIVALENT_LIVE_OWNER or owner is None:
                raise self._conflict(f"its dispatch cannot be owned ({found.disposition})")
            if is_gone(owner.owner_id):
                await self._transition("release", owner)
            else:
                await asyncio.sleep(WAIT_SECONDS)

    async def run(self, start: Work, recover: Work) -> bool:
        """Run the session by `start`, or by `recover` when it may have been dispatched before, and publish its end.

        False when another owner has published it. Raises the caller's cancellation, once the end is durable.
        """
        assert self.record.runtime_dispatch_ownership is not None
        first = self.record.runtime_dispatch_ownership.generation == 1
        renewing = asyncio.create_task(self._renew())
        try:
            return await self._watched(start if first else recover, recover)
        except BaseException:
            await finish(self._release())
            raise
        finally:
            renewing.cancel()

    async def _watched(self, work: Work, recover: Work) -> bool:
        left = self._seconds_left()
        control = None if left > 0 and not self._observed else "runtime_timeout_observed"
        if control is not None:
            return await self._settle(None, control, recover)
        reach("trial.dispatching")
        task = asyncio.ensure_future(work(self.record))
        try:
            done, _ = await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            try:
                await finish(self._settle(task, "runtime_cancellation_observed", recover))
            except Exception as error:  # noqa: BLE001 - the caller is told of the cancellation; the trial goes on later
                logger.warning("a cancelled trial could not be brought to its end: %s", type(error).__name__)
            raise
        if not done:
            return await finish(self._settle(task, "runtime_timeout_observed", recover))
        if task.cancelled():
            raise self._conflict("its runner cancelled itself")
        return await finish(self._publish(task.result()))

    @property
    def _held(self) -> DurableOperationOwnership | None:
        """The ownership, if it is this attempt's."""
        owner = self.record.runtime_dispatch_ownership
        return owner if owner is not None and owner.claim_id == self._claim_id else None

    @property
    def _observed(self) -> bool:
        return self.record.runtime_cancellation_observed or self.record.runtime_timeout_observed

    def _seconds_left(self) -> float:
        deadline = self.record.runtime_deadline_at
        assert deadline is not None
        return (deadline - self._clock()).total_seconds()

    async def _settle(
        self, task: asyncio.Future[MemoryInterventionRuntimeResult] | None, control: str, recover: Work
    ) -> bool:
        """Record why the session is stopped, stop it, and publish how it ended."""
        try:
            step = self._updated({control: True})
            ours = self._observed or await self._write(lambda record: record.advanced(**step))
        finally:
            if task is not None:
                await _stopped(task)
        return ours and await self._publish(await recover(self.record))

    async def _publish(self, result: MemoryInterventionRuntimeResult) -> bool:
        """Put the session's end into the journal, which settles the ownership."""
        reach("trial.settled")
        if result.session_id != self.record.session_id:
            raise self._conflict("the runner reports of another session")

        def ended(record: MemoryInterventionExecutionRecord) -> MemoryInterventionExecutionRecord:
            owner = record.runtime_dispatch_ownership
            assert owner is not None
            return record.advanced(
                Phase.RUNTIME_TERMINAL,
                runtime_dispatch_ownership=owner.settled(owner.renewed_at),
                runtime_evidence_fingerprint=result.runtime_evidence_fingerprint,
                runtime_result_fingerprint=memory_intervention_runtime_result_fingerprint(result),
                runtime_result_payload=result.model_dump(mode="json"),
                **self._updated({}),
            )

        published = await self._write(ended)
        reach("trial.runtime_terminal")
        return published

    async def _write(self, step: Callable[[MemoryInterventionExecutionRecord], Any]) -> bool:
        """Take the record on by one step as its owner. False when it has gone on without us."""
        for attempt in range(MOST_WRITES):
            try:
                self.record = await self._store.compare_and_set(self.record, step(self.record))
                return True
            except MemoryInterventionExecutionConflict:
                found = await self._store.load(self.record.execution_id)
                if found is None or found.revision != self.record.revision:
                    return False
                if attempt == MOST_WRITES - 1:
                    raise
                if not await self.own():  # the lease had run out while nobody else wanted the dispatch
                    return False
        return False

    async def _renew(self) -> None:
        """Prolong the ownership while the session runs; one that has run out is taken again when it is written."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._transition("renew")
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the next renewal is tried
                logger.warning("the ownership of a trial was not renewed: %s", type(error).__name__)

    async def _release(self) -> None:
        """Let others go on at once."""
        try:
            await self._transition("release")
        except Exception as error:  # noqa: BLE001 - it runs out by itself
            logger.warning("the ownership of a trial was not released: %s", type(error).__name__)

    async def _transition(
        self, action: Action, gone: DurableOperationOwnership | None = None
    ) -> DurableOperationOwnershipResult:
        """Ask for a transition of our own ownership, or of one whose owner is gone."""
        held = gone or self._held
        result = await self._store.transition_runtime_dispatch_ownership(
            self.record.execution_id,
            DurableOperationOwnershipTransition(
                operation_id=dispatch_operation(self.record.execution_id),
                claim_id=gone.claim_id if gone is not None else self._claim_id,
                owner_id=gone.owner_id if gone is not None else self._owner_id,
                action=action,
                generation=None if action == "claim" else held.generation if held is not None else 1,
            ),
        )
        if result.ownership.disposition in (*_TAKEN, Disposition.RENEWED):
            self.record = result.execution
        return result.ownership

    def _updated(self, known: dict[str, Any]) -> dict[str, Any]:
        return {**known, "updated_at": max(self._clock(), self.record.updated_at)}

    def _conflict(self, reason: str) -> MemoryInterventionExecutionConflict:
        return MemoryInterventionExecutionConflict(execution_id=self.record.execution_id, reason=reason)


async def _stopped(task: asyncio.Future[MemoryInterventionRuntimeResult]) -> None:
    """Cancel a runner and wait until it has settled what it dispatched."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        logger.warning("a stopped trial's runner failed: %s", type(task.exception()).__name__)
