"""A scene as a plotly figure. Bars lie at their own bounds and nothing is stacked by plotly, so nothing adds up.

Text goes in as hover text, labels and ticks, all escaped; templates, which would be filled in, are not used for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from cayu.notebook.figures.palette import COLOURS, INK
from cayu.notebook.figures.scene import Axis, Bar, Panel, Scene, Style
from cayu.notebook.figures.svg import staggered, text_colour
from cayu.notebook.figures.words import fitted, plotly_text, text_width

GRID = "rgba(128,134,141,0.28)"
CLEAR = "rgba(0,0,0,0)"
DASHES = ("solid", "dash", "dot", "dashdot")
_SIZE = 12
_TOP, _GAP, _TITLED, _BOTTOM, _NOTE = 40, 8, 26, 62, 18
_KEY = 20
"""Pixels of one line of the legend."""
_LABEL_ROOM = 230
_LABEL = 11
_GROUND, _ON_GROUND = "#24292f", "#ffffff"
_USUAL_WIDTH = 490
"""Pixels of the plotting area in a notebook beside the file browser; plotly does not say how many there are."""
_NOTE_WIDTH = 100
"""Characters of a line of the note; plotly breaks no lines."""
_ORDER = {style: number for number, style in enumerate((Style.SOLID, Style.PALE, Style.HATCHED))}


def figure_of(scene: Scene) -> go.Figure:
    """Return a scene as an interactive figure."""
    figure = go.Figure(layout=_layout(scene))
    known: set[str] = set()
    for number, panel in enumerate(scene.panels, start=1):
        figure.add_traces(_bar_traces(scene, panel, number, known))
        figure.add_traces([*_other_traces(scene, panel, number, known)])
    return figure


def _layout(scene: Scene) -> dict[str, Any]:
    legend = _KEY * (len(scene.keys) + sum(len(panel.curves) for panel in scene.panels) + bool(scene.rule_text))
    heads = [(_TITLED if panel.title else _GAP) + 15 * _levels(panel) for panel in scene.panels]
    inner = sum(panel.height for panel in scene.panels)
    # The panels are as tall as they ask for, and taller where the legend needs it.
    taller = max(1.0, (legend + _GAP - sum(heads)) / inner) if inner else 1.0
    heights = [head + panel.height * taller for head, panel in zip(heads, scene.panels, strict=True)]
    plot = sum(heights) or 20
    bottom = _BOTTOM + _NOTE * len(_note_lines(scene))
    layout: dict[str, Any] = {
        "template": "none",
        "barmode": "overlay",
        "title": {"text": plotly_text(scene.title), "x": 0, "xref": "paper", "font": {"size": 15}},
        "height": _TOP + plot + bottom,
        "margin": {"l": 60, "r": 20, "t": _TOP, "b": bottom},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"color": INK, "size": _SIZE},
        "hoverlabel": {"bgcolor": _GROUND, "bordercolor": INK, "font": {"color": _ON_GROUND}, "align": "left"},
        "hovermode": "closest",
        "legend": {"traceorder": "normal", "itemsizing": "constant"},
        "annotations": _annotations(scene, heads, heights, plot),
        "uniformtext": {"minsize": _LABEL, "mode": "hide"},
        "shapes": [shape for number, panel in enumerate(scene.panels, start=1) for shape in _shapes(panel, number)],
        "showlegend": bool(scene.keys or scene.rule_text or any(panel.curves for panel in scene.panels)),
    }
    if not scene.panels:
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
    above = 0.0
    for number, (panel, head, height) in enumerate(zip(scene.panels, heads, heights, strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        domain = [max(0.0, 1 - (above + height) / plot), 1 - (above + head) / plot]
        above += height
        last = number == len(scene.panels)
        x_axis = _axis(panel.x, _other(number, "y"), grid=not panel.upright)
        if scene.shared_x and not last:
            x_axis |= {"showticklabels": False, "title": {"text": ""}, "matches": f"x{len(scene.panels)}"}
        layout[f"xaxis{suffix}"] = x_axis
        layout[f"yaxis{suffix}"] = _axis(panel.y, _other(number, "x"), grid=not panel.y.fixed) | {"domain": domain}
    return layout


def _note_lines(scene: Scene) -> list[str]:
    return wrap(scene.note, _NOTE_WIDTH)


def _other(number: int, letter: str) -> str:
    return letter if number == 1 else f"{letter}{number}"


def _axis(axis: Axis, anchor: str, *, grid: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "anchor": anchor,
        "range": [axis.low, axis.high],
        "title": {"text": plotly_text(axis.title), "font": {"size": _SIZE}, "standoff": 8},
        "showgrid": grid,
        "gridcolor": GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": INK,
        "automargin": True,
        "separatethousands": True,
    }
    if axis.log:
        shown |= {"type": "log", "range": [_log(axis.low), _log(axis.high)], "dtick": 1}
    if axis.fixed or axis.log:
        texts = [plotly_text(fitted(text, _LABEL_ROOM, _SIZE)) for _, text in axis.ticks]
        shown |= {"tickmode": "array", "tickvals": [value for value, _ in axis.ticks], "ticktext": texts}
    return shown


def _log(value: float) -> float:
    return math.log10(value)


def _levels(panel: Panel) -> int:
    return 1 + max(level for _, level in staggered(panel)) if panel.cuts else 0


def _annotations(scene: Scene, heads: Sequence[float], heights: Sequence[float], plot: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    above = 0.0
    free: dict[str, Any] = {"showarrow": False, "xref": "paper", "yref": "paper"}
    for number, (panel, head, height) in enumerate(zip(scene.panels, heads, heights, strict=True), start=1):
        top = 1 - (above + head) / plot
        above += height
        if panel.title:
            text = f"<b>{plotly_text(panel.title)}</b>"
            found.append(free | {"text": text, "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"})
        for cut, level in staggered(panel):
            place = {"xref": _other(number, "x"), "yref": "paper", "x": (cut.x0 + cut.x1) / 2, "y": top}
            lift = {"yanchor": "bottom", "yshift": 15 * level, "showarrow": False, "font": {"size": 11}}
            found.append(place | lift | {"text": plotly_text(cut.text)})
        found += _on_hatching(panel, number)
        for word in panel.words:
            spot = {"xref": _other(number, "x"), "yref": _other(number, "y"), "x": word.x, "y": word.y}
            look = {"xanchor": "left", "xshift": 4, "showarrow": False, "font": {"size": 11}}
            found.append(spot | look | {"text": plotly_text(word.text)})
    if scene.note:
        low = {
            "x": 0,
            "y": 0,
            "xanchor": "left",
            "yanchor": "top",
            "yshift": -(_BOTTOM - 10) if scene.panels else 0,
            "align": "left",
        }
        text = "<br>".join(plotly_text(line) for line in _note_lines(scene))
        found.append(free | low | {"text": text, "font": {"size": 11}})
    return found


def _shapes(panel: Panel, number: int) -> list[dict[str, Any]]:
    return [
        {
            **{"type": "rect", "xref": _other(number, "x"), "yref": f"{_other(number, 'y')} domain", "y0": 0, "y1": 1},
            **{"x0": cut.x0, "x1": cut.x1, "fillcolor": "rgba(128,134,141,0.12)"},
            "line": {"color": INK, "width": 1, "dash": "dot"},
        }
        for cut in panel.cuts
    ]


def _bar_traces(scene: Scene, panel: Panel, number: int, known: set[str]) -> list[go.Bar]:
    """Return one trace for each phase and style; strips lie below pale ones, whose labels can be read."""
    parts: dict[tuple[str, Style], list[Bar]] = {}
    for bar in panel.bars:
        parts.setdefault((bar.phase, bar.style), []).append(bar)
        if bar.filled < 1:
            strip = replace(bar, style=Style.SOLID, y0=bar.strip, label="", filled=1.0)
            parts.setdefault((bar.phase, Style.SOLID), []).append(strip)
    texts = {key.phase: key.text for key in scene.keys}
    ranks = {key.phase: rank for rank, key in enumerate(scene.keys)}
    traces = []
    for (phase, style), bars in sorted(parts.items(), key=lambda part: _ORDER[part[0][1]]):
        trace = _bar_trace(panel, number, phase, style, bars)
        best = style is Style.SOLID or (phase, Style.SOLID) not in parts
        trace.update(name=plotly_text(texts.get(phase, phase)), legendgroup=phase, showlegend=False)
        if best and phase in ranks and phase not in known:
            trace.update(showlegend=True, legendrank=1 + ranks[phase])
            known.add(phase)
        traces.append(trace)
    return traces


def _bar_trace(panel: Panel, number: int, phase: str, style: Style, bars: Sequence[Bar]) -> go.Bar:
    colour = COLOURS[phase]
    marker: dict[str, Any] = {"color": colour, "line": {"color": colour, "width": 1.5}}
    if style is Style.PALE:
        marker |= {"color": _faded(colour)}
        if any(bar.filled < 1 for bar in bars):  # the strip in it says enough
            marker |= {"line": {"width": 0}}
    elif style is Style.HATCHED:
        pattern = {"shape": "/", "size": 6, "solidity": 0.25, "fgcolor": colour, "bgcolor": _faded(colour)}
        marker |= {"pattern": pattern, "line": {"color": colour, "width": 1}}
    elif panel.upright:
        marker |= {"line": {"width": 0}}
    along, across = (("y0", "y1"), ("x0", "x1")) if panel.upright else (("x0", "x1"), ("y0", "y1"))
    starts, ends = ([getattr(bar, name) for bar in bars] for name in along)
    lows, highs = ([getattr(bar, name) for bar in bars] for name in across)
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    middles = [(low + high) / 2 for low, high in zip(lows, highs, strict=True)]
    places = [_label_place(panel, bar) for bar in bars]
    return go.Bar(
        orientation="v" if panel.upright else "h",
        **({"y": lengths, "x": middles} if panel.upright else {"x": lengths, "y": middles}),
        base=starts,
        width=[abs(high - low) for low, high in zip(lows, highs, strict=True)],
        marker=marker,
        text=["" if place == "none" else plotly_text(bar.label) for bar, place in zip(bars, places, strict=True)],
        textposition=places,
        insidetextanchor="middle" if panel.upright else "start",
        constraintext="inside",
        textangle=0,
        insidetextfont={"size": _LABEL, "color": [text_colour(bar) or INK for bar in bars]},
        outsidetextfont={"size": _LABEL, "color": INK},
        hovertext=["<br>".join(plotly_text(line) for line in bar.hover) for bar in bars],
        hoverinfo="text",
        xaxis=_other(number, "x"),
        yaxis=_other(number, "y"),
    )


def _label_place(panel: Panel, bar: Bar) -> str:
    """Return where a bar's label goes: in it, beside it, or nowhere; a hatched bar has it on a ground of its own."""
    if not bar.label or bar.style is Style.HATCHED:
        return "none"
    if panel.upright or _fits(panel, bar.x0, bar.x1, bar.label):
        return "inside"
    return "outside" if _fits(panel, bar.x1, bar.room, bar.label) else "none"


