"""What the tests of snapshots share: a small memory, its coordinator, and providers and stores that fail on demand."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from cayu.canonical import JSON, fingerprint
from cayu.knowledge.records import KnowledgeAccessScope, KnowledgeEntry
from cayu.knowledge.store import KnowledgeStore
from cayu.sessions.streams import Decide
from cayu.snapshots import (
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotComponentProvider,
    AgentSnapshotCoordinator,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotStore,
    FixedComponent,
    KnowledgeComponent,
    MaterializationClaim,
)
from cayu.snapshots.components import KINDS, KNOWLEDGE_FRONTIER
from cayu.testing.clocks import START

ACCESS = KnowledgeAccessScope(allowed_namespaces=("default",))
OTHER_ACCESS = KnowledgeAccessScope(allowed_namespaces=("default", "more"))
FIXED = tuple(kind for kind in KINDS if kind != KNOWLEDGE_FRONTIER)


def digest(name: str) -> str:
    """A well-formed fingerprint that is another one for each name."""
    return fingerprint("tests", name)


async def remember(store: KnowledgeStore, name: str, text: str, revision: int = 0, **fields: Any) -> KnowledgeEntry:
    """Write one entry after its revision."""
    return await store.write(KnowledgeEntry(id=name, text=text, **fields), revision)


def make_providers(knowledge: KnowledgeStore, **materials: Any) -> list[AgentSnapshotComponentProvider]:
    """One provider for each kind; `materials` go over what the fixed ones say."""
    fixed = [FixedComponent(kind, materials.get(kind, {"says": kind})) for kind in FIXED]
    return [*fixed, KnowledgeComponent(knowledge, ACCESS)]


def make_coordinator(
    store: AgentSnapshotStore, knowledge: KnowledgeStore, **materials: Any
) -> AgentSnapshotCoordinator:
    return AgentSnapshotCoordinator(store, make_providers(knowledge, **materials))


async def capture(coordinator: AgentSnapshotCoordinator) -> AgentSnapshot:
    return await coordinator.capture(AgentSnapshotCaptureRequest(access=ACCESS))


def make_request(snapshot: AgentSnapshot, **fields: Any) -> AgentSnapshotMaterializationRequest:
    common: dict[str, Any] = {"candidate_id": "candidate", "trial_id": "trial-1", "access": ACCESS}
    return AgentSnapshotMaterializationRequest(snapshot_fingerprint=snapshot.fingerprint, **common | fields)


def make_result(trial_fingerprint: str, **fields: Any) -> AgentSnapshotResultBinding:
    common: dict[str, Any] = {
        "trial_fingerprint": trial_fingerprint,
        "session_id": "session-1",
        "terminal_disposition": "completed",
        "runtime_evidence_fingerprint": digest("evidence"),
        "recorded_at": START,
    }
    return AgentSnapshotResultBinding.create(**common | fields)


class Cut(Exception):
    """The process is gone."""


class StumblingProvider(AgentSnapshotComponentProvider):
    """Another provider that fails once, before or after it has made its copy, and keeps every claim it saw."""

    def __init__(self, inner: AgentSnapshotComponentProvider, when: str | None = None) -> None:
        self.kind = inner.kind
        self.overlay = inner.overlay
        self.claims: list[MaterializationClaim] = []
        self._inner = inner
        self._when = when

    async def capture(self) -> Any:
        return await self._inner.capture()

    async def verify(self, material: Any, captured_at: datetime) -> None:
        await self._inner.verify(material, captured_at)

    async def materialize(self, claim: MaterializationClaim, store: AgentSnapshotStore) -> str:
        self.claims.append(claim)
        when, self._when = self._when, None
        if when == "before":
            raise Cut
        made = await self._inner.materialize(claim, store)
        if when == "after":
            raise Cut
        return made


class StumblingStore(AgentSnapshotStore):
    """Another store of which one write fails, before or after it is durable."""

    def __init__(self, inner: AgentSnapshotStore, write: int = 0, when: str = "before") -> None:
        """`write` counts from 1; 0 lets every write succeed."""
        self.writes = 0
        self._inner = inner
        self._write = write
        self._when = when

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        self.writes += 1
        if (self.writes, self._when) == (self._write, "before"):
            raise Cut
        found = await self._inner.transact(collection, id, decide)
        if (self.writes, self._when) == (self._write, "after"):
            raise Cut
        return found

    async def read(self, collection: str, id: str) -> JSON:
        return await self._inner.read(collection, id)

    def durable_state_paths(self) -> tuple[Path, ...]:
        return self._inner.durable_state_paths()

    async def aclose(self) -> None:
        await self._inner.aclose()
