"""A scene as a small static SVG: no script, no font, no reference to anything, readable on light and on dark.

Text and lines take the colour of the page where the SVG stands inside it, of the reader's scheme where it is an image,
and a grey in between where neither is known. Nothing has an id, so many pictures fit in one page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cayu.notebook.figures.palette import COLOURS, INK, text_on
from cayu.notebook.figures.scene import Bar, Curve, Cut, Key, Panel, Scene, Style
from cayu.notebook.figures.words import fitted, markup, plain, text_width

WIDTH = 860
"""Pixels; a narrower page shrinks the picture."""
SMALLEST = 2.5
"""Pixels that the shortest phase is drawn with."""
DASHES = ("", "7 4", "2 3", "10 3 2 3")
_SIZE, _TITLE_SIZE = 11, 13
_LEFT_MOST, _RIGHT = 230, 16
_LINE = 16
_AXIS, _AXIS_TITLE = 18, 18
_HIGH_STRIP = 0.6
"""The share of a bar's height from which on its label stands on the strip."""
_LOWEST_LABELLED = 11.0
"""Pixels of height from which on a bar has a label."""

_LOOKS = {
    "": "",
    "faint": ' fill-opacity=".85"',
    "strong": ' font-weight="600"',
    "title": f' font-weight="600" font-size="{_TITLE_SIZE}"',
}

# Neither grey is as dark or as light as it could be: where a page's theme is not the reader's scheme, both can be read.
_STYLE = (
    ".cayu-figure{color:var(--jp-ui-font-color1,#59626b)}"
    "@media (prefers-color-scheme:dark){.cayu-figure{color:var(--jp-ui-font-color1,#949da6)}}"
)


def svg_of(scene: Scene) -> str:
    """Return a scene as the text of an SVG document."""
    left = _left(scene)
    lines: list[str] = [_text(8, 20, scene.title, look="title", room=WIDTH - 16)]
    top = 34.0
    for number, panel in enumerate(scene.panels):
        with_x = not scene.shared_x or number == len(scene.panels) - 1
        top += _LINE if panel.title else 0
        drawing = _Drawing(panel, left, top + _head(panel), with_x=with_x)
        lines += drawing.lines()
        top = drawing.bottom + ((_AXIS + (_AXIS_TITLE if panel.x.title else 0)) if with_x else 6) + 6
    legend, top = _legend(scene, top + 4)
    lines += legend
    for text in _wrapped(scene.note):
        lines.append(_text(8, top + 12, text, look="faint"))
        top += _LINE
    height = round(top + 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cayu-figure" role="img" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" color="{INK}" fill="currentColor" style="max-width:100%;height:auto" '
        f'font-family="system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif" font-size="{_SIZE}">'
        f"<style>{_STYLE}</style><title>{markup(scene.title)}</title>{''.join(lines)}</svg>"
    )


def _left(scene: Scene) -> float:
    names = [text_width(plain(text), _SIZE) for panel in scene.panels for _, text in panel.y.ticks]
    return min(max([30.0, *names]) + 18, _LEFT_MOST)


def _head(panel: Panel) -> float:
    return _LINE * (1 + max(level for _, level in staggered(panel))) if panel.cuts else 0


def staggered(panel: Panel, width: float = WIDTH - 120) -> list[tuple[Cut, int]]:
    """Return the cuts of a panel, each with the line on which its text stands free of the others."""
    ends: list[float] = []
    placed = []
    for cut in panel.cuts:
        middle = panel.x.share((cut.x0 + cut.x1) / 2) * width
        half = text_width(cut.text, _SIZE) / 2 + 4
        level = next((at for at, end in enumerate(ends) if middle - half >= end), len(ends))
        ends[level : level + 1] = [middle + half]
        placed.append((cut, level))
    return placed


def text_colour(bar: Bar) -> str:
    """Return the colour of the label in a bar, or "" for that of the page; on a low strip it stands on the page."""
    full = bar.style is Style.SOLID or (bar.style is Style.PALE and _HIGH_STRIP < bar.filled < 1)
    return text_on(bar.phase) if full else ""


