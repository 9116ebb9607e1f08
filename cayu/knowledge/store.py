"""The knowledge store: scoped search over revisions. A backend selects and writes; scopes and ranking are here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime

from cayu.errors import KnowledgeEntryNotFound, KnowledgeRevisionConflict, KnowledgeScopeError
from cayu.knowledge.ranking import query_tokens, rank
from cayu.knowledge.records import (
    KnowledgeAccessScope,
    KnowledgeEntry,
    KnowledgeHit,
    KnowledgeQuery,
    KnowledgeSearchResult,
    Selection,
)

_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class KnowledgeStore(ABC):
    """Entries with revisions, read through an access scope.

    A reader of an unbound store passes `access_scope`; `bind(scope)` gives a store that carries it. A bound store
    accepts its own scope or none, and no other. Writing to an unbound store is the application's own business.
    """

    @abstractmethod
    async def select(self, selection: Selection) -> Sequence[KnowledgeEntry]:
        """Return the entries of a selection, scope included, in the order of their ids."""

    @abstractmethod
    async def write(self, entry: KnowledgeEntry, expected_revision: int, *, delete: bool = False) -> KnowledgeEntry:
        """Append a revision after `expected_revision` (0 for a new entry), or the mark of its deletion.

        Raises `KnowledgeRevisionConflict` when the entry stands at another revision.
        """

    @abstractmethod
    async def frontier(self) -> int:
        """Return the change sequence that the store has reached; 0 when it is empty."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give up connections and files; safe to call twice."""

    def bound_access_scope(self) -> KnowledgeAccessScope | None:
        """Return the scope that this store carries, None when it is unbound."""
        return None

    def bind(self, scope: KnowledgeAccessScope) -> KnowledgeStore:
        """Return the same store seen through `scope`."""
        return BoundKnowledgeStore(self, scope)

    async def search(
        self, query: KnowledgeQuery, access_scope: KnowledgeAccessScope | None = None
    ) -> KnowledgeSearchResult:
        """Return the entries that answer `query` best, within the scope.

        Raises `KnowledgeScopeError` for a scope other than the bound one, or for none on an unbound store.
        """
        return await self.search_at_frontier(query, await self.frontier(), access_scope)

    async def search_at_frontier(
        self, query: KnowledgeQuery, frontier: int, access_scope: KnowledgeAccessScope | None = None
    ) -> KnowledgeSearchResult:
        """Return what `search` would have returned when the store was at `frontier`."""
        selection = Selection(
            scope=self._effective(access_scope),
            namespace=query.namespace,
            labels=tuple(sorted(query.labels.items())),
            kinds=query.kinds,
            tokens=query_tokens(query),
            frontier=frontier,
        )
        hits = rank(query, await self.select(selection))
        kept = _within(hits, query)
        return KnowledgeSearchResult(hits=tuple(kept), truncated=len(kept) < len(hits), frontier=frontier)

    async def get_entry(self, entry_id: str, access_scope: KnowledgeAccessScope | None = None) -> KnowledgeEntry:
        """Return the current revision of one entry. Raises `KnowledgeEntryNotFound`, outside the scope as well."""
        found = await self.select(Selection(scope=self._effective(access_scope), entry_id=entry_id))
        if not found:
            raise KnowledgeEntryNotFound(entry_id=entry_id)
        return found[0]

    async def list_entries(
        self, access_scope: KnowledgeAccessScope | None = None, namespace: str | None = None
    ) -> Sequence[KnowledgeEntry]:
        """Return every entry within the scope, in the order of their ids."""
        return await self.select(Selection(scope=self._effective(access_scope), namespace=namespace))

    async def create_entry(self, entry: KnowledgeEntry) -> KnowledgeEntry:
        """Add a new entry and return it with what the store assigned."""
        return await self.write(entry, 0)

    async def append_entry_revision(self, entry: KnowledgeEntry, *, expected_revision: int) -> KnowledgeEntry:
        """Append a revision to an entry that stands at `expected_revision`."""
        return await self.write(entry, expected_revision)

    async def delete_entry(self, entry: KnowledgeEntry) -> None:
        """Mark an entry as deleted; earlier frontiers still see it."""
        await self.write(entry, entry.revision, delete=True)

    def _effective(self, access_scope: KnowledgeAccessScope | None) -> KnowledgeAccessScope:
        bound = self.bound_access_scope()
        scope = access_scope or bound
        if scope is None or (bound is not None and scope != bound):
            raise KnowledgeScopeError
        return scope


class BoundKnowledgeStore(KnowledgeStore):
    """A knowledge store seen through one scope; it can neither read nor write beyond it."""

    def __init__(self, store: KnowledgeStore, scope: KnowledgeAccessScope) -> None:
        already = store.bound_access_scope()
        if already is not None and already != scope:
            raise KnowledgeScopeError
        self._store = store
        self._scope = scope

    def bound_access_scope(self) -> KnowledgeAccessScope:
        """Return the scope that this store carries."""
        return self._scope

    async def select(self, selection: Selection) -> Sequence[KnowledgeEntry]:
        """Return the entries of a selection, which must carry this scope."""
        if selection.scope != self._scope:
            raise KnowledgeScopeError
        return await self._store.select(selection)

    async def write(self, entry: KnowledgeEntry, expected_revision: int, *, delete: bool = False) -> KnowledgeEntry:
        """Append a revision of an entry that the scope may see, to one that it may see."""
        probe = entry.model_copy(update={"expires_at": None})
        if not self._scope.admits(probe, _ANY_TIME):
            raise KnowledgeScopeError
        if expected_revision:
            await self.get_entry(entry.id)
        try:
            return await self._store.write(entry, expected_revision, delete=delete)
        except KnowledgeRevisionConflict:
            if expected_revision or await self._sees(entry.id):
                raise
        words = f"Entry {entry.id!r} cannot be created here; choose another id."
        raise KnowledgeRevisionConflict(words, entry_id=entry.id, expected=0, actual=0)

    async def _sees(self, entry_id: str) -> bool:
        return bool(await self.select(Selection(scope=self._scope, entry_id=entry_id)))

    async def frontier(self) -> int:
        """Return the change sequence that the store has reached."""
        return await self._store.frontier()

    async def aclose(self) -> None:
        """Leave the underlying store open: it belongs to whoever bound it."""


def _within(hits: Sequence[KnowledgeHit], query: KnowledgeQuery) -> list[KnowledgeHit]:
    kept: list[KnowledgeHit] = []
    size = 0
    for hit in hits[: query.limit]:
        size += len(hit.entry.text.encode())
        if size > query.max_bytes:
            break
        kept.append(hit)
    return kept
