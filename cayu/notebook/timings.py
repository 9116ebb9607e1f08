"""A lab's timing records, as this process remembers them and as its files hold them, and their frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from cayu.clock import MILLI, as_microseconds
from cayu.notebook.frames import EVERYTHING, Ask, Data, tell
from cayu.observability.timing_files import TimingsRead, read_timings
from cayu.runtime.app import CayuApp
from cayu.timing.phases import ACTIVE_PHASES, UNATTRIBUTED
from cayu.timing.records import ModelStepPreparationTiming, RuntimePhaseTiming, TimingRecord, ToolRoundTiming

FLUSH_SECONDS = 1.0
"""How long reading waits for sinks; what is not delivered by then is read from the recent view."""


async def gather_timings(app: CayuApp, folder: Path, session: str | None) -> TimingsRead:
    """Return what the application remembers and what the files in `folder` hold, each record once, oldest first."""
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await app.flush_runtime_timing()
    except TimeoutError:
        pass  # a sink that is stuck keeps nobody from reading
    recent: list[TimingRecord] = [
        *await app.inspect_recent_tool_round_timing(session, EVERYTHING),
        *await app.inspect_recent_model_step_preparation_timing(session, EVERYTHING),
    ]
    read = await asyncio.to_thread(read_timings, folder, session)
    found = {_identity(record): record for record in (*read.records, *recent)}
    return TimingsRead(tuple(sorted(found.values(), key=attrgetter("started_at"))), read.skipped)


def _identity(record: TimingRecord) -> tuple[Any, ...]:
    """Return what no two records share: an attempt begins at one moment and takes its own time."""
    return record.kind, record.model_step_id, record.started_at, record.duration_seconds


def rounds_data(records: Sequence[TimingRecord], ask: Ask) -> Data:
    """Gather `rounds_df`: one row per attempt at a round."""
    rounds = [record for record in records if isinstance(record, ToolRoundTiming)]
    _tell_sessions(ask, rounds)
    return {name: [_ROUND[name](record) for record in rounds] for name in ask.needed()}


def phases_data(records: Sequence[TimingRecord], ask: Ask) -> Data:
    """Gather `phases_df`: one row per phase of each round, of each of its calls, and of each preparation."""
    _tell_sessions(ask, records)
    subjects = [subject for record in records for subject in _subjects(record)]
    phases = [phase for subject in subjects for phase in subject.phases]
    return {
        name: [_PHASE[name](phase) for phase in phases] if name in _PHASE else _spread(subjects, name)
        for name in ask.needed()
    }


def _tell_sessions(ask: Ask, records: Iterable[TimingRecord]) -> None:
    tell(ask, len({record.session_id for record in records}))


class _Subject(NamedTuple):
    """What has phases, with what it says on each of its rows."""

    phases: tuple[RuntimePhaseTiming, ...]
    session_id: str
    kind: str
    tool_round_id: str | None
    tool_call_id: str | None
    tool_name: str | None
    incomplete: bool
    recovered: bool


def _subjects(record: TimingRecord) -> Iterator[_Subject]:
    session, kind, incomplete = record.session_id, record.kind, record.incomplete
    if isinstance(record, ModelStepPreparationTiming):
        yield _Subject(record.phases, session, kind, record.after_tool_round_id, None, None, incomplete, False)
        return
    round_id, recovered = record.tool_round_id, record.recovered
    yield _Subject(record.phases, session, kind, round_id, None, None, incomplete, recovered)
    for call in record.calls:
        name = call.tool_name
        yield _Subject(call.phases, session, "tool_call", round_id, call.tool_call_id, name, incomplete, recovered)


def _spread(subjects: Sequence[_Subject], name: str) -> list[Any]:
    """Return a column of the subjects' own, once per phase."""
    return list(chain.from_iterable(repeat(getattr(subject, name), len(subject.phases)) for subject in subjects))


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else as_microseconds(moment)


_PHASE: Mapping[str, Callable[[RuntimePhaseTiming], Any]] = {
    "phase": attrgetter("name"),
    "started_at": lambda phase: _us(phase.first_started_at),
    "completed_at": lambda phase: _us(phase.last_completed_at),
    "duration_ms": lambda phase: phase.duration_seconds * MILLI,
    "store_transactions": attrgetter("store_transaction_count"),
    "store_lock_wait_ms": lambda phase: phase.store_lock_wait_seconds * MILLI,
    "store_execution_ms": lambda phase: phase.store_execution_seconds * MILLI,
    "store_commit_ms": lambda phase: phase.store_commit_seconds * MILLI,
    "store_bytes": attrgetter("store_bytes_written"),
}
"""The columns of `phases_df` that a phase fills."""


def _active_seconds(record: ToolRoundTiming) -> float:
    return sum(phase.duration_seconds for phase in record.phases if phase.name in ACTIVE_PHASES)


_ROUND: Mapping[str, Callable[[ToolRoundTiming], Any]] = {
    "session_id": attrgetter("session_id"),
    "tool_round_id": attrgetter("tool_round_id"),
    "model_step_id": attrgetter("model_step_id"),
    "started_at": lambda record: _us(record.started_at),
    "completed_at": lambda record: _us(record.completed_at),
    "duration_ms": lambda record: record.duration_seconds * MILLI,
    "calls": lambda record: len(record.calls) + record.calls_truncated,
    "active_ms": lambda record: _active_seconds(record) * MILLI,
    "unattributed_ms": lambda record: record.phase(UNATTRIBUTED).duration_seconds * MILLI,
    "store_transactions": lambda record: sum(phase.store_transaction_count for phase in record.phases),
    "store_commit_ms": lambda record: sum(phase.store_commit_seconds for phase in record.phases) * MILLI,
    "store_bytes": lambda record: sum(phase.store_bytes_written for phase in record.phases),
    "incomplete": attrgetter("incomplete"),
    "recovered": attrgetter("recovered"),
    "calls_truncated": attrgetter("calls_truncated"),
}
"""The columns of `rounds_df`."""
