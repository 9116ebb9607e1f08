"""Overlays: an effect is applied once, what is written stays above the production store, and a view proves itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from memory.support import (
    CODE,
    SAYS,
    SCOPE,
    Bench,
    JournalProxy,
    Lost,
    arm,
    at,
    change,
    counting_overlay,
    ids_of,
    once,
    view_of,
)
from runtime.support import FakeTool, calls

from cayu import KnowledgeQuery, KnowledgeStore, ToolContext
from cayu.canonical import dumps, fingerprint
from cayu.errors import (
    KnowledgeEntryNotFound,
    KnowledgeRevisionConflict,
    KnowledgeScopeError,
    MemoryInterventionExecutionConflict,
    StoredDocumentDamaged,
)
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.memory import MemoryInterventionReceipt, MemoryInterventionRuntimeView, MemoryInterventionTrialRequest
from cayu.providers import ScriptedModelProvider
from cayu.snapshots import AgentSnapshotTrialStateMode
from cayu.snapshots.components import OVERLAYS, sealed
from cayu.storage import SQLiteKnowledgeStore
from cayu.tools import ToolResult

STALE = "The door code of the cold room is 1234."
ARMS = {
    "as_declared": (arm("a", "as_declared"), "verified_no_change", "finalized"),
    "omit": (arm("a", "omit_items", change("cold-room")), "applied", "finalized"),
    "replace": (arm("a", "replace_items", change("cold-room", text=STALE)), "applied", "finalized"),
    "inject": (arm("a", "negative_control", change("x", 0, text=STALE), control="stale"), "applied", "finalized"),
    "gone": (arm("a", "omit_items", change("nowhere")), "matched_no_items", "finalized"),
    "elsewhere": (arm("a", "omit_items", change("cold-room", 7)), "conflicting", "effect_resolved"),
    "taken": (
        arm("a", "negative_control", change("lamp", 0, text="x"), control="stale"),
        "conflicting",
        "effect_resolved",
    ),
    "some": (arm("a", "omit_items", change("lamp"), change("nowhere")), "indeterminate", "effect_resolved"),
    "unseen": (
        arm("a", "negative_control", change("x", 0, text="x", namespace="hidden"), control="irrelevant"),
        "indeterminate",
        "effect_resolved",
    ),
    "private": (arm("a", "omit_items", change("private")), "matched_no_items", "finalized"),
}


@pytest.mark.parametrize("name", list(ARMS))
async def test_every_receipt_ends_a_trial_as_its_status_says(name: str) -> None:
    made, status, phase = ARMS[name]
    bench = await Bench().open()
    outcome = await bench.execute(made)
    assert outcome.receipt is not None
    assert (outcome.receipt.status, outcome.execution.phase) == (status, phase)
    changed = len(made.changes(None, {})) if status == "applied" else 0  # type: ignore[arg-type]
    assert outcome.receipt.changed_count == len(outcome.receipt.effect_fingerprints) == changed
    if phase == "finalized":
        assert outcome.execution.status == "completed"
        assert outcome.binding is not None
        assert outcome.binding.receipt == outcome.receipt
    else:
        assert (outcome.execution.status, outcome.execution.failure_code) == (status, f"intervention_{status}")
        assert outcome.eval_result is outcome.snapshot_result is outcome.binding is None
        assert not await bench.has_session(bench.request(made))
    assert await bench.executor().execute_trial(bench.request(made)) == outcome


@pytest.mark.parametrize(
    ("name", "answer"),
    [("as_declared", CODE), ("omit", "nothing"), ("replace", "1234"), ("gone", CODE), ("private", CODE)],
)
async def test_the_agent_answers_from_the_changed_memory(name: str, answer: str) -> None:
    outcome = await (await Bench().open()).execute(ARMS[name][0])
    assert outcome.eval_result is not None
    assert outcome.eval_result.final_output is not None
    assert answer in outcome.eval_result.final_output
    assert "K9999" not in outcome.eval_result.final_output


@pytest.mark.requirement("B043", "B044")
@pytest.mark.parametrize("name", list(ARMS))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_effect_is_applied_once_however_often_it_is_cut_off(name: str, when: str) -> None:
    """Cut off before the effect, recovery applies it; after it, recovery finds the receipt and applies nothing."""
    bench = await Bench().open()
    request = bench.request(ARMS[name][0])
    overlay = counting_overlay(bench)
    setattr(overlay, when, once())
    with pytest.raises(Lost):
        await bench.executor(overlay_provider=overlay).execute_trial(request)
    state = await overlay_of(bench, request)
    assert len(state["operations"]) == (1 if when == "after" else 0)
    outcome = await bench.executor(overlay_provider=overlay).execute_trial(request)
    assert overlay.asked[0] == "apply"
    assert set(overlay.asked[1:]) == {"recover"}
    held = await overlay_of(bench, request)
    assert held["operations"] == {outcome.execution.operation_fingerprint: outcome.receipt.model_dump(mode="json")}
    if when == "after":
        assert held == state
    smooth = await (await Bench().open()).execute(ARMS[name][0])
    assert outcome.receipt == smooth.receipt


@pytest.mark.requirement("B043")
async def test_an_uninterrupted_trial_applies_once_and_a_replay_not_at_all() -> None:
    bench = await Bench().open()
    overlay = counting_overlay(bench)
    executor, request = bench.executor(overlay_provider=overlay), bench.request(ARMS["omit"][0])
    await executor.execute_trial(request)
    assert overlay.asked == ["apply"]
    before = await overlay_of(bench, request)
    await executor.execute_trial(request)
    assert overlay.asked == ["apply", "recover"]
    assert await overlay_of(bench, request) == before


@pytest.mark.requirement("B045")
async def test_the_operation_is_durable_before_the_first_application() -> None:
    bench = await Bench().open()
    request = bench.request(ARMS["omit"][0])
    overlay, seen = counting_overlay(bench), []

    async def look() -> None:
        seen.append(await bench.journal(request))

    overlay.before = look
    outcome = await bench.executor(overlay_provider=overlay).execute_trial(request)
    assert [record.phase for record in seen] == ["trial_bound"]
    assert seen[0].operation_fingerprint == outcome.execution.operation_fingerprint
    assert seen[0].receipt_fingerprint is None


async def cut_off_after_the_effect(bench: Bench, request: MemoryInterventionTrialRequest) -> None:
    """Leave a trial with its receipt in the journal, and forget what the overlay knows of it."""
    journal = JournalProxy(bench.stores.executions, after=at("effect_resolved", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    scope, empty = await overlay_id(bench, request), {"operations": {}, "hidden": []}
    await bench.stores.snapshots.transact(OVERLAYS, scope, lambda current, _: sealed(current | empty))


async def test_an_effect_that_has_to_be_worked_out_again_has_the_same_receipt() -> None:
    bench = await Bench().open()
    request = bench.request(ARMS["omit"][0])
    await cut_off_after_the_effect(bench, request)
    await bench.knowledge.write(KnowledgeEntry(id="cold-room", text="a later revision"), 1)
    outcome = await bench.study.executor.execute_trial(request)
    assert outcome.receipt is not None
    assert (outcome.receipt.status, outcome.execution.status) == ("applied", "completed")


async def test_another_receipt_than_the_journals_is_a_conflict() -> None:
    bench = await Bench().open()
    request = bench.request(ARMS["omit"][0])
    await cut_off_after_the_effect(bench, request)
    hidden = {"hidden": ["cold-room"]}
    await bench.stores.snapshots.transact(
        OVERLAYS, await overlay_id(bench, request), lambda current, _: sealed(current | hidden)
    )
    with pytest.raises(MemoryInterventionExecutionConflict, match="another receipt than the journal"):
        await bench.study.executor.execute_trial(request)
    assert not await bench.has_session(request)


async def test_an_overlay_that_was_edited_is_not_used() -> None:
    bench = await Bench().open()
    request = bench.request(ARMS["omit"][0])
    await bench.study.executor.execute_trial(request)
    shown = {"hidden": []}
    await bench.stores.snapshots.transact(
        OVERLAYS, await overlay_id(bench, request), lambda current, _: current | shown
    )
    with pytest.raises(StoredDocumentDamaged, match="edited"):
        await bench.study.executor.execute_trial(request)


async def overlay_id(bench: Bench, request: MemoryInterventionTrialRequest) -> str:
    record = await bench.journal(request)
    assert record is not None
    assert record.materialization_fingerprint is not None
    found = await bench.study.executor.snapshots.recover_materialization(
        record.materialization_fingerprint, access=SCOPE
    )
    return found.state_scope_id


async def overlay_of(bench: Bench, request: MemoryInterventionTrialRequest) -> Any:
    """The document of a trial's overlay."""
    return await bench.stores.snapshots.read(OVERLAYS, await overlay_id(bench, request))


