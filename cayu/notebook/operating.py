"""Operating stuck sessions from a lab: recover, plan, execute, interrupt, each with a twin that is awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pandas as pd

from cayu.events import Event
from cayu.notebook import frames
from cayu.notebook.frames import Ask
from cayu.notebook.handles import Bundle, SessionHandle
from cayu.notebook.html import card, esc, table
from cayu.notebook.naming import Named, actor, login, session_id
from cayu.runtime.app import CayuApp
from cayu.sessions.plans import (
    NeededDecision,
    RecoveryDecision,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
)
from cayu.sessions.requests import InterruptSessionRequest

T = TypeVar("T")
OnEvent = Callable[[Event], None]
"""What watches a run's events as they come."""


class Operating(ABC):
    """What a lab does with sessions that were cut off."""

    @abstractmethod
    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine on the lab's loop and wait for it."""

    @abstractmethod
    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Await any coroutine that runs on the lab's loop."""

    @abstractmethod
    def _working(self) -> CayuApp:
        """Return the application, when the lab has one to work with."""

    @abstractmethod
    async def _consume(self, events: AsyncGenerator[Event, None], on_event: OnEvent | None) -> SessionHandle:
        """Take a run's events to their end."""

    def recover(self, session: Named, *, on_event: OnEvent | None = None) -> SessionHandle:
        """Go on with a session whose process was lost."""
        return self.call(self._recover(session, on_event))

    async def arecover(self, session: Named, *, on_event: OnEvent | None = None) -> SessionHandle:
        """Await `recover`."""
        return await self.acall(self._recover(session, on_event))

    async def _recover(self, session: Named, on_event: OnEvent | None) -> SessionHandle:
        return await self._consume(self._working().recover_incomplete_session(session_id(session)), on_event)

    def plan_recovery(
        self, session: Named | None = None, *, agent: str | None = None, inactive_for_seconds: float = 0.0
    ) -> PlanHandle:
        """Say what recovery would do with a session, or with all that are not at rest; writes nothing."""
        return self.call(self._plan(session, agent, inactive_for_seconds))

    async def aplan_recovery(
        self, session: Named | None = None, *, agent: str | None = None, inactive_for_seconds: float = 0.0
    ) -> PlanHandle:
        """Await `plan_recovery`."""
        return await self.acall(self._plan(session, agent, inactive_for_seconds))

    async def _plan(self, session: Named | None, agent: str | None, inactive_for_seconds: float) -> PlanHandle:
        request = RecoveryPlanRequest(
            session_ids=() if session is None else (session_id(session),),
            agent_name=agent,
            inactive_for_seconds=inactive_for_seconds,
        )
        return PlanHandle(self, await self._working().plan_recovery(request))

    def execute_recovery(
        self,
        plan: RecoveryPlan | PlanHandle,
        execution_id: str,
        decisions: Sequence[RecoveryDecision] = (),
        *,
        by: str | None = None,
    ) -> RecoveryExecution:
        """Do what a plan says, with what you have found out; an exact repeat under the same id does nothing."""
        return self.call(self._execute(plan, execution_id, decisions, by))

    async def aexecute_recovery(
        self,
        plan: RecoveryPlan | PlanHandle,
        execution_id: str,
        decisions: Sequence[RecoveryDecision] = (),
        *,
        by: str | None = None,
    ) -> RecoveryExecution:
        """Await `execute_recovery`."""
        return await self.acall(self._execute(plan, execution_id, decisions, by))

    async def _execute(
        self,
        plan: RecoveryPlan | PlanHandle,
        execution_id: str,
        decisions: Sequence[RecoveryDecision],
        by: str | None,
    ) -> RecoveryExecution:
        request = RecoveryExecutionRequest(
            plan=plan.plan if isinstance(plan, PlanHandle) else plan,
            execution_id=execution_id,
            decisions=tuple(decisions),
            requested_by=actor(by),
        )
        return await self._working().execute_recovery(request)

    def interrupt(self, session: Named, reason: str | None = None) -> None:
        """Ask a running session, and everything below it, to stop."""
        self.call(self._interrupt(session, reason))

    async def ainterrupt(self, session: Named, reason: str | None = None) -> None:
        """Await `interrupt`."""
        await self.acall(self._interrupt(session, reason))

    async def _interrupt(self, session: Named, reason: str | None) -> None:
        request = InterruptSessionRequest(session_id=session_id(session), reason=reason, requested_by=login())
        async with aclosing(self._working().interrupt_session(request)) as events:
            async for _ in events:
                pass


class PlanHandle:
    """A recovery plan that shows itself."""

    def __init__(self, lab: Operating, plan: RecoveryPlan) -> None:
        self.lab = lab
        self.plan = plan

    @property
    def df(self) -> pd.DataFrame:
        """A row per decision that is needed, or per session that needs none. See `schema("plan_df")`."""
        rows = [_row(item, need) for item, need in self._lines()]
        ask = Ask("plan_df")
        names = [column.name for column in ask.wanted()]
        return frames.finished(ask, {name: [row[name] for row in rows] for name in names})

    def _lines(self) -> list[tuple[RecoveryPlanItem, NeededDecision | None]]:
        return [(item, need) for item in self.plan.items for need in (item.needed_decisions or (None,))]

    def execute(
        self, execution_id: str, decisions: Sequence[RecoveryDecision] = (), *, by: str | None = None
    ) -> RecoveryExecution:
        """Execute the plan. See `Lab.execute_recovery`."""
        return self.lab.execute_recovery(self, execution_id, decisions, by=by)

    def __repr__(self) -> str:
        """Say what is planned, a line each."""
        lines = [f"<Plan {self.plan.plan_id[:12]} of {self.plan.inspected_session_count} session(s)>"]
        return "\n".join([*lines, *(f"<{item.session_id}: {_said(item)}>" for item in self.plan.items)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        shown = [
            (item.session_id, item.agent_name, item.status, _said(item), *_wanted(need)) for item, need in self._lines()
        ]
        head = ("Session", "Agent", "Status", "What is done", "To decide", "Call")
        note = f'<div class="cayu-muted">plan <code>{esc(self.plan.plan_id[:16])}…</code></div>'
        body = [table(head, shown) if shown else "<div>Nothing is at unrest.</div>", note]
        badge = f"{len(self.plan.items)} of {self.plan.inspected_session_count}"
        return {"text/plain": repr(self), "text/html": card("Recovery plan", badge, body, kind="pending")}


def _said(item: RecoveryPlanItem) -> str:
    codes = ", ".join(code.replace("_", " ") for code in item.blocker_codes)
    return f"left intact: {codes}" if codes else item.action.replace("_", " ")


def _wanted(need: NeededDecision | None) -> tuple[str | None, str | None]:
    return (need.tool_name or need.subject, need.tool_call_id) if need else (None, None)


def _row(item: RecoveryPlanItem, need: NeededDecision | None) -> dict[str, Any]:
    return {
        "session_id": item.session_id,
        "agent_name": item.agent_name,
        "status": item.status,
        "action": str(item.action),
        "blockers": ", ".join(item.blocker_codes),
        "subject": need.subject if need else None,
        "tool_call_id": need.tool_call_id if need else None,
        "tool_name": need.tool_name if need else None,
        "effect": str(need.tool_effect) if need and need.tool_effect else None,
        "attempt": need.attempt if need else None,
        "allowed_actions": ", ".join(need.allowed_actions) if need else None,
        "optional": need.optional if need else None,
        "idempotency_key": need.idempotency_key if need else None,
        "arguments_digest": need.arguments_digest if need else None,
    }
