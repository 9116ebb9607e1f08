"""Which memories stood before a model: a bounded projection of a session's log, with items named by keyed aliases.

Automatic recall leaves a receipt of what it considered, and an exposure for each request that held what it let in. What
a tool has read from a knowledge store stands in the log as the tool's result, and counts as an exposure of the first
request that was made with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from cayu.canonical import canonical_bytes, keyed_fingerprint, loads
from cayu.events import EventType as E
from cayu.messages import Frozen
from cayu.recall.selection import INJECTED, OFFERED
from cayu.sessions.streams import StoredRecord
from cayu.tools.knowledge import READ_ARTIFACT

RECALL_FAILED = "recall_failed"
"""Why an attribution is not complete although all of it is there: memory was to be recalled, and was not."""
ALIAS_LENGTH = 32
"""Hexadecimal digits of an item's alias."""

AttributionStatus = Literal["complete", "truncated", "unavailable", "redacted", "contradictory"]


class MemoryAttributionBounds(Frozen):
    """How much of a log a projection reads, and how much it may hold."""

    max_receipts: int = Field(default=100, ge=0, strict=True)
    max_exposures: int = Field(default=100, ge=0, strict=True)
    max_items: int = Field(default=1000, ge=0, strict=True)
    """Items over all receipts and exposures."""
    max_source_bytes: int = Field(default=16_777_216, ge=1, strict=True)
    """Bytes of events that are read."""
    max_projection_bytes: int = Field(default=4_194_304, ge=1, strict=True)
    """Bytes of its receipts and exposures as canonical JSON."""


class MemoryReceipt(Frozen):
    """What one recall did."""

    recall: int
    """Its number within the session, from 1."""
    step: int
    """The model step that it was made for."""
    mode: str
    considered: int
    injected: tuple[str, ...] = ()
    """Aliases of what was put in as text."""
    offered: tuple[str, ...] = ()
    """Aliases of what was offered by title."""


class MemoryExposure(Frozen):
    """What of memory one request to the model held."""

    step: int
    origin: Literal["recall", "tool"]
    injected: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()


