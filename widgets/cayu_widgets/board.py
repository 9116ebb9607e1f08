"""An experiment while it runs: how far it is, and the effects as they arrive.

The board looks at the handle's own records twice a second and draws only what has changed; it runs nothing itself. When
the experiment ends, plain HTML takes the board's place on the page, so that a saved notebook still shows it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from cayu.errors import InvalidInput, LabClosed
from cayu.experiments import Effect
from cayu.notebook import ExperimentHandle, effects
from cayu.notebook.experimenting import STATE_KINDS, experiment_card, experiment_lines, progress_text
from cayu_widgets.live import Live, button, head_row
from cayu_widgets.markup import aside, panel

LOOK_SECONDS = 0.5
EFFECTS_SECONDS = 3.0
"""Between two estimates of the effects while the experiment runs."""
NOTHING_YET = "Effects are shown as soon as a question has its score both with and without an intervention."


class ExperimentBoard(Live):
    """Progress, trials and effects of one experiment; `ExperimentBoard(lab.experiment(...))`."""

    def __init__(self, handle: ExperimentHandle) -> None:
        """Follow an experiment to its end. Raises `InvalidInput` for anything but its handle."""
        if not isinstance(handle, ExperimentHandle):
            raise InvalidInput(f"Pass what lab.experiment(...) returned, not a {type(handle).__name__}.")
        super().__init__(handle.lab)  # type: ignore[arg-type]  # whoever begins experiments is a lab
        self.handle = handle
        self._estimated: tuple[int, tuple[Effect, ...]] = (-1, ())
        self._places: list[DisplayHandle] = []
        self._head = widgets.HTML()
        self._bar = widgets.IntProgress(min=0, max=max(1, handle.run.total), tooltip="Trials that are done")
        self._bar.layout = widgets.Layout(width="min(520px, 100%)")
        self._stop = button("Stop", "Begin no more trials; beginning the experiment again goes on from there", "stop")
        self.on(self._stop, self._stopped)
        self._table = widgets.HTML()
        self._picture = widgets.HTML()
        self.add_class("cayu-frame")
        self.tell()
        self.children = (head_row(self._head, self._stop), self._problem, self._bar, self._table, self._picture)
        self._show()
        self.begin(self._follow)

    def heard(self, session_id: str) -> None:
        """Decisions of sessions do not concern the board."""

    def static_html(self) -> str:
        """Return what is known now, without the controls."""
        return experiment_card(self.handle, [self._problem.value, *self._lines(), self._picture.value])

    def refused(self, error: LabClosed) -> None:
        """Show what is known; nothing more comes."""
        self._finish()

    def __repr__(self) -> str:
        """Say which experiment, and how far it is."""
        return f"<ExperimentBoard {self.handle.experiment.name!r}: {progress_text(self.handle)}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        live: dict[str, Any] = {} if self._settled else super()._repr_mimebundle_(**kwargs)
        return live | {"text/plain": repr(self), "text/html": self.static_html()}

    def _ipython_display_(self) -> None:
        shown = display(self._repr_mimebundle_(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if shown is not None:
            self._places.append(shown)
        if self._settled:
            self._settle()

    @property
    def _settled(self) -> bool:
        """True once the last effects are drawn, and nothing more comes."""
        return self.handle.done and self._estimated[0] == len(self.handle.run.records)

    async def _follow(self) -> None:
        since = EFFECTS_SECONDS
        try:
            while not self.handle.done:
                if since >= EFFECTS_SECONDS:
                    since = 0.0
                    await self._estimate()
                self._show()
                await asyncio.sleep(LOOK_SECONDS)
                since += LOOK_SECONDS
            await self._estimate()
        finally:
            self._finish()

    async def _estimate(self) -> None:
        """Estimate the effects of what is known, off the loop, and draw them."""
        count = len(self.handle.run.records)
        if count != self._estimated[0]:
            self._draw(count, await asyncio.to_thread(lambda: self.handle.effects))

    def _draw(self, count: int, found: tuple[Effect, ...]) -> None:
        self._estimated = (count, found)
        self._picture.value = effects(found).svg if any(effect.questions for effect in found) else ""

    def _finish(self) -> None:
        """Show the end, also where the lab was closed before the board could look."""
        if self.ended or not self.handle.done:
            return
        if not self._settled:
            self._draw(len(self.handle.run.records), self.handle.effects)
        self._show()
        self._settle()

    def _settle(self) -> None:
        """Put plain HTML in the place of the live board, wherever it is shown."""
        while self._places:
            self._places.pop().update(self._repr_mimebundle_(), raw=True)  # type: ignore[no-untyped-call]

    def _stopped(self) -> None:
        self._stop.disabled, self._stop.description = True, "Stopping, trials in work end"
        self.begin(self.handle.acancel)

    def _lines(self) -> list[str]:
        lines = experiment_lines(self.handle, self._estimated[1])
        waits = self.handle.state == "running" and not self._picture.value
        return [*lines, aside(NOTHING_YET)] if waits else lines

    def _show(self) -> None:
        state, running = self.handle.state, self.handle.state == "running"
        name, kind = f"Experiment {self.handle.experiment.name}", STATE_KINDS[state]
        self._head.value = panel(name, progress_text(self.handle), [], kind=kind)
        self._bar.max, self._bar.value = max(1, self.handle.run.total), len(self.handle.run.records)
        self._bar.layout.display = None if running else "none"
        self._stop.layout.display = None if running else "none"
        self._table.value = f'<div class="cayu">{"".join(self._lines())}</div>'
