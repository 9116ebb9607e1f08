"""One session as it stands and moves: its conversation, what it waits for, its rounds and calls.

A session at work is looked at twice a second, first its head alone and the whole log only when the head has moved. The
looking ends with the session, with the widget and with the lab; a session whose owner has let its lease run out is
called stale, because nothing works on it any more.
"""

from __future__ import annotations

import asyncio

import ipywidgets as widgets

from cayu.errors import SessionNotFound, StoreClosed
from cayu.notebook import SessionHandle
from cayu.notebook.headless import is_headless
from cayu.notebook.html import action_html, session_html
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead, is_owned
from cayu_widgets.live import button, head_row
from cayu_widgets.markup import rounds_html, time_now
from cayu_widgets.prompt import ApprovalPrompt
from cayu_widgets.queue import PromptList
from cayu_widgets.reading import Reading

LOOK_SECONDS = 0.5
"""How often a session at work is looked at."""
AT_WORK = (SessionStatus.PENDING, SessionStatus.RUNNING, SessionStatus.INTERRUPTING)


class SessionView(Reading):
    """A session with its prompts; `SessionView(handle)` shows the newest state, not the handle's.

    With `CAYU_HEADLESS=1` what waits is shown without buttons and decided by no script: looking decides nothing.
    """

    def __init__(self, handle: SessionHandle) -> None:
        """Show a session; it is followed until it ends or pauses.

        Its state is `loading`, `live`, `paused`, `finished`, `stale` or `error`.
        """
        super().__init__(handle)
        self._following = self._asked_again = False
        self._refresh = button("Refresh", "Read this session again, and clear away what is decided", "refresh")
        self.on(self._refresh, lambda: self.begin(self._renew))
        self._card = widgets.HTML(session_html(handle.view))
        self._prompts = PromptList()
        self._waits = widgets.HTML()
        self._rounds = widgets.HTML(rounds_html(handle.view))
        self.tell()
        self.say("loading", "loading")
        self.children = (
            *(head_row(self._head, self._refresh), self._note, self._problem),
            *(self._card, self._waits, self._prompts, self._rounds),
        )
        self.begin(self._follow)

    def heard(self, session_id: str) -> None:
        """Follow the session on after a decision."""
        if session_id == self.session_id:
            self.begin(self._follow)

    def static_html(self) -> str:
        """Return the session's card with its calls."""
        return session_html(self.handle.view) + rounds_html(self.handle.view)

    def __repr__(self) -> str:
        """Say which session and where it stands."""
        return f"<SessionView {self.handle.id}: {self.state}>"

    @property
    def prompts(self) -> list[ApprovalPrompt]:
        """The prompts that are shown."""
        return list(self._prompts.prompts.values())

    async def _renew(self) -> None:
        self._prompts.drop_all_but(list(await self.lab.apending(session=self.handle.id)))
        self.tell()
        await self._follow()

    async def _follow(self) -> None:
        """Look until the session ends or pauses; one look at a time, whoever asked for it."""
        if self._following:
            self._asked_again = True
            return
        self._following = True
        try:
            version = -1
            while not self.ended:
                head, now = await self._read_head()
                if head.state.version != version:
                    version = head.state.version
                    await self._read()
                if self._tell_state(head, now):
                    await asyncio.sleep(LOOK_SECONDS)
                elif not self._asked_again:
                    return
                self._asked_again = False
        except asyncio.CancelledError:
            self.say_old()
            raise
        except StoreClosed:
            self.say_old()
        finally:
            self._following = False

    async def _read_head(self) -> tuple[StreamHead, int]:
        rows, _, _ = await self.lab.aheads(HeadQuery(session_id=self.handle.id, limit=1))
        if not rows:
            raise SessionNotFound(session_id=self.handle.id)
        return rows[0], await self.lab.app.session_store.now()

    async def _read(self) -> None:
        self.handle = await self.lab.asession(self.handle.id)
        handles = list(await self.lab.apending(session=self.handle.id))
        self._card.value = session_html(self.handle.view)
        self._rounds.value = rounds_html(self.handle.view)
        if is_headless():
            self._waits.value = "".join(action_html(each.action) for each in handles)
        else:
            self._prompts.put(handles)

    def _tell_state(self, head: StreamHead, now: int) -> bool:
        """Say where the session stands; return whether it is still to be looked at."""
        state = head.state
        if state.pending:
            count = f"paused, {state.pending} pending"
            self.say("paused", count, "It goes on when everything below is decided.")
        elif state.status not in AT_WORK:
            self.say("finished", f"finished, {state.status}")
        elif is_owned(state, now):
            self.say("live", "live", f"At work, as of {time_now()}.")
            return True
        else:
            self.say(
                "stale", "stale", f"Nothing works on it any more: lab.recover({self.handle.id!r}) goes on with it."
            )
        return False
