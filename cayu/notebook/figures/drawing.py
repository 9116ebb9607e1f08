"""A drawn figure: its rows, its interactive plot, and a small static picture for pages that run nothing.

A notebook stores all of it. JupyterLab, Notebook and VS Code show plotly's form where their renderer for it is
installed; nbconvert's HTML and previews take the SVG, and a terminal the line of text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from cayu.notebook.figures.scene import Scene
from cayu.notebook.figures.sources import FULL, STATIC, Budget
from cayu.notebook.figures.svg import svg_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLOTLY_MIME = "application/vnd.plotly.v1+json"
SVG_MIME = "image/svg+xml"
CONFIG = {"displaylogo": False}
"""Not `responsive`: JupyterLab's renderer resizes by itself, and with it a change of theme leaves no height."""

Draw = Callable[[Budget], tuple[pd.DataFrame, Scene]]


class Picture:
    """A figure that shows itself wherever it lands; `figure`, `svg` and `df` are there to work on with."""

    def __init__(self, draw: Draw) -> None:
        """`draw` makes rows and scene within a budget; the static picture has a smaller one."""
        self.df, self.scene = draw(FULL)
        """The exact rows that the figure draws; where rows were put together, a count column says how many."""
        self._draw = draw

    @cached_property
    def figure(self) -> go.Figure:
        """The interactive figure."""
        # Plotly takes a third of a second to import, and the static picture needs none of it.
        from cayu.notebook.figures.plotting import figure_of

        return figure_of(self.scene)

    @cached_property
    def svg(self) -> str:
        """The static picture as the text of an SVG document."""
        return svg_of(self._draw(STATIC)[1])

    @property
    def note(self) -> str:
        """What a reader has to know about the figure, such as that rows were put together; "" when nothing."""
        return self.scene.note

    def __repr__(self) -> str:
        """Say what the figure shows."""
        return f"<Picture {self.scene.title!r}: {len(self.df)} rows in .df>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        plot = json.loads(self.figure.to_json()) | {"config": CONFIG}
        return {"text/plain": repr(self), PLOTLY_MIME: plot, SVG_MIME: self.svg}
