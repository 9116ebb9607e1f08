"""Attempts at rounds side by side, the newest at the right: what their time was spent on, and what their stores cost.

Only the round's own active phases are stacked. The waits overlap other work and stay out; the calls' phases are in the
round's already. Where calls ran in parallel the phases hold more time than passed, so the clock has its own line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from cayu.clock import MILLI
from cayu.notebook.figures.drawing import Picture
from cayu.notebook.figures.palette import CONSUMER
from cayu.notebook.figures.scene import NOTHING_TIMED, Axis, Bar, Key, Panel, Rule, Scene, Style, keys_of, linear
from cayu.notebook.figures.sources import Budget, Source, frame, in_groups, rounds_of
from cayu.notebook.figures.words import byte_count, counted, grouped, milliseconds
from cayu.notebook.schemas import COUNT, FLAG, MILLISECONDS, TEXT
from cayu.timing.phases import ACTIVE_PHASES, ROUND_PHASES
from cayu.timing.records import ToolRoundTiming

_PLACE = {"round": COUNT, "session_id": TEXT, "tool_round_id": TEXT, "incomplete": FLAG, "recovered": FLAG}
STACK_COLUMNS = {
    **_PLACE,
    **{"phase": TEXT, "start_ms": MILLISECONDS, "duration_ms": MILLISECONDS, "wall_ms": MILLISECONDS, "rounds": COUNT},
}
"""One row for each piece of a bar: it begins at `start_ms` of the bar; `wall_ms` is the observed duration of the round.

`round` counts the attempts from 1, the oldest; where `rounds` is more than 1 the numbers are means over so many.
"""
COST_COLUMNS = {
    **_PLACE,
    **{"phase": TEXT, "store_transactions": "Float64", "store_commit_ms": MILLISECONDS, "store_bytes": "Float64"},
    "rounds": COUNT,
}
"""One row for each round and phase that a store did something for; `rounds` as in `STACK_COLUMNS`."""

ATTEMPTS = "Attempt at a round, the newest at the right"
FLAGS_NOTE = "* incomplete, ° recovered."
_HALF = 0.4
_MOST_LABELLED = 12
"""Bars that are wide enough for numbers on them."""
_LABEL_LETTERS = 100
"""Letters that fit below the axis, two between one label and the next."""
_EPSILON_MS = 1e-6


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring attempts that are drawn as one."""

    number: int
    """Place of the first one, from 1."""
    records: Sequence[ToolRoundTiming]

    @property
    def label(self) -> str:
        """What stands below the bar."""
        if len(self.records) > 1:
            return f"{self.number}-{self.number + len(self.records) - 1}"
        flags = ("*" if self.records[0].incomplete else "") + ("°" if self.records[0].recovered else "")
        return f"{self.number}{flags}"

    @property
    def name(self) -> str:
        """What the hover text calls it."""
        if len(self.records) > 1:
            return f"mean of attempts {self.label}"
        return f"attempt {self.label}: {self.records[0].tool_round_id}"

    @property
    def place(self) -> dict[str, Any]:
        """The columns that say which attempts these are."""
        first, alone = self.records[0], len(self.records) == 1
        return {
            "round": self.number,
            "session_id": first.session_id if len({each.session_id for each in self.records}) == 1 else None,
            "tool_round_id": first.tool_round_id if alone else None,
            "incomplete": any(each.incomplete for each in self.records),
            "recovered": any(each.recovered for each in self.records),
            "rounds": len(self.records),
        }

    def mean(self, value: Callable[[ToolRoundTiming], float]) -> float:
        """Return the mean of a value over the attempts."""
        return fmean(value(each) for each in self.records)


def phase_stack(source: Source) -> Picture:
    """Draw what each attempt's time was spent on: its active phases, and what is left of its duration.

    Raises `InvalidInput` for what holds no timing records.
    """
    rounds = rounds_of(source)
    return Picture(lambda budget: _stacked(rounds, budget))


def store_cost(source: Source) -> Picture:
    """Draw the transactions, the time of commits and the bytes of each attempt, by phase.

    Raises `InvalidInput` for what holds no timing records.
    """
    rounds = rounds_of(source)
    return Picture(lambda budget: _costed(rounds, budget))


def _groups(rounds: Sequence[ToolRoundTiming], most: int) -> list[Group]:
    groups, number = [], 1
    for records in in_groups(rounds, most):
        groups.append(Group(number, records))
        number += len(records)
    return groups


