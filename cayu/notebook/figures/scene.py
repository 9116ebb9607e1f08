"""What a figure holds, before it is drawn as an interactive plot or as a small static picture.

Positions are in the units of the axes; every text is plain and escaped by whoever draws it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_THINNEST = 0.12
"""The share of its height that a pale bar's full part takes at least."""


class Style(StrEnum):
    """How a bar is filled."""

    SOLID = "solid"
    PALE = "pale"
    """A stretch of which a phase took only a part."""
    HATCHED = "hatched"
    """A wait, which overlaps the work of others."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of one phase."""

    x0: float
    x1: float
    y0: float
    y1: float
    phase: str
    style: Style = Style.SOLID
    hover: tuple[str, ...] = ()
    """Lines of plain text."""
    label: str = ""
    """Stands in the bar, or right of it, where there is room."""
    room: float = 0.0
    """Up to where on the x axis the label may go on beside the bar."""
    filled: float = 1.0
    """The share of a pale bar's height that is full, from its y1 on: what the phase took of the stretch."""

    @property
    def strip(self) -> float:
        """Where the full part of a pale bar begins on the y axis; a small part can still be seen."""
        return self.y1 - (self.y1 - self.y0) * max(self.filled, _THINNEST)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, in the colour of a phase."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    phase: str
    name: str
    dash: int = 0
    """Which of the patterns of dashes tells it from the others."""
    hover: tuple[str, ...] = ()
    """One text for each point."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line in the colour of text."""

    x0: float
    y0: float
    x1: float
    y1: float
    hover: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A short text right of a place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the x axis leaves something out."""

    x0: float
    x1: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis; `low` is at the left or at the bottom."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    title: str = ""
    log: bool = False
    fixed: bool = False
    """True when the ticks are names or lie on an axis with cuts, so that no other ticks make sense."""

    def share(self, value: float) -> float:
        """Return where a value lies between low (0) and high (1)."""
        if self.log:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(max(value, self.low))
            return (value - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes and what is drawn on them."""

    x: Axis
    y: Axis
    height: int
    """Pixels of the plotting area."""
    bars: tuple[Bar, ...] = ()
    curves: tuple[Curve, ...] = ()
    rules: tuple[Rule, ...] = ()
    words: tuple[Word, ...] = ()
    cuts: tuple[Cut, ...] = ()
    upright: bool = False
    """True when the bars grow upwards."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the legend."""

    phase: str
    text: str
    style: Style = Style.SOLID


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole figure; one without panels says only why there is nothing."""

    title: str
    panels: tuple[Panel, ...] = ()
    keys: tuple[Key, ...] = ()
    note: str = ""
    rule_text: str = ""
    """What the lines in the colour of text stand for, if the legend is to say so."""
    shared_x: bool = False
    """True when the panels have one x axis, which the last one shows."""

    @property
    def bars(self) -> int:
        """How many bars there are."""
        return sum(len(panel.bars) for panel in self.panels)


NOTHING_TIMED = Scene("Nothing has been timed yet", note="Run something that calls a tool, and draw it again.")
"""What an empty source gives."""


def ticks(low: float, high: float, about: int = 6) -> tuple[float, ...]:
    """Return round numbers between two numbers, about so many."""
    span = high - low
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return tuple(round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1))


def tick_text(value: float) -> str:
    """Return a tick's number, with groups of three digits and no needless zeros."""
    return f"{value:,.10g}".replace(",", "\u202f") if abs(value) < 1e15 else f"{value:.3g}"


def linear(high: float, title: str, about: int = 6) -> Axis:
    """Return an axis from zero to a value and a little beyond."""
    top = high * 1.04 if high > 0 else 1.0
    return Axis(0.0, top, tuple((each, tick_text(each)) for each in ticks(0.0, top, about)), title)


def keys_of(bars: Iterable[Bar], order: Iterable[str]) -> tuple[Key, ...]:
    """Return the legend of some bars: each phase once, in order; a phase that is anywhere hatched is hatched."""
    styles: dict[str, Style] = {}
    for bar in bars:
        style = Style.HATCHED if bar.style is Style.HATCHED else Style.SOLID
        styles.setdefault(bar.phase, style)
    return tuple(Key(phase, phase, styles[phase]) for phase in order if phase in styles)
