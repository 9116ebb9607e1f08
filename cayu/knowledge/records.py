"""Knowledge entries, who may see them, and what a search asks and answers."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BeforeValidator, Field, field_validator, model_validator

from cayu.canonical import normalise
from cayu.messages import Frozen

MAX_RESULTS = 1000
MAX_QUERY_CHARS = 20_000
DEFAULT_RESULT_BYTES = 65536


def _in_order(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else value


InOrder = BeforeValidator(_in_order)
"""Gives a set an order of its own, the same in every process."""


class KnowledgeEntry(Frozen):
    """One revision of one piece of knowledge."""

    id: str = Field(min_length=1, max_length=256)
    revision: int = Field(default=1, ge=1)
    """Rises by one with every change; assigned by the store."""
    text: str
    namespace: str = Field(default="default", min_length=1, max_length=256)
    labels: dict[str, str] = {}
    kind: str = "fact"
    visibility: str = "public"
    status: str = "active"
    title: str = ""
    source_type: str = ""
    source_id: str = ""
    created_at: datetime | None = None
    """Of the entry; assigned by the store."""
    updated_at: datetime | None = None
    """Of this revision; assigned by the store."""
    expires_at: AwareDatetime | None = None
    metadata: dict[str, Any] = {}

    _metadata = field_validator("metadata")(normalise)


class KnowledgeAccessScope(Frozen):
    """What a principal may read. The application derives it; a model never names one."""

    allowed_namespaces: Annotated[tuple[str, ...], InOrder] = ()
    allow_all_namespaces: bool = False
    required_labels: dict[str, str] = {}
    allowed_visibilities: Annotated[tuple[str, ...], InOrder] = ("public",)
    allowed_source_types: Annotated[tuple[str, ...] | None, InOrder] = None
    """None allows every source type."""
    allowed_source_ids: Annotated[tuple[str, ...] | None, InOrder] = None
    """None allows every source."""
    allowed_statuses: Annotated[tuple[str, ...], InOrder] = ("active",)
    include_expired: bool = False

    @model_validator(mode="after")
    def _names_a_namespace(self) -> Self:
        if not self.allowed_namespaces and not self.allow_all_namespaces:
            raise ValueError("a scope names its namespaces, or sets allow_all_namespaces=True")
        return self

    def admits(self, entry: KnowledgeEntry, now: datetime) -> bool:
        """True when the scope may see `entry` at `now`: the rule that every backend's query states."""
        return (
            (self.allow_all_namespaces or entry.namespace in self.allowed_namespaces)
            and all(entry.labels.get(name) == value for name, value in self.required_labels.items())
            and entry.visibility in self.allowed_visibilities
            and (self.allowed_source_types is None or entry.source_type in self.allowed_source_types)
            and (self.allowed_source_ids is None or entry.source_id in self.allowed_source_ids)
            and entry.status in self.allowed_statuses
            and (self.include_expired or entry.expires_at is None or entry.expires_at > now)
        )


class KnowledgeQuery(Frozen):
    """What to look for. Its fields narrow a search; none of them widens what the scope allows."""

    text: str = Field(max_length=MAX_QUERY_CHARS)
    namespace: str | None = "default"
    """None searches every namespace of the scope."""
    labels: dict[str, str] = {}
    kinds: tuple[str, ...] = ()
    any_terms: tuple[str, ...] = ()
    all_terms: tuple[str, ...] = ()
    none_terms: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    min_score: float = Field(default=0.0, ge=0.0, le=1.0)
    limit: int = Field(default=10, ge=1, le=MAX_RESULTS)
    max_bytes: int = Field(default=DEFAULT_RESULT_BYTES, ge=1)
    """Bytes of entry text that the answer may hold."""


class KnowledgeHit(Frozen):
    """An entry with how well it answers, from 0 to 1."""

    entry: KnowledgeEntry
    score: float


class KnowledgeSearchResult(Frozen):
    """The best entries, best first; entries of equal score are in the order of their ids."""

    hits: tuple[KnowledgeHit, ...]
    truncated: bool
    """True when the limit or the byte bound left entries out."""
    frontier: int
    """The change sequence at which the search saw the store."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a backend selects, with the scope as part of the selection and never after it."""

    scope: KnowledgeAccessScope
    namespace: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    kinds: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None
    """Entries that hold at least one of these tokens; None selects all."""
    entry_id: str | None = None
    frontier: int | None = None
    """See the store as it was at this change sequence; None sees it as it is."""
    as_of: datetime | None = None
    """See what had not expired at this moment; None means now."""

    def admits(self, entry: KnowledgeEntry, words: AbstractSet[str], now: datetime) -> bool:
        """True when the selection holds `entry`, whose tokens are `words`: the rule that every backend's query states.

        The frontier is the backend's own business.
        """
        return (
            self.scope.admits(entry, now)
            and self.entry_id in (None, entry.id)
            and self.namespace in (None, entry.namespace)
            and (not self.kinds or entry.kind in self.kinds)
            and all(entry.labels.get(name) == value for name, value in self.labels)
            and (self.tokens is None or not words.isdisjoint(self.tokens))
        )
