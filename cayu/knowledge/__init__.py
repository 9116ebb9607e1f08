"""Knowledge: scoped, versioned entries and their one ranking. Backends are in `cayu.storage`."""

from cayu.knowledge.records import (
    KnowledgeAccessScope,
    KnowledgeEntry,
    KnowledgeHit,
    KnowledgeQuery,
    KnowledgeSearchResult,
)
from cayu.knowledge.store import BoundKnowledgeStore, KnowledgeStore

__all__ = [
    "BoundKnowledgeStore",
    "KnowledgeAccessScope",
    "KnowledgeEntry",
    "KnowledgeHit",
    "KnowledgeQuery",
    "KnowledgeSearchResult",
    "KnowledgeStore",
]