async def create(store: KnowledgeStore) -> None:
    await store.create_entry(KnowledgeEntry(id="new", text="A new note about the cold room."))
    assert (await store.get_entry("new")).revision == 1
    with pytest.raises(KnowledgeRevisionConflict):
        await store.create_entry(KnowledgeEntry(id="new", text="again"))


async def revise(store: KnowledgeStore) -> None:
    changed = await store.append_entry_revision(KnowledgeEntry(id="cold-room", text="Changed."), expected_revision=1)
    assert changed.revision == 2
    assert (await store.get_entry("cold-room")).text == "Changed."
    with pytest.raises(KnowledgeRevisionConflict):
        await store.append_entry_revision(KnowledgeEntry(id="cold-room", text="Stale."), expected_revision=1)
    again = await store.append_entry_revision(KnowledgeEntry(id="cold-room", text="More."), expected_revision=2)
    assert (again.revision, again.created_at) == (3, changed.created_at)


async def delete(store: KnowledgeStore) -> None:
    await store.delete_entry(await store.get_entry("cold-room"))
    with pytest.raises(KnowledgeEntryNotFound):
        await store.get_entry("cold-room")
    assert await ids_of(store) == ["lamp"]
    assert CODE not in await answer(store)


async def create_again(store: KnowledgeStore) -> None:
    await store.delete_entry(await store.get_entry("cold-room"))
    with pytest.raises(KnowledgeEntryNotFound):
        await store.append_entry_revision(KnowledgeEntry(id="cold-room", text="x"), expected_revision=1)
    back = await store.create_entry(KnowledgeEntry(id="cold-room", text="The door code is 55."))
    assert back.revision == 3
    assert "55" in await answer(store)
    assert CODE not in await answer(store)


