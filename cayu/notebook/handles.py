"""Handles on a session and on an action that waits: small objects that show themselves and lead on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import pandas as pd

from cayu.notebook.frames import Conditions
from cayu.notebook.html import action_html, pending_html, session_html, status_text
from cayu.sessions.records import PendingAction
from cayu.sessions.view import SessionView
from cayu.timing.records import TimingRecord

if TYPE_CHECKING:
    from cayu.notebook.lab import Lab

Bundle = dict[str, str]


class SessionHandle:
    """One session as it stood when the handle was made or refreshed last."""

    def __init__(self, lab: Lab, view: SessionView) -> None:
        self.lab = lab
        self.view = view

    @property
    def id(self) -> str:
        """The session's id."""
        return self.view.row.id

    @property
    def status(self) -> str:
        """Where the session stands, a `SessionStatus`."""
        return str(self.view.status)

    @property
    def text(self) -> str:
        """The last thing that the model said."""
        return self.view.final_text

    @property
    def error(self) -> dict[str, Any] | None:
        """Why the session failed, if it did: a code, and more where there is more."""
        return self.view.error

    @property
    def pending(self) -> Pending:
        """What the session waits for, read now."""
        return self.lab.pending(session=self.id)

    def refresh(self) -> SessionHandle:
        """Read the session again and return this handle."""
        self.view = self.lab.session(self.id).view
        return self

    def resume(self, text: str) -> SessionHandle:
        """Go on with a further message."""
        return self.lab.resume(self.id, text)

    def events_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the session's events; takes the arguments of `Lab.events_df`."""
        return self.lab.events_df(self._within(where), **ask)

    def calls_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the session's tool calls; takes the arguments of `Lab.calls_df`."""
        return self.lab.calls_df(self._within(where), **ask)

    def messages_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the session's conversation; takes the arguments of `Lab.messages_df`."""
        return self.lab.messages_df(self._within(where), **ask)

    def rounds_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the session's timed rounds; takes the arguments of `Lab.rounds_df`."""
        return self.lab.rounds_df(self._within(where), **ask)

    def phases_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the session's timed phases; takes the arguments of `Lab.phases_df`."""
        return self.lab.phases_df(self._within(where), **ask)

    def timings(self) -> tuple[TimingRecord, ...]:
        """Return the session's timing records, oldest first."""
        return self.lab.timings(self)

    def _within(self, where: Conditions) -> Conditions:
        return {**(where or {}), "session_id": self.id}

    def __repr__(self) -> str:
        """Say which session, where it stands and what it said."""
        said = f": {self.text}" if self.text else ""
        return f"<Session {self.id} ({status_text(self.view)}){said}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": repr(self), "text/html": session_html(self.view)}


class ApprovalHandle:
    """One action that waits for a human."""

    def __init__(self, lab: Lab, action: PendingAction) -> None:
        self.lab = lab
        self.action = action

    @property
    def id(self) -> str:
        """The action's id."""
        return self.action.id

    def approve(self, arguments: dict[str, Any] | None = None, *, by: str | None = None) -> SessionHandle:
        """Approve the call, with edited arguments if some are given, and let the session go on."""
        return self.lab.approve(self.action, arguments=arguments, by=by)

    def deny(self, reason: str | None = None, *, by: str | None = None) -> SessionHandle:
        """Deny the call and let the session go on."""
        return self.lab.deny(self.action, reason=reason, by=by)

    def answer(self, text: str, *, by: str | None = None) -> SessionHandle:
        """Answer the question and let the session go on."""
        return self.lab.answer(self.action, text, by=by)

    def __repr__(self) -> str:
        """Say what is asked."""
        what = self.action.question or f"{self.action.tool_name} with {self.action.arguments}"
        return f"<{self.action.kind} {self.action.id}: {what}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": repr(self), "text/html": action_html(self.action)}


class Pending(Sequence[ApprovalHandle]):
    """What waits for a human, as a list that shows itself."""

    def __init__(self, handles: Sequence[ApprovalHandle], total: int | None = None, lost: Sequence[str] = ()) -> None:
        self._handles = tuple(handles)
        self.lost = tuple(lost)
        """Sessions whose process is gone in the middle of their work; `lab.recover` goes on with them."""
        self.total = len(self._handles) if total is None else total
        """How many wait in the whole store, listed here or not."""

    @overload
    def __getitem__(self, index: int) -> ApprovalHandle: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ApprovalHandle]: ...

    def __getitem__(self, index: int | slice) -> ApprovalHandle | Sequence[ApprovalHandle]:
        """Return one handle, or a slice of them."""
        return self._handles[index]

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._handles)

    def __iter__(self) -> Iterator[ApprovalHandle]:
        """Iterate from the oldest session on."""
        return iter(self._handles)

    def __repr__(self) -> str:
        """Say what waits, a line each."""
        lines = [*map(repr, self._handles)]
        if self.total > len(self._handles):
            lines.append(f"<{self.total - len(self._handles)} more wait>")
        lines = lines or ["<nothing waits>"]
        return "\n".join([*lines, *(f"<session {name} was cut off: lab.recover({name!r})>" for name in self.lost)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": repr(self), "text/html": pending_html([h.action for h in self._handles], self.lost)}
