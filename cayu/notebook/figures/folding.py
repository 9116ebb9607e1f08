"""A time axis that leaves long idle stretches out, and says how long each was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cayu.notebook.figures.scene import Axis, Cut, tick_text, ticks
from cayu.notebook.figures.words import milliseconds

LONG_SHARE = 0.2
"""An idle stretch is long when it takes this share of the whole time."""
MARGIN_SHARE = 0.06
"""What is left of an idle stretch at each of its ends, as a share of the time that is drawn."""
CUT_SHARE = 0.05
"""How wide a cut is drawn, as a share of the time that is drawn."""
_TICK_SHARE = 0.07

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Folded:
    """Where a time lies once the cuts are taken out; times in milliseconds from the round's start."""

    whole: float
    cuts: tuple[Span, ...] = ()
    gap: float = 0.0
    """How wide each cut is drawn."""

    def at(self, time: float) -> float:
        """Return the position of a time; times within a cut share its width."""
        place = time
        for start, end in self.cuts:
            if time >= end:
                place -= (end - start) - self.gap
            elif time > start:
                place -= (time - start) * (1 - self.gap / (end - start))
        return place

    @property
    def length(self) -> float:
        """How long the axis is."""
        return self.at(self.whole)

    def axis(self, title: str) -> Axis:
        """Return the axis, with ticks at true times outside the cuts."""
        length = self.length
        step = ticks(0.0, length, 8)
        distance = step[1] - step[0] if len(step) > 1 else length
        marks: list[tuple[float, str]] = []
        for start, end in self._kept():
            first = -(-start // distance)
            for number in range(int(first), int(end // distance) + 1):
                place = self.at(number * distance)
                if not marks or place - marks[-1][0] >= _TICK_SHARE * length:
                    marks.append((place, tick_text(round(number * distance, 9))))
        return Axis(0.0, length, tuple(marks), title, fixed=bool(self.cuts))

    def marks(self) -> tuple[Cut, ...]:
        """Return a mark for each cut."""
        return tuple(Cut(self.at(start), self.at(end), f"{milliseconds(end - start)} idle") for start, end in self.cuts)

    def _kept(self) -> list[Span]:
        edges = [0.0, *(edge for cut in self.cuts for edge in cut), self.whole]
        return list(zip(edges[::2], edges[1::2], strict=True))


def fold(whole: float, busy: Iterable[Span], partly: Sequence[tuple[Span, float]] = ()) -> Folded:
    """Cut the long stretches of a time in which nothing at all is busy.

    `busy` are the spans that something was active throughout; `partly` are spans with how much of each something was
    active. A stretch is idle only if those can take no more than a margin of it, and their bounds are kept in view.
    """
    bounds = [(edge, edge) for span, _ in partly for edge in span]
    free = _gaps(whole, [*busy, *bounds])
    # Where nothing at all was seen there is nothing to make room for.
    seen = [gap for gap in free if gap != (0.0, whole)]
    idle = [gap for gap in seen if gap[1] - gap[0] >= LONG_SHARE * whole and _certain(gap, partly)]
    drawn = whole - sum(end - start for start, end in idle)
    margin = MARGIN_SHARE * drawn
    cuts = []
    for start, end in idle:
        inner = (start + (margin if start > 0 else 0), end - (margin if end < whole else 0))
        if inner[1] - inner[0] >= LONG_SHARE * whole:
            cuts.append(inner)
    left = whole - sum(end - start for start, end in cuts)
    return Folded(whole, tuple(cuts), CUT_SHARE * left)


def _certain(gap: Span, partly: Sequence[tuple[Span, float]]) -> bool:
    possible = sum(active for (start, end), active in partly if start < gap[1] and end > gap[0])
    return possible <= MARGIN_SHARE * (gap[1] - gap[0])


def _gaps(whole: float, spans: Iterable[Span]) -> list[Span]:
    gaps, reached = [], 0.0
    for start, end in sorted(spans):
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    return [*gaps, (reached, whole)] if reached < whole else gaps
