"""The rule by which an entry gains a revision, the same on every backend."""

from __future__ import annotations

from datetime import datetime

from cayu.errors import KnowledgeRevisionConflict
from cayu.knowledge.records import KnowledgeEntry


def decide_revision(
    current: KnowledgeEntry | None, deleted: bool, entry: KnowledgeEntry, expected_revision: int, now: datetime
) -> KnowledgeEntry:
    """Return `entry` as it is to be written after `current`.

    `expected_revision` is 0 for a new entry; an entry that was deleted may be created again and goes on counting.
    Raises `KnowledgeRevisionConflict` when the entry stands elsewhere.
    """
    standing = current.revision if current is not None and not deleted else 0
    if standing != expected_revision:
        raise KnowledgeRevisionConflict(entry_id=entry.id, expected=expected_revision, actual=standing)
    created = current.created_at if current is not None and not deleted else None
    revision = current.revision + 1 if current is not None else 1
    return entry.model_copy(update={"revision": revision, "created_at": created or now, "updated_at": now})
