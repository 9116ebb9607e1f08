"""The public conformance suite over every execution store, and what a SQLite file adds to it."""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cayu.clock import as_datetime
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.journal import MemoryInterventionExecutionStore, decide_transition
from cayu.interventions.ownership import DurableOperationOwnershipDisposition as Disposition
from cayu.interventions.ownership import DurableOperationOwnershipTransition
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES as MOST
from cayu.storage import (
    InMemoryMemoryInterventionExecutionStore,
    SQLiteMemoryInterventionExecutionStore,
    SQLiteSessionStore,
)
from cayu.testing.clocks import FakeClock
from cayu.testing.executions import NAME, StoreTime, first_record, next_record
from cayu.testing.journals import DURABLE_EXECUTION_STORE_CHECKS, EXECUTION_STORE_CHECKS, Check
from cayu.testing.ownerships import check_operations, check_ownership, check_publication, check_takeover

pytestmark = pytest.mark.exhaustive

Record = MemoryInterventionExecutionRecord
SECRET = "a payload that no error shows"


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[StoreTime], Any]:
    """Return how a store of each backend is opened."""

    def sqlite(clock: StoreTime) -> SQLiteMemoryInterventionExecutionStore:
        return SQLiteMemoryInterventionExecutionStore(tmp_path / "journal.db", ownership_clock=clock)

    if request.param == "sqlite":
        return sqlite
    return lambda clock: InMemoryMemoryInterventionExecutionStore(ownership_clock=clock)


