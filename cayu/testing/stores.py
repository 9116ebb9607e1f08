"""What every session store must do, as checks that run over any backend.

    @pytest.mark.parametrize("check", SESSION_STORE_CHECKS)
    async def test_my_store(check, tmp_path):
        await check(lambda clock: MyStore(tmp_path / "store", clock=clock))

Each check opens a fresh store on a clock of its own and closes it. `DURABLE_STORE_CHECKS` open the same place twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from cayu.canonical import JSON
from cayu.clock import Clock
from cayu.errors import (
    CayuError,
    IllegalTransition,
    SessionAlreadyExists,
    SessionNotFound,
    SessionRunFenced,
    SessionRunning,
    StreamConflict,
)
from cayu.events import EventType as E
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import (
    HeadQuery,
    Held,
    Item,
    ItemQuery,
    Record,
    RecordQuery,
    SessionStore,
    StreamRow,
    StreamState,
    Take,
    Unit,
)
from cayu.testing.clocks import FakeClock

Open = Callable[[Clock], SessionStore]
Check = Callable[[Open], Awaitable[None]]

STARTED = Record(E.SESSION_STARTED, b'{"n":1}')
WORK = Record(E.MODEL_STARTED, b"{}")
REQUESTED = Record(E.SESSION_INTERRUPT_REQUESTED, b"{}")


@asynccontextmanager
async def _opened(open_store: Open, clock: FakeClock | None = None) -> AsyncIterator[SessionStore]:
    store = open_store(clock or FakeClock())
    try:
        yield store
    finally:
        await store.aclose()


def _row(name: str) -> StreamRow:
    labels, metadata = {"team": "north"}, {"deep": {"list": [1, 2.5, None, True, "ü"]}}
    return StreamRow(
        name, f"i-{name}", "agent", "provider", "model", "env", title="T", labels=labels, metadata=metadata
    )


async def _create(store: SessionStore, name: str = "s", owner: str = "me", **more: Any) -> StreamState:
    unit = Unit(name, 0, Take(owner), records=(STARTED,), create=_row(name), **more)
    state, _ = await store.append(unit)
    return state


async def _refused(work: Awaitable[Any], kind: type[CayuError]) -> None:
    try:
        await work
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


async def _unchanged(store: SessionStore, name: str, before: StreamState) -> None:
    loaded = await store.load(name)
    assert loaded is not None
    assert loaded.head.state == before, "a refused write changed the head"
    assert len(loaded.records) == before.version, "a refused write left records"


async def check_round_trip(open_store: Open) -> None:
    """What is written is read back, in order, with the store's time and every field of the head."""
    clock = FakeClock()
    async with _opened(open_store, clock) as store:
        created = await _create(store, add={"model_steps": 1})
        clock.advance(2)
        records = (WORK, Record("of.a.later.release", '{"text":"naïve \\u2028"}'.encode()))
        held = Held(created.epoch, "me")
        state, at = await store.append(Unit("s", 1, held, records, add={"input_tokens": 7, "tool_calls": 2}))
        loaded = await store.load("s")
        assert loaded is not None
        assert loaded.head.row == _row("s")
        assert loaded.head.state == state
        assert [r.sequence for r in loaded.records] == [1, 2, 3]
        assert [(r.type, r.body) for r in loaded.records[1:]] == [(r.type, r.body) for r in records]
        assert loaded.records[1].at == at == clock.now_us()
        assert (state.version, state.model_steps, state.input_tokens, state.tool_calls) == (3, 1, 7, 2)
        assert state.updated_at - state.created_at == 2_000_000
        tail = await store.load("s", 2)
        assert tail is not None
        assert [r.sequence for r in tail.records] == [3]
        assert await store.load("nobody") is None


async def check_create_once(open_store: Open) -> None:
    """A stream is created once, and appended to only when it exists."""
    async with _opened(open_store) as store:
        state = await _create(store)
        await _refused(_create(store, owner="other"), SessionAlreadyExists)
        await _unchanged(store, "s", state)
        await _refused(store.append(Unit("nobody", 0, Take("me"), (WORK,))), SessionNotFound)
        assert await store.load("nobody") is None