class _Drawing:
    """One panel at its place."""

    def __init__(self, panel: Panel, left: float, top: float, *, with_x: bool) -> None:
        self.panel, self.left, self.top, self.with_x = panel, left, top, with_x
        self.width = WIDTH - left - _RIGHT
        self.bottom = top + panel.height

    def x(self, value: float) -> float:
        return self.left + self.panel.x.share(value) * self.width

    def y(self, value: float) -> float:
        return self.bottom - self.panel.y.share(value) * self.panel.height

    def lines(self) -> Iterator[str]:
        if self.panel.title:
            yield _text(8, self.top - _head(self.panel) - 5, self.panel.title, look="strong")
        yield from self._grid()
        yield from self._cuts()
        for bar in self.panel.bars:
            yield self._bar(bar)
        for rule in self.panel.rules:
            ends = f"M{self.x(rule.x0):.1f} {self.y(rule.y0):.1f}L{self.x(rule.x1):.1f} {self.y(rule.y1):.1f}"
            yield f'<path d="{ends}" stroke="currentColor" stroke-width="1.6">{_hover((rule.hover,))}</path>'
        for curve in self.panel.curves:
            yield self._curve(curve)
        for word in self.panel.words:
            yield _text(self.x(word.x) + 5, self.y(word.y) + 4, word.text)

    def _grid(self) -> Iterator[str]:
        x_axis, y_axis = self.panel.x, self.panel.y
        for value, text in x_axis.ticks:
            at = self.x(value)
            if not self.panel.upright:
                yield _line(at, self.top, at, self.bottom, 0.18)
            if self.with_x:
                within = min(at, WIDTH - text_width(text, _SIZE) / 2 - 2)
                yield _text(within, self.bottom + 14, text, anchor="middle", look="faint")
        for value, text in y_axis.ticks:
            at = self.y(value)
            if not y_axis.fixed:
                yield _line(self.left, at, self.left + self.width, at, 0.18)
            yield _text(self.left - 8, at + 4, text, anchor="end", room=self.left - 14)
        yield _line(self.left, self.top, self.left, self.bottom, 0.5)
        yield _line(self.left, self.bottom, self.left + self.width, self.bottom, 0.5)
        if self.with_x and x_axis.title:
            middle = self.left + self.width / 2
            yield _text(middle, self.bottom + _AXIS + 13, x_axis.title, anchor="middle", look="faint")

    def _cuts(self) -> Iterator[str]:
        for cut, level in staggered(self.panel, self.width):
            start, end, up = self.x(cut.x0), self.x(cut.x1), self.top - 5 - level * _LINE
            size = f'width="{end - start:.1f}" height="{self.panel.height}"'
            yield f'<rect x="{start:.1f}" y="{self.top:.1f}" {size} fill-opacity=".07"/>'
            for at in (start, end):
                yield _line(at, self.top, at, self.bottom + 4, 0.6, dash="3 3")
            half = text_width(cut.text, _SIZE) / 2
            middle = min(max((start + end) / 2, half + 4), WIDTH - half - 4)
            yield _text(middle, up, cut.text, anchor="middle")

    def _bar(self, bar: Bar) -> str:
        x0, x1 = self.x(bar.x0), self.x(bar.x1)
        y0, y1 = sorted((self.y(bar.y0), self.y(bar.y1)))
        if self.panel.upright:
            y0 = min(y0, y1 - SMALLEST / 2)
        else:
            x1 = max(x1, x0 + SMALLEST)
        inside, label = self._label(bar, (x0, x1), (y0, y1))
        clear = text_width(bar.label, _SIZE) + 9 if inside else 0
        if bar.filled < 1:
            strip = self.y(bar.strip)
            block = f'<rect {_box(x0, y0, x1 - x0, y1 - y0)} fill="{COLOURS[bar.phase]}" fill-opacity=".16"/>'
            block += _block(x0, strip, x1 - x0, y1 - strip, bar.phase, Style.SOLID)
        else:
            block = _block(x0, y0, x1 - x0, y1 - y0, bar.phase, bar.style, clear)
        return f"<g>{_hover(bar.hover)}{block}{label}</g>"

    def _label(self, bar: Bar, across: tuple[float, float], down: tuple[float, float]) -> tuple[bool, str]:
        """Return whether the label stands inside the bar, and the label where it has room."""
        x0, x1 = across
        width, middle = text_width(bar.label, _SIZE), sum(down) / 2
        if down[1] - down[0] < _LOWEST_LABELLED:
            return False, ""
        if bar.label and width + 9 <= x1 - x0:
            return True, _text(x0 + 5, middle + 4, bar.label, fill=text_colour(bar))
        if bar.label and x1 + width + 9 <= self.x(bar.room):
            return False, _text(x1 + 4, middle + 4, bar.label)
        return False, ""

    def _curve(self, curve: Curve) -> str:
        points = [(self.x(x), self.y(y)) for x, y in zip(curve.xs, curve.ys, strict=True)]
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        path += "".join(f"H{after[0]:.1f}V{after[1]:.1f}" for _, after in pairwise(points))
        return f'<path d="{path}" fill="none" {_stroke(curve)}>{_hover((curve.name,))}</path>'