async def write_beyond(store: KnowledgeStore) -> None:
    with pytest.raises(KnowledgeScopeError):
        await store.create_entry(KnowledgeEntry(id="x", text="x", namespace="hidden"))
    with pytest.raises(KnowledgeScopeError):
        await store.create_entry(KnowledgeEntry(id="x", text="x", visibility="private"))


async def answer(store: KnowledgeStore) -> str:
    found = await store.search(KnowledgeQuery(text="What is the door code of the cold room?"))
    return " ".join(hit.entry.text for hit in found.hits)


@pytest.mark.requirement("B066")
@pytest.mark.parametrize("act", [create, revise, delete, create_again, write_beyond])
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_no_write_on_an_overlay_reaches_the_production_store(
    act: Callable[[KnowledgeStore], Awaitable[None]], backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "knowledge.db"
    bench = await Bench().open() if backend == "memory" else await filled(path)
    before = await production(bench, path)
    view = await view_of(bench)
    frontier = await view.knowledge_store.frontier()
    assert view.knowledge_store.bound_access_scope() == view.knowledge_access_scope == SCOPE
    await act(view.knowledge_store)
    await act((await Bench().open()).knowledge.bind(SCOPE))  # a plain store behaves the same
    assert await view.knowledge_store.frontier() == frontier
    assert await production(bench, path) == before
    other = await view_of(bench, trial_id="t2")
    assert await ids_of(other.knowledge_store) == ["cold-room", "lamp"]
    assert SAYS in await answer(other.knowledge_store)


async def filled(path: Path) -> Bench:
    """A bench over a SQLite memory that was filled by another process."""
    store = SQLiteKnowledgeStore(path)
    await Bench(knowledge=store).open()
    await store.aclose()
    return await Bench(knowledge=SQLiteKnowledgeStore(path)).open()


async def production(bench: Bench, path: Path) -> Any:
    """Everything of the production store: the bytes of its files, or what the process holds."""
    if not isinstance(bench.knowledge, SQLiteKnowledgeStore):
        return {name: list(found) for name, found in bench.knowledge._revisions.items()}  # type: ignore[attr-defined]
    return {found.name: found.read_bytes() for found in path.parent.iterdir() if not found.name.endswith("-shm")}


@pytest.mark.requirement("B066")
@pytest.mark.parametrize("name", list(ARMS))
async def test_whole_trials_leave_the_file_of_the_production_store_as_it_was(name: str, tmp_path: Path) -> None:
    """The agent itself writes by a tool in each trial."""
    path = tmp_path / "knowledge.db"
    await (await filled(path)).knowledge.aclose()
    before = path.read_bytes()
    bench = await Bench(
        provider=ScriptedModelProvider([calls("note"), "noted"]),
        tools=[FakeTool("note", write_note)],
        knowledge=SQLiteKnowledgeStore(path),
    ).open()
    outcome = await bench.execute(ARMS[name][0])
    if outcome.execution.phase == "finalized":
        assert "note-0" in (await overlay_of(bench, bench.request(ARMS[name][0])))["entries"]
    await bench.knowledge.aclose()
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["knowledge.db"]


async def write_note(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    """Write as many notes as there are, and one more; then take the lamp out."""
    store = ctx.knowledge_store
    assert store is not None
    known = await ids_of(store)
    number = sum(name.startswith("note-") for name in known)
    await store.create_entry(KnowledgeEntry(id=f"note-{number}", text="a note"))
    if "lamp" in known:
        await store.delete_entry(await store.get_entry("lamp"))
    return ToolResult(content="noted")


@pytest.mark.parametrize("mode", list(AgentSnapshotTrialStateMode))
async def test_trials_of_a_candidate_share_their_memory_only_when_they_accumulate(
    mode: AgentSnapshotTrialStateMode,
) -> None:
    provider = ScriptedModelProvider([calls("note"), "noted"])
    bench = await Bench(provider=provider, tools=[FakeTool("note", write_note)]).open()
    notes, copies = [], []
    for trial_id, candidate in (("t1", "c1"), ("t2", "c1"), ("t3", "c2")):
        request = bench.request(trial_id=trial_id, candidate_id=candidate, mode=mode)
        outcome = await bench.study.executor.execute_trial(request)
        assert outcome.execution.status == "completed"
        written = (await overlay_of(bench, request))["entries"]
        notes.append(sorted(name for name in written if name.startswith("note-")))
        copies.append(outcome.execution.materialization_fingerprint)
    one, both = ["note-0"], ["note-0", "note-1"]
    shared = mode == "accumulate_within_candidate"
    assert notes == [one, both if shared else one, one]
    assert len(set(copies)) == (2 if shared else 3)


async def test_an_overlay_reads_at_its_frontier_and_through_its_scope() -> None:
    bench = await Bench().open()
    view = await view_of(bench, ARMS["replace"][0])
    store = view.knowledge_store
    await bench.knowledge.create_entry(KnowledgeEntry(id="later", text="The door code of the cold room is K7777."))
    lamp = await bench.knowledge.get_entry("lamp", access_scope=SCOPE)
    await bench.knowledge.append_entry_revision(lamp.model_copy(update={"text": "Repaired."}), expected_revision=1)
    assert await ids_of(store) == ["cold-room", "lamp"]
    assert "Repaired" not in (await store.get_entry("lamp")).text
    assert (await store.get_entry("cold-room")).revision == 2
    for hidden in ("later", "private"):
        with pytest.raises(KnowledgeEntryNotFound):
            await store.get_entry(hidden)
    found = await answer(store)
    assert "1234" in found
    assert not any(code in found for code in (CODE, "K7777", "K9999"))
    with pytest.raises(KnowledgeScopeError):
        await store.list_entries(KnowledgeAccessScope(allow_all_namespaces=True))
    empty = await store.search_at_frontier(KnowledgeQuery(text="lamp"), 0)
    assert [hit.entry.id for hit in empty.hits] == []


async def test_an_overlay_ranks_as_a_store_that_holds_the_same() -> None:
    """Equal content gives equal order and scores, whether it stands below or in the overlay."""
    bench = await Bench().open()
    put = arm("a", "negative_control", change("x", 0, text=STALE, title="Cold room"), control="stale")
    overlay = (await view_of(bench, put)).knowledge_store
    plain = await Bench().open()
    await plain.knowledge.create_entry(KnowledgeEntry(id="x", text=STALE, title="Cold room"))
    query = KnowledgeQuery(text="What is the door code of the cold room?", namespace=None)
    ours, theirs = await overlay.search(query), await plain.knowledge.search(query, access_scope=SCOPE)
    assert [(hit.entry.id, hit.score) for hit in ours.hits] == [(hit.entry.id, hit.score) for hit in theirs.hits]
    assert [hit.entry.id for hit in ours.hits] == ["cold-room", "x"]


ANOTHER = fingerprint("test", "another")
Forge = Callable[[MemoryInterventionRuntimeView, Bench], MemoryInterventionRuntimeView]


def _authority(**fields: str) -> Forge:
    def forge(view: MemoryInterventionRuntimeView, bench: Bench) -> MemoryInterventionRuntimeView:
        return dataclasses.replace(view, isolation_authority=view.isolation_authority.model_copy(update=fields))

    return forge


def _view(**fields: Any) -> Forge:
    return lambda view, bench: dataclasses.replace(view, **fields)


def _receipt(**fields: str) -> Forge:
    def forge(view: MemoryInterventionRuntimeView, bench: Bench) -> MemoryInterventionRuntimeView:
        told = view.receipt.model_dump(exclude={"fingerprint"}) | fields
        return dataclasses.replace(view, receipt=MemoryInterventionReceipt.create(**told))

    return forge


def _production(view: MemoryInterventionRuntimeView, bench: Bench) -> MemoryInterventionRuntimeView:
    return dataclasses.replace(view, knowledge_store=bench.knowledge)


WIDE = KnowledgeAccessScope(allow_all_namespaces=True, allowed_visibilities=("public", "private"))
FORGERIES: dict[str, tuple[Forge, str]] = {
    "materialization": (_view(materialization_fingerprint=ANOTHER), "materialization"),
    "overlay": (_view(memory_overlay_fingerprint=ANOTHER), "overlay"),
    "scope": (_view(state_scope_id="scope-another"), "state scope"),
    "authority materialization": (_authority(materialization_fingerprint=ANOTHER), "materialization"),
    "authority overlay": (_authority(memory_overlay_fingerprint=ANOTHER), "overlay"),
    "authority scope": (_authority(state_scope_id="scope-another"), "state scope"),
    "receipt operation": (_receipt(operation_fingerprint=ANOTHER), "operation"),
    "receipt overlay": (_receipt(memory_overlay_fingerprint=ANOTHER), "overlay"),
    "access": (_view(knowledge_access_scope=WIDE), "access scope"),
    "unbound store": (_production, "access scope"),
}


@pytest.mark.requirement("B067")
@pytest.mark.parametrize("name", list(FORGERIES))
async def test_a_forged_view_is_refused_before_its_store_is_shown(name: str) -> None:
    forge, named = FORGERIES[name]
    bench = await Bench().open()
    built = len(bench.apps)
    overlay = counting_overlay(bench)
    overlay.forge = lambda view: forge(view, bench)
    request = bench.request(ARMS["omit"][0])
    with pytest.raises(MemoryInterventionExecutionConflict, match=f"the overlay's {named} is not the trial's"):
        await bench.executor(overlay_provider=overlay).execute_trial(request)
    assert len(bench.apps) == built
    assert not await bench.has_session(request)


@pytest.mark.requirement("B067")
async def test_a_forged_receipt_of_another_effect_is_refused_after_recovery() -> None:
    """The journal holds the receipt that was given first; a view with another one is none of the trial's."""
    bench = await Bench().open()
    request = bench.request(ARMS["omit"][0])
    journal = JournalProxy(bench.stores.executions, after=at("session_bound", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    overlay = counting_overlay(bench)
    overlay.forge = lambda view: _receipt(
        status="matched_no_items",
        matched_count=0,
        changed_count=0,
        changed_revision_fingerprints=(),
        effect_fingerprints=(),
    )(view, bench)
    with pytest.raises(MemoryInterventionExecutionConflict, match="another receipt than the journal"):
        await bench.executor(overlay_provider=overlay).execute_trial(request)
    assert not await bench.has_session(request)


@pytest.mark.requirement("B069")
async def test_a_view_is_a_value_that_cannot_change() -> None:
    view = await view_of(await Bench().open())
    assert not hasattr(view, "__dict__")
    for field in dataclasses.fields(view):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(view, field.name, None)


@pytest.mark.requirement("B069")
async def test_nothing_of_a_view_is_in_the_journal() -> None:
    bench = await Bench().open()
    journal = JournalProxy(bench.stores.executions)
    request = bench.request(ARMS["replace"][0])
    view = await view_of(bench, ARMS["replace"][0])
    await bench.executor(executions=journal).execute_trial(request)
    assert len(journal.written) == 6
    recall, scope = view.trial_recall_policy.model_dump(mode="json"), SCOPE.model_dump(mode="json")
    hidden = [STALE, SAYS, view.state_scope_id, "knowledge_store", "isolation_authority", "trial_recall_policy"]
    for record in journal.written:
        stored = dumps(record.model_dump(mode="json"))
        assert not [what for what in hidden if what.encode() in stored]
        assert dumps(recall) not in stored
        assert dumps(scope) not in stored


async def test_a_view_that_was_opened_before_sees_what_another_view_writes() -> None:
    bench = await Bench().open()
    one, other = (await view_of(bench)).knowledge_store, (await view_of(bench)).knowledge_store
    await one.create_entry(KnowledgeEntry(id="note", text="The door code of the cold room is 2222."))
    assert await ids_of(other) == ["cold-room", "lamp", "note"]
    assert "2222" in await answer(other)
    await one.delete_entry(await one.get_entry("lamp"))
    assert await ids_of(other) == ["cold-room", "note"]


async def test_what_expires_after_the_capture_stands_in_every_copy() -> None:
    bench = Bench()
    ends = datetime.now(UTC) + timedelta(seconds=0.3)
    passing = KnowledgeEntry(id="passing", text="The door code of the cold room is 3333.", expires_at=ends)
    await bench.knowledge.create_entry(passing)
    for made in (KnowledgeEntry(id="cold-room", text=SAYS), KnowledgeEntry(id="lamp", text="The lamp is broken.")):
        await bench.knowledge.create_entry(made)
    await bench.open()
    stores = [(await view_of(bench)).knowledge_store]
    await asyncio.sleep(max((ends - datetime.now(UTC)).total_seconds(), 0) + 0.02)
    assert "passing" not in await ids_of(bench.knowledge.bind(SCOPE))
    stores += [(await view_of(bench, trial_id=trial)).knowledge_store for trial in ("t1", "t2")]
    for store in stores:
        assert await ids_of(store) == ["cold-room", "lamp", "passing"]
        assert "3333" in await answer(store)


@pytest.mark.parametrize("name", ["omit", "replace", "inject"])
async def test_a_later_trial_of_an_accumulating_candidate_changes_nothing_more(name: str) -> None:
    """The effect is there since the first trial; the second one has it as well, and applies nothing."""
    bench, held = await Bench().open(), []
    for trial_id in ("t1", "t2"):
        mode = AgentSnapshotTrialStateMode.ACCUMULATE_WITHIN_CANDIDATE
        request = bench.request(ARMS[name][0], trial_id=trial_id, mode=mode)
        outcome = await bench.study.executor.execute_trial(request)
        assert outcome.receipt is not None
        assert (outcome.receipt.status, outcome.receipt.changed_count) == ("applied", 1)
        assert outcome.execution.status == "completed"
        found = await overlay_of(bench, request)
        held.append((found["entries"], found["hidden"]))
        assert len(found["operations"]) == len(held)
    assert held[0] == held[1]
