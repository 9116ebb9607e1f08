"""Captures snapshots, opens copies, and binds trials and results to them; each step may be repeated after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from cayu.canonical import JSON, dumps, fingerprint
from cayu.clock import as_datetime
from cayu.crashpoints import reach
from cayu.errors import InvalidInput, SnapshotConflict, SnapshotNotFound, StoredDocumentDamaged
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.snapshots.components import KINDS, KNOWLEDGE_FRONTIER, AgentSnapshotComponentProvider, MaterializationClaim
from cayu.snapshots.records import (
    Addressed,
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotComponent,
    AgentSnapshotMaterialization,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotTrialBinding,
    MaterializedComponent,
    scope_fingerprint,
)
from cayu.snapshots.store import AgentSnapshotStore

R = TypeVar("R", bound=Addressed)

SNAPSHOTS = "agent-snapshots"
PROGRESS = "materialization-progress"
MATERIALIZATIONS = "materializations"
TRIALS = "snapshot-trials"
RESULTS = "snapshot-results"


class AgentSnapshotCoordinator:
    """Snapshots over one store, of the components that its providers stand for."""

    def __init__(self, store: AgentSnapshotStore, providers: Sequence[AgentSnapshotComponentProvider]) -> None:
        """Raises `InvalidInput` unless there is exactly one provider for each kind of component."""
        if sorted(provider.kind for provider in providers) != list(KINDS):
            raise InvalidInput(f"A snapshot needs one provider for each of {', '.join(KINDS)}.")
        self.store = store
        self._providers = {provider.kind: provider for provider in providers}
        self._verified: set[str] = set()

    async def capture(self, request: AgentSnapshotCaptureRequest) -> AgentSnapshot:
        """Capture every component now. The same components give the same snapshot, with its first time of capture.

        Raises `SnapshotConflict` for an access other than the one that the memory is captured under.
        """
        components = [AgentSnapshotComponent.of(kind, await self._providers[kind].capture()) for kind in KINDS]
        access = scope_fingerprint(request.access)
        memory = next(item.material for item in components if item.kind == KNOWLEDGE_FRONTIER)
        if memory["access"] != request.access.model_dump(mode="json"):
            raise SnapshotConflict(what="access", reason="the memory is captured under another scope")

        def made(now: int) -> AgentSnapshot:
            return AgentSnapshot.create(
                authority_scope_fingerprint=access, components=tuple(components), created_at=as_datetime(now)
            )

        kept = await self._keep(SNAPSHOTS, made(0).fingerprint, made, AgentSnapshot)
        self._verified.add(kept.fingerprint)
        return kept

    async def load(self, snapshot_fingerprint: str) -> AgentSnapshot:
        """Return a snapshot. Raises `SnapshotNotFound`, and `SnapshotConflict` for one that was edited."""
        return await self._read(SNAPSHOTS, snapshot_fingerprint, AgentSnapshot)

    async def verify(self, snapshot: AgentSnapshot) -> None:
        """Check that copies of a snapshot can still be made. Raises `SnapshotConflict` and `SnapshotNotFound`."""
        kept = await self.load(snapshot.fingerprint)
        for component in kept.components:
            await self._providers[component.kind].verify(component.material, kept.created_at)
        self._verified.add(kept.fingerprint)

    async def materialize(self, request: AgentSnapshotMaterializationRequest) -> AgentSnapshotMaterialization:
        """Open the copy that is asked for, once per state scope; a repeat returns it, or finishes what was begun.

        The snapshot is verified at the first copy that this coordinator opens of it. Raises `SnapshotConflict` for an
        access other than the snapshot's.
        """
        snapshot = await self.load(request.snapshot_fingerprint)
        _check_access(snapshot.authority_scope_fingerprint, request.access)
        if snapshot.fingerprint not in self._verified:
            await self.verify(snapshot)
        progress = await self._begin(request, snapshot)
        if progress["materialization"] is not None:
            return await self._read(MATERIALIZATIONS, progress["materialization"], AgentSnapshotMaterialization)
        return await self._complete(request, snapshot, progress)

    async def recover_materialization(
        self, materialization_fingerprint: str, *, access: KnowledgeAccessScope
    ) -> AgentSnapshotMaterialization:
        """Return a copy that was opened before. Raises `SnapshotNotFound`; `SnapshotConflict` for another access."""
        found = await self._read(MATERIALIZATIONS, materialization_fingerprint, AgentSnapshotMaterialization)
        _check_access(found.authority_scope_fingerprint, access)
        return found

    async def begin_trial(
        self, materialization: AgentSnapshotMaterialization, *, case_id: str, trial_id: str, evaluator_fingerprint: str
    ) -> AgentSnapshotTrialBinding:
        """Bind a trial to a copy, once. Raises `SnapshotConflict` when the trial was bound otherwise."""

        def bound(now: int) -> AgentSnapshotTrialBinding:
            return AgentSnapshotTrialBinding.create(
                snapshot_fingerprint=materialization.snapshot_fingerprint,
                materialization_fingerprint=materialization.fingerprint,
                candidate_id=materialization.candidate_id,
                case_id=case_id,
                trial_id=trial_id,
                evaluator_fingerprint=evaluator_fingerprint,
                memory_overlay_fingerprint=materialization.memory_overlay_fingerprint,
                created_at=as_datetime(now),
            )

        name = _trial_name(materialization.snapshot_fingerprint, materialization.candidate_id, trial_id)
        return await self._keep(TRIALS, name, bound, AgentSnapshotTrialBinding)

    async def load_trial(self, snapshot: str, candidate_id: str, trial_id: str) -> AgentSnapshotTrialBinding:
        """Return the binding of a trial by the snapshot's fingerprint and its ids. Raises `SnapshotNotFound`."""
        return await self._read(TRIALS, _trial_name(snapshot, candidate_id, trial_id), AgentSnapshotTrialBinding)

    async def record_result(self, result: AgentSnapshotResultBinding) -> AgentSnapshotResultBinding:
        """Record what came of a trial, once. Raises `SnapshotConflict` when something else was recorded."""
        return await self._keep(RESULTS, result.trial_fingerprint, lambda _: result, AgentSnapshotResultBinding)

    async def load_result(self, trial_fingerprint: str) -> AgentSnapshotResultBinding:
        """Return what was recorded of a trial. Raises `SnapshotNotFound`."""
        return await self._read(RESULTS, trial_fingerprint, AgentSnapshotResultBinding)

    async def _begin(self, request: AgentSnapshotMaterializationRequest, snapshot: AgentSnapshot) -> dict[str, Any]:
        """Claim one operation per component, unless that was done before."""
        claims = {
            item.kind: fingerprint("cayu.materialization-claim", [request.progress_id, item.kind, item.fingerprint])
            for item in snapshot.components
        }

        def begun(current: JSON, now: int) -> JSON:
            begin = {"claims": claims, "candidate_id": request.candidate_id, "begun_at": now, "materialization": None}
            return begin if current is None else None

        progress: dict[str, Any] = await self.store.transact(PROGRESS, request.progress_id, begun)
        if {*progress} != {"claims", "candidate_id", "begun_at", "materialization"}:
            raise StoredDocumentDamaged(collection=PROGRESS, id=request.progress_id)
        if progress["claims"] != claims or progress["candidate_id"] != request.candidate_id:
            raise SnapshotConflict(what=f"state scope {request.state_scope_id!r}", reason="it is another snapshot's")
        reach("materialization.claimed")
        return progress

    async def _complete(
        self, request: AgentSnapshotMaterializationRequest, snapshot: AgentSnapshot, progress: dict[str, Any]
    ) -> AgentSnapshotMaterialization:
        parts = []
        for item in snapshot.components:
            provider = self._providers[item.kind]
            claim = MaterializationClaim(
                operation_id=progress["claims"][item.kind],
                state_scope_id=request.state_scope_id,
                component=item,
                captured_at=snapshot.created_at,
            )
            ref = await provider.materialize(claim, self.store)
            parts.append(
                MaterializedComponent(
                    kind=item.kind,
                    baseline_fingerprint=item.fingerprint,
                    materialization_ref=ref,
                    overlay=provider.overlay,
                )
            )
        made = AgentSnapshotMaterialization.create(
            progress_id=request.progress_id,
            snapshot_fingerprint=snapshot.fingerprint,
            candidate_id=request.candidate_id,
            state_scope_id=request.state_scope_id,
            state_mode=request.state_mode,
            authority_scope_fingerprint=snapshot.authority_scope_fingerprint,
            created_at=as_datetime(progress["begun_at"]),
            components=tuple(parts),
        )
        kept = await self._keep(MATERIALIZATIONS, made.fingerprint, lambda _: made, AgentSnapshotMaterialization)
        reach("materialization.made")

        def done(current: JSON, _: int) -> JSON:
            return current | {"materialization": made.fingerprint} if current["materialization"] is None else None

        await self.store.transact(PROGRESS, request.progress_id, done)
        return kept

    async def _keep(self, collection: str, id: str, make: Any, kind: type[R]) -> R:
        """Write a record unless it stands already, and return what stands; raise when that is something else."""
        wanted = ""

        def decide(current: JSON, now: int) -> JSON:
            nonlocal wanted
            made = make(now)
            wanted = made.fingerprint
            return made.model_dump(mode="json") if current is None else None

        try:
            kept = _checked(collection, id, await self.store.transact(collection, id, decide), kind)
        except StoredDocumentDamaged as damaged:
            raise _changed(collection, id) from damaged
        if kept.fingerprint != wanted:
            raise SnapshotConflict(what=f"{id!r} of {collection}", reason="something else was recorded there before")
        return kept

    async def _read(self, collection: str, id: str, kind: type[R]) -> R:
        try:
            found = await self.store.read(collection, id)
        except StoredDocumentDamaged as damaged:
            raise _changed(collection, id) from damaged
        if found is None:
            raise SnapshotNotFound(what=kind.__name__, fingerprint=id)
        return _checked(collection, id, found, kind)


def _checked(collection: str, id: str, found: JSON, kind: type[R]) -> R:
    try:
        record = kind.model_validate_json(dumps(found))
    except ValidationError:
        raise _changed(collection, id) from None
    if _name(record) != id:
        raise _changed(collection, id)
    return record


def _name(record: Addressed) -> str:
    """Return the id under which a record stands."""
    match record:
        case AgentSnapshotTrialBinding():
            return _trial_name(record.snapshot_fingerprint, record.candidate_id, record.trial_id)
        case AgentSnapshotResultBinding():
            return record.trial_fingerprint
        case _:
            return record.fingerprint


def _trial_name(snapshot: str, candidate_id: str, trial_id: str) -> str:
    return fingerprint("cayu.trial", [snapshot, candidate_id, trial_id])


def _changed(collection: str, id: str) -> SnapshotConflict:
    return SnapshotConflict(what=f"{id!r} of {collection}", reason="it was changed where it stands")


def _check_access(authority: str, access: KnowledgeAccessScope) -> None:
    if authority != scope_fingerprint(access):
        raise SnapshotConflict(what="access", reason="the snapshot was captured under another scope")
