"""How a phase spreads over many rounds, and how two sources differ phase by phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from cayu.clock import MILLI
from cayu.errors import InvalidInput
from cayu.notebook.figures.drawing import Picture
from cayu.notebook.figures.palette import ALL_PHASES
from cayu.notebook.figures.scene import (
    NOTHING_TIMED,
    Axis,
    Bar,
    Curve,
    Panel,
    Rule,
    Scene,
    Style,
    Word,
    linear,
    tick_text,
)
from cayu.notebook.figures.sources import Budget, Source, frame, records_of
from cayu.notebook.figures.svg import DASHES
from cayu.notebook.figures.words import counted, milliseconds
from cayu.notebook.schemas import COUNT, MILLISECONDS, TEXT
from cayu.timing.phases import ROUND_PHASES, WAITS
from cayu.timing.records import TimingRecord

ECDF_COLUMNS = {"source": TEXT, "phase": TEXT, "duration_ms": MILLISECONDS, "share": "Float64", "records": COUNT}
"""One row for each step: `share` of all records took at most `duration_ms`; `records` is how many make the step."""
COMPARE_COLUMNS = {
    **{"phase": TEXT, "source": TEXT, "records": COUNT, "median_ms": MILLISECONDS, "q1_ms": MILLISECONDS},
    **{"q3_ms": MILLISECONDS, "smallest_ms": MILLISECONDS, "largest_ms": MILLISECONDS},
}
"""One row for each phase and source; a record in which a phase did not occur counts as zero."""

ONE_SOURCE = "records"
_ROW, _BAR = 1.0, 0.36


def phase_ecdf(phase: str, source: Source | Mapping[str, Source]) -> Picture:
    """Draw which share of the records spent at most how long in a phase; several sources as {name: source}.

    Raises `InvalidInput` for an unknown phase, for more than four sources, and for what holds no timing records.
    """
    if phase not in ALL_PHASES:
        raise InvalidInput(f"There is no phase {phase!r}; phases: {', '.join(ALL_PHASES)}.")
    sources = dict(source) if isinstance(source, Mapping) else {ONE_SOURCE: source}
    if len(sources) > len(DASHES):
        raise InvalidInput(f"At most {len(DASHES)} sources can be told apart; {len(sources)} were given.")
    found = {str(name): _durations(records_of(each), phase) for name, each in sources.items()}
    return Picture(lambda budget: _ecdf(phase, found, budget))


def compare(a: Source, b: Source, names: tuple[str, str] = ("a", "b")) -> Picture:
    """Draw the median of each phase in two sources side by side, with the middle half of the records as a line.

    Records that did not enter a phase do not count for it. Raises `InvalidInput` for two equal names, and for what
    holds no timing records.
    """
    if len(names) != 2:
        raise InvalidInput(f'names are two, such as ("fast", "slow"), not {names!r}.')
    if names[0] == names[1]:
        raise InvalidInput(f"The two sources are both named {names[0]!r}; give them different names.")
    found = [(name, records_of(each)) for name, each in zip(names, (a, b), strict=True)]
    rows = [row for phase in ALL_PHASES for row in _compared(phase, found)]
    return Picture(lambda budget: (frame(COMPARE_COLUMNS, rows), _side_by_side(rows, names)))


def _durations(records: Sequence[TimingRecord], phase: str) -> list[float]:
    """Return the milliseconds that each record of the phase's kind spent in it, in order of size."""
    kind = "tool_round" if phase in ROUND_PHASES else "model_step_preparation"
    return sorted(each.phase(phase).duration_seconds * MILLI for each in records if each.kind == kind)