class MemoryAttribution(Frozen):
    """The receipts and exposures of one session, as far as the bounds admit them."""

    status: AttributionStatus
    truncated: bool = Field(default=False, strict=True)
    reason: str | None = None
    """Why it is not complete."""
    observed_receipts: int = Field(default=0, ge=0, strict=True)
    observed_exposures: int = Field(default=0, ge=0, strict=True)
    observed_items: int = Field(default=0, ge=0, strict=True)
    omitted_receipts_at_least: int = Field(default=0, ge=0, strict=True)
    omitted_exposures_at_least: int = Field(default=0, ge=0, strict=True)
    omitted_items_at_least: int = Field(default=0, ge=0, strict=True)
    receipts: tuple[MemoryReceipt, ...] = ()
    exposures: tuple[MemoryExposure, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when it is certain that no memory stood before the model."""
        return self.status == "complete" and not self.exposures

    @classmethod
    def unavailable(cls, reason: str) -> MemoryAttribution:
        """Return what can be said when the log cannot be read."""
        return cls(status="unavailable", reason=reason)


def memory_alias(key: bytes, source: str, item_id: str, revision: int) -> str:
    """Return the name of one memory under a key: the same for the same revision, and telling nothing without the key.

    `source` is `knowledge` or `transcript`.
    """
    return keyed_fingerprint(key, "cayu.memory-item", [source, item_id, revision])[:ALIAS_LENGTH]


def attribute(
    records: Iterable[StoredRecord],
    key: bytes,
    bounds: MemoryAttributionBounds,
    *,
    session_id: str = "",
    below: Iterable[tuple[str, Iterable[StoredRecord]]] = (),
    incomplete: str | None = None,
) -> MemoryAttribution:
    """Project a session's records, in order, within `bounds`, and then those of the sessions `below` it, by their ids.

    What a child session has seen may stand in its parent's next request as well, so it counts like the parent's own.
    `incomplete` says why some of the logs are not given.
    """
    projection = _Projection(bounds)
    if incomplete is not None:
        projection.cut(incomplete)
    for name, log in ((session_id, records), *below):
        for found in _readings(log, _Aliases(key, name), projection):
            projection.add(found)
    return projection.result()


def items_seen(records: Iterable[StoredRecord]) -> set[tuple[str, str, int]]:
    """Return the memories that a session's log says were given to the model as text: (source, id, revision)."""
    seen: set[tuple[str, str, int]] = set()
    for record in records:
        if record.type == E.EXPOSURE_RECORDED:
            shown = (item for item in loads(record.body)["items"] if item["disposition"] == INJECTED)
            seen.update((item["source"], item["id"], item["revision"]) for item in shown)
        elif record.type == E.TOOL_STAGED:
            seen.update(("knowledge", entry_id, revision) for entry_id, revision in _read_by_tool(loads(record.body)))
    return seen


class _Aliases:
    """The aliases of the memories of one session's log; what was said is a memory of that session alone."""

    def __init__(self, key: bytes, session_id: str) -> None:
        self._key = key
        self._session_id = session_id

    def of(self, source: str, item_id: str, revision: int) -> str:
        """Return the alias of one memory."""
        name = item_id if source == "knowledge" else f"{self._session_id}/{item_id}"
        return memory_alias(self._key, source, name, revision)

    def shown(self, items: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
        """Return the aliases of what was let in, by disposition."""
        found: dict[str, list[str]] = {INJECTED: [], OFFERED: []}
        for item in items:
            if item["disposition"] in found:
                found[item["disposition"]].append(self.of(item["source"], item["id"], item["revision"]))
        return {name: tuple(aliases) for name, aliases in found.items()}


def _readings(
    records: Iterable[StoredRecord], aliases: _Aliases, projection: _Projection
) -> Iterator[MemoryReceipt | MemoryExposure]:
    recalled: set[int] = set()
    read: list[str] = []
    for record in records:
        projection.read(len(record.body))
        if record.type == E.RECALL_COMPLETED:
            receipt = _receipt(loads(record.body), aliases)
            recalled.add(receipt.recall)
            yield receipt
        elif record.type == E.RECALL_FAILED:
            projection.cut(RECALL_FAILED)
        elif record.type == E.EXPOSURE_RECORDED:
            payload = loads(record.body)
            projection.contradictory |= not recalled.issuperset(payload["recalls"])
            yield MemoryExposure(step=payload["step"], origin="recall", **aliases.shown(payload["items"]))
        elif record.type == E.TOOL_STAGED:
            found = _read_by_tool(loads(record.body))
            read += [aliases.of("knowledge", entry_id, revision) for entry_id, revision in found]
        elif record.type == E.MODEL_STARTED and read:
            yield MemoryExposure(step=loads(record.body)["step"], origin="tool", injected=tuple(dict.fromkeys(read)))
            read.clear()


def _receipt(payload: Mapping[str, Any], aliases: _Aliases) -> MemoryReceipt:
    return MemoryReceipt(
        recall=payload["recall"],
        step=payload["step"],
        mode=payload["mode"],
        considered=len(payload["items"]),
        **aliases.shown(payload["items"]),
    )


def _read_by_tool(payload: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the (id, revision) pairs that a staged result says were read; what is not well formed says nothing."""
    artifacts = (found for found in payload.get("artifacts", ()) if isinstance(found, dict))
    listed = (found.get("items") for found in artifacts if found.get("type") == READ_ARTIFACT)
    pairs = (pair for items in listed if isinstance(items, list) for pair in items)
    return [(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and list(map(type, pair)) == [str, int]]


class _Projection:
    """Receipts and exposures as they are let in."""

    def __init__(self, bounds: MemoryAttributionBounds) -> None:
        self.bounds = bounds
        self.contradictory = False
        self._read = 0
        self._reason: str | None = None
        self._kept: dict[str, list[Any]] = {"receipts": [], "exposures": []}
        self._omitted = {"receipts": 0, "exposures": 0, "items": 0}
        self._items = self._bytes = 0

    def read(self, size: int) -> None:
        """Count the bytes of one event; beyond the bound things are counted only."""
        self._read += size

    def cut(self, reason: str) -> None:
        """Say that something is left out; the first reason stands."""
        self._reason = self._reason or reason

    def add(self, found: MemoryReceipt | MemoryExposure) -> None:
        """Let one in, or count it as omitted."""
        kind = "receipts" if isinstance(found, MemoryReceipt) else "exposures"
        items = len(found.injected) + len(found.offered)
        size = len(canonical_bytes(found.model_dump(mode="json")))
        most = self.bounds.max_receipts if kind == "receipts" else self.bounds.max_exposures
        if self._read > self.bounds.max_source_bytes:
            self.cut("source_bytes_limit")
        elif len(self._kept[kind]) >= most or self._items + items > self.bounds.max_items:
            self.cut("source_limit")
        elif self._bytes + size > self.bounds.max_projection_bytes:
            self.cut("projection_bytes_limit")
        else:
            self._kept[kind].append(found)
            self._items += items
            self._bytes += size
            return
        self._omitted[kind] += 1
        self._omitted["items"] += items

    def result(self) -> MemoryAttribution:
        """Return the projection."""
        status: AttributionStatus = "complete" if self._reason is None else "truncated"
        return MemoryAttribution(
            status="contradictory" if self.contradictory else status,
            truncated=self._reason is not None,
            reason="contradictory_lineage" if self.contradictory else self._reason,
            observed_receipts=len(self._kept["receipts"]),
            observed_exposures=len(self._kept["exposures"]),
            observed_items=self._items,
            omitted_receipts_at_least=self._omitted["receipts"],
            omitted_exposures_at_least=self._omitted["exposures"],
            omitted_items_at_least=self._omitted["items"],
            receipts=tuple(self._kept["receipts"]),
            exposures=tuple(self._kept["exposures"]),
        )
