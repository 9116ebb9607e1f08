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
    """Bytes of the projection as canonical JSON."""


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


def attribute(records: Iterable[StoredRecord], key: bytes, bounds: MemoryAttributionBounds) -> MemoryAttribution:
    """Project a session's records, in order, within `bounds`."""
    projection = _Projection(bounds)
    for found in _readings(records, key, projection):
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


def _readings(
    records: Iterable[StoredRecord], key: bytes, projection: _Projection
) -> Iterator[MemoryReceipt | MemoryExposure]:
    recalled: set[int] = set()
    read: list[str] = []
    read_bytes = 0
    for record in records:
        read_bytes += len(record.body)
        if read_bytes > projection.bounds.max_source_bytes:
            projection.is_full = True
        if record.type == E.RECALL_COMPLETED:
            receipt = _receipt(loads(record.body), key)
            recalled.add(receipt.recall)
            yield receipt
        elif record.type == E.EXPOSURE_RECORDED:
            payload = loads(record.body)
            projection.contradictory |= not recalled.issuperset(payload["recalls"])
            yield MemoryExposure(step=payload["step"], origin="recall", **_aliases(payload["items"], key))
        elif record.type == E.TOOL_STAGED:
            found = _read_by_tool(loads(record.body))
            read += [memory_alias(key, "knowledge", entry_id, revision) for entry_id, revision in found]
        elif record.type == E.MODEL_STARTED and read:
            yield MemoryExposure(step=loads(record.body)["step"], origin="tool", injected=tuple(dict.fromkeys(read)))
            read.clear()


def _receipt(payload: Mapping[str, Any], key: bytes) -> MemoryReceipt:
    return MemoryReceipt(
        recall=payload["recall"],
        step=payload["step"],
        mode=payload["mode"],
        considered=len(payload["items"]),
        **_aliases(payload["items"], key),
    )


def _aliases(items: Iterable[Mapping[str, Any]], key: bytes) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {INJECTED: [], OFFERED: []}
    for item in items:
        if item["disposition"] in found:
            found[item["disposition"]].append(memory_alias(key, item["source"], item["id"], item["revision"]))
    return {name: tuple(aliases) for name, aliases in found.items()}


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
        self.is_full = False
        """True once more was read than the bounds admit: from then on things are counted only."""
        self._reason: str | None = None
        self._kept: dict[str, list[Any]] = {"receipts": [], "exposures": []}
        self._omitted = {"receipts": 0, "exposures": 0, "items": 0}
        self._items = self._bytes = 0

    def cut(self, reason: str) -> None:
        """Say that something is left out; the first reason stands."""
        self._reason = self._reason or reason

    def add(self, found: MemoryReceipt | MemoryExposure) -> None:
        """Let one in, or count it as omitted."""
        kind = "receipts" if isinstance(found, MemoryReceipt) else "exposures"
        items = len(found.injected) + len(found.offered)
        size = len(canonical_bytes(found.model_dump(mode="json")))
        most = self.bounds.max_receipts if kind == "receipts" else self.bounds.max_exposures
        if self.is_full:
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
