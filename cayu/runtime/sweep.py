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
    SessionNotRunning,
    SessionRunning,
)
from cayu.runtime.admission import stand
from cayu.runtime.cascade import ask_to_stop
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import enter_recovery
from cayu.runtime.lineage import descendants
from cayu.runtime.plans import inspect
from cayu.sessions.plans import BlockerCode
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest

Blocked = dict[str, tuple[BlockerCode, ...]]
"""What stands against a session, by its id."""

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
        name = head.row.id
        if head.state.status not in UNFINISHED:
            continue
        found = await inspect(services, name)
        if BlockerCode.ACTIVE_EXECUTION_OWNER in found.item.blocker_codes and found.standing is not None:
            await ask_to_stop(services, found.standing, InterruptSessionRequest(session_id=name), root_id)
        codes = found.item.blocker_codes or await end_interrupted(services, name, root_id)
        if codes:
            blocked[name] = codes
    return blocked


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
