"""The sweep at startup: interruptions that a crash has cut off are brought to their end, each by itself.

A session that cannot be brought to rest here - its registrations have changed, an outcome is unknown, somebody has it
in hand - keeps its log as it is and is reported with fixed codes. What is wrong with the store fails the sweep.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from cayu.errors import (
    ExecutionProfileError,
    InvalidSessionLog,
    MissingBinding,
    NotRegistered,
    SessionNeedsRecovery,
    SessionNotRunning,
    SessionRunning,
)
from cayu.runtime.admission import stand
from cayu.runtime.cascade import ask_to_stop
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import enter_recovery
from cayu.runtime.lineage import descendants
from cayu.runtime.restart import Inspection, inspect
from cayu.sessions.plans import (
    MAX_BLOCKED,
    BlockedSession,
    BlockerCode,
    RecoveryPlanItem,
    StartupRecoveryResult,
)
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead

PAGE = 200
BY_HUMAN = frozenset({"interrupt_requested", "cancelled"})
"""Reasons of an interruption that reaches the sessions below."""

_CODES: tuple[tuple[type[Exception], BlockerCode], ...] = (
    (ExecutionProfileError, BlockerCode.REGISTRATION_INCOMPATIBLE),
    (NotRegistered, BlockerCode.REGISTRATION_UNAVAILABLE),
    (MissingBinding, BlockerCode.REGISTRATION_UNAVAILABLE),
    (SessionNeedsRecovery, BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN),
    (SessionRunning, BlockerCode.ACTIVE_EXECUTION_OWNER),
    (InvalidSessionLog, BlockerCode.INVALID_DURABLE_STATE),
)
"""What may turn out after a root was planned, with the code under which it is reported."""


class Startup:
    """The sweeps of one application, and the latest result."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._blocked: dict[str, tuple[BlockerCode, ...]] = {}
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
        async for head in self._heads(SessionStatus.INTERRUPTING):
            if head.row.parent_session_id is None or not await self._is_stopped(head.row.parent_session_id):
                yield head.row.id
        async for head in self._heads(SessionStatus.RUNNING):
            parent = head.row.parent_session_id
            if parent is not None and await self._was_interrupted(parent):
                yield head.row.id

    async def _heads(self, status: SessionStatus) -> AsyncIterator[StreamHead]:
        after: str | None = None
        while True:
            page = await self._services.store.heads(HeadQuery(status=status, after=after, limit=PAGE))
            for head in page.rows:
                yield head
            after = page.next
            if after is None:
                return

    async def _is_stopped(self, parent_id: str) -> bool:
        """True when the parent is being interrupted too, so that its own turn reaches the child."""
        page = await self._services.store.heads(HeadQuery(session_id=parent_id, limit=1))
        return bool(page.rows) and page.rows[0].state.status == SessionStatus.INTERRUPTING

    async def _was_interrupted(self, parent_id: str) -> bool:
        try:
            view = (await stand(self._services, parent_id)).view
        except InvalidSessionLog:
            return False
        reason = (view.interruption or {}).get("reason")
        return view.status == SessionStatus.INTERRUPTED and reason in BY_HUMAN

    async def _take_up(self, found: Inspection) -> bool:
        """Bring one root and what is below it to rest; True when nothing stood in the way of the root itself."""
        if not self._may_act(found.item):
            return False
        root_id = found.item.session_id
        for head in reversed(await descendants(self._services.store, root_id)):
            if head.state.status in UNFINISHED:
                await self._stop_child(await inspect(self._services, head.row.id), root_id)
        return await self._end(root_id, root_id)

    async def _stop_child(self, found: Inspection, root_id: str) -> None:
        """End a session below a root; one that somebody has in hand is asked to stop, and ends by itself."""
        if BlockerCode.ACTIVE_EXECUTION_OWNER in found.item.blocker_codes and found.standing is not None:
            request = InterruptSessionRequest(session_id=found.item.session_id)
            await ask_to_stop(self._services, found.standing, request, root_id)
        if self._may_act(found.item):
            await self._end(found.item.session_id, root_id)

    def _may_act(self, item: RecoveryPlanItem) -> bool:
        if item.blocker_codes:
            self._blocked[item.session_id] = item.blocker_codes
        return not item.blocker_codes

    async def _end(self, session_id: str, root_id: str) -> bool:
        """End one session as interrupted, through the ordinary door; what turns out now isolates it too."""
        services = self._services
        try:
            standing = await stand(services, session_id)
            request = InterruptSessionRequest(session_id=session_id)
            await ask_to_stop(services, standing, request, root_id)
            async with aclosing(Drive(services, enter_recovery(session_id)).events()) as events:
                async for _ in events:
                    pass
        except SessionNotRunning:
            return True
        except tuple(kind for kind, _ in _CODES) as refusal:
            code = next(code for kind, code in _CODES if isinstance(refusal, kind))
            self._blocked[session_id] = (code,)
            return False
        return True
