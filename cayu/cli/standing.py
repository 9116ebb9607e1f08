"""Where one session stands: its status and what it waits for, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from cayu.cli.output import table
from cayu.runtime.app import CayuApp
from cayu.sessions.records import PendingAction, PendingActionQuery

MOST_WAITING = 1000
"""Actions of one session that are told."""
CONTENT = frozenset({"arguments", "question", "options"})
"""Fields of a pending action that hold what a model said."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A session as a command leaves it."""

    session_id: str
    status: str
    pending: Sequence[PendingAction]

    def document(self) -> dict[str, Any]:
        """Return the JSON, without what a model said."""
        waits = [action.model_dump(mode="json", exclude=set(CONTENT)) for action in self.pending]
        return {"session_id": self.session_id, "status": self.status, "pending": waits}


async def standing(app: CayuApp, session_id: str) -> Standing:
    """Return where a session stands now. Raises `SessionNotFound`."""
    found = await app.get_session(session_id)
    page = await app.list_pending_actions(PendingActionQuery(session_id=session_id, limit=MOST_WAITING))
    return Standing(session_id, str(found.status), page.actions)


def waiting_lines(actions: Sequence[PendingAction]) -> Iterator[RenderableType]:
    """Yield what waits, without arguments."""
    if actions:
        rows = [(action.id, action.kind, action.tool_name, action.tool_effect, action.expires_at) for action in actions]
        yield table("waits", "kind", "tool", "effect", "until", rows=rows)
