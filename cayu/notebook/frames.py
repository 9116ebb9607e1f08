"""From store to DataFrame: every frame has its declared columns and dtypes, also when it is empty.

Rows are gathered column by column; JSON is decoded only where a column that was asked for needs it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from cayu.canonical import dumps, loads
from cayu.errors import InvalidInput
from cayu.notebook.schemas import FLAG, SET, TEXT, TIME, Column, columns_of
from cayu.sessions.fold import fold
from cayu.sessions.streams import HeadQuery, RecordQuery, SessionStore, StoredRecord
from cayu.sessions.view import CallView, RoundView, SessionView

EVERYTHING = 1 << 40
Progress = Callable[[int, int], None]
"""progress(done, total) in sessions."""
Data = Mapping[str, Sequence[Any]]
Conditions = Mapping[str, Any] | None
"""Column, or column with a comparison -> value."""

_CONDITION = re.compile(r"^\s*(\w+)\s*(>=|<=|>|<|==|!=|in)?\s*$")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader wants of a frame."""

    frame: str
    where: Mapping[str, Any] = field(default_factory=dict)
    """`{"status": "failed", "duration_ms >=": 5, "tool_name in": [...]}`."""
    columns: Sequence[str] | None = None
    limit: int | None = None
    progress: Progress | None = None

    def wanted(self) -> list[Column]:
        """Return the columns to give. Raises `InvalidInput`, with the columns there are, for unknown ones."""
        declared = {column.name: column for column in columns_of(self.frame)}
        if isinstance(self.columns, str) or not isinstance(self.where, Mapping):
            raise InvalidInput('columns is a list of names, and where an object: {"state": "completed"}.')
        named = list(self.columns) if self.columns is not None else list(declared)
        for name in (*named, *(_parsed(key)[0] for key in self.where)):
            if name not in declared:
                raise InvalidInput(f"{self.frame} has no column {name!r}; columns: {', '.join(declared)}.")
        if self.limit is not None and (type(self.limit) is not int or self.limit < 0):
            raise InvalidInput(f"limit is a whole number of rows, not {self.limit!r}; leave it out for everything.")
        return [declared[name] for name in named]

    def needed(self) -> set[str]:
        """Return the names of the columns that are given or compared."""
        return {column.name for column in self.wanted()} | {_parsed(key)[0] for key in self.where}

    @property
    def session_id(self) -> str | None:
        """The one session that the conditions select, if they do."""
        found = self.where.get("session_id", self.where.get("session_id =="))
        return found if isinstance(found, str) else None


def _parsed(key: str) -> tuple[str, str]:
    found = _CONDITION.match(key)
    if found is None:
        raise InvalidInput(f"{key!r} is no condition; write a column, or a column with >=, <=, >, <, ==, != or in.")
    return found[1], found[2] or ""


def finished(ask: Ask, data: Data) -> pd.DataFrame:
    """Return the frame of gathered columns: typed, filtered, limited, with its provenance in `attrs["cayu"]`."""
    wanted = ask.wanted()
    declared = {column.name: column for column in columns_of(ask.frame)}
    frame = pd.DataFrame({name: typed(declared[name], data[name]) for name in declared if name in data})
    for key, value in ask.where.items():
        frame = frame[_mask(frame, key, value, declared[_parsed(key)[0]].dtype)]
    total = len(frame)
    frame = frame if ask.limit is None else frame.head(ask.limit)
    frame = frame[[column.name for column in wanted]].reset_index(drop=True)
    as_of = datetime.now(UTC).isoformat(timespec="seconds")
    frame.attrs["cayu"] = {"rows": len(frame), "total": total, "truncated": len(frame) < total, "as_of": as_of}
    return frame


def typed(column: Column, values: Sequence[Any]) -> pd.Series[Any]:
    """Return values as the column's dtype; times come as microseconds since 1970 or None."""
    if column.dtype == TIME:
        moments = pd.array(list(values), dtype="Int64")
        return pd.Series(pd.to_datetime(pd.Series(moments), unit="us", utc=True)).astype("datetime64[us, UTC]")
    return pd.Series(list(values), dtype=column.dtype)


