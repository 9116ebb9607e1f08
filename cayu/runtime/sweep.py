"""Bringing an interruption that was cut off to its end, each session by itself and through the ordinary door.

A session that something stands against keeps its log as it is; whatever turns out only when it is entered isolates it
too. Failures of the store, and errors of no known kind, are raised.
"""

from __future__ import annotations

from contextlib import aclosing

from cayu.errors import (
    ExecutionProfileError,
    InvalidSessionLog,
    MissingBinding,
    NotRegistered,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionNotRunning,
    SessionRunning,
)
from cayu.runtime.admission import stand
from cayu.runtime.cascade import ask_to_stop
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import enter_recovery
from cayu.runtime.lineage import ancestors, descendants
from cayu.runtime.plans import Inspection, inspect
from cayu.sessions.plans import BlockerCode
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest
from cayu.sessions.states import SessionStatus
from cayu.sessions.view import SessionView

Blocked = dict[str, tuple[BlockerCode, ...]]
"""What stands against a session, by its id."""

OWNED = frozenset({BlockerCode.ACTIVE_EXECUTION_OWNER, BlockerCode.ACTIVE_RECOVERY_CLAIM})
"""Codes of a session that somebody has in hand."""
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
"""What may turn out after a session was inspected, with the code under which it is reported."""


async def end_below(services: Services, root_id: str) -> Blocked:
    """End what works for a session that is being interrupted, the youngest first; return what had to stay.

    A session that somebody has in hand is asked to stop, and ends by itself.
    """
    blocked: Blocked = {}
    for head in reversed(await descendants(services.store, root_id)):
        if head.state.status not in UNFINISHED:
            continue
        found = await inspect(services, head.row.id)
        if found.view is None or await stopping_ancestor(services, found.view) is not None:
            blocked |= await end_found(services, found, root_id)
    return blocked


async def end_found(services: Services, found: Inspection, root_id: str) -> Blocked:
    """End one session that was inspected; one that somebody has in hand is asked to stop, and ends by itself."""
    name, codes = found.item.session_id, found.item.blocker_codes
    if (
        found.view is not None
        and found.standing is not None
        and not OWNED.isdisjoint(codes)
        and not _is_asked(found.view)
    ):
        await ask_to_stop(services, found.standing, InterruptSessionRequest(session_id=name), root_id)
    codes = codes or await end_interrupted(services, name, root_id)
    return {name: codes} if codes else {}


def _is_asked(view: SessionView) -> bool:
    return view.status not in UNFINISHED or view.interrupt_requested


async def stopping_ancestor(services: Services, view: SessionView) -> str | None:
    """Return the nearest session above whose interruption reaches the run that `view` is in, None when none does.

    A run that somebody has begun by hand after the interruption is not reached by it.
    """
    for name in await ancestors(services.store, view.row.parent_session_id):
        try:
            above = (await stand(services, name)).view
        except (InvalidSessionLog, SessionNotFound):
            continue
        if above.status == SessionStatus.INTERRUPTING:
            since = above.interrupt_requested_at if view.run.resumed else None
            if since is None or view.run.started_at <= since:
                return name
        reason = (above.interruption or {}).get("reason")
        by_human = above.status == SessionStatus.INTERRUPTED and reason in BY_HUMAN
        if by_human and above.interrupted_at is not None and view.run.started_at <= above.interrupted_at:
            return name
    return None


async def end_interrupted(services: Services, session_id: str, root_id: str) -> tuple[BlockerCode, ...]:
    """End one session as interrupted; return what stood against it, nothing when it has ended."""
    try:
        standing = await stand(services, session_id)
        await ask_to_stop(services, standing, InterruptSessionRequest(session_id=session_id), root_id)
        async with aclosing(Drive(services, enter_recovery(session_id)).events()) as events:
            async for _ in events:
                pass
    except SessionNotRunning:
        return ()
    except tuple(kind for kind, _ in _CODES) as refusal:
        return (next(code for kind, code in _CODES if isinstance(refusal, kind)),)
    return ()
