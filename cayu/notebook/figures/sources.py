"""Where figures take their records from, the frames they show beside the picture, and how much they draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import pandas as pd

from cayu.errors import InvalidInput
from cayu.timing.records import ModelStepPreparationTiming, TimingRecord, ToolRoundTiming

T = TypeVar("T")


@runtime_checkable
class Timed(Protocol):
    """A lab, a session's handle, or anything else that has timing records."""

    def timings(self) -> Iterable[TimingRecord]:
        """Return the records."""
        ...


Source = Timed | TimingRecord | Iterable[TimingRecord]
"""Timing records: one, several, or something that has some."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one picture draws before it puts things together."""

    bars: int
    rows: int


FULL = Budget(bars=20_000, rows=20_000)
"""Of the interactive figure and its frame."""
STATIC = Budget(bars=1_600, rows=24)
"""Of the static picture."""


def records_of(source: Source) -> tuple[TimingRecord, ...]:
    """Return the records of a source, the oldest first.

    Raises `InvalidInput` for anything that is no source.
    """
    if isinstance(source, ToolRoundTiming | ModelStepPreparationTiming):
        return (source,)
    found: Any = source.timings() if isinstance(source, Timed) else source
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise InvalidInput(_no_source(found))
    if isinstance(found, pd.DataFrame):
        raise InvalidInput(_no_source(found))
    records = tuple(found)
    for record in records:
        if not isinstance(record, ToolRoundTiming | ModelStepPreparationTiming):
            raise InvalidInput(_no_source(record))
    return tuple(sorted(records, key=lambda record: record.started_at))


def _no_source(found: object) -> str:
    return (
        f"A {type(found).__name__} holds no timing records. Pass records of CayuApp.inspect_recent_tool_round_timing, "
        "or what has timings(): a Lab or a session's handle."
    )


def rounds_of(source: Source) -> tuple[ToolRoundTiming, ...]:
    """Return the attempts at rounds of a source, the oldest first."""
    return tuple(record for record in records_of(source) if isinstance(record, ToolRoundTiming))


def in_groups(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return neighbours put together so that there are at most so many groups; one each while there is room."""
    size = max(1, -(-len(items) // max(most, 1)))
    return [items[at : at + size] for at in range(0, len(items), size)]


def frame(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame with its columns and dtypes, also when there are none."""
    listed = list(rows)
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in listed], dtype=dtype) for name, dtype in columns.items()}
    )
