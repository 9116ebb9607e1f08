"""One request for a decision, with its buttons.

A click turns the prompt from pending to submitting under a lock, so a second click finds nothing to take; the decision
itself is compared and set by the runtime, so of two prompts, tabs or processes the first wins and the others say who it
was. What is shown afterwards is read from the session's log, never assumed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection

import ipywidgets as widgets

from cayu.clock import MICROSECOND
from cayu.errors import (
    AlreadyDecided,
    InvalidInput,
    LabClosed,
    PendingActionNotFound,
    StoreBusy,
    StoreClosed,
    StoreError,
)
from cayu.notebook import ApprovalHandle, Lab
from cayu.notebook.headless import is_headless, next_decision
from cayu.notebook.html import action_html, action_lines
from cayu.sessions.records import PendingAction
from cayu.sessions.view import SessionView
from cayu_widgets.controls import Controls
from cayu_widgets.live import Live, announce, button, row
from cayu_widgets.markup import code_lines, folded_away, muted, panel
from cayu_widgets.standing import PENDING, Choice, PromptState, Shown, standing

OVER = (PromptState.APPLIED, PromptState.ELSEWHERE, PromptState.SUPERSEDED)
"""States in which what was asked is folded away."""
WATCH_SECONDS = 0.25
"""How often a decision at work is looked at, to say that it was recorded before the session pauses or ends."""
UNSETTLED = (
    PromptState.PENDING,
    PromptState.APPROVED,
    PromptState.EDITED,
    PromptState.DENIED,
    PromptState.EXPIRED,
    PromptState.ANSWERED,
    PromptState.ELSEWHERE,
)
"""States of a prompt that somebody else's decision may move."""
OVERDUE = Shown(PromptState.PENDING, "pending, deadline passed")
SUBMITTING = Shown(PromptState.SUBMITTING, PromptState.SUBMITTING, "Sending your decision.")
BY_HAND = (
    "No button can settle this: find out whether the call acted; lab.plan_recovery(session) shows what to decide, and "
    "its execute(...) takes the decision."
)
NOT_SENT = "Nothing was sent; the request still waits."
NO_ANSWER = "The store did not answer. Retry is safe: a decision is recorded once."
CUT_OFF = "The lab was closed meanwhile. Open it again and look at lab.pending() to see whether it was recorded."


