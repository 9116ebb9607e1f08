"""Where sessions stand: following one as it runs, and its status with what it waits for, for people and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cayu.cli.advice import action_command, plan_command
from cayu.cli.output import Whole, cell, console, facts
from cayu.events import Event
from cayu.runtime.app import CayuApp
from cayu.runtime.outcome import lost_sessions, session_view
from cayu.sessions.records import PendingAction, PendingActionQuery
from cayu.sessions.view import SessionView

MOST_WAITING = 1000
"""Actions of one session that are told."""
CONTENT = frozenset({"arguments", "question", "options"})
"""Fields of a pending action that hold what a model said."""
ERROR = ("code", "detail")
INTERRUPTION = ("reason", "limit")
"""The parts of a session's error and of its interruption that are told."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A session as a command leaves it."""

    session_id: str
    status: str
    why: str | None
    """The code of what ended or paused it, with its cause where one is known."""
    cut_off: bool
    """True when its process was lost at work."""
    pending: Sequence[PendingAction]

    def document(self) -> dict[str, Any]:
        """Return the JSON, without what a model said."""
        waits = [action.model_dump(mode="json", exclude=set(CONTENT)) for action in self.pending]
        return {
            "session_id": self.session_id,
            "status": self.status,
            "why": self.why,
            "cut_off": self.cut_off,
            "pending": waits,
        }

    def told(self) -> dict[str, object]:
        """Return what people read of the session, beside what it waits for."""
        return {
            "session": Whole(self.session_id),
            "status": status_line(self.status, self.cut_off),
            "why": self.why,
            "next": Whole(plan_command(self.session_id)) if self.cut_off else None,
        }

    @property
    def outcome_is_open(self) -> bool:
        """True while somebody has to find out whether a call has acted."""
        return any(action.kind == "manual_recovery" for action in self.pending)


async def standing(app: CayuApp, session_id: str) -> Standing:
    """Return where a session stands now. Raises `SessionNotFound`."""
    view = await session_view(app, session_id)
    page = await app.list_pending_actions(PendingActionQuery(session_id=session_id, limit=MOST_WAITING))
    return Standing(
        session_id=session_id,
        status=str(view.status),
        why=why(view),
        cut_off=session_id in await lost_sessions(app),
        pending=page.actions,
    )


def why(view: SessionView) -> str | None:
    """Return the code of what ended or paused a session, with its cause or limit where there is one."""
    told, names = (view.interruption or {}, INTERRUPTION) if view.error is None else (view.error, ERROR)
    return ": ".join(str(told[name]) for name in names if told.get(name)) or None


def status_line(status: str, cut_off: bool) -> str:
    """Return a status, marked when the process was lost."""
    return f"{status} (cut off)" if cut_off else status


async def parents(app: CayuApp, session_ids: Iterable[str]) -> dict[str, str]:
    """Return the sessions for which these work, by id; those that work for none are left out."""
    found = [await app.get_session(name) for name in dict.fromkeys(session_ids)]
    return {each.id: each.parent_session_id for each in found if each.parent_session_id is not None}


def waiting_lines(actions: Sequence[PendingAction]) -> Iterator[RenderableType]:
    """Yield what waits, without arguments, and the command that goes on with each."""
    for action in actions:
        yield Text("")
        yield facts(
            {
                "waits for": action.kind,
                "action": Whole(action.id),
                "tool": action.tool_name and f"{action.tool_name} ({action.tool_effect})",
                "until": action.expires_at and action.expires_at.isoformat(timespec="seconds"),
                "next": Whole(action_command(action)),
            }
        )


async def followed(events: AsyncGenerator[Event, None]) -> list[dict[str, Any]]:
    """Show each stored event as it happens, by type and tool; return them as JSON. The events are closed."""
    told: list[dict[str, Any]] = []
    async with aclosing(events):
        async for event in events:
            if event.sequence is not None:
                console().print(progress(event), soft_wrap=True)
                told.append({"sequence": event.sequence, "type": str(event.type), "tool_name": event.tool_name})
    return told


def progress(event: Event, *beside: str) -> Text:
    """Return one event as a line; `beside` stands between its number and its type."""
    return cell("  ".join([f"{event.sequence:>5}", *beside, str(event.type), event.tool_name or ""]).rstrip())


def more_line(following: str | None) -> Iterator[RenderableType]:
    """Yield how to ask for the next page, if there is one."""
    if following is not None:
        yield facts({"more": Whole(f"--cursor {shlex.quote(following)}")})
