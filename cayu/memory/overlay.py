"""Copy-on-write memory: a store that reads a production store at a frontier, and keeps every change to itself.

The overlay has nothing of the production store but its way to select. Its changes stand in one document per state
scope, so that a trial which was cut off finds its memory again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from cayu.canonical import JSON, dumps
from cayu.clock import as_datetime
from cayu.knowledge.ranking import tokens
from cayu.knowledge.records import KnowledgeAccessScope, KnowledgeEntry, Selection
from cayu.knowledge.revisions import decide_revision
from cayu.knowledge.store import KnowledgeStore
from cayu.snapshots.components import OVERLAYS, sealed, unsealed
from cayu.snapshots.store import AgentSnapshotStore

Select = Callable[[Selection], Awaitable[Sequence[KnowledgeEntry]]]


class OverlayKnowledgeStore(KnowledgeStore):
    """A production store at a frontier, seen with an overlay's changes; writes go to the overlay alone."""

    def __init__(
        self, select: Select, access: KnowledgeAccessScope, documents: AgentSnapshotStore, scope_id: str, opened: JSON
    ) -> None:
        """`select` reads the production store under `access`; `opened` is the overlay's document."""
        self._select = select
        self._access = access
        self._documents = documents
        self._scope_id = scope_id
        self._opened = opened

    async def select(self, selection: Selection) -> Sequence[KnowledgeEntry]:
        """Select from below what the overlay neither hides nor replaces, and from the overlay as it is now.

        What the overlay itself holds shows at every frontier.
        """
        self._opened = unsealed(self._scope_id, await self._documents.read(OVERLAYS, self._scope_id))
        frontier = await self.frontier()
        at = frontier if selection.frontier is None else min(selection.frontier, frontier)
        moment = as_datetime(self._opened["as_of"])
        below = await self._select(replace(selection, frontier=at, as_of=moment))
        hidden, own = set(self._opened["hidden"]), self._opened["entries"]
        kept = [entry for entry in below if entry.id not in hidden and entry.id not in own]
        put = [_entry(stored) for name, stored in own.items() if name not in hidden]
        kept += [entry for entry in put if selection.admits(entry, {*tokens(f"{entry.title} {entry.text}")}, moment)]
        return sorted(kept, key=lambda entry: entry.id)

    async def write(self, entry: KnowledgeEntry, expected_revision: int, *, delete: bool = False) -> KnowledgeEntry:
        """Write to the overlay. Raises `KnowledgeRevisionConflict`."""
        moment = as_datetime(self._opened["as_of"])
        frontier = await self.frontier()
        selection = Selection(scope=self._access, entry_id=entry.id, frontier=frontier, as_of=moment)
        below = next(iter(await self._select(selection)), None)
        written: list[KnowledgeEntry] = []

        def decide(current: JSON, now: int) -> JSON:
            unsealed(self._scope_id, current)
            stored, deleted = current["entries"].get(entry.id), entry.id in current["hidden"]
            standing = _entry(stored) if stored else below
            written[:] = [decide_revision(standing, deleted, entry, expected_revision, as_datetime(now))]
            hidden = {*current["hidden"]} - {entry.id} | ({entry.id} if delete else set())
            return changed(current, {entry.id: written[0]}, hidden)

        self._opened = await self._documents.transact(OVERLAYS, self._scope_id, decide)
        return written[0]

    async def frontier(self) -> int:
        """Return the frontier of the store below."""
        return int(self._opened["frontier"])

    async def aclose(self) -> None:
        """Leave the stores open: they belong to whoever opened them."""


def changed(opened: JSON, entries: dict[str, KnowledgeEntry], hidden: set[str], **more: Any) -> JSON:
    """Return an overlay's document with entries put in, and these ids hidden."""
    stored = {name: entry.model_dump(mode="json") for name, entry in entries.items()}
    return sealed(opened | {"entries": opened["entries"] | stored, "hidden": sorted(hidden), **more})


def _entry(stored: JSON) -> KnowledgeEntry:
    return KnowledgeEntry.model_validate_json(dumps(stored))