class ApprovalPrompt(Live):
    """A call that waits for approval, or a question that waits for an answer.

    `ApprovalPrompt(lab, action)` or `ApprovalPrompt(handle)`. With `CAYU_HEADLESS=1` there are no buttons: the decision
    comes from `cayu.testing.decide([...])` and is applied before the constructor returns, which raises
    `HeadlessDecisionMissing` when none is scripted.
    """

    def __init__(self, lab: Lab | ApprovalHandle, action: PendingAction | ApprovalHandle | None = None) -> None:
        """Show an action; nothing is decided until a button is clicked."""
        handle = lab if isinstance(lab, ApprovalHandle) else action
        asked = handle.action if isinstance(handle, ApprovalHandle) else handle
        if asked is None:
            raise InvalidInput("An ApprovalPrompt takes a lab and an action, or one handle of lab.pending().")
        super().__init__(lab.lab if isinstance(lab, ApprovalHandle) else lab, asked.session)
        self.action = action = asked
        self.shown = PENDING
        """What the prompt shows now."""
        self._taking = threading.Lock()
        self._ours = False
        self._choice: Choice | None = None
        self._panel = widgets.HTML()
        self._controls = Controls(action, self.choose, self.tell, self.on)
        self._retry = button("Retry", "Send the same decision again", "refresh")
        self.on(self._retry, self._again)
        self.add_class("cayu-frame")
        self.tell()
        self._show(PENDING)
        if is_headless():
            self._follow_script()
        else:
            self.begin(self._look)

    def choose(self, choice: Choice) -> None:
        """Send a decision, once: while one is on its way, or after it, nothing more is sent."""
        if self._move(SUBMITTING, (PromptState.PENDING, PromptState.UNREACHABLE)):
            self._choice = choice
            self.tell()
            self.begin(self._decide)

    def heard(self, session_id: str) -> None:
        """Look again when a decision of the same session was made."""
        if session_id == self.action.session and self.shown.state in UNSETTLED:
            self.begin(self._check)

    def static_html(self) -> str:
        """Return the card without its buttons."""
        return action_html(self.action, self.shown.badge, self.shown.note)

    def refused(self, error: LabClosed) -> None:
        """Say that nothing was sent."""
        self._unreached(error)

    def __repr__(self) -> str:
        """Say what is asked and where it stands."""
        return f"<ApprovalPrompt {self.action.id}: {self.shown.badge}>"

    # What happens on the lab's loop.

    async def _look(self) -> None:
        """Check once, then take the choices away when the deadline has passed by the store's clock."""
        await self._check()
        if self.action.expires_at is None:
            return
        left = self.action.expires_at.timestamp() - await self.lab.app.session_store.now() / MICROSECOND
        await asyncio.sleep(max(0.0, left))
        self._controls.overdue = True
        self._move(OVERDUE, (PromptState.PENDING,))

    async def _check(self) -> None:
        """Read where the action stands, unless a decision of this prompt is on its way."""
        found = standing(await self._read(), self.action, ours=self._ours)
        if found.state is not self.shown.state or found.note != self.shown.note:
            self._move(found, UNSETTLED)

    async def _decide(self) -> None:
        assert self._choice is not None
        try:
            await self._submit(self._choice)
        except asyncio.CancelledError:
            self._show(Shown(PromptState.UNREACHABLE, PromptState.UNREACHABLE, CUT_OFF))
            raise
        except Exception as error:  # noqa: BLE001 - each kind is told in its own words, and kept unless it is an answer
            await self._settle(error)

    async def _submit(self, choice: Choice) -> None:
        """Send the decision, unless one is recorded already; show it as soon as it is, and what came of it."""
        before = await self._read()
        if self.action.id in before.decisions:
            self._show(standing(before, self.action, ours=False))
            return
        watching = asyncio.ensure_future(self._guarded(self._watch))
        try:
            handle = await choice.send(self.lab, self.action)
        finally:
            watching.cancel()
        self._ours = True
        self._show(standing(handle.view, self.action, ours=True))
        announce(self.lab, self.action.session)  # this prompt hears it too, and looks for what others decided meanwhile

    async def _watch(self) -> None:
        """Show the decision once it is recorded; the session may work on for long."""
        while self.shown.state is not PromptState.APPLIED:
            await asyncio.sleep(WATCH_SECONDS)
            found = standing(await self._read(), self.action, ours=True)
            if found.state is not PromptState.PENDING and found != self.shown:
                self._ours = True
                self._show(found)
                announce(self.lab, self.action.session)

    async def _settle(self, error: Exception) -> None:
        """Say what an unsuccessful decision means; the log knows whether it was recorded all the same."""
        try:
            view = await self._read()
        except (StoreError, LabClosed):
            self._unreached(error)
            return
        recorded = self.action.id in view.decisions
        if isinstance(error, AlreadyDecided | PendingActionNotFound):
            self._show(standing(view, self.action, ours=False))
        elif recorded:
            self._ours = True
            self._show(standing(view, self.action, ours=True))
            self.fail(error)
        elif isinstance(error, StoreError | LabClosed):
            self._unreached(error)
        else:
            self._show(OVERDUE if self._controls.overdue else PENDING)
            if isinstance(error, ValueError):
                self.tell(f"Refused, and nothing was written: {error}")
            else:
                self.fail(error)

    async def _read(self) -> SessionView:
        return (await self.lab.asession(self.action.session)).view

    # What is shown.

    def _follow_script(self) -> None:
        self._show(Shown(PromptState.HEADLESS, PromptState.HEADLESS))
        found = standing(self.lab.call(self._read()), self.action, ours=False)
        if found.state is not PromptState.PENDING or self.action.kind == "manual_recovery":
            self._show(found)
            return
        try:
            choice = Choice.scripted(self.action, next_decision(self.action))
            self.lab.call(self._submit(choice))
        except BaseException:
            self.close()
            raise

    def _again(self) -> None:
        if self._choice is not None:
            self.choose(self._choice)

    def _unreached(self, error: Exception) -> None:
        note = NOT_SENT if isinstance(error, LabClosed | StoreClosed | StoreBusy) else NO_ANSWER
        self._show(Shown(PromptState.UNREACHABLE, PromptState.UNREACHABLE, note))
        self.fail(error)

    def _move(self, shown: Shown, states: Collection[PromptState]) -> bool:
        """Show something new if the prompt is in one of these states, as one step; return whether it was."""
        with self._taking:
            if self.shown.state not in states:
                return False
            self.shown = shown
        self._render()
        return True

    def _show(self, shown: Shown) -> None:
        with self._taking:
            self.shown = shown
        self._render()

    def _render(self) -> None:
        shown = self.shown
        asked, note = action_lines(self.action), muted(shown.note)
        lines = [note, folded_away("What was asked", asked)] if shown.state in OVER else [*asked, note]
        controls: list[widgets.Widget] = []
        if self.action.kind == "manual_recovery":
            lines += [muted(BY_HAND)] if shown.state is PromptState.PENDING else []
        elif is_headless():
            lines += code_lines(self.action)
        elif shown.state is PromptState.UNREACHABLE and self._choice is not None:
            controls = [row(self._retry)]
        elif shown.state in (PromptState.PENDING, PromptState.SUBMITTING):
            controls = self._controls.shown(off=shown.state is PromptState.SUBMITTING)
        self._panel.value = panel(self.action.title, shown.badge, lines, kind=shown.kind)
        self.children = (self._panel, self._problem, *controls)
