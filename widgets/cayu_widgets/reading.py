"""What the views of one session share: a heading with a state, and the word that what is shown may be old."""

from __future__ import annotations

import ipywidgets as widgets

from cayu.errors import InvalidInput, LabClosed
from cayu.notebook import SessionHandle
from cayu_widgets.live import Live
from cayu_widgets.markup import aside, panel, time_now

LAB_CLOSED = "The lab was closed or restarted; this is what was read last."


class Reading(Live):
    """A box that shows what was read of a session; its heading says in words how that stands."""

    title = "Session"

    def __init__(self, handle: SessionHandle) -> None:
        """Bind the box to a session. Raises `InvalidInput` for anything but a session's handle."""
        if not isinstance(handle, SessionHandle):
            wanted = f"{type(self).__name__} shows a session: pass lab.session(id)"
            raise InvalidInput(f"{wanted}, not a {type(handle).__name__}.")
        super().__init__(handle.lab, handle.id)
        self.handle = handle
        """The session as it was read last."""
        self.state = "loading"
        self._head = widgets.HTML()
        self._note = widgets.HTML()

    def refused(self, error: LabClosed) -> None:
        """Say that what is shown may be old."""
        self.say_old()
        self.lab.problems.keep(type(self).__name__, error, self.session_id)

    def fail(self, error: BaseException) -> None:
        """Say that nothing could be read now, and keep why."""
        super().fail(error)
        self.say("error", "error", f"What is below was read earlier; it is {time_now()} now.")

    def say_old(self) -> None:
        """Say that the lab has gone on without what is shown."""
        self.say("stale", "stale", LAB_CLOSED)

    def say(self, state: str, words: str, note: str = "") -> None:
        """Show a state in words in the heading, with a note below it; `state` itself tells once all is shown."""
        kind = "live-now" if state == "live" else state
        self._head.value = panel(self.title, words, [], kind=kind)
        self._note.value = aside(note) if note else ""
        self.state = state