async def check_compare_and_set(open_store: Open) -> None:
    """A write from a stale version changes nothing; of several at once exactly one succeeds."""
    async with _opened(open_store) as store:
        state = await _create(store)
        held = Held(state.epoch, "me")
        await _refused(store.append(Unit("s", 0, held, (WORK,), items=(Item("k", "a", "x"),))), StreamConflict)
        await _unchanged(store, "s", state)
        assert (await store.items(ItemQuery())).total == 0
        race = [store.append(Unit("s", 1, held, (WORK,))) for _ in range(8)]
        results = await asyncio.gather(*race, return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert sum(isinstance(result, StreamConflict) for result in results) == 7


async def check_fencing(open_store: Open) -> None:
    """A claim excludes others until it ends by the store's clock; then the older epoch can write nothing."""
    clock = FakeClock()
    async with _opened(open_store, clock) as store:
        first = await _create(store)
        await _refused(store.append(Unit("s", 1, Take("thief"), (WORK,))), SessionRunning)
        await _unchanged(store, "s", first)
        clock.advance(29.9)
        await _refused(store.append(Unit("s", 1, Take("thief"))), SessionRunning)
        clock.advance(0.2)
        second, _ = await store.append(Unit("s", 1, Take("heir"), (WORK,)))
        assert (second.epoch, second.owner) == (first.epoch + 1, "heir")
        await _refused(store.append(Unit("s", 2, Held(first.epoch, "me"), (WORK,))), SessionRunFenced)
        await _refused(store.renew("s", Held(first.epoch, "me")), SessionRunFenced)
        await _unchanged(store, "s", second)


async def check_eviction(open_store: Open) -> None:
    """An owner that is known to be gone is evicted at once, and only that one."""
    async with _opened(open_store) as store:
        state = await _create(store)
        await _refused(store.append(Unit("s", 1, Take("heir", evicting="somebody"))), SessionRunning)
        await _unchanged(store, "s", state)
        taken, _ = await store.append(Unit("s", 1, Take("heir", evicting="me")))
        assert (taken.owner, taken.epoch, taken.version) == ("heir", state.epoch + 1, 1)


async def check_leases(open_store: Open) -> None:
    """Writes and renewals prolong a lease, a release ends it, and a late holder goes on when nobody came."""
    clock = FakeClock()
    async with _opened(open_store, clock) as store:
        state = await _create(store)
        held = Held(state.epoch, "me")
        clock.advance(20)
        assert (await store.renew("s", held)).lease_expires_at == clock.now_us() + 30_000_000
        clock.advance(100)
        late, _ = await store.append(Unit("s", 1, held, (WORK,), lease_seconds=5))
        assert late.lease_expires_at == clock.now_us() + 5_000_000
        released, _ = await store.append(Unit("s", 2, held, (WORK,), release=True))
        assert (released.owner, released.lease_expires_at, released.epoch) == (None, None, state.epoch)
        await _refused(store.append(Unit("s", 3, held, (WORK,))), SessionRunFenced)
        await _refused(store.renew("nobody", held), SessionRunFenced)


async def check_legal_states(open_store: Open) -> None:
    """A write that would break the session's state machine is refused whole."""
    async with _opened(open_store) as store:
        state = await _create(store)
        held = Held(state.epoch, "me")
        await _refused(store.append(Unit("s", 1, held, (WORK, STARTED))), IllegalTransition)
        await _unchanged(store, "s", state)
        ended, _ = await store.append(Unit("s", 1, held, (Record(E.SESSION_COMPLETED, b"{}"),), release=True))
        assert ended.status == SessionStatus.COMPLETED
        await _refused(store.append(Unit("s", None, None, (REQUESTED,))), IllegalTransition)
        await _unchanged(store, "s", ended)


async def check_interrupt_request(open_store: Open) -> None:
    """An interrupt request needs no claim and no version, and leaves the claim as it is."""
    async with _opened(open_store) as store:
        state = await _create(store)
        asked, _ = await store.append(Unit("s", None, None, (REQUESTED,)))
        assert (asked.status, asked.version, asked.owner, asked.epoch) == ("interrupting", 2, "me", state.epoch)
        await _refused(store.append(Unit("s", 1, Held(state.epoch, "me"), (WORK,))), StreamConflict)
        resumed = Record(E.SESSION_RESUMED, b"{}")
        await _refused(store.append(Unit("s", None, None, (resumed,))), SessionRunFenced)
        await _refused(store.append(Unit("s", None, None, (REQUESTED,), add={"pending": 1})), SessionRunFenced)
        await _unchanged(store, "s", asked)
        await store.append(Unit("s", 2, Held(state.epoch, "me"), (WORK,)))


async def check_items(open_store: Open) -> None:
    """Items are upserted with their unit, listed in order, filtered and paged."""
    async with _opened(open_store) as store:
        for name in ("s1", "s2", "s3"):
            keys = [Item("tool_approval", f"a{n}", "pending", 5, b'{"n":1}') for n in (2, 1)]
            await _create(store, name, items=(*keys, Item("effect", "e", "started")))
        query = ItemQuery(kinds=("tool_approval",), state="pending", limit=4)
        first = await store.items(query)
        assert [(row.session_id, row.item.key) for row in first.rows] == [
            ("s1", "a1"), ("s1", "a2"), ("s2", "a1"), ("s2", "a2"),
        ]  # fmt: skip
        assert (first.total, first.rows[0].item.due_at, first.rows[0].item.body) == (6, 5, b'{"n":1}')
        rest = await store.items(ItemQuery(kinds=("tool_approval",), state="pending", after=first.next, limit=4))
        assert ([row.session_id for row in rest.rows], rest.next) == (["s3", "s3"], None)
        settled = Item("tool_approval", "a1", "approved")
        await store.append(Unit("s2", 1, Held(1, "me"), items=(settled,)))
        assert (await store.items(query)).total == 5
        mine = await store.items(ItemQuery(session_id="s2"))
        assert [row.item.state for row in mine.rows] == ["started", "approved", "pending"]


async def check_listings(open_store: Open) -> None:
    """Heads are listed newest first, filtered, counted and paged by key; records are scanned in order."""
    async with _opened(open_store) as store:
        for number in range(7):
            await _create(store, f"s{number}")
        await store.append(Unit("s3", 1, Held(1, "me"), (Record(E.SESSION_COMPLETED, b"{}"),), release=True))
        seen: list[str] = []
        after = None
        while True:
            page = await store.heads(HeadQuery(after=after, limit=3))
            assert page.total == 7
            seen += [head.row.id for head in page.rows]
            after = page.next
            if after is None:
                break
        assert seen == [f"s{number}" for number in reversed(range(7))]
        assert [head.row.id for head in (await store.heads(HeadQuery(status="completed"))).rows] == ["s3"]
        assert (await store.heads(HeadQuery(text="S5"))).total == 1
        assert (await store.heads(HeadQuery(agent_name="nobody"))).rows == []
        found = await store.records(RecordQuery(types=(E.SESSION_COMPLETED,)))
        assert [(name, record.sequence) for name, record in found] == [("s3", 2)]
        assert len(await store.records(RecordQuery())) == 8
        assert len(await store.records(RecordQuery(session_id="s3", limit=1))) == 1


async def check_documents(open_store: Open) -> None:
    """A document is replaced by what `decide` answers; an error or None leaves it as it is."""
    clock = FakeClock()
    async with _opened(open_store, clock) as store:
        seen: list[tuple[JSON, int]] = []

        def count(current: JSON, now: int) -> JSON:
            seen.append((current, now))
            return {"n": (current or {"n": 0})["n"] + 1}

        def fail(current: JSON, now: int) -> JSON:
            raise KeyError("refused")

        assert await store.transact("c", "a", count) == {"n": 1}
        assert seen[-1] == (None, clock.now_us())
        await asyncio.gather(*(store.transact("c", "a", count) for _ in range(20)))
        assert await store.transact("c", "a", lambda current, now: None) == {"n": 21}
        try:
            await store.transact("c", "a", fail)
        except KeyError:
            pass
        else:
            raise AssertionError("an error of decide was swallowed")
        assert await store.transact("c", "a", lambda current, now: None) == {"n": 21}
        assert await store.transact("c", "b", lambda current, now: None) is None


async def check_cancellation(open_store: Open) -> None:
    """A cancelled write is whole or absent, its writer learns which, and nothing is left open behind it."""
    async with _opened(open_store) as store:
        state = await _create(store)
        held = Held(state.epoch, "me")
        version = 1
        for _ in range(40):
            learnt: list[StreamState] = []

            async def write(unit: Unit, learnt: list[StreamState] = learnt) -> None:
                learnt.append((await store.append(unit))[0])

            task = asyncio.ensure_future(write(Unit("s", version, held, (WORK, WORK))))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            after = await store.load("s")
            assert after is not None
            assert after.head.state.version in (version, version + 2)
            assert len(after.records) == after.head.state.version
            assert bool(learnt) == (after.head.state.version > version), "a write was made and its writer not told"
            version = after.head.state.version
        await store.append(Unit("s", version, held, (WORK,)))


async def check_many_writers(open_store: Open) -> None:
    """Fifty streams written at once lose nothing."""
    async with _opened(open_store) as store:

        async def write(name: str) -> None:
            state = await _create(store, name)
            for _ in range(10):
                state, _ = await store.append(Unit(name, state.version, Held(state.epoch, "me"), (WORK,)))

        await asyncio.gather(*(write(f"s{number}") for number in range(50)))
        page = await store.heads(HeadQuery(limit=100))
        assert [head.state.version for head in page.rows] == [11] * 50
        assert len(await store.records(RecordQuery(bodies=False))) == 550


async def check_reopening(open_store: Open) -> None:
    """A second life reads what the first one wrote, byte by byte."""
    async with _opened(open_store) as store:
        await _create(store, items=(Item("tool_approval", "a", "pending"),))
        await store.transact("c", "a", lambda current, now: {"kept": "ü"})
        before = await store.load("s")
    async with _opened(open_store) as again:
        after = await again.load("s")
        assert before is not None
        assert after is not None
        assert (after.head, list(after.records)) == (before.head, list(before.records))
        assert (await again.items(ItemQuery(state="pending"))).total == 1
        assert await again.transact("c", "a", lambda current, now: None) == {"kept": "ü"}
        assert again.durable_state_paths()


SESSION_STORE_CHECKS: tuple[Check, ...] = (
    check_round_trip,
    check_create_once,
    check_compare_and_set,
    check_fencing,
    check_eviction,
    check_leases,
    check_legal_states,
    check_interrupt_request,
    check_items,
    check_listings,
    check_documents,
    check_cancellation,
    check_many_writers,
)
"""Checks for every backend."""

DURABLE_STORE_CHECKS: tuple[Check, ...] = (check_reopening,)
"""Checks for backends that outlive their process."""