def _stacked(rounds: Sequence[ToolRoundTiming], budget: Budget) -> tuple[pd.DataFrame, Scene]:
    groups = _groups(rounds, budget.bars // (len(ACTIVE_PHASES) + 1))
    rows = [row for group in groups for row in _pieces(group)]
    if not groups:
        return frame(STACK_COLUMNS, ()), NOTHING_TIMED
    named = {group.number: (place, group) for place, group in enumerate(groups)}
    bars, rules = [], []
    for row in rows:
        place, group = named[row["round"]]
        bottom, height = row["start_ms"], row["duration_ms"]
        hover = (row["phase"], f"{milliseconds(height)} of {milliseconds(row['wall_ms'])} observed", group.name)
        style = Style.PALE if row["phase"] == CONSUMER else Style.SOLID
        box = {"x0": place - _HALF, "x1": place + _HALF, "y0": bottom, "y1": bottom + height}
        bars.append(Bar(**box, phase=row["phase"], style=style, hover=hover, label=_label(height, len(groups))))
    for place, group in enumerate(groups):
        wall = group.mean(_wall)
        text = f"observed duration {milliseconds(wall)}, {group.name}"
        rules.append(Rule(place - _HALF - 0.06, wall, place + _HALF + 0.06, wall, text))
    notes = _notes(groups)
    if any(row["start_ms"] + row["duration_ms"] > row["wall_ms"] + _EPSILON_MS * 1000 for row in rows):
        notes.append("Above the line: calls worked in parallel, so their phases hold more time than passed.")
    notes.append("The waits are not part of the bars.")
    highest = max(0.0, *(bar.y1 for bar in bars), *(rule.y1 for rule in rules))
    panel = Panel(
        x=_attempts(groups),
        y=linear(highest, "ms"),
        height=260,
        bars=tuple(bars),
        rules=tuple(rules),
        upright=True,
        title="Milliseconds",
    )
    keys = tuple(
        Key(key.phase, "consumer (what is left)", Style.PALE) if key.phase == CONSUMER else key
        for key in keys_of(bars, (*ACTIVE_PHASES, CONSUMER))
    )
    scene = Scene("Where the time of each round went", (panel,), keys, " ".join(notes), "observed duration")
    return frame(STACK_COLUMNS, rows), scene


def _wall(record: ToolRoundTiming) -> float:
    return record.duration_seconds * MILLI


def _pieces(group: Group) -> Iterator[dict[str, Any]]:
    wall, bottom = group.mean(_wall), 0.0
    for name in (*ACTIVE_PHASES, CONSUMER):
        length = group.mean(_left) if name == CONSUMER else group.mean(_length_of(name))
        if length > _EPSILON_MS:
            yield {**group.place, "phase": name, "start_ms": bottom, "duration_ms": length, "wall_ms": wall}
            bottom += length


def _length_of(phase: str) -> Callable[[ToolRoundTiming], float]:
    return lambda record: record.phase(phase).duration_seconds * MILLI


def _left(record: ToolRoundTiming) -> float:
    """Return what is left of a round's duration beside its active phases."""
    return max(0.0, _wall(record) - sum(record.phase(name).duration_seconds * MILLI for name in ACTIVE_PHASES))


def _costed(rounds: Sequence[ToolRoundTiming], budget: Budget) -> tuple[pd.DataFrame, Scene]:
    groups = _groups(rounds, budget.bars // (3 * len(ACTIVE_PHASES)))
    if not groups:
        return frame(COST_COLUMNS, ()), NOTHING_TIMED
    rows = [row for group in groups for row in _costs(group)]
    numbered = {group.number: place for place, group in enumerate(groups)}
    names = {group.number: group.name for group in groups}
    panels, found = [], []
    for column, title, told in _MEASURES:
        bars = _piled(rows, column, told, numbered, names)
        found += bars
        axis = linear(max((bar.y1 for bar in bars), default=0.0), "", about=4)
        panels.append(Panel(x=_attempts(groups), y=axis, height=150, bars=tuple(bars), upright=True, title=title))
    notes = _notes(groups)
    if not rows:
        notes.append("No costs of a store were measured: stores in memory report none.")
    scene = Scene(
        "What the stores of each round cost",
        tuple(panels),
        keys_of(found, ROUND_PHASES),
        " ".join(notes),
        shared_x=True,
    )
    return frame(COST_COLUMNS, rows), scene


def _transactions_text(value: float) -> str:
    return f"{value:.3g} transactions" if value != 1 else "1 transaction"


_MEASURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("store_transactions", "Transactions", _transactions_text),
    ("store_commit_ms", "Time in commits, ms", milliseconds),
    ("store_bytes", "Bytes written", byte_count),
)


def _costs(group: Group) -> Iterator[dict[str, Any]]:
    for name in ROUND_PHASES:
        phases = [record.phase(name) for record in group.records]
        costs = {
            "store_transactions": fmean(phase.store_transaction_count for phase in phases),
            "store_commit_ms": fmean(phase.store_commit_seconds for phase in phases) * MILLI,
            "store_bytes": fmean(phase.store_bytes_written for phase in phases),
        }
        if any(costs.values()):
            yield {**group.place, "phase": name, **costs}


def _piled(
    rows: Sequence[dict[str, Any]],
    column: str,
    told: Callable[[float], str],
    places: dict[int, int],
    names: dict[int, str],
) -> list[Bar]:
    """Return the bars of one measure; costs of different phases are apart, so they add up."""
    reached: dict[int, float] = {}
    bars = []
    for row in rows:
        number, value = row["round"], max(0.0, row[column])
        if not value:
            continue
        bottom = reached.get(number, 0.0)
        reached[number] = bottom + value
        place = places[number]
        hover = (row["phase"], told(value), names[number])
        box = {"x0": place - _HALF, "x1": place + _HALF, "y0": bottom, "y1": bottom + value}
        bars.append(Bar(**box, phase=row["phase"], hover=hover, label=_label(value, len(places))))
    return bars


def _label(value: float, bars: int) -> str:
    """Return the number that stands on a piece of a bar, in the unit of its axis; bars of many are too narrow."""
    if bars > _MOST_LABELLED:
        return ""
    return grouped(value) if value >= 10 else f"{value:.2g}"


def _attempts(groups: Sequence[Group]) -> Axis:
    """Return the axis of the attempts; a few bars are not drawn as wide as the page."""
    longest = max((len(group.label) for group in groups), default=1)
    every = max(1, -(-len(groups) * (longest + 2) // _LABEL_LETTERS))
    ticks = tuple((float(place), group.label) for place, group in enumerate(groups) if place % every == 0)
    return Axis(-0.7, max(len(groups), 6) - 0.3, ticks, ATTEMPTS, fixed=True)


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    if len(groups[0].records) > 1:
        total = sum(len(group.records) for group in groups)
        notes.append(f"{grouped(total)} attempts: a bar is the mean of {counted(len(groups[0].records), 'attempt')}.")
    elif any(group.records[0].incomplete or group.records[0].recovered for group in groups):
        notes.append(FLAGS_NOTE)
    return notes