def _mask(frame: pd.DataFrame, key: str, value: Any, dtype: str) -> Any:
    name, comparison = _parsed(key)
    series = frame[name].astype("string") if dtype == SET else frame[name]
    if comparison == "in" or (not comparison and isinstance(value, list | tuple | set)):
        if not isinstance(value, list | tuple | set):
            raise InvalidInput(f"{key!r} takes a list.")
        return series.isin([_fitting(key, item, dtype) for item in value])
    return _COMPARE[comparison or "=="](series, _fitting(key, value, dtype)).fillna(False).astype(bool)


def _fitting(key: str, value: Any, dtype: str) -> Any:
    """Return a value as the column compares it; a time without a zone is UTC. Raises `InvalidInput`."""
    if dtype == TIME:
        try:
            moment = pd.Timestamp(value)
        except (TypeError, ValueError):
            raise InvalidInput(f"{key!r} takes a time.") from None
        if value is None or isinstance(value, Real) or str(moment) == "NaT":
            raise InvalidInput(f"{key!r} takes a time: a datetime, or its text.")
        return moment.tz_localize("UTC") if moment.tzinfo is None else moment
    expected, words = _EXPECTED.get(dtype, (Real, "a number"))
    if not isinstance(value, expected) or (isinstance(value, bool) and dtype != FLAG):
        raise InvalidInput(f"{key!r} takes {words}.")
    return value


_EXPECTED: dict[str, tuple[Any, str]] = {
    TEXT: (str, "text"),
    SET: (str, "text"),
    FLAG: (bool | np.bool_, "True or False"),
}


_SESSION_PATHS = {
    "session_id": "row.id",
    **{name: f"row.{name}" for name in ("title", "agent_name", "model", "provider_name", "environment_name")},
    "instance_id": "row.instance_id",
    **{name: f"state.{name}" for name in ("status", "pending", "model_steps", "tool_calls", "input_tokens")},
    **{name: f"state.{name}" for name in ("output_tokens", "created_at", "updated_at")},
    "events": "state.version",
    "run_epoch": "state.epoch",
}
"""Column -> where it stands in a stream's head."""
_SESSION_VALUES = operator.attrgetter(*_SESSION_PATHS.values())


async def sessions_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `sessions_df`, newest session first."""
    page = await store.heads(HeadQuery(session_id=ask.session_id, limit=EVERYTHING))
    found = list(zip(*map(_SESSION_VALUES, page.rows), strict=True)) or [()] * len(_SESSION_PATHS)
    data = dict(zip(_SESSION_PATHS, found, strict=True))
    tell(ask, len(page.rows))
    return data


def tell(ask: Ask, sessions: int) -> None:
    """Tell whoever follows the progress that all sessions were read."""
    if ask.progress is not None:
        ask.progress(sessions, sessions)


async def events_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `events_df`, in the order of sessions and sequences."""
    needed = ask.needed()
    decoded = needed & {"tool_name", "tool_round_id", "tool_call_id"}
    types = ask.where.get("type")
    query = RecordQuery(
        session_id=ask.session_id,
        types=(types,) if isinstance(types, str) else (),
        bodies=bool(decoded or "payload" in needed),
    )
    found = await store.records(query)
    data: dict[str, list[Any]] = {
        "session_id": [session_id for session_id, _ in found],
        "sequence": [record.sequence for _, record in found],
        "type": [record.type for _, record in found],
        "timestamp": [record.at for _, record in found],
    }
    if "payload" in needed:
        data["payload"] = [record.body.decode() for _, record in found]
    if decoded:
        bodies = [loads(record.body) for _, record in found]
        data |= {name: [body.get(name) for body in bodies] for name in decoded}
        if "tool_round_id" in decoded:
            data["tool_round_id"] = [body.get("tool_round_id") or _round_of(body) for body in bodies]
    tell(ask, len(set(data["session_id"])))
    return data


