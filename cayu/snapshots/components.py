"""What a snapshot captures of: components that cannot change, and the memory, whose copies can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime

from cayu.canonical import fingerprint
from cayu.clock import as_microseconds
from cayu.errors import SnapshotConflict, StoredDocumentDamaged
from cayu.knowledge.records import KnowledgeAccessScope, Selection
from cayu.knowledge.store import KnowledgeStore
from cayu.messages import Frozen
from cayu.snapshots.records import POSITION, AgentSnapshotComponent
from cayu.snapshots.store import AgentSnapshotStore

AGENT = "agent"
EXECUTION_PROFILE = "execution_profile"
TOOL_CATALOGUE = "tool_catalogue"
KNOWLEDGE_FRONTIER = "knowledge_frontier"
RECALL_POLICY = "recall_policy"
EVALUATOR = "evaluator"
KINDS = (AGENT, EVALUATOR, EXECUTION_PROFILE, KNOWLEDGE_FRONTIER, RECALL_POLICY, TOOL_CATALOGUE)
"""What every snapshot of an agent holds."""

OVERLAYS = "memory-overlays"
"""The collection of the overlays, by state scope."""
SEAL = "sha256"
_TIMES = {"created_at", "updated_at"}
"""Of an entry; when a memory was written down is no part of what it says."""


def sealed(opened: dict[str, Any]) -> dict[str, Any]:
    """Return an overlay's document with the digest of its content, as it is kept."""
    content = {name: value for name, value in opened.items() if name != SEAL}
    return content | {SEAL: fingerprint("cayu.memory-overlay-content", content)}


def unsealed(state_scope_id: str, found: Any) -> dict[str, Any]:
    """Return an overlay's document as it was kept. Raises `StoredDocumentDamaged` for one that was edited."""
    if isinstance(found, dict) and found == sealed(found):
        return found
    raise StoredDocumentDamaged(collection=OVERLAYS, id=state_scope_id)


class MaterializationClaim(Frozen):
    """One component's part in opening a copy. The same claim comes again after a crash."""

    operation_id: str
    state_scope_id: str
    component: AgentSnapshotComponent
    captured_at: AwareDatetime
    """When the snapshot was captured; a copy shows what had not expired by then."""


class AgentSnapshotComponentProvider(ABC):
    """Stands for one kind of component."""

    kind: str
    overlay: bool = False
    """True when copies can be written."""

    @abstractmethod
    async def capture(self) -> Any:
        """Return what the component is now, as JSON."""

    @abstractmethod
    async def verify(self, material: Any, captured_at: datetime) -> None:
        """Raise `SnapshotConflict` when a copy of what was captured then can no longer be made."""

    async def materialize(self, claim: MaterializationClaim, store: AgentSnapshotStore) -> str:
        """Make the copy that a claim asks for, once, and return its fingerprint; by default the original serves."""
        return claim.component.fingerprint


class FixedComponent(AgentSnapshotComponentProvider):
    """A component that says everything about itself in one JSON value."""

    def __init__(self, kind: str, material: Any) -> None:
        self.kind = kind
        self._material = material

    async def capture(self) -> Any:
        """Return the value."""
        return self._material

    async def verify(self, material: Any, captured_at: datetime) -> None:
        """Raise `SnapshotConflict` when the value is another one now."""
        if AgentSnapshotComponent.of(self.kind, self._material).material != material:
            raise SnapshotConflict(what=f"component {self.kind!r}", reason="it is another one now")


class KnowledgeComponent(AgentSnapshotComponentProvider):
    """A knowledge store at its frontier, as one scope sees it. Copies are overlays above that frontier."""

    kind = KNOWLEDGE_FRONTIER
    overlay = True

    def __init__(self, store: KnowledgeStore, access: KnowledgeAccessScope) -> None:
        """Capture of `store` what `access` may read; the store is never written."""
        self._store = store if store.bound_access_scope() is not None else store.bind(access)
        self._access = access

    async def capture(self) -> Any:
        """Return the frontier with the digest of every revision that stands there."""
        frontier = await self._store.frontier()
        access = self._access.model_dump(mode="json")
        return {POSITION: frontier, "state": await self._state(frontier, None), "access": access}

    async def verify(self, material: Any, captured_at: datetime) -> None:
        """Raise `SnapshotConflict` when the store does not show at the frontier what it showed then."""
        if await self._state(material[POSITION], captured_at) != material["state"]:
            raise SnapshotConflict(what="memory", reason="what the store shows at the frontier has changed")

    async def materialize(self, claim: MaterializationClaim, store: AgentSnapshotStore) -> str:
        """Open an empty overlay for the state scope, and return its fingerprint."""
        material = [claim.state_scope_id, claim.component.fingerprint]
        overlay = fingerprint("cayu.memory-overlay", material)
        opened = sealed(
            {
                "overlay": overlay,
                "operation_id": claim.operation_id,
                "frontier": claim.component.material[POSITION],
                "as_of": as_microseconds(claim.captured_at),
                "operations": {},
                "hidden": [],
                "entries": {},
            }
        )
        found = await store.transact(OVERLAYS, claim.state_scope_id, lambda current, _: None if current else opened)
        if unsealed(claim.state_scope_id, found)["overlay"] != overlay:
            raise SnapshotConflict(what=f"overlay {claim.state_scope_id!r}", reason="it was opened for another memory")
        return overlay

    async def _state(self, frontier: int, as_of: datetime | None) -> str:
        entries = await self._store.select(Selection(scope=self._access, frontier=frontier, as_of=as_of))
        return fingerprint("cayu.memory-state", [entry.model_dump(mode="json", exclude=_TIMES) for entry in entries])
