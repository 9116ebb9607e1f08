"""An experiment while it runs: how far it is, and the effects as they arrive.

The board looks at the handle's own records twice a second and draws only what has changed; it runs nothing itself.
"""

from __future__ import annotations

import asyncio

import ipywidgets as widgets

from cayu.errors import InvalidInput, LabClosed
from cayu.experiments import Effect
from cayu.notebook import ExperimentHandle, effects
from cayu.notebook.experimenting import experiment_html, progress_text
from cayu_widgets.live import Live, button, head_row
from cayu_widgets.markup import panel

LOOK_SECONDS = 0.5
EFFECTS_SECONDS = 3.0
"""Between two estimates of the effects while the experiment runs."""


class ExperimentBoard(Live):
    """Progress, trials and effects of one experiment; `ExperimentBoard(lab.experiment(...))`."""

    def __init__(self, handle: ExperimentHandle) -> None:
        """Follow an experiment to its end. Raises `InvalidInput` for anything but its handle."""
        if not isinstance(handle, ExperimentHandle):
            raise InvalidInput(f"Pass what lab.experiment(...) returned, not a {type(handle).__name__}.")
        super().__init__(handle.lab)  # type: ignore[arg-type]  # whoever begins experiments is a lab
        self.handle = handle
        self._seen = -1
        self._estimated: tuple[int, tuple[Effect, ...]] = (-1, ())
        self._head = widgets.HTML()
        self._bar = widgets.IntProgress(min=0, max=max(1, handle.run.total), tooltip="Trials that are done")
        self._bar.layout = widgets.Layout(width="min(520px, 100%)")
        self._stop = button("Stop", "Stop after the trials in work; beginning it again goes on", "stop")
        self.on(self._stop, lambda: self.begin(self._cancel))
        self._table = widgets.HTML()
        self._picture = widgets.HTML()
        self.tell()
        self.children = (head_row(self._head, self._stop), self._problem, self._bar, self._table, self._picture)
        self._show()
        self.begin(self._follow)

    def heard(self, session_id: str) -> None:
        """Decisions of sessions do not concern the board."""

    def static_html(self) -> str:
        """Return what is known now, without the controls."""
        return f"{experiment_html(self.handle, self._estimated[1])}{self._picture.value}"

    def refused(self, error: LabClosed) -> None:
        """Show what is known; nothing more comes."""
        self._show()

    def __repr__(self) -> str:
        """Say which experiment, and how far it is."""
        return f"<ExperimentBoard {self.handle.experiment.name!r}: {progress_text(self.handle)}>"

    async def _follow(self) -> None:
        since = EFFECTS_SECONDS
        while True:
            done = self.handle.done
            if done or since >= EFFECTS_SECONDS:
                since = 0.0
                await self._estimate()
            self._show()
            if done:
                return
            await asyncio.sleep(LOOK_SECONDS)
            since += LOOK_SECONDS

    async def _estimate(self) -> None:
        """Estimate the effects of what is known, off the loop, and draw them."""
        count = len(self.handle.run.records)
        if count == self._estimated[0]:
            return
        found = await asyncio.to_thread(lambda: self.handle.effects)
        self._estimated = (count, found)
        self._picture.value = effects(found).svg if any(effect.questions for effect in found) else ""

    async def _cancel(self) -> None:
        await self.handle.acancel()

    def _show(self) -> None:
        kinds = {"running": "running", "finished": "completed"}
        state, done = self.handle.state, len(self.handle.run.records)
        self._head.value = panel(
            f"Experiment {self.handle.experiment.name}", progress_text(self.handle), [], kind=kinds.get(state, "failed")
        )
        self._bar.max, self._bar.value = max(1, self.handle.run.total), done
        self._bar.layout.display = None if state == "running" else "none"
        self._stop.layout.display = None if state == "running" else "none"
        if self._estimated[0] != self._seen:
            self._seen = self._estimated[0]
            self._table.value = experiment_html(self.handle, self._estimated[1])
