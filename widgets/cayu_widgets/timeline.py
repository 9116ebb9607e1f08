"""One timed round of a session as a picture, with a choice of the round.

The picture is the static one of `cayu.notebook.figures.timeline`: it needs nothing but HTML, and reads on in a saved
notebook. The records are read once, again with Refresh, and after a decision on the session.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from cayu.errors import LabClosed, StoreClosed
from cayu.notebook import SessionHandle
from cayu.notebook.figures import timeline
from cayu.notebook.html import moment_text
from cayu.timing import ToolRoundTiming
from cayu_widgets.live import button, head_row, row
from cayu_widgets.markup import aside, duration_text, panel, time_now
from cayu_widgets.reading import Reading

TITLE = "Where the time of a round went"
LOADING = "The timing records were still being read when this page was made; run the cell again."
NOTHING = "No round of this session has been timed yet. Refresh looks again."


class PhaseTimeline(Reading):
    """The timeline of one round; `PhaseTimeline(handle)` shows the newest, and any other that is chosen."""

    title = TITLE

    def __init__(self, handle: SessionHandle) -> None:
        """Show the rounds of a session; the state is `loading`, `empty`, `shown`, `stale` or `error`."""
        super().__init__(handle)
        self.rounds: tuple[ToolRoundTiming, ...] = ()
        """The attempts at rounds as they were read last, the oldest first."""
        self._filling = False
        self._refresh = button("Refresh", "Read this session's timing records again", "refresh")
        self.on(self._refresh, lambda: self.begin(self._read))
        self._picker = widgets.Dropdown(description="Round", tooltip="Which attempt at a round is shown")
        self._picker.layout = widgets.Layout(width="min(520px, 100%)", display="none")
        self._picker.observe(self._picked, names="value")
        self._picture = widgets.HTML()
        self.tell()
        self.say("loading", "loading")
        self.children = (
            *(head_row(self._head, self._refresh), self._note, self._problem),
            *(row(self._picker), self._picture),
        )
        self.begin(self._read)

    @property
    def round(self) -> ToolRoundTiming | None:
        """The attempt that is shown."""
        number = self._picker.value
        return self.rounds[number] if number is not None and number < len(self.rounds) else None

    def heard(self, session_id: str) -> None:
        """Read again after a decision."""
        if session_id == self.session_id:
            self.begin(self._read)

    def static_html(self) -> str:
        """Return the round that is shown, without the controls."""
        shown = self.round
        return panel(
            TITLE,
            "" if shown is None else _facts(shown),
            [self._picture.value or aside(LOADING if self.state == "loading" else NOTHING)],
        )

    def __repr__(self) -> str:
        """Say which session and what is shown."""
        return f"<PhaseTimeline {self.session_id}: {self.state}>"

    async def _read(self) -> None:
        try:
            records = await self.lab.atimings(self.handle.id)
        except (LabClosed, StoreClosed):
            self.say_old()
            return
        self._fill(tuple(each for each in records if isinstance(each, ToolRoundTiming)))

    def _fill(self, rounds: tuple[ToolRoundTiming, ...]) -> None:
        """Offer the rounds; one that was chosen stays chosen, and where the newest was shown the newest is."""
        chosen, newest = self.round, self._picker.value in (None, len(self.rounds) - 1)
        self._filling = True
        try:
            self.rounds = rounds
            self._picker.options = [(_option(number, each), number) for number, each in enumerate(rounds)]
            if rounds:
                kept = chosen is not None and not newest and chosen in rounds
                self._picker.value = rounds.index(chosen) if kept and chosen is not None else len(rounds) - 1
        finally:
            self._filling = False
        self._picker.layout.display = None if rounds else "none"
        self.tell()
        self._draw()

    def _picked(self, change: dict[str, Any]) -> None:
        if not self._filling and not self.ended:
            self._called(self._draw)

    def _draw(self) -> None:
        shown = self.round
        if shown is None:
            self._picture.value = ""
            self.say("empty", "nothing timed", NOTHING)
            return
        self._picture.value = timeline(shown).svg
        self.say("shown", _facts(shown), f"As of {time_now()}.")


def _facts(shown: ToolRoundTiming) -> str:
    count = len(shown.calls) + shown.calls_truncated
    marks = [word for word, holds in (("incomplete", shown.incomplete), ("recovered", shown.recovered)) if holds]
    calls = f"{count} call{'' if count == 1 else 's'}"
    return ", ".join([duration_text(shown.duration_seconds * 1000), calls, *marks])


def _option(number: int, shown: ToolRoundTiming) -> str:
    return f"{number + 1}: {_facts(shown)}, {moment_text(shown.started_at)}"
