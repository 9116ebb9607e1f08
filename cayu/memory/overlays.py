"""The overlay provider that comes with Cayu: applies an intervention to an overlay of a knowledge store, once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from cayu.canonical import JSON, dumps, fingerprint
from cayu.crashpoints import reach
from cayu.errors import SnapshotConflict
from cayu.interventions.evidence import (
    MemoryInterventionIsolationAuthority,
    MemoryInterventionOperation,
    MemoryInterventionReceipt,
    revision_fingerprint,
)
from cayu.interventions.evidence import MemoryInterventionReceiptStatus as Status
from cayu.interventions.specs import MemoryInterventionChange, MemoryInterventionSpec
from cayu.knowledge.records import KnowledgeAccessScope, KnowledgeEntry, Selection
from cayu.knowledge.store import KnowledgeStore
from cayu.memory.capabilities import MemoryInterventionOverlayProvider, MemoryInterventionRuntimeView
from cayu.memory.overlay import OverlayKnowledgeStore, changed
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.snapshots.components import OVERLAYS, unsealed
from cayu.snapshots.records import AgentSnapshotMaterialization, AgentSnapshotTrialBinding, scope_fingerprint
from cayu.snapshots.store import AgentSnapshotStore

_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)
BEHAVIOUR = "1"
"""Rises when the same operation would have another effect."""


class KnowledgeOverlayProvider(MemoryInterventionOverlayProvider):
    """Opens overlays of one knowledge store as one scope sees it, and applies operations to them."""

    provider_id = "cayu.knowledge-overlay"

    def __init__(
        self,
        store: KnowledgeStore,
        access: KnowledgeAccessScope,
        *,
        documents: AgentSnapshotStore,
        recall: AutomaticRecallPolicy,
    ) -> None:
        """`store` is only read. `documents` is the snapshot store; `recall` the policy that the agent begins with."""
        bound = store if store.bound_access_scope() is not None else store.bind(access)
        self._select = bound.select
        self._access = access
        self._documents = documents
        self._recall = recall
        self.execution_profile_fingerprint = fingerprint(
            "cayu.knowledge-overlay", [BEHAVIOUR, scope_fingerprint(access), recall.fingerprint()]
        )

    async def apply(
        self,
        *,
        spec: MemoryInterventionSpec,
        operation: MemoryInterventionOperation,
        materialization: AgentSnapshotMaterialization,
        trial: AgentSnapshotTrialBinding,
    ) -> MemoryInterventionRuntimeView:
        """Apply the operation unless its receipt stands, and open the overlay."""
        return await self.recover(spec=spec, operation=operation, materialization=materialization, trial=trial)

    async def recover(
        self,
        *,
        spec: MemoryInterventionSpec,
        operation: MemoryInterventionOperation,
        materialization: AgentSnapshotMaterialization,
        trial: AgentSnapshotTrialBinding,
    ) -> MemoryInterventionRuntimeView:
        """Do the same: the operation is what makes an effect happen once."""
        if operation != MemoryInterventionOperation.of(spec, materialization, trial):
            raise SnapshotConflict(what="operation", reason="it is of another spec, copy or trial")
        if materialization.authority_scope_fingerprint != scope_fingerprint(self._access):
            raise SnapshotConflict(what="access", reason="this provider reads under another scope")
        policy = self._policy_of(spec)
        opened, receipt = await self._resolved(spec, operation)
        overlay = self._opened(operation, opened)
        return MemoryInterventionRuntimeView(
            materialization_fingerprint=materialization.fingerprint,
            memory_overlay_fingerprint=materialization.memory_overlay_fingerprint,
            state_scope_id=materialization.state_scope_id,
            knowledge_store=overlay.bind(self._access),
            knowledge_access_scope=self._access,
            isolation_authority=MemoryInterventionIsolationAuthority(
                materialization_fingerprint=materialization.fingerprint,
                memory_overlay_fingerprint=materialization.memory_overlay_fingerprint,
                state_scope_id=materialization.state_scope_id,
            ),
            trial_recall_policy=policy,
            receipt=receipt,
        )

    async def _resolved(
        self, spec: MemoryInterventionSpec, operation: MemoryInterventionOperation
    ) -> tuple[JSON, MemoryInterventionReceipt]:
        """Return the overlay's document with the operation's receipt, which stands in it from then on."""
        name = operation.fingerprint
        opened = await self._read(operation)
        while name not in opened["operations"]:
            standing = await self._standing(operation, opened, spec)
            effect = repeated(spec, operation, opened) or decide_effect(spec, operation, standing, self._access)
            reach("overlay.applying")
            opened = await self._documents.transact(
                OVERLAYS, operation.state_scope_id, partial(_applied, effect, opened)
            )
            reach("overlay.applied")
        return opened, MemoryInterventionReceipt.model_validate_json(dumps(opened["operations"][name]))

    async def _read(self, operation: MemoryInterventionOperation) -> JSON:
        scope_id = operation.state_scope_id
        opened = await self._documents.read(OVERLAYS, scope_id)
        if opened is None or unsealed(scope_id, opened)["overlay"] != operation.memory_overlay_fingerprint:
            raise SnapshotConflict(what=f"overlay {scope_id!r}", reason="it is not open in this store")
        return opened

    async def _standing(
        self, operation: MemoryInterventionOperation, opened: JSON, spec: MemoryInterventionSpec
    ) -> dict[str, KnowledgeEntry]:
        overlay = self._opened(operation, opened)
        selections = (Selection(scope=self._access, entry_id=change.entry_id) for change in spec.changes)
        return {entry.id: entry for selection in selections for entry in await overlay.select(selection)}

    def _opened(self, operation: MemoryInterventionOperation, opened: JSON) -> OverlayKnowledgeStore:
        return OverlayKnowledgeStore(self._select, self._access, self._documents, operation.state_scope_id, opened)

    def _policy_of(self, spec: MemoryInterventionSpec) -> AutomaticRecallPolicy:
        for policy in (self._recall, self._recall.switched_off()):
            if policy.fingerprint() == spec.trial_recall_policy_fingerprint:
                return policy
        raise SnapshotConflict(what="recall policy", reason="the spec names one that this provider does not have")


class Effect(NamedTuple):
    """What an operation does to an overlay."""

    receipt: MemoryInterventionReceipt
    entries: Mapping[str, KnowledgeEntry]
    hidden: frozenset[str]


def _applied(effect: Effect, read: JSON, current: JSON, now: int) -> JSON:
    """Return the overlay with an effect and its receipt; None when it is not as it was read any more."""
    receipt, entries, hides = effect
    if current != read:
        return None
    done = current["operations"] | {receipt.operation_fingerprint: receipt.model_dump(mode="json")}
    hidden = {*current["hidden"]} - entries.keys() | hides
    return changed(current, dict(entries), hidden, operations=done)


def repeated(spec: MemoryInterventionSpec, operation: MemoryInterventionOperation, opened: JSON) -> Effect | None:
    """Return the effect of an operation that an earlier trial of the candidate has had already: the same, and no more.

    None when no operation on this overlay had these very effects.
    """
    effects = tuple(map(_effect_fingerprint, spec.changes))
    for stored in opened["operations"].values():
        earlier = MemoryInterventionReceipt.model_validate_json(dumps(stored))
        if effects and earlier.effect_fingerprints == effects:
            fields = {name: getattr(earlier, name) for name in type(earlier).model_fields if name != "fingerprint"}
            again = MemoryInterventionReceipt.create(**fields | {"operation_fingerprint": operation.fingerprint})
            return Effect(again, {}, frozenset())
    return None


def decide_effect(
    spec: MemoryInterventionSpec,
    operation: MemoryInterventionOperation,
    standing: Mapping[str, KnowledgeEntry],
    access: KnowledgeAccessScope,
) -> Effect:
    """Return what a spec does, given the items that it names as they stand."""
    put = {change.entry_id: _put(change) for change in spec.changes if change.fixture is not None}
    found = {change.entry_id: _revision(standing.get(change.entry_id)) for change in spec.changes}
    matched = [change for change in spec.changes if found[change.entry_id] == change.revision]
    conflicts = [change for change in spec.changes if found[change.entry_id] not in (change.revision, 0)]
    seen = all(access.admits(entry, _ANY_TIME) for entry in put.values())
    if not spec.changes:
        status = Status.VERIFIED_NO_CHANGE
    elif conflicts:
        status = Status.CONFLICTING
    elif not matched:
        status = Status.MATCHED_NO_ITEMS
    else:
        status = Status.APPLIED if seen and len(matched) == len(spec.changes) else Status.INDETERMINATE
    applied = spec.changes if status is Status.APPLIED else ()
    receipt = MemoryInterventionReceipt.create(
        operation_fingerprint=operation.fingerprint,
        memory_overlay_fingerprint=operation.memory_overlay_fingerprint,
        status=status,
        requested_count=len(spec.changes),
        matched_count=len(matched),
        changed_count=len(applied),
        changed_revision_fingerprints=tuple(revision_fingerprint(item.entry_id, item.revision) for item in applied),
        effect_fingerprints=tuple(map(_effect_fingerprint, applied)),
    )
    if not applied:
        return Effect(receipt, {}, frozenset())
    return Effect(receipt, put, frozenset(item.entry_id for item in applied if item.fixture is None))


def _revision(entry: KnowledgeEntry | None) -> int:
    return entry.revision if entry is not None else 0


def _put(change: MemoryInterventionChange) -> KnowledgeEntry:
    assert change.fixture is not None
    return change.fixture.entry(change.entry_id, change.revision + 1)


def _effect_fingerprint(change: MemoryInterventionChange) -> str:
    fixture = change.fixture.fingerprint if change.fixture is not None else None
    return fingerprint("cayu.memory-effect", [change.entry_id, change.revision, fixture])
