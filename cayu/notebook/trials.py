"""From experiments and recalls to columns: trials, effects, and what automatic recall considered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cayu.canonical import loads
from cayu.events import EventType as E
from cayu.experiments.effects import Effect
from cayu.experiments.sweep import ExperimentRun
from cayu.notebook.frames import Ask, Data, tell
from cayu.notebook.schemas import columns_of
from cayu.sessions.streams import RecordQuery, SessionStore, StoredRecord


def trials_data(runs: Iterable[ExperimentRun]) -> Data:
    """Return the columns of `trials_df`, in the order in which trials were done."""
    rows = [{"experiment": run.experiment.name, **record.model_dump()} for run in runs for record in list(run.records)]
    return _columns("trials_df", rows)


def effects_data(found: Iterable[tuple[str, Sequence[Effect]]]) -> Data:
    """Return the columns of `effects_df` from the effects of experiments by name."""
    rows = [
        {"experiment": name, **effect.model_dump(), "reasons": ", ".join(effect.reasons)}
        for name, listed in found
        for effect in listed
    ]
    return _columns("effects_df", rows)


async def recall_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `recall_df`: a row per memory that a recall considered, or per recall that found none or failed."""
    types = (str(E.RECALL_COMPLETED), str(E.RECALL_FAILED))
    found = await store.records(RecordQuery(session_id=ask.session_id, types=types))
    rows = [row for session_id, record in found for row in _recall_rows(session_id, record)]
    tell(ask, len({session_id for session_id, _ in found}))
    return _columns("recall_df", rows)


def _recall_rows(session_id: str, record: StoredRecord) -> Iterator[Mapping[str, Any]]:
    told = loads(record.body)
    shared = {"session_id": session_id, "at": record.at, "failure": told.get("code")}
    shared |= {name: told.get(name) for name in ("recall", "step", "mode")}
    items = told.get("items", ())
    for place, item in enumerate(items, 1):
        yield {**shared, **item, "item_id": item["id"], "place": place}
    if not items:
        yield shared


def _columns(frame: str, rows: Sequence[Mapping[str, Any]]) -> Data:
    names = [column.name for column in columns_of(frame)]
    return {name: [row.get(name) for row in rows] for name in names}
