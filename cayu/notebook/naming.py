"""How a notebook names things: sessions and actions by id or handle, and the person at the keyboard."""

from __future__ import annotations

import os

from cayu.errors import InvalidInput
from cayu.notebook.handles import ApprovalHandle, SessionHandle
from cayu.sessions.records import PendingAction
from cayu.sessions.requests import ResolutionActor

Named = str | SessionHandle
"""A session, by its id or its handle."""
Decidable = PendingAction | ApprovalHandle
"""What waits for a human, as `pending()` gives it."""


def session_id(session: Named) -> str:
    """Return the id of a session that is named in either way."""
    found = session.id if isinstance(session, SessionHandle) else session
    if not isinstance(found, str):
        raise InvalidInput(f"A session is named by its id or its handle, not by {type(session).__name__}.")
    return found


def pending_action(action: Decidable) -> PendingAction:
    """Return the action behind a handle, or the action itself."""
    found = action.action if isinstance(action, ApprovalHandle) else action
    if not isinstance(found, PendingAction):
        raise InvalidInput(f"An action is one of lab.pending(), not {type(action).__name__}.")
    return found


def login() -> str:
    """Return the name of whoever works here."""
    return os.environ.get("USER") or os.environ.get("USERNAME") or "notebook"


def actor(by: str | None) -> ResolutionActor:
    """Return who decides: the name given, or whoever works here."""
    return ResolutionActor(subject=by or login(), source="notebook")