def _round_of(body: Mapping[str, Any]) -> str | None:
    """Return the round of a call's event: a call's id begins with it."""
    call_id = body.get("tool_call_id")
    return call_id.rpartition(".")[0] if call_id else None


async def views(store: SessionStore, ask: Ask) -> list[SessionView]:
    """Fold every session that the conditions may touch, oldest first."""
    page = await store.heads(HeadQuery(session_id=ask.session_id, limit=EVERYTHING))
    rows = {head.row.id: head.row for head in page.rows}
    found = await store.records(RecordQuery(session_id=ask.session_id))
    folded: list[SessionView] = []
    for session_id, group in groupby(found, key=operator.itemgetter(0)):
        if session_id in rows:
            folded.append(fold(rows[session_id], _records(group)))
            if ask.progress is not None:
                ask.progress(len(folded), len(rows))
    return folded


def _records(group: Iterable[tuple[str, StoredRecord]]) -> Iterator[StoredRecord]:
    return (record for _, record in group)


def _columns(ask: Ask, rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> Data:
    listed = list(rows)
    gathered = zip(*listed, strict=True) if listed else ([] for _ in names)
    return dict(zip(names, map(list, gathered), strict=True))


async def messages_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `messages_df`, one row per part."""
    names = [column.name for column in columns_of("messages_df")]
    return _columns(ask, (row for view in await views(store, ask) for row in _message_rows(view)), names)


def _message_rows(view: SessionView) -> Iterator[tuple[Any, ...]]:
    for position, message in enumerate(view.transcript, 1):
        for part in message.content:
            shown: tuple[str, str | None, str | None, bool | None]
            match part.type:
                case "tool_call":
                    shown = (dumps(part.arguments).decode(), part.name, part.id, None)
                case "tool_result":
                    shown = (part.content, part.name, part.tool_call_id, part.is_error)
                case _:
                    shown = (part.text, None, None, None)
            yield view.row.id, position, message.role, part.type, *shown


async def calls_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `calls_df`, in the order in which the model asked."""
    names = [column.name for column in columns_of("calls_df")]
    return _columns(ask, (row for view in await views(store, ask) for row in _call_rows(view)), names)


def _call_rows(view: SessionView) -> Iterator[tuple[Any, ...]]:
    for opened in view.rounds:
        for call in opened.calls:
            result = call.answer
            both = call.started_at is not None and call.ended_at is not None
            yield (
                *(view.row.id, opened.id, call.id, opened.step, call.name, str(call.effect), str(call.state)),
                *(call.code, call.attempt, call.replayed, call.edited, result.is_error if result else None),
                *(dumps(call.arguments).decode(), result.content if result else None),
                *(call.started_at, call.ended_at, _ms(call.started_at, call.ended_at) if both else None),
            )


def _ms(begun: int | None, ended: int | None) -> float | None:
    return None if begun is None or ended is None else (ended - begun) / 1000


async def approvals_data(store: SessionStore, ask: Ask) -> Data:
    """Gather `approvals_df`: every approval and question, decided or pending."""
    names = [column.name for column in columns_of("approvals_df")]
    return _columns(ask, (row for view in await views(store, ask) for row in _approval_rows(view)), names)


def _approval_rows(view: SessionView) -> Iterator[tuple[Any, ...]]:
    for opened in view.rounds:
        for call in opened.calls:
            if call.requested_at is not None:
                yield _approval_row(view, opened, call)


def _approval_row(view: SessionView, opened: RoundView, call: CallView) -> tuple[Any, ...]:
    decision = view.decisions.get(call.action_id)
    asked = call.question["question"] if call.question else None
    return (
        *(
            view.row.id,
            call.action_id,
            "user_input" if call.question else "tool_approval",
            call.name,
            opened.id,
            call.id,
        ),
        *(decision.decision if decision else "pending", decision.by if decision else None, call.reason, call.edited),
        *(dumps(call.arguments).decode(), call.digest, asked, call.requested_at, call.expires_at),
        *((decision.at, _ms(call.requested_at, decision.at)) if decision else (None, None)),
    )
