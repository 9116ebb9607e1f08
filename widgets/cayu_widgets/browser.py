"""The sessions of a lab, fifty at a time.

Pages are read by key, never by offset: the cursor of each page that was passed is kept, so that Previous goes back.
Reads that were overtaken by a later one are thrown away. Rows are buttons, because JupyterLab's own shortcuts take the
arrow keys away from a list box in an output; the buttons are made once and written anew for each page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from cayu.notebook import Lab
from cayu.notebook.html import card, esc
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead
from cayu_widgets.live import Live, button, close_all, row
from cayu_widgets.markup import aside, page_text, panel, row_header, row_label
from cayu_widgets.session import SessionView

PAGE_ROWS = 50
SETTLE_SECONDS = 0.15
"""How long a text stands before it is searched."""
ANY_STATUS = "any status"


class SessionBrowser(Live):
    """A list of sessions, newest first, with a filter; the one that is clicked opens below."""

    def __init__(self, lab: Lab) -> None:
        """Show the first page of a lab's sessions."""
        super().__init__(lab)
        self.total: int | None = None
        """How many sessions match; None until they were read."""
        self.opened: SessionView | None = None
        """The view of the selected session."""
        self.selected: str | None = None
        """The session whose row was clicked last."""
        self.rows: list[widgets.Button] = []
        """A button for each row that was ever shown; the first of them show this page."""
        self._heads: list[StreamHead] = []
        self._row_layout = widgets.Layout(width="100%", min_height="24px")
        self._row_style = widgets.ButtonStyle()
        self._cursors: list[str | None] = [None]
        self._next: str | None = None
        self._asked = 0
        self._build()
        self.begin(self._load)

    def _build(self) -> None:
        self._head = widgets.HTML(panel("Sessions", "loading", []))
        self._note = widgets.HTML()
        self.filter = widgets.Text(
            placeholder="Part of an id, a title or an agent's name",
            tooltip="Show only sessions whose id, title or agent holds this text",
            layout=widgets.Layout(width="320px", margin="2px 6px 2px 0"),
        )
        """The filter's text field."""
        self.status = widgets.Dropdown(
            options=[ANY_STATUS, *map(str, SessionStatus)],
            tooltip="Show only sessions of this status",
            layout=widgets.Layout(width="140px", margin="2px 6px 2px 0"),
        )
        """The filter's status."""
        self._list = widgets.VBox()
        self._list.add_class("cayu-rows")
        self.previous = button("Previous", "Show the newer page before this one", "chevron-left")
        self.following = button("Next", "Show the older page after this one", "chevron-right")
        self.refresh = button("Refresh", "Read this page again", "refresh")
        self._page = widgets.HTML()
        self._columns = widgets.HTML()
        self._place = widgets.VBox()
        self._place.add_class("cayu-live")
        self._place.add_class("cayu-place")
        self.on(self.previous, self._back)
        self.on(self.following, self._forth)
        self.on(self.refresh, lambda: self.begin(self._load))
        self.filter.observe(self._filtered, "value")
        self.status.observe(self._filtered, "value")
        self.previous.disabled = self.following.disabled = True
        self.tell()
        self.children = (
            *(
                self._head,
                self._note,
                row(self.filter, self.status, self.refresh),
                self._problem,
                self._columns,
                self._list,
            ),
            *(row(self.previous, self.following, self._page), self._place),
        )

    def heard(self, session_id: str) -> None:
        """Read the page again: a decision changes a status."""
        self.begin(self._load)

    def static_html(self) -> str:
        """Return the rows of this page."""
        lines = [row_header(), *(row_label(head, opened=False) for head in self._heads)]
        return card("Sessions", "", [f"<pre>{esc(chr(10).join(lines))}</pre>"])

    def __repr__(self) -> str:
        """Say how many sessions match."""
        return f"<SessionBrowser {'loading' if self.total is None else f'{self.total} sessions'}>"

    # Callbacks.

    def _back(self) -> None:
        if len(self._cursors) > 1:
            self._cursors.pop()
            self.begin(self._load)

    def _forth(self) -> None:
        if self._next is not None:
            self._cursors.append(self._next)
            self._next = None
            self.begin(self._load)

    def _filtered(self, _: Any) -> None:
        self._called(lambda: self.begin(self._search))

    def _choose(self, session_id: str) -> None:
        self.selected = session_id
        self._mark()
        self.begin(self._open)

    # What happens on the lab's loop.

    async def _search(self) -> None:
        self._asked += 1
        asked = self._asked
        await asyncio.sleep(SETTLE_SECONDS)
        if asked == self._asked:
            self._cursors = [None]
            await self._load()

    async def _load(self) -> None:
        self._asked += 1
        asked = self._asked
        status = None if self.status.value == ANY_STATUS else self.status.value
        query = HeadQuery(
            text=self.filter.value.strip() or None, status=status, after=self._cursors[-1], limit=PAGE_ROWS
        )
        heads, following, total = await self.lab.aheads(query)
        if asked != self._asked:
            return
        start = (len(self._cursors) - 1) * PAGE_ROWS
        self.total = total
        self._next = following if start + len(heads) < total else None
        self._show_rows(heads)
        self.previous.disabled = len(self._cursors) == 1
        self.following.disabled = self._next is None
        self._page.value = aside(page_text(start, len(heads), total))
        words = "" if total else "No session matches." if query.text or status else "This store has no sessions yet."
        self._head.value = panel("Sessions", "", [])
        self._note.value = aside(words or "Click a row, or press Space on it, to open it below.")
        self.tell()

    def _show_rows(self, heads: Sequence[StreamHead]) -> None:
        """Fill the row buttons, making as many as were not needed before."""
        while len(self.rows) < len(heads):
            self.rows.append(self._row(len(self.rows)))
        self._heads = list(heads)
        self._mark()
        self._list.children = tuple(self.rows[: len(heads)])
        self._list.layout.display = None if heads else "none"
        self._columns.value = f'<div class="cayu"><div class="cayu-columns">{row_header()}</div></div>' if heads else ""

    def _row(self, number: int) -> widgets.Button:
        made = widgets.Button(layout=self._row_layout, style=self._row_style)
        self.on(made, lambda: self._choose(self._heads[number].row.id))
        return made

    def _mark(self) -> None:
        """Write the rows, with a mark before the one that is open."""
        for made, head in zip(self.rows, self._heads, strict=False):
            made.description = row_label(head, opened=head.row.id == self.selected)
            made.tooltip = f"Open {head.row.id} below"

    async def _open(self) -> None:
        wanted = self.selected
        if wanted is None or (self.opened is not None and self.opened.session_id == wanted):
            return
        handle = await self.lab.asession(wanted)
        if wanted != self.selected:
            return
        before, self.opened = self.opened, SessionView(handle)
        self._place.children = (self.opened,)
        if before is not None:
            close_all(before)