@pytest.mark.requirement("B007", "B014", "B017", "B073", "B074", "B075", "B076", "B077", "B081")
@pytest.mark.parametrize("check", EXECUTION_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_every_backend_conforms(check: Check, open_store: Callable[[StoreTime], Any]) -> None:
    await check(open_store)


@pytest.mark.requirement("B017", "B082")
@pytest.mark.parametrize("check", DURABLE_EXECUTION_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_a_file_outlives_its_process(check: Check, tmp_path: Path) -> None:
    await check(lambda clock: SQLiteMemoryInterventionExecutionStore(tmp_path / "journal.db", ownership_clock=clock))


class LooseStore(MemoryInterventionExecutionStore):
    """A journal as a first attempt would write it, with what it gets wrong."""

    def __init__(self, clock: StoreTime, fault: str) -> None:
        self._kept = InMemoryMemoryInterventionExecutionStore(ownership_clock=clock)
        self._fault = fault
        self._clock = clock
        self._rows: dict[str, Record] = {}

    async def begin(self, record: Record) -> Record:
        if self._fault == "begins anew":
            self._rows[record.execution_id] = record
            return record
        return await self._kept.begin(record)

    async def load(self, execution_id: str) -> Record | None:
        return self._rows.get(execution_id) or await self._kept.load(execution_id)

    async def compare_and_set(self, expected: Record, desired: Record) -> Record:
        if self._fault == "writes blindly":
            self._rows[desired.execution_id] = desired
            return desired
        stands = await self._kept.load(desired.execution_id)
        if self._fault == "compares late" and stands is not None:
            expected = stands
        return await self._kept.compare_and_set(expected, desired)

    async def transition_runtime_dispatch_ownership(
        self, execution_id: str, request: DurableOperationOwnershipTransition
    ) -> Any:
        if self._fault == "short leases" and request.action in ("claim", "renew"):
            request = request.model_copy(update={"lease_seconds": 1.0})
        if execution_id in self._rows:
            result = decide_transition(self._rows[execution_id], execution_id, request, self._clock())
            self._rows[execution_id] = result.execution
            return result
        return await self._kept.transition_runtime_dispatch_ownership(execution_id, request)


FAULTS = {
    "begins anew": ("check_begin",),
    "writes blindly": ("check_compare", "check_steps", "check_evidence", "check_controls", "check_terminal"),
    "compares late": ("check_compare",),
    "short leases": ("check_ownership", "check_takeover"),
}


@pytest.mark.parametrize("fault, name", [(fault, name) for fault, names in FAULTS.items() for name in names])
async def test_the_suite_finds_a_store_that_is_wrong(fault: str, name: str) -> None:
    check = next(check for check in EXECUTION_STORE_CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError):
        await check(lambda clock: LooseStore(clock, fault))


async def test_the_suite_passes_a_store_that_is_only_wrapped() -> None:
    for check in EXECUTION_STORE_CHECKS[:4]:
        await check(lambda clock: LooseStore(clock, "none"))


class UnportedStore(MemoryInterventionExecutionStore):
    """A journal from before there was an ownership."""

    def __init__(self) -> None:
        self.kept = InMemoryMemoryInterventionExecutionStore()

    async def begin(self, record: Record) -> Record:
        return await self.kept.begin(record)

    async def load(self, execution_id: str) -> Record | None:
        return await self.kept.load(execution_id)

    async def compare_and_set(self, expected: Record, desired: Record) -> Record:
        return await self.kept.compare_and_set(expected, desired)


@pytest.mark.requirement("B078")
async def test_a_store_without_the_transition_works_until_something_is_to_be_dispatched() -> None:
    store = UnportedStore()
    assert store.durable_state_paths() == ()
    record = await store.begin(first_record())
    while record.phase is not Phase.SESSION_BOUND:
        record = await store.compare_and_set(record, next_record(record))
    for check in (check_ownership, check_takeover, check_publication, check_operations):
        with pytest.raises(MemoryInterventionExecutionConflict, match="UnportedStore cannot transfer"):
            await check(lambda _: UnportedStore())
    with pytest.raises(MemoryInterventionExecutionConflict, match=NAME):
        await store.transition_runtime_dispatch_ownership(NAME, claim())
    with pytest.raises(MemoryInterventionExecutionConflict):
        await store.compare_and_set(record, next_record(record))
    assert await store.load(NAME) == record
    await store.aclose()
    await store.aclose()


def claim(who: str = "a") -> DurableOperationOwnershipTransition:
    return DurableOperationOwnershipTransition(
        operation_id=dispatch_operation(NAME), claim_id=f"claim of {who}", owner_id=who, action="claim"
    )


@pytest.mark.requirement("B081")
@pytest.mark.parametrize("kind", [InMemoryMemoryInterventionExecutionStore, SQLiteMemoryInterventionExecutionStore])
def test_the_ownership_clock_is_an_optional_keyword(kind: type) -> None:
    parameter = inspect.signature(kind).parameters["ownership_clock"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is None


@pytest.mark.requirement("B081")
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_without_an_ownership_clock_the_machine_tells_the_time(backend: str, tmp_path: Path) -> None:
    store = (
        InMemoryMemoryInterventionExecutionStore()
        if backend == "memory"
        else SQLiteMemoryInterventionExecutionStore(tmp_path / "journal.db")
    )
    record = await store.begin(first_record())
    while record.phase is not Phase.SESSION_BOUND:
        record = await store.compare_and_set(record, next_record(record))
    result = await store.transition_runtime_dispatch_ownership(NAME, claim())
    assert result.ownership.disposition is Disposition.ACQUIRED
    assert result.ownership.observed_at > as_datetime(1_700_000_000_000_000)
    await store.aclose()


@pytest.mark.requirement("B040")
async def test_only_a_file_store_has_a_file_and_only_the_primary_one(tmp_path: Path) -> None:
    assert InMemoryMemoryInterventionExecutionStore().durable_state_paths() == ()
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path)
    assert store.durable_state_paths() == (path,)
    await store.begin(first_record())
    assert (tmp_path / "journal.db-wal").exists()
    assert store.durable_state_paths() == (path,)
    await store.aclose()
    assert store.durable_state_paths() == (path,)


@pytest.mark.requirement("B082")
@pytest.mark.parametrize("kind", [str, Path])
async def test_a_record_is_one_json_document_and_the_same_bytes_after_reopening(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(kind(path))
    record = await in_file(store)
    await store.aclose()
    before = rows(path)
    assert list(before) == [("memory-intervention-executions", NAME)]
    document = json.loads(before["memory-intervention-executions", NAME])
    assert document["record"] == record.model_dump(mode="json")
    again = SQLiteMemoryInterventionExecutionStore(kind(path))
    assert await again.load(NAME) == record
    assert await again.begin(first_record()) == record
    await again.aclose()
    assert rows(path) == before


async def test_a_revision_replaces_the_document_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path)
    record = await store.begin(first_record())
    for revision in (1, 2, 3):
        record = await store.compare_and_set(record, next_record(record))
        (body,) = rows(path).values()
        assert json.loads(body)["record"] == record.model_dump(mode="json")
        assert record.revision == revision
    await store.aclose()


@pytest.mark.requirement("B007")
async def test_a_record_that_is_too_large_leaves_the_bytes_of_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path, ownership_clock=lambda: as_datetime(FakeClock().now_us()))
    bound = await in_file(store)
    held = (await store.transition_runtime_dispatch_ownership(NAME, claim())).execution
    assert held == bound
    before = rows(path)
    empty = next_record(held, runtime_result_payload={"n": ""})
    room = MOST - len(json.dumps(empty.model_dump(mode="json"), separators=(",", ":")))
    settled = '"settled_at":"2030-01-01T00:00:00Z"'
    assert settled in json.dumps(empty.model_dump(mode="json"), separators=(",", ":")), "the size is worked out exactly"
    too_large = next_record(held, runtime_result_payload={"n": "x" * (room + 1)})
    with pytest.raises(InvalidInput, match="1048577 bytes") as refused:
        await store.compare_and_set(held, too_large)
    assert "xxx" not in str(refused.value)
    assert rows(path) == before
    fits = await store.compare_and_set(held, next_record(held, runtime_result_payload={"n": "x" * room}))
    assert await store.load(NAME) == fits
    await store.aclose()


async def in_file(store: SQLiteMemoryInterventionExecutionStore) -> Record:
    """Take the trial to where its dispatch is owned."""
    record = await store.begin(first_record())
    while record.phase is not Phase.SESSION_BOUND:
        record = await store.compare_and_set(record, next_record(record))
    return (await store.transition_runtime_dispatch_ownership(NAME, claim())).execution


def rows(path: Path) -> dict[tuple[str, str], bytes]:
    with closing(sqlite3.connect(path)) as raw:
        found = raw.execute("SELECT collection, id, CAST(body AS BLOB) FROM documents").fetchall()
    return {(collection, id): body for collection, id, body in found}


def edit(path: Path, body: bytes | str) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE documents SET body = ? WHERE id = ?", (body, NAME))


def changed(field: str, value: Any) -> Callable[[Any], Any]:
    return lambda row: row | {"record": row["record"] | {field: value}}


EDITS: dict[str, Callable[[Any], Any]] = {
    "revision": changed("revision", 9),
    "phase": changed("phase", "effect_resolved"),
    "status": changed("status", "completed"),
    "control": changed("runtime_cancellation_observed", True),
    "text for a boolean": changed("runtime_timeout_observed", "yes"),
    "evidence": changed("receipt_fingerprint", "0" * 64),
    "evidence gone": changed("receipt_fingerprint", None),
    "identity": changed("case_id", "another"),
    "deadline": changed("runtime_deadline_at", "2031-01-01T00:00:00Z"),
    "lease": lambda row: changed(
        "runtime_dispatch_ownership",
        row["record"]["runtime_dispatch_ownership"] | {"lease_expires_at": "2031-01-01T00:00:00Z"},
    )(row),
    "no ownership": changed("runtime_dispatch_ownership", None),
    "more": changed("words", SECRET),
    "another's name": changed("execution_id", "trial-2"),
    "digest": lambda row: row | {"sha256": "0" * 64},
    "no digest": lambda row: {"record": row["record"]},
    "digest of another kind": lambda row: row | {"sha256": None},
    "no record": lambda row: {"sha256": row["sha256"]},
    "a bare record": lambda row: row["record"],
    "empty": lambda row: {},
    "a list": lambda row: [row],
    "a number": lambda row: 7,
    "text": lambda row: SECRET,
}
GARBAGE: dict[str, bytes | str] = {
    "not JSON": f"{{{SECRET}".encode(),
    "nothing": b"",
    "bytes": b"\xff\xfe\x00\x01",
    "as text": f"{{{SECRET}",
}


async def every_use_is_refused(path: Path, record: Record) -> None:
    edited = rows(path)
    store = SQLiteMemoryInterventionExecutionStore(path)
    try:
        for use in (
            lambda: store.load(NAME),
            lambda: store.begin(first_record()),
            lambda: store.compare_and_set(record, record.advanced(runtime_timeout_observed=True)),
            lambda: store.transition_runtime_dispatch_ownership(NAME, claim("b")),
        ):
            with pytest.raises(MemoryInterventionExecutionConflict) as found:
                await use()
            assert NAME in str(found.value)
            assert SECRET not in str(found.value)
            assert rows(path) == edited
    finally:
        await store.aclose()


@pytest.mark.requirement("B083")
@pytest.mark.parametrize("kind", EDITS)
async def test_an_edited_row_is_found_out_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path)
    record = await in_file(store)
    await store.aclose()
    (body,) = rows(path).values()
    after = json.dumps(EDITS[kind](json.loads(body))).encode()
    assert json.loads(after) != json.loads(body)
    edit(path, after)
    await every_use_is_refused(path, record)


