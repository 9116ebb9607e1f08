"""One attempt at a round in time: a row for the round and one for each call, every phase at the bounds it was seen at.

Bars that overlap lie on lanes of their own, so nothing is added to anything. A phase that was entered more than once is
pale from its first entry to its last exit, above a strip as high as its share of that; a wait is hatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pandas as pd

from cayu.clock import MILLI
from cayu.notebook.figures.drawing import Picture
from cayu.notebook.figures.folding import Folded, Span, fold
from cayu.notebook.figures.palette import ALL_PHASES
from cayu.notebook.figures.scene import NOTHING_TIMED, Axis, Bar, Panel, Scene, Style, keys_of
from cayu.notebook.figures.sources import Budget, Source, frame, in_groups, rounds_of
from cayu.notebook.figures.words import byte_count, counted, grouped, milliseconds
from cayu.notebook.schemas import COUNT, FLAG, MILLISECONDS, TEXT
from cayu.timing.phases import ROUND_PHASES, WAITS
from cayu.timing.records import RuntimePhaseTiming, ToolCallTiming, ToolRoundTiming

COLUMNS = {
    **{"row": TEXT, "session_id": TEXT, "tool_round_id": TEXT, "tool_call_id": TEXT, "tool_name": TEXT},
    **{"phase": TEXT, "start_ms": MILLISECONDS, "end_ms": MILLISECONDS, "duration_ms": MILLISECONDS},
    **{"wait": FLAG, "partial": FLAG, "store_transactions": COUNT, "store_commit_ms": MILLISECONDS},
    **{"store_bytes": COUNT, "calls": COUNT},
}
"""One row for each bar; `start_ms` and `end_ms` count from the round's start, `calls` is 0 for the round itself.

`duration_ms` is the time in the phase; with `partial` it is less than the bar is long.
"""

TITLE = "Milliseconds from the start of the round"
LANE, LOWEST_LANE = 23, 6
"""Pixels of one lane, and of one among very many."""
TALLEST = 1_400
"""Pixels that lanes of full height may take."""
NAME_HEIGHT = 14
SPACE = 0.45
"""Lanes between two rows."""
_SLACK_MS = 0.002
"""Bounds are whole microseconds, durations are not."""
_NARROW = 0.005
"""The share of the axis that the shortest bar takes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One phase of one row, in milliseconds from the round's start."""

    row: str
    call: ToolCallTiming | None
    phase: str
    start: float
    end: float
    duration: float
    transactions: int
    commit: float
    bytes: int
    calls: int
    """Calls that are put together in the row; 0 is the round itself."""

    @property
    def partial(self) -> bool:
        """Whether the phase took only a part of the stretch."""
        return self.end - self.start > self.duration + _SLACK_MS


def timeline(round: ToolRoundTiming | Source) -> Picture:
    """Draw one attempt at a tool round; of a source with several, the newest.

    Raises `InvalidInput` for what holds no timing records.
    """
    rounds = rounds_of(round)
    record = rounds[-1] if rounds else None
    return Picture(lambda budget: _drawn(record, budget))


def _drawn(record: ToolRoundTiming | None, budget: Budget) -> tuple[pd.DataFrame, Scene]:
    if record is None:
        return frame(COLUMNS, ()), NOTHING_TIMED
    stretches, note = _stretches(record, budget)
    return frame(COLUMNS, (_row_of(record, each) for each in stretches)), _scene(record, stretches, note)


