"""The sweep at startup: interruptions that a crash has cut off are brought to their end, and what had to stay is told.

A session that cannot be brought to rest here - its registrations have changed, an outcome is unknown, somebody has it
in hand - keeps its log as it is and is reported with fixed codes. What is wrong with the store fails the sweep.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from cayu.errors import InvalidSessionLog, SessionNotFound
from cayu.runtime.admission import stand
from cayu.runtime.drive import Services
from cayu.runtime.lineage import head_of, heads_of
from cayu.runtime.plans import Inspection, inspect
from cayu.runtime.sweep import OWNED, Blocked, end_below, end_found, stopping_ancestor
from cayu.sessions.plans import MAX_BLOCKED, BlockedSession, BlockerCode, StartupRecoveryResult
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import StreamHead

TREE_IN_DOUBT = OWNED | {BlockerCode.INVALID_CASCADE_MARKER, BlockerCode.INVALID_DURABLE_STATE}
"""Codes of a root whose tree is left alone."""


class Startup:
    """The sweeps of one application, and the latest result."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._blocked: Blocked = {}
        self.result = StartupRecoveryResult()

    async def sweep(self) -> int:
        """Take up every interruption that was cut off; return how many were brought to their end.

        Everything is planned before anything is written. Store failures and errors of no known kind are raised.
        """
        self._blocked = {}
        self.result = StartupRecoveryResult(status="running", sweep_count=self.result.sweep_count + 1)
        scheduled = 0
        try:
            planned = [await inspect(self._services, name) async for name in self._roots()]
            for found in planned:
                scheduled += await self._take_up(found)
        except BaseException:
            self._report("failed", scheduled)
            raise
        self._report("completed_with_blocked" if self._blocked else "completed", scheduled)
        return scheduled

    def _report(self, status: str, scheduled: int) -> None:
        blocked = [BlockedSession(session_id=name, blocker_codes=codes) for name, codes in self._blocked.items()]
        self.result = StartupRecoveryResult.model_validate(
            {
                "completed": status != "failed",
                "status": status,
                "sweep_count": self.result.sweep_count,
                "scheduled_roots": scheduled,
                "blocked_session_count": len(blocked),
                "blocked_sessions": tuple(blocked[:MAX_BLOCKED]),
                "blocked_sessions_truncated": len(blocked) > MAX_BLOCKED,
            }
        )

    async def _roots(self) -> AsyncIterator[str]:
        """Yield the sessions that are being interrupted, then those whose interrupted parent has left them at work."""
        async for head in heads_of(self._services.store, SessionStatus.INTERRUPTING):
            if not await self._is_reached_from_above(head):
                yield head.row.id
        async for head in heads_of(self._services.store, SessionStatus.RUNNING):
            above = await self._stopped_by(head.row.id) if head.row.parent_session_id is not None else None
            if above is not None and not await self._is_interrupting(above):
                yield head.row.id

    async def _is_reached_from_above(self, head: StreamHead) -> bool:
        """True when the parent is being interrupted too, so that its own turn reaches the child."""
        return head.row.parent_session_id is not None and await self._is_interrupting(head.row.parent_session_id)

    async def _is_interrupting(self, session_id: str) -> bool:
        try:
            return (await head_of(self._services.store, session_id)).state.status == SessionStatus.INTERRUPTING
        except SessionNotFound:
            return False

    async def _stopped_by(self, session_id: str) -> str | None:
        try:
            view = (await stand(self._services, session_id)).view
        except InvalidSessionLog:
            return None
        return await stopping_ancestor(self._services, view)

    async def _take_up(self, found: Inspection) -> bool:
        """Bring one root and what is below it to rest; True when nothing stood against the root itself.

        What is below ends also when the root has to stay, unless somebody has that in hand or it cannot be trusted.
        """
        root_id = found.item.session_id
        if TREE_IN_DOUBT.isdisjoint(found.item.blocker_codes):
            self._blocked |= await end_below(self._services, root_id)
        cascade = await self._stopped_by(root_id) or root_id
        blocked = await end_found(self._services, found, cascade)
        self._blocked |= blocked
        return not blocked
