"""Captures, copies, trials and results over every snapshot store, and what a crash between any two writes leaves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from snapshots.support import (
    ACCESS,
    OTHER_ACCESS,
    Cut,
    StumblingProvider,
    StumblingStore,
    capture,
    digest,
    make_coordinator,
    make_providers,
    make_request,
    make_result,
    remember,
)

from cayu.canonical import fingerprint
from cayu.clock import as_datetime
from cayu.errors import InvalidInput, SnapshotConflict, SnapshotNotFound, StoredDocumentDamaged
from cayu.snapshots import (
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotCoordinator,
    AgentSnapshotMaterialization,
    AgentSnapshotStore,
    FixedComponent,
)
from cayu.snapshots.components import KINDS, KNOWLEDGE_FRONTIER, OVERLAYS, sealed
from cayu.snapshots.coordinator import MATERIALIZATIONS, PROGRESS, RESULTS, SNAPSHOTS, TRIALS
from cayu.storage import (
    InMemoryAgentSnapshotStore,
    InMemoryKnowledgeStore,
    SQLiteAgentSnapshotStore,
    SQLiteKnowledgeStore,
)
from cayu.testing.clocks import START, FakeClock

pytestmark = pytest.mark.exhaustive

SECRET = "words that no error shows"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[AgentSnapshotStore]:
    made: AgentSnapshotStore = (
        InMemoryAgentSnapshotStore(clock=clock)
        if request.param == "memory"
        else SQLiteAgentSnapshotStore(tmp_path / "snapshots.db", clock=clock)
    )
    yield made
    await made.aclose()


@pytest.fixture
async def knowledge(clock: FakeClock) -> InMemoryKnowledgeStore:
    made = InMemoryKnowledgeStore(clock=clock)
    await remember(made, "tea", "Tea is served at four.")
    await remember(made, "secret", SECRET, namespace="more")
    return made


@pytest.fixture
def coordinator(store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore) -> AgentSnapshotCoordinator:
    return make_coordinator(store, knowledge)


@pytest.fixture
async def snapshot(coordinator: AgentSnapshotCoordinator) -> AgentSnapshot:
    return await capture(coordinator)


async def edit(store: AgentSnapshotStore, collection: str, id: str, change: Callable[[Any], Any]) -> None:
    """Change a document where it stands, as somebody with a database browser would."""
    await store.transact(collection, id, lambda current, now: change(current))


@pytest.mark.parametrize("kinds", [KINDS[:-1], (*KINDS, KINDS[0]), (*KINDS, "words"), ()])
def test_there_is_one_provider_for_each_kind(kinds: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="one provider for each of agent, "):
        AgentSnapshotCoordinator(InMemoryAgentSnapshotStore(), [FixedComponent(kind, None) for kind in kinds])


async def test_a_capture_holds_every_component_and_no_memory(
    coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot, store: AgentSnapshotStore
) -> None:
    assert tuple(component.kind for component in snapshot.components) == KINDS
    assert snapshot.component("agent").material == {"says": "agent"}
    memory = snapshot.component(KNOWLEDGE_FRONTIER).material
    assert (memory["frontier"], memory["access"]) == (2, ACCESS.model_dump(mode="json"))
    assert snapshot.created_at == START
    assert "Tea" not in str(await store.read(SNAPSHOTS, snapshot.fingerprint))
    assert await coordinator.load(snapshot.fingerprint) == snapshot


async def test_the_same_agent_is_the_same_snapshot_of_its_first_time(
    store: AgentSnapshotStore,
    knowledge: InMemoryKnowledgeStore,
    coordinator: AgentSnapshotCoordinator,
    snapshot: AgentSnapshot,
    clock: FakeClock,
) -> None:
    clock.advance(60)
    assert await capture(coordinator) == snapshot
    assert await capture(make_coordinator(store, knowledge)) == snapshot
    assert [found.fingerprint for found in await asyncio.gather(*(capture(coordinator) for _ in range(5)))] == [
        snapshot.fingerprint
    ] * 5
    changed = await capture(make_coordinator(store, knowledge, agent={"says": "something else"}))
    assert changed.fingerprint != snapshot.fingerprint
    assert changed.created_at == START + timedelta(seconds=60)
    await remember(knowledge, "milk", "Milk comes first.")
    assert (await capture(coordinator)).fingerprint not in (snapshot.fingerprint, changed.fingerprint)
    assert await coordinator.load(snapshot.fingerprint) == snapshot


async def test_an_access_is_part_of_a_snapshot_and_is_that_of_its_memory(
    coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    with pytest.raises(SnapshotConflict, match="access"):
        await coordinator.capture(AgentSnapshotCaptureRequest(access=OTHER_ACCESS))


async def test_memory_that_is_written_later_leaves_a_snapshot_good(
    store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore, snapshot: AgentSnapshot
) -> None:
    await remember(knowledge, "tea", "Tea is served at five.", 1)
    await knowledge.write((await remember(knowledge, "milk", "Milk comes first.")), 1, delete=True)
    await make_coordinator(store, knowledge).verify(snapshot)


async def test_memory_that_expires_later_stands_in_the_copies_of_a_snapshot(
    store: AgentSnapshotStore, clock: FakeClock
) -> None:
    knowledge = InMemoryKnowledgeStore(clock=clock)
    await remember(knowledge, "tea", SECRET, expires_at=START + timedelta(seconds=5))
    coordinator = make_coordinator(store, knowledge)
    snapshot = await capture(coordinator)
    clock.advance(5)
    await coordinator.verify(snapshot)
    assert (await capture(coordinator)).fingerprint != snapshot.fingerprint
    made = await coordinator.materialize(make_request(snapshot))
    opened = await store.read(OVERLAYS, made.state_scope_id)
    assert as_datetime(opened["as_of"]) == snapshot.created_at


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE knowledge SET body = replace(CAST(body AS TEXT), 'four', 'five')",
        "UPDATE knowledge SET deleted = 1",
        "UPDATE knowledge SET namespace = 'more'",
        "DELETE FROM knowledge WHERE id = 'tea'",
    ],
)
async def test_memory_that_was_edited_below_the_frontier_is_found_out(
    statement: str, store: AgentSnapshotStore, tmp_path: Path
) -> None:
    knowledge = SQLiteKnowledgeStore(tmp_path / "knowledge.db")
    await remember(knowledge, "tea", "Tea is served at four.")
    snapshot = await capture(make_coordinator(store, knowledge))
    again = make_coordinator(store, knowledge)
    await again.verify(snapshot)
    with closing(sqlite3.connect(tmp_path / "knowledge.db")) as raw, raw:
        raw.execute(statement)
    with pytest.raises(SnapshotConflict, match="memory does not agree"):
        await again.verify(snapshot)
    with pytest.raises(SnapshotConflict, match="memory does not agree"):
        await make_coordinator(store, knowledge).materialize(make_request(snapshot))
    await knowledge.aclose()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != KNOWLEDGE_FRONTIER])
async def test_a_component_that_is_another_one_now_is_found_out(
    kind: str, store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore, snapshot: AgentSnapshot
) -> None:
    changed = make_coordinator(store, knowledge, **{kind: {"says": SECRET}})
    for use in (changed.verify(snapshot), changed.materialize(make_request(snapshot))):
        with pytest.raises(SnapshotConflict, match=f"'{kind}'") as refused:
            await use
        assert SECRET not in str(refused.value)
    assert await store.read(PROGRESS, make_request(snapshot).progress_id) is None, "a refused copy was begun"
    await make_coordinator(store, knowledge).verify(snapshot)


def other_component(document: Any) -> Any:
    components = [part | {"material": SECRET} if part["kind"] == "agent" else part for part in document["components"]]
    return document | {"components": components}


EDITS: dict[str, Callable[[Any], Any]] = {
    "a component": other_component,
    "a component less": lambda document: document | {"components": document["components"][1:]},
    "the access": lambda document: document | {"authority_scope_fingerprint": digest("another")},
    "the name": lambda document: document | {"fingerprint": digest("another")},
    "more": lambda document: document | {"words": SECRET},
    "empty": lambda document: {},
    "text": lambda document: SECRET,
}


@pytest.mark.parametrize("kind", EDITS)
async def test_a_snapshot_that_was_edited_is_found_out(
    kind: str, store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    await edit(store, SNAPSHOTS, snapshot.fingerprint, EDITS[kind])
    for use in (
        coordinator.load(snapshot.fingerprint),
        coordinator.verify(snapshot),
        coordinator.materialize(make_request(snapshot)),
        capture(coordinator),
    ):
        with pytest.raises(SnapshotConflict, match="changed where it stands") as refused:
            await use
        assert SECRET not in str(refused.value)


async def test_a_snapshot_that_stands_under_anothers_name_is_found_out(
    store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore, snapshot: AgentSnapshot
) -> None:
    coordinator = make_coordinator(store, knowledge, agent="another")
    other = await capture(coordinator)
    await edit(store, SNAPSHOTS, snapshot.fingerprint, lambda _: other.model_dump(mode="json"))
    with pytest.raises(SnapshotConflict):
        await coordinator.load(snapshot.fingerprint)


async def test_a_copy_that_stands_under_anothers_name_is_found_out(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    one, other = [await coordinator.materialize(make_request(snapshot, trial_id=name)) for name in ("t1", "t2")]
    await edit(store, MATERIALIZATIONS, one.fingerprint, lambda _: other.model_dump(mode="json"))
    with pytest.raises(SnapshotConflict):
        await coordinator.recover_materialization(one.fingerprint, access=ACCESS)


async def test_a_trial_that_stands_under_anothers_name_is_found_out(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    copy = await coordinator.materialize(make_request(snapshot, state_mode="accumulate_within_candidate"))
    await coordinator.begin_trial(copy, **TRIAL)
    other = await coordinator.begin_trial(copy, **TRIAL | {"trial_id": "trial-2"})
    place = fingerprint("cayu.trial", [snapshot.fingerprint, "candidate", "trial-1"])
    await edit(store, TRIALS, place, lambda _: other.model_dump(mode="json"))
    with pytest.raises(SnapshotConflict):
        await coordinator.load_trial(snapshot.fingerprint, "candidate", "trial-1")


async def test_a_result_that_stands_under_anothers_name_is_found_out(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator
) -> None:
    one, other = make_result(digest("trial-1")), make_result(digest("trial-2"))
    await coordinator.record_result(one)
    await edit(store, RESULTS, one.trial_fingerprint, lambda _: other.model_dump(mode="json"))
    with pytest.raises(SnapshotConflict):
        await coordinator.load_result(one.trial_fingerprint)


@pytest.mark.parametrize("body", [b"{" + SECRET.encode(), b"", b"\xff\x00"])
async def test_a_document_of_garbage_is_found_out(
    body: bytes, knowledge: InMemoryKnowledgeStore, tmp_path: Path
) -> None:
    store = SQLiteAgentSnapshotStore(tmp_path / "snapshots.db")
    coordinator = make_coordinator(store, knowledge)
    snapshot = await capture(coordinator)
    with closing(sqlite3.connect(tmp_path / "snapshots.db")) as raw, raw:
        raw.execute("UPDATE documents SET body = ?", (body,))
    try:
        with pytest.raises(SnapshotConflict) as refused:
            await coordinator.load(snapshot.fingerprint)
        assert SECRET not in str(refused.value)
    finally:
        await store.aclose()


async def test_what_is_not_there_is_not_found(
    coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot, store: AgentSnapshotStore
) -> None:
    nothing = digest("nothing")
    unknown = snapshot.model_copy(update={"fingerprint": nothing})
    for use in (
        coordinator.load(nothing),
        coordinator.verify(unknown),
        coordinator.materialize(make_request(unknown)),
        coordinator.recover_materialization(nothing, access=ACCESS),
        coordinator.load_trial(snapshot.fingerprint, "candidate", "trial-1"),
        coordinator.load_result(nothing),
    ):
        with pytest.raises(SnapshotNotFound):
            await use
    assert await store.read(PROGRESS, make_request(unknown).progress_id) is None


async def test_a_copy_is_opened_once_per_trial(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot, clock: FakeClock
) -> None:
    first = await coordinator.materialize(make_request(snapshot))
    assert [part.kind for part in first.components] == [*KINDS]
    for part in first.components:
        assert part.overlay is (part.kind == KNOWLEDGE_FRONTIER)
        assert part.baseline_fingerprint == snapshot.component(part.kind).fingerprint
        assert (part.materialization_ref == part.baseline_fingerprint) is not part.overlay
    clock.advance(60)
    assert await coordinator.materialize(make_request(snapshot)) == first
    other = await coordinator.materialize(make_request(snapshot, trial_id="trial-2"))
    assert other.memory_overlay_fingerprint != first.memory_overlay_fingerprint
    assert other.state_scope_id != first.state_scope_id
    assert await coordinator.materialize(make_request(snapshot, candidate_id="another")) != first
    opened = await store.read(OVERLAYS, first.state_scope_id)
    assert (opened["frontier"], opened["entries"], opened["hidden"], opened["operations"]) == (2, {}, [], {})


async def test_trials_of_a_candidate_may_share_a_copy(
    coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    shared = {"state_mode": "accumulate_within_candidate"}
    first = await coordinator.materialize(make_request(snapshot, **shared))
    assert await coordinator.materialize(make_request(snapshot, trial_id="trial-2", **shared)) == first
    other = await coordinator.materialize(make_request(snapshot, candidate_id="another", **shared))
    alone = await coordinator.materialize(make_request(snapshot))
    overlays = [found.memory_overlay_fingerprint for found in (first, other, alone)]
    assert len({*overlays}) == 3


async def test_a_copy_that_has_changed_since_is_the_same_copy(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    made = await coordinator.materialize(make_request(snapshot))
    await edit(store, OVERLAYS, made.state_scope_id, lambda opened: sealed(opened | {"hidden": ["tea"]}))
    await edit(store, PROGRESS, made.progress_id, lambda progress: progress | {"materialization": None})
    assert await coordinator.materialize(make_request(snapshot)) == made
    assert (await store.read(OVERLAYS, made.state_scope_id))["hidden"] == ["tea"], "a repeat emptied the overlay"


async def test_an_overlay_that_was_edited_is_found_out(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    made = await coordinator.materialize(make_request(snapshot))
    await edit(store, OVERLAYS, made.state_scope_id, lambda opened: opened | {"hidden": ["tea"]})
    await edit(store, PROGRESS, made.progress_id, lambda progress: progress | {"materialization": None})
    with pytest.raises(StoredDocumentDamaged):
        await coordinator.materialize(make_request(snapshot))


async def test_a_copy_is_opened_for_the_access_of_the_snapshot_alone(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    request = make_request(snapshot, access=OTHER_ACCESS)
    with pytest.raises(SnapshotConflict, match="another scope"):
        await coordinator.materialize(request)
    assert await store.read(PROGRESS, request.progress_id) is None
    made = await coordinator.materialize(make_request(snapshot))
    assert await coordinator.recover_materialization(made.fingerprint, access=ACCESS) == made
    with pytest.raises(SnapshotConflict, match="another scope"):
        await coordinator.recover_materialization(made.fingerprint, access=OTHER_ACCESS)


async def test_an_overlay_of_another_memory_is_not_taken_over(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    request = make_request(snapshot)
    await edit(store, OVERLAYS, request.state_scope_id, lambda _: sealed({"overlay": digest("another")}))
    with pytest.raises(SnapshotConflict, match="opened for another memory"):
        await coordinator.materialize(request)


async def uninterrupted(knowledge: InMemoryKnowledgeStore) -> AgentSnapshotMaterialization:
    """The copy as it is without a crash."""
    coordinator = make_coordinator(InMemoryAgentSnapshotStore(), knowledge)
    return await coordinator.materialize(make_request(await capture(coordinator)))


@pytest.mark.parametrize("mode", ["reset_each_trial", "accumulate_within_candidate"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_that_was_cut_off_at_a_component_is_finished_under_the_same_claims(
    kind: str, when: str, mode: str, store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore, clock: FakeClock
) -> None:
    providers = [
        StumblingProvider(provider, when if provider.kind == kind else None) for provider in make_providers(knowledge)
    ]
    coordinator = AgentSnapshotCoordinator(store, providers)
    snapshot = await capture(coordinator)
    request = make_request(snapshot, state_mode=mode)
    with pytest.raises(Cut):
        await coordinator.materialize(request)
    progress = await store.read(PROGRESS, request.progress_id)
    assert progress["materialization"] is None
    clock.advance(60)
    made = await coordinator.materialize(request)
    for provider in providers:
        ids = {claim.operation_id for claim in provider.claims}
        assert ids == {progress["claims"][provider.kind]}, "a repeat came under another claim"
        assert {claim.state_scope_id for claim in provider.claims} == {request.state_scope_id}
        cut_off = KINDS.index(provider.kind) <= KINDS.index(kind)
        assert len(provider.claims) == (2 if cut_off else 1)
    assert len({*progress["claims"].values()}) == len(KINDS)
    assert made.created_at == START, "a copy has the time at which it was begun"
    assert await coordinator.materialize(request) == made
    assert sum(len(provider.claims) for provider in providers) == KINDS.index(kind) + 1 + len(KINDS)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_copy_that_was_cut_off_at_any_write_is_finished(
    when: str, store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore
) -> None:
    expected = await uninterrupted(knowledge)
    snapshot = await capture(make_coordinator(store, knowledge))
    counted = StumblingStore(store)
    await make_coordinator(counted, knowledge).materialize(make_request(snapshot, trial_id="counted"))
    assert counted.writes == 4
    for write in range(1, counted.writes + 1):
        request = make_request(snapshot, trial_id=f"trial-{write}")
        with pytest.raises(Cut):
            await make_coordinator(StumblingStore(store, write, when), knowledge).materialize(request)
        made = await make_coordinator(store, knowledge).materialize(request)
        assert await make_coordinator(store, knowledge).materialize(request) == made
        assert await make_coordinator(store, knowledge).recover_materialization(made.fingerprint, access=ACCESS) == made
        assert (await store.read(PROGRESS, made.progress_id))["materialization"] == made.fingerprint
        if write == 1:
            assert made.fingerprint == expected.fingerprint, "a recovered copy is another than an uninterrupted one"


@pytest.mark.parametrize("mode", ["reset_each_trial", "accumulate_within_candidate"])
async def test_one_scope_that_is_opened_by_several_at_once_is_one_copy(
    mode: str, store: AgentSnapshotStore, knowledge: InMemoryKnowledgeStore, snapshot: AgentSnapshot
) -> None:
    providers = [[StumblingProvider(provider) for provider in make_providers(knowledge)] for _ in range(4)]
    coordinators = [AgentSnapshotCoordinator(store, each) for each in providers]
    request = make_request(snapshot, state_mode=mode)
    made = await asyncio.gather(*(coordinator.materialize(request) for coordinator in coordinators * 2))
    assert made == [made[0]] * 8
    claims = {claim.operation_id for each in providers for provider in each for claim in provider.claims}
    assert len(claims) == len(KINDS), "there is one claim per component"


async def test_a_copy_outlives_its_process(knowledge: InMemoryKnowledgeStore, tmp_path: Path) -> None:
    first = SQLiteAgentSnapshotStore(str(tmp_path / "snapshots.db"))
    snapshot = await capture(make_coordinator(first, knowledge))
    made = await make_coordinator(first, knowledge).materialize(make_request(snapshot))
    assert first.durable_state_paths() == (tmp_path / "snapshots.db",)
    await first.aclose()
    second = SQLiteAgentSnapshotStore(tmp_path / "snapshots.db")
    again = make_coordinator(second, knowledge)
    assert await again.load(snapshot.fingerprint) == snapshot
    assert await again.materialize(make_request(snapshot)) == made
    await second.aclose()
    assert InMemoryAgentSnapshotStore().durable_state_paths() == ()


TRIAL = {"case_id": "case", "trial_id": "trial-1", "evaluator_fingerprint": digest("evaluator")}


async def test_a_trial_is_bound_once(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot, clock: FakeClock
) -> None:
    copy = await coordinator.materialize(make_request(snapshot))
    clock.advance(5)
    bound = await coordinator.begin_trial(copy, **TRIAL)
    assert (bound.snapshot_fingerprint, bound.materialization_fingerprint) == (snapshot.fingerprint, copy.fingerprint)
    assert bound.memory_overlay_fingerprint == copy.memory_overlay_fingerprint
    assert bound.created_at == START + timedelta(seconds=5)
    clock.advance(60)
    assert await asyncio.gather(*(coordinator.begin_trial(copy, **TRIAL) for _ in range(4))) == [bound] * 4
    assert await coordinator.load_trial(snapshot.fingerprint, "candidate", "trial-1") == bound
    shared = await coordinator.materialize(make_request(snapshot, state_mode="accumulate_within_candidate"))
    for other in (
        coordinator.begin_trial(copy, **TRIAL | {"case_id": "another"}),
        coordinator.begin_trial(copy, **TRIAL | {"evaluator_fingerprint": digest("another")}),
        coordinator.begin_trial(shared, **TRIAL),
    ):
        with pytest.raises(SnapshotConflict, match="something else was recorded"):
            await other
    assert await coordinator.load_trial(snapshot.fingerprint, "candidate", "trial-1") == bound
    second = await coordinator.begin_trial(shared, **TRIAL | {"trial_id": "trial-2"})
    assert second.fingerprint != bound.fingerprint


async def test_a_result_is_recorded_once(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    trial = await coordinator.begin_trial(await coordinator.materialize(make_request(snapshot)), **TRIAL)
    result = make_result(trial.fingerprint)
    assert await coordinator.record_result(result) == result
    later = make_result(trial.fingerprint, recorded_at=START + timedelta(days=1))
    assert await coordinator.record_result(later) == result, "a repeat wrote its own time"
    with pytest.raises(SnapshotConflict, match="something else was recorded"):
        await coordinator.record_result(make_result(trial.fingerprint, terminal_disposition="failed"))
    assert await coordinator.load_result(trial.fingerprint) == result
    race = [make_result(digest("another trial"), session_id=f"session-{n}") for n in range(4)]
    results = await asyncio.gather(*map(coordinator.record_result, race), return_exceptions=True)
    assert sum(isinstance(found, SnapshotConflict) for found in results) == 3


async def test_a_trial_or_a_result_that_was_edited_is_found_out(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    trial = await coordinator.begin_trial(copy := await coordinator.materialize(make_request(snapshot)), **TRIAL)
    await coordinator.record_result(make_result(trial.fingerprint))
    await edit(store, RESULTS, trial.fingerprint, lambda document: document | {"terminal_disposition": "failed"})
    with pytest.raises(SnapshotConflict, match="changed where it stands"):
        await coordinator.load_result(trial.fingerprint)
    await edit(store, MATERIALIZATIONS, copy.fingerprint, lambda document: document | {"candidate_id": "another"})
    for use in (
        coordinator.recover_materialization(copy.fingerprint, access=ACCESS),
        coordinator.materialize(make_request(snapshot)),
    ):
        with pytest.raises(SnapshotConflict, match="changed where it stands"):
            await use


async def test_progress_that_was_edited_is_a_conflict(
    store: AgentSnapshotStore, coordinator: AgentSnapshotCoordinator, snapshot: AgentSnapshot
) -> None:
    request = make_request(snapshot)
    await coordinator.materialize(request)
    for change in (
        lambda progress: progress | {"claims": {kind: digest(kind) for kind in KINDS}},
        lambda progress: progress | {"candidate_id": "another"},
    ):
        before = await store.read(PROGRESS, request.progress_id)
        await edit(store, PROGRESS, request.progress_id, change)
        with pytest.raises(SnapshotConflict, match="another snapshot's"):
            await coordinator.materialize(request)
        await edit(store, PROGRESS, request.progress_id, lambda _, before=before: before)