@pytest.mark.requirement("B083")
@pytest.mark.parametrize("kind", GARBAGE)
async def test_a_row_of_garbage_is_found_out_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path)
    record = await in_file(store)
    await store.aclose()
    edit(path, GARBAGE[kind])
    await every_use_is_refused(path, record)


@pytest.mark.requirement("B083")
async def test_a_row_that_was_moved_to_another_execution_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path)
    await in_file(store)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE documents SET id = 'trial-2'")
    with pytest.raises(MemoryInterventionExecutionConflict, match="trial-2"):
        await store.load("trial-2")
    assert await store.load(NAME) is None
    await store.aclose()


@pytest.mark.requirement("B075")
async def test_two_stores_over_one_file_write_one_revision_between_them(tmp_path: Path) -> None:
    stores = [SQLiteMemoryInterventionExecutionStore(tmp_path / "journal.db") for _ in range(2)]
    record = await stores[0].begin(first_record())
    for _ in range(3):
        race = [store.compare_and_set(record, next_record(record)) for store in stores * 4]
        results = await asyncio.gather(*race, return_exceptions=True)
        won = [result for result in results if isinstance(result, Record)]
        assert len(won) == 1
        assert sum(isinstance(result, MemoryInterventionExecutionConflict) for result in results) == 7
        record = won[0]
    assert await stores[1].load(NAME) == await stores[0].load(NAME) == record
    for store in stores:
        await store.aclose()