def _stretches(record: ToolRoundTiming, budget: Budget) -> tuple[list[Stretch], str]:
    most = min(budget.rows, budget.bars // len(ROUND_PHASES) - 1)
    groups = in_groups(record.calls, most)
    found = list(_of_row("round", None, record.phases, record.started_at, 0))
    number = 1
    for group in groups:
        found += _of_group(group, number, record.started_at)
        number += len(group)
    notes = [f"{counted(len(groups[0]), 'call')} to a row."] if groups and len(groups[0]) > 1 else []
    if record.calls_truncated:
        notes.append(f"{counted(record.calls_truncated, 'call')} more in the round's own numbers only.")
    if any(each.partial for each in found):
        notes.append("Pale: entered more than once; the strip below is as high as the phase's share of that stretch.")
    if any(each.phase in WAITS for each in found):
        notes.append("Hatched: a wait, which overlaps the work of other calls.")
    return found, " ".join(notes)


def _of_group(group: Sequence[ToolCallTiming], number: int, since: datetime) -> Iterator[Stretch]:
    if len(group) == 1:
        yield from _of_row(f"{number}. {group[0].tool_name or 'call'}", group[0], group[0].phases, since, 1)
        return
    row = f"calls {grouped(number)} to {grouped(number + len(group) - 1)}"
    each = [stretch for call in group for stretch in _of_row(row, None, call.phases, since, 1)]
    for phase in ROUND_PHASES:
        same = [stretch for stretch in each if stretch.phase == phase]
        if same:
            yield replace(
                same[0],
                start=min(stretch.start for stretch in same),
                end=max(stretch.end for stretch in same),
                duration=sum(stretch.duration for stretch in same),
                transactions=sum(stretch.transactions for stretch in same),
                commit=sum(stretch.commit for stretch in same),
                bytes=sum(stretch.bytes for stretch in same),
                calls=len(group),
            )


def _of_row(
    row: str, call: ToolCallTiming | None, phases: Iterable[RuntimePhaseTiming], since: datetime, calls: int
) -> Iterator[Stretch]:
    for phase in phases:
        if phase.first_started_at is None or phase.last_completed_at is None:
            continue
        start = (phase.first_started_at - since).total_seconds() * MILLI
        end = (phase.last_completed_at - since).total_seconds() * MILLI
        duration = phase.duration_seconds * MILLI
        yield Stretch(
            row=row,
            call=call,
            phase=phase.name,
            start=start,
            duration=duration,
            calls=calls,
            end=max(end, start + min(duration, _SLACK_MS)),
            transactions=phase.store_transaction_count,
            commit=phase.store_commit_seconds * MILLI,
            bytes=phase.store_bytes_written,
        )


def _row_of(record: ToolRoundTiming, stretch: Stretch) -> dict[str, object]:
    return {
        "row": stretch.row,
        "session_id": record.session_id,
        "tool_round_id": record.tool_round_id,
        "tool_call_id": stretch.call.tool_call_id if stretch.call else None,
        "tool_name": stretch.call.tool_name if stretch.call else None,
        "phase": stretch.phase,
        "start_ms": stretch.start,
        "end_ms": stretch.end,
        "duration_ms": stretch.duration,
        "wait": stretch.phase in WAITS,
        "partial": stretch.partial,
        "store_transactions": stretch.transactions,
        "store_commit_ms": stretch.commit,
        "store_bytes": stretch.bytes,
        "calls": stretch.calls,
    }


def _scene(record: ToolRoundTiming, stretches: Sequence[Stretch], note: str) -> Scene:
    whole = max([record.duration_seconds * MILLI, _SLACK_MS, *(each.end for each in stretches)])
    active = [each for each in stretches if each.phase not in WAITS]
    busy: list[Span] = [(each.start, each.end) for each in active if not each.partial]
    # The round's row repeats what the calls' rows hold, so only the larger part of each phase counts.
    partly = [((each.start, each.end), each.duration) for each in active if each.partial and _own(each, stretches)]
    folded = fold(whole, busy, partly)
    bars, names, lanes = _bars(stretches, folded)
    lane = min(LANE, max(LOWEST_LANE, TALLEST / lanes))
    panel = Panel(
        x=folded.axis(TITLE),
        y=Axis(lanes, 0.0, _apart(names, NAME_HEIGHT / lane), fixed=True),
        height=max(round(lanes * lane), 2 * LANE),
        bars=tuple(bars),
        cuts=folded.marks(),
    )
    states = [word for word, holds in (("incomplete", record.incomplete), ("recovered", record.recovered)) if holds]
    title = f"Round {record.tool_round_id}: {milliseconds(record.duration_seconds * MILLI)}"
    return Scene(", ".join([title, *states]), (panel,), keys_of(bars, ALL_PHASES), note)


def _apart(names: Sequence[tuple[float, str]], distance: float) -> tuple[tuple[float, str], ...]:
    """Return the names that have room, from the first one on."""
    kept: list[tuple[float, str]] = []
    for name in names:
        if not kept or name[0] - kept[-1][0] >= distance:
            kept.append(name)
    return tuple(kept)


def _own(stretch: Stretch, stretches: Sequence[Stretch]) -> bool:
    """Whether a phase of the round is not just the sum of the calls' spans, each of which counts as busy itself."""
    if stretch.calls:
        return True
    of_calls = [each for each in stretches if each.calls and each.phase == stretch.phase]
    return not of_calls or sum(each.duration for each in of_calls) < stretch.duration - _SLACK_MS


def _bars(stretches: Sequence[Stretch], folded: Folded) -> tuple[list[Bar], list[tuple[float, str]], float]:
    """Return the bars, the names of the rows at their middle, and how many lanes there are in all."""
    bars: list[Bar] = []
    names: list[tuple[float, str]] = []
    top = SPACE / 2
    rows: dict[str, list[Stretch]] = {}
    for each in stretches:
        rows.setdefault(each.row, []).append(each)
    for row, members in rows.items():
        lanes = _lanes(members, folded)
        for number, lane in enumerate(lanes):
            rooms = [folded.at(each.start) for each in lane[1:]] + [folded.length]
            bars += [_bar(each, folded, top + number, room) for each, room in zip(lane, rooms, strict=True)]
        names.append((top + len(lanes) / 2, row))
        top += len(lanes) + SPACE
    return bars, names, max(top - SPACE / 2, 1.0)


def _lanes(members: Sequence[Stretch], folded: Folded) -> list[list[Stretch]]:
    """Put stretches on as few lanes as keep them apart; each is counted as wide as it is drawn at least."""
    lanes: list[list[Stretch]] = []
    ends: list[float] = []
    narrow = _NARROW * folded.length
    for each in sorted(members, key=lambda each: (each.start, each.end - each.start)):
        start, end = folded.at(each.start), folded.at(each.end)
        number = next((at for at, reached in enumerate(ends) if start >= reached - 1e-9), len(lanes))
        if number == len(lanes):
            lanes.append([])
            ends.append(0.0)
        lanes[number].append(each)
        ends[number] = max(end, start + narrow)
    return lanes


def _bar(stretch: Stretch, folded: Folded, top: float, room: float) -> Bar:
    style = Style.HATCHED if stretch.phase in WAITS else Style.PALE if stretch.partial else Style.SOLID
    return Bar(
        **{"x0": folded.at(stretch.start), "x1": folded.at(stretch.end), "y0": top + 0.06, "y1": top + 0.94},
        phase=stretch.phase,
        style=style,
        hover=_hover(stretch),
        label=f"{stretch.phase} {milliseconds(stretch.duration)}",
        room=room,
        filled=stretch.duration / (stretch.end - stretch.start) if style is Style.PALE else 1.0,
    )


def _hover(stretch: Stretch) -> tuple[str, ...]:
    call = stretch.call
    lines = [stretch.phase, stretch.row if call is None else f"{stretch.row} ({call.tool_call_id})"]
    lines.append(f"{milliseconds(stretch.duration)} in this phase")
    if stretch.partial:
        lines.append(f"entered more than once within {milliseconds(stretch.end - stretch.start)}")
    lines.append(f"from {stretch.start:.3f} to {stretch.end:.3f} ms of the round")
    if stretch.transactions:
        lines.append(f"{counted(stretch.transactions, 'transaction')}, {milliseconds(stretch.commit)} in commits")
    if stretch.bytes:
        lines.append(f"{byte_count(stretch.bytes)} written")
    return tuple(lines)