def _ecdf(phase: str, found: Mapping[str, list[float]], budget: Budget) -> tuple[pd.DataFrame, Scene]:
    rows: list[dict[str, Any]] = []
    thinned = False
    for name, values in found.items():
        steps = _steps(values)
        thin = _thinned(steps, max(2, budget.bars // len(found)))
        thinned = thinned or len(thin) < len(steps)
        rows += [
            {"source": name, "phase": phase, "duration_ms": value, "share": share, "records": count}
            for value, share, count in thin
        ]
    table = frame(ECDF_COLUMNS, rows)
    positive = [row["duration_ms"] for row in rows if row["duration_ms"] > 0]
    if not rows:
        return table, NOTHING_TIMED
    low, high = _decades(min(positive, default=1.0), max(positive, default=1.0))
    curves = tuple(
        _curve(name, values, [row for row in rows if row["source"] == name], number, (low, high))
        for number, (name, values) in enumerate(found.items())
        if values
    )
    notes = [
        f"{_of(name)}{counted(sum(value == 0 for value in values), 'record')} of {len(values)} did not enter the phase."
        for name, values in found.items()
        if 0.0 in values
    ]
    notes += ["Not every step is drawn."] if thinned else []
    marks = tuple((10.0**power, f"{tick_text(10.0**power)} ms") for power in range(_power(low), _power(high) + 1))
    panel = Panel(
        x=Axis(low, high, marks, f"Time in {phase}", log=True),
        y=Axis(0.0, 1.04, tuple((each / 4, f"{each * 25} %") for each in range(5)), "", fixed=True),
        height=240,
        curves=curves,
        title="Share of the records that took at most so long",
    )
    return table, Scene(f"How {phase} spreads", (panel,), (), " ".join(notes))


def _of(name: str) -> str:
    return "" if name == ONE_SOURCE else f"{name}: "


def _steps(values: Sequence[float]) -> list[tuple[float, float, int]]:
    """Return each value once, with the share of values up to it, and how often it occurs."""
    counts: dict[float, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    steps, reached = [], 0
    for value, count in counts.items():
        reached += count
        steps.append((value, reached / len(values), count))
    return steps


def _thinned(steps: Sequence[tuple[float, float, int]], most: int) -> list[tuple[float, float, int]]:
    """Return at most so many of the steps, the last one among them; a step that stays takes in those left out."""
    size = max(1, -(-len(steps) // most))
    groups = [steps[at : at + size] for at in range(0, len(steps), size)]
    return [(group[-1][0], group[-1][1], sum(count for _, _, count in group)) for group in groups]


def _curve(
    name: str, values: Sequence[float], rows: Sequence[Mapping[str, Any]], number: int, ends: tuple[float, float]
) -> Curve:
    zero = sum(value == 0 for value in values) / len(values)
    steps = [(row["duration_ms"], row["share"]) for row in rows if row["duration_ms"] > 0]
    points = [(ends[0], zero), *steps, (ends[1], 1.0)]
    return Curve(
        xs=tuple(x for x, _ in points),
        ys=tuple(y for _, y in points),
        phase=rows[0]["phase"],
        name=f"{name} (n = {len(values)}, median {milliseconds(median(values))})",
        dash=number,
        hover=tuple(f"{name}: {share:.1%} at most {milliseconds(value)}" for value, share in points),
    )


def _power(value: float) -> int:
    return round(math.log10(value))


def _decades(low: float, high: float) -> tuple[float, float]:
    """Return the powers of ten around two values, at least one decade apart."""
    below = math.floor(math.log10(low))
    above = math.ceil(math.log10(high))
    return 10.0**below, 10.0 ** max(above, below + 1)


def _compared(phase: str, found: Sequence[tuple[str, Sequence[TimingRecord]]]) -> list[dict[str, Any]]:
    """Return the rows of a phase that took any time in one of the sources; only records that entered it count."""
    durations = [(name, [value for value in _durations(records, phase) if value > 0]) for name, records in found]
    if not any(values for _, values in durations):
        return []
    return [{"phase": phase, "source": name, **_numbers(values)} for name, values in durations]


def _numbers(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"records": 0, **dict.fromkeys(("median_ms", "q1_ms", "q3_ms", "smallest_ms", "largest_ms"))}
    quarters = [float(each) for each in pd.Series(values).quantile([0.25, 0.75])]
    ends = {"smallest_ms": values[0], "largest_ms": values[-1]}
    return {"records": len(values), "median_ms": median(values), "q1_ms": quarters[0], "q3_ms": quarters[1], **ends}


def _side_by_side(rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> Scene:
    if not rows:
        return NOTHING_TIMED
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    bars, rules, words = [], [], []
    for row in rows:
        if not row["records"]:
            continue
        number = names.index(row["source"])
        top = phases.index(row["phase"]) * _ROW + (0.12 if number == 0 else 0.12 + _BAR + 0.04)
        middle, value = top + _BAR / 2, row["median_ms"]
        style = Style.HATCHED if row["phase"] in WAITS else Style.PALE if number == 0 else Style.SOLID
        told = f"median {milliseconds(value)}, middle half {milliseconds(row['q1_ms'])} to {milliseconds(row['q3_ms'])}"
        hover = (row["phase"], row["source"], told, counted(row["records"], "record"))
        if value > 0:
            bars.append(Bar(0.0, value, top, top + _BAR, row["phase"], style, hover))
        if row["q3_ms"] > row["q1_ms"]:
            rules.append(Rule(row["q1_ms"], middle, row["q3_ms"], middle, ", ".join(hover)))
        words.append(Word(max(value, row["q3_ms"]), middle, milliseconds(value)))
    highest = max(word.x for word in words) * 1.08
    panel = Panel(
        x=linear(highest, "Median per record, milliseconds"),
        y=Axis(len(phases) * _ROW, 0.0, tuple((at + 0.5, name) for at, name in enumerate(phases)), fixed=True),
        height=38 * len(phases),
        bars=tuple(bars),
        rules=tuple(rules),
        words=tuple(words),
    )
    told = " and ".join(f"{name} ({_told(rows, name)})" for name in names)
    note = f"Above and pale: {names[0]}. Below and full: {names[1]}. Hatched: waits, which overlap the work of others."
    note += " Records that did not enter a phase do not count for it."
    return Scene(f"Phases of {told}", (panel,), (), note, "middle half of the records")


def _told(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return how many records of each kind a source has."""
    of_source = [row for row in rows if row["source"] == name]
    rounds = max((row["records"] for row in of_source if row["phase"] in ROUND_PHASES), default=0)
    steps = max((row["records"] for row in of_source if row["phase"] not in ROUND_PHASES), default=0)
    counts = [counted(rounds, "round")] if rounds or not steps else []
    return ", ".join([*counts, counted(steps, "model step")] if steps else counts)
