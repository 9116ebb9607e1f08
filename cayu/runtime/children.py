"""Child sessions: one call's agent at work in a session of its own, found again after a crash by the call's id."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cayu.errors import CayuError, InvalidSessionLog, SessionNotFound
from cayu.messages import Message
from cayu.runtime.admission import Enter, Standing, stand
from cayu.runtime.drive import Drive
from cayu.runtime.entries import enter_recovery, enter_run
from cayu.runtime.lineage import ancestors
from cayu.sessions.records import RESERVED_FOR
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import RunRequest
from cayu.sessions.view import CallView, SessionView
from cayu.shielding import outlast
from cayu.tools.reconcilers import ChildStopped
from cayu.tools.spec import ChildOutcome, ChildSessions, ChildTask
from cayu.tools.subagents import ANSWERS, child_outcome, child_session_id

POLL_SECONDS = 0.5
"""How often a child that is in other hands is looked at."""
GRACE_SHARE = 0.5
"""Share of its parent's grace that an interrupted child may use, so that its end is known in time."""


class ChildRunner(ChildSessions):
    """Runs the child session of one call."""

    def __init__(self, parent: Drive, call: CallView) -> None:
        self._services = parent.services
        self._parent = parent
        self._call_id = call.id
        self._id = child_session_id(call.id)

    async def run(self, task: ChildTask) -> ChildOutcome:
        """Run the child, or go on with it where it stands; a cancellation interrupts it."""
        try:
            standing = await self._free()
        except InvalidSessionLog as unreadable:
            raise ChildStopped from unreadable
        except SessionNotFound:
            refusal = await self._too_deep()
            if refusal is not None:
                return refusal
            return await self._drive(enter_run(self._request(task)))
        if standing.view.status in UNFINISHED:
            return await self._drive(enter_recovery(self._id))
        return _ended(standing.view)

    async def _free(self) -> Standing:
        """Return the child once nobody else works on it: it has ended, or its owner's lease has run out."""
        while True:
            standing = await stand(self._services, self._id)
            if standing.view.status not in UNFINISHED or not standing.owned:
                return standing
            await asyncio.sleep(POLL_SECONDS)

    async def _drive(self, enter: Enter) -> ChildOutcome:
        config = self._parent.config
        patient = replace(config, cancel_grace_seconds=config.cancel_grace_seconds * GRACE_SHARE)
        try:
            async with aclosing(Drive(self._services, enter, patient).events()) as events:
                async for _ in events:
                    pass
        except asyncio.CancelledError:
            try:
                return await outlast(self._stopped())
            except SessionNotFound:
                raise asyncio.CancelledError from None
        except CayuError as error:
            return await self._not_run(error)
        return await self._stopped()

    async def _not_run(self, error: CayuError) -> ChildOutcome:
        """Return why there is no child; one that has begun and cannot go on here may have acted."""
        try:
            return await self._stopped()
        except SessionNotFound:
            return ChildOutcome(self._id, "not run", "", type(error).__name__)
        except (ChildStopped, InvalidSessionLog) as stopped:
            raise ChildStopped from stopped

    async def _stopped(self) -> ChildOutcome:
        """Return where the child has come to. Raises `ChildStopped` while it waits for somebody."""
        return _ended((await stand(self._services, self._id)).view)

    async def _too_deep(self) -> ChildOutcome | None:
        row = self._parent.log.view.row
        depth = 1 + len(await ancestors(self._services.store, row.parent_session_id))
        if depth <= self._services.config.max_child_depth:
            return None
        return ChildOutcome(self._id, "not run", "", f"sessions nest no deeper than {depth - 1}")

    def _request(self, task: ChildTask) -> RunRequest:
        view: SessionView = self._parent.log.view
        return RunRequest(
            agent_name=task.agent_name,
            messages=(Message.text("user", task.task),),
            session_id=self._id,
            environment_name=view.row.environment_name,
            max_steps=task.max_steps,
            limits=task.limits,
            budget_limits=view.run.budget_limits,
            parent_session_id=view.row.id,
            causal_budget_id=view.row.causal_budget_id,
            metadata=self._answering(task),
        )

    def _answering(self, task: ChildTask) -> dict[str, Any]:
        above = self._parent.log.view.row.metadata or {}
        kept: dict[str, Any] = {RESERVED_FOR: above[RESERVED_FOR]} if RESERVED_FOR in above else {}
        if task.answer_characters is None:
            return kept
        return kept | {ANSWERS: {"call": self._call_id, "characters": task.answer_characters}}


def _ended(view: SessionView) -> ChildOutcome:
    """Return how a child has ended. Raises `ChildStopped` for one that is at work, or waits for somebody."""
    if view.status in UNFINISHED or view.open_round is not None:
        raise ChildStopped
    return child_outcome(view)