@pytest.mark.requirement("B076", "B077")
@pytest.mark.parametrize("step", ["control", "end", "claim"])
async def test_the_time_that_counts_is_that_of_the_write_and_not_of_the_call(step: str, tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "journal.db"
    store = SQLiteMemoryInterventionExecutionStore(path, ownership_clock=lambda: as_datetime(clock.now_us()))
    held = await in_file(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        desired = held.advanced(runtime_timeout_observed=True) if step == "control" else next_record(held)
        asked = (
            store.transition_runtime_dispatch_ownership(NAME, claim("b"))
            if step == "claim"
            else store.compare_and_set(held, desired)
        )
        waiting = asyncio.ensure_future(asked)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        clock.advance(10)
        other.execute("ROLLBACK")
    if step == "claim":
        assert (await waiting).ownership.disposition is Disposition.EXPIRED_TAKEN_OVER
    else:
        with pytest.raises(MemoryInterventionExecutionConflict, match="not, or no longer"):
            await waiting
        assert await store.load(NAME) == held
    await store.aclose()


async def test_a_journal_shares_its_file_with_sessions(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    journal, sessions = SQLiteMemoryInterventionExecutionStore(path), SQLiteSessionStore(path)
    await sessions.transact("effects", NAME, lambda current, now: {"n": 1})
    record = await in_file(journal)
    assert await sessions.transact("effects", NAME, lambda current, now: None) == {"n": 1}
    assert await journal.load(NAME) == record
    await journal.aclose()
    await journal.aclose()
    await sessions.aclose()