def _fits(panel: Panel, start: float, end: float, text: str) -> bool:
    """Whether a text has room between two places of the x axis on a page of usual width."""
    return text_width(text, _LABEL) + 8 <= (panel.x.share(end) - panel.x.share(start)) * _USUAL_WIDTH


def _on_hatching(panel: Panel, number: int) -> Iterable[dict[str, Any]]:
    """Return the labels of hatched bars, each on a plain ground: on stripes nobody reads them."""
    for bar in panel.bars:
        high = abs(panel.y.share(bar.y1) - panel.y.share(bar.y0)) * panel.height
        if bar.label and bar.style is Style.HATCHED and high > _LABEL and _fits(panel, bar.x0, bar.x1, bar.label):
            yield {
                **{"xref": _other(number, "x"), "yref": _other(number, "y"), "x": bar.x0, "y": (bar.y0 + bar.y1) / 2},
                **{"xanchor": "left", "xshift": 3, "showarrow": False, "borderpad": 0, "height": 14},
                **{"bgcolor": _GROUND, "font": {"size": _LABEL, "color": _ON_GROUND}},
                "text": plotly_text(bar.label),
            }


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _other_traces(scene: Scene, panel: Panel, number: int, known: set[str]) -> Iterable[go.Scatter]:
    axes = {"xaxis": _other(number, "x"), "yaxis": _other(number, "y")}
    if panel.rules:
        xs = [value for rule in panel.rules for value in (rule.x0, rule.x1, None)]
        ys = [value for rule in panel.rules for value in (rule.y0, rule.y1, None)]
        hover = [value for rule in panel.rules for value in (rule.hover, rule.hover, "")]
        yield go.Scatter(
            **{"x": xs, "y": ys, "mode": "lines", "line": {"color": INK, "width": 2}, "hoverinfo": "text", **axes},
            hovertext=[plotly_text(text) for text in hover],
            name=plotly_text(scene.rule_text),
            showlegend=bool(scene.rule_text) and scene.rule_text not in known,
        )
        known.add(scene.rule_text)
    for curve in panel.curves:
        yield go.Scatter(
            **{"x": list(curve.xs), "y": list(curve.ys), "mode": "lines", "name": plotly_text(curve.name), **axes},
            line={"color": COLOURS[curve.phase], "width": 2, "dash": DASHES[curve.dash], "shape": "hv"},
            hovertext=[plotly_text(text) for text in curve.hover],
            hoverinfo="text",
        )
