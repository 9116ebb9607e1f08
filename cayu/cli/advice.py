"""What to do next: the command that goes on from an action that waits, a session that was cut off, or an error."""

from __future__ import annotations

import shlex

from cayu.cli.place import Place, here
from cayu.errors import (
    CayuError,
    PendingActionNotFound,
    SessionAwaitingHuman,
    SessionError,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionNotRunning,
    SessionRunning,
    StaleRecoveryPlanError,
)
from cayu.sessions.records import PendingAction
from cayu.sessions.states import SessionStatus

AT_REST = (SessionStatus.INTERRUPTED, SessionStatus.COMPLETED, SessionStatus.FAILED)
"""Statuses from which a session can be resumed."""
RECOVERY = ".recovery"
"""The end of an id that only a recovery plan settles."""


def plan_command(session_id: str) -> str:
    """Return the command that plans a session's recovery."""
    place = here()
    return f"cayu recovery plan {place.factory} --session {shlex.quote(session_id)} --output plan.json{place.over}"


def action_command(action: PendingAction) -> str:
    """Return the command that decides an action, or begins to."""
    if action.kind == "manual_recovery":
        return plan_command(action.session)
    name = shlex.quote(action.id)
    words = f"answer {name} TEXT" if action.kind == "user_input" else f"approve {name}"
    return f"cayu {words} {_acting(here())}"


def hint_of(error: Exception) -> str | None:
    """Return what helps with an error beside its message: a command, or where was looked; None for nothing."""
    match error:
        case CayuError() if "hint" in error.attributes:
            return str(error.attributes["hint"])
        case StaleRecoveryPlanError():
            return plan_command(error.session_id)
        case SessionError():
            return _session_hint(error, here())
    return None


def _session_hint(error: SessionError, place: Place) -> str | None:
    name = shlex.quote(str(error.attributes.get("session_id") or ""))
    match error:
        case SessionRunning():
            return f"cayu sessions interrupt {name} {_acting(place)}"
        case SessionNotRunning() if error.status in AT_REST:
            return f"cayu sessions resume {name} TEXT {_acting(place)}"
        case SessionAwaitingHuman():
            store = _file(place)
            return f"cayu pending --store {store} --session {name}, then cayu approve, cayu deny or cayu answer"
        case SessionNeedsRecovery():
            return plan_command(error.session_id)
        case SessionNotFound():
            return _looked(place, "sessions list", "what it holds")
        case PendingActionNotFound() if "session_id" not in error.attributes:
            return _looked(place, "pending", "what waits there")
        case PendingActionNotFound() if error.action_id.endswith(RECOVERY):
            return plan_command(error.session_id)
        case PendingActionNotFound():
            return f"cayu pending --store {_file(place)} --session {name}"
    return None


def _looked(place: Place, command: str, listed: str) -> str:
    told = f"looked in store {place.store}"
    return f"{told}; cayu {command} --store {_file(place)} lists {listed}" if place.is_file else told


def _acting(place: Place) -> str:
    return f"--target {place.factory}{place.over}"


def _file(place: Place) -> str:
    """Return the store as a word that `--store` takes."""
    return shlex.quote(str(place.option or place.store)) if place.is_file else "PATH"