def _block(x: float, y: float, width: float, height: float, phase: str, style: Style, clear: float = 0) -> str:
    """Return a filled rectangle: a wait has stripes beside its label, what a phase took only a part of is pale."""
    colour = COLOURS[phase]
    if style is Style.SOLID:
        return f'<rect {_box(x, y, width, height)} fill="{colour}"/>'
    inside = _box(x + 0.5, y + 0.5, width - 1, height - 1)
    if style is Style.PALE:
        return f'<rect {inside} fill="{colour}" fill-opacity=".22" stroke="{colour}"/>'
    stripes = f"M{x + max(clear, 2):.1f} {y + height / 2:.1f}H{x + width:.1f}"
    return (
        f'<rect {inside} fill="{colour}" fill-opacity=".1" stroke="{colour}"/>'
        f'<path d="{stripes}" stroke="{colour}" stroke-width="{height:.1f}" stroke-dasharray="2 4"/>'
    )


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}"'


def _legend(scene: Scene, top: float) -> tuple[list[str], float]:
    """Return the legend, in as many lines as it needs, and where it ends."""
    entries: list[tuple[str, Key | Curve | None]] = [(key.text, key) for key in scene.keys]
    entries += [(curve.name, curve) for panel in scene.panels for curve in panel.curves]
    entries += [(scene.rule_text, None)] if scene.rule_text else []
    lines: list[str] = []
    x = 8.0
    for name, entry in entries:
        text = fitted(plain(name), WIDTH - 60, _SIZE)
        width = 24 + text_width(text, _SIZE) + 12
        if x > 8 and x + width > WIDTH:
            x, top = 8.0, top + _LINE + 2
        lines.append(_swatch(entry, x, top))
        lines.append(_text(x + 22, top + 10, text))
        x += width
    return lines, top + (_LINE + 2 if entries else 0)


def _swatch(entry: Key | Curve | None, x: float, y: float) -> str:
    if isinstance(entry, Key):
        return _block(x, y + 1, 16, 10, entry.phase, entry.style)
    if entry is None:
        return _line(x, y + 6, x + 16, y + 6, 1, width=1.6)
    return f'<path d="M{x:.1f} {y + 6:.1f}h16" {_stroke(entry)}/>'


def _stroke(curve: Curve) -> str:
    return f'stroke="{COLOURS[curve.phase]}" stroke-width="2"{_dashes(DASHES[curve.dash])}'


def _dashes(pattern: str) -> str:
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for word in text.split(" ") if text else ():
        if lines and text_width(f"{lines[-1]} {word}", _SIZE) < WIDTH - 16:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def _hover(texts: tuple[str, ...]) -> str:
    shown = "\n".join(markup(text) for text in texts if text)
    return f"<title>{shown}</title>" if shown else ""


def _line(x0: float, y0: float, x1: float, y1: float, opacity: float, *, dash: str = "", width: float = 1) -> str:
    ends = f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"
    return (
        f'<path d="{ends}" stroke="currentColor" stroke-opacity="{opacity:g}" stroke-width="{width:g}"{_dashes(dash)}/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    look: str = "",
    fill: str = "",
    room: float = WIDTH,
) -> str:
    more = f' text-anchor="{anchor}"' if anchor != "start" else ""
    more += _LOOKS[look]
    more += f' fill="{fill}"' if fill else ""
    shown = fitted(plain(text), room, _TITLE_SIZE if look == "title" else _SIZE)
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{markup(shown)}</text>'
