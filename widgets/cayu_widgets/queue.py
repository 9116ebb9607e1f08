"""Everything of one lab that waits for a human, as prompts.

The queue reads the store, so it shows the same after a kernel restart. A prompt that was decided stays in place with
what came of it until Refresh is clicked; what newly waits is added whenever a decision of the lab is made.
"""

from __future__ import annotations

import ipywidgets as widgets

from cayu.notebook import ApprovalHandle, Lab
from cayu.notebook.headless import is_headless
from cayu.notebook.html import pending_html
from cayu_widgets.live import Live, button, close_all, head_row
from cayu_widgets.markup import aside, grouped, panel, time_now
from cayu_widgets.prompt import ApprovalPrompt
from cayu_widgets.standing import PromptState

MOST_PROMPTS = 20
"""Prompts that are open at once; the oldest come first."""


class PromptList(widgets.VBox):  # type: ignore[misc]  # ipywidgets carries no types
    """Prompts in the order in which they came, one for each action."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("cayu-live")
        self.prompts: dict[str, ApprovalPrompt] = {}
        """Action id -> its prompt."""

    def put(self, handles: list[ApprovalHandle]) -> None:
        """Add prompts for actions that have none yet."""
        for handle in handles:
            if handle.id not in self.prompts:
                self.prompts[handle.id] = ApprovalPrompt(handle)
        self.children = tuple(self.prompts.values())

    def drop_all_but(self, handles: list[ApprovalHandle]) -> None:
        """Take away the prompts of actions that no longer wait."""
        waiting = {handle.id for handle in handles}
        gone = [self.prompts.pop(action_id) for action_id in list(self.prompts) if action_id not in waiting]
        self.children = tuple(self.prompts.values())
        for prompt in gone:
            close_all(prompt)


class ApprovalQueue(Live):
    """What waits for a decision, oldest session first.

    With `CAYU_HEADLESS=1` the constructor answers everything from the script, also what comes to wait meanwhile.
    """

    def __init__(self, lab: Lab) -> None:
        """Show what waits in a lab."""
        super().__init__(lab)
        self.waiting: int | None = None
        """How many actions wait; None until they were read."""
        self._list = PromptList()
        self._head = widgets.HTML(panel("Waiting for you", "loading", []))
        self._refresh = button("Refresh", "Read again what waits, and clear away what is decided", "refresh")
        self.on(self._refresh, lambda: self.begin(self._renew))
        self.tell()
        head = self._head if is_headless() else head_row(self._head, self._refresh)
        self._note = widgets.HTML()
        self.children = (head, self._note, self._problem, self._list)
        if is_headless():
            self._follow_script()
        else:
            self.begin(self._read)

    def heard(self, session_id: str) -> None:
        """Add what newly waits."""
        if not is_headless():
            self.begin(self._read)

    def static_html(self) -> str:
        """Return a list of what waits."""
        return pending_html(prompt.action for prompt in self.prompts if prompt.shown.state is PromptState.PENDING)

    def __repr__(self) -> str:
        """Say how many wait."""
        return f"<ApprovalQueue {'loading' if self.waiting is None else f'{self.waiting} pending'}>"

    @property
    def prompts(self) -> list[ApprovalPrompt]:
        """The prompts that are shown."""
        return list(self._list.prompts.values())

    async def _read(self) -> None:
        self._take(list(await self.lab.apending()))

    async def _renew(self) -> None:
        handles = list(await self.lab.apending())
        self.tell()
        self._list.drop_all_but(handles)
        self._take(handles)

    def _take(self, handles: list[ApprovalHandle]) -> None:
        self._list.put(handles[:MOST_PROMPTS])
        self.waiting = len(handles)
        self._tell_count()

    def _follow_script(self) -> None:
        while new := [each for each in self.lab.pending() if each.id not in self._list.prompts]:
            self._list.put(new[:1])
        self.waiting = len(self.lab.pending())
        self._tell_count()

    def _tell_count(self) -> None:
        waiting = self.waiting or 0
        count = f"{grouped(waiting)} decision{'' if waiting == 1 else 's'} pending"
        part = f"The {MOST_PROMPTS} oldest of {grouped(waiting)} are shown. " if waiting > MOST_PROMPTS else ""
        title = "Waiting for you" if waiting else "Nothing waits for a decision"
        self._head.value = panel(title, count if waiting else "", [], kind="pending")
        self._note.value = aside(f"{part}As of {time_now()}.")
