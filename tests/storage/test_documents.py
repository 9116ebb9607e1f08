"""Documents in memory and in a SQLite file: replaced whole by a decision, in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cayu.canonical import JSON
from cayu.errors import StoreClosed
from cayu.storage import SQLiteSessionStore
from cayu.storage.memory import InMemoryDocuments
from cayu.storage.sql.sqlite.documents import SQLiteDocuments
from cayu.testing.clocks import FakeClock

Documents = InMemoryDocuments | SQLiteDocuments


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def documents(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Documents]:
    store = (
        InMemoryDocuments(clock=clock) if request.param == "memory" else SQLiteDocuments(tmp_path / "d", clock=clock)
    )
    yield store
    await store.aclose()
    await store.aclose()


def count(current: JSON, now: int) -> JSON:
    return {"n": (current or {"n": 0})["n"] + 1}


def keep(current: JSON, now: int) -> JSON:
    return None


async def test_a_document_is_what_was_decided_last(documents: Documents, clock: FakeClock) -> None:
    seen: list[tuple[JSON, int]] = []

    def decide(current: JSON, now: int) -> JSON:
        seen.append((current, now))
        return {"words": ["ü", 1.5, None], "n": len(seen)}

    assert await documents.read("c", "a") is None
    assert await documents.transact("c", "a", keep) is None
    assert await documents.read("c", "a") is None
    first = await documents.transact("c", "a", decide)
    clock.advance(2)
    assert await documents.transact("c", "a", decide) == {"words": ["ü", 1.5, None], "n": 2}
    assert await documents.transact("c", "a", keep) == await documents.read("c", "a") == first | {"n": 2}
    assert [now for _, now in seen] == [clock.now_us() - 2_000_000, clock.now_us()]
    assert seen[1][0] == first


async def test_a_document_has_its_place_by_collection_and_id(documents: Documents) -> None:
    for place in (("c", "a"), ("c", "b"), ("d", "a")):
        await documents.transact(*place, lambda current, now, place=place: [*place])
    assert [await documents.read(*place) for place in (("c", "a"), ("c", "b"), ("d", "a"))] == [
        ["c", "a"], ["c", "b"], ["d", "a"],
    ]  # fmt: skip
    assert await documents.read("d", "b") is None


async def test_an_error_of_the_decision_leaves_the_document_as_it_is(documents: Documents) -> None:
    await documents.transact("c", "a", count)

    def fail(current: JSON, now: int) -> JSON:
        current["n"] = 99
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"):
        await documents.transact("c", "a", fail)
    with pytest.raises(TypeError):
        await documents.transact("c", "a", lambda current, now: {"n": object()})
    assert await documents.read("c", "a") == {"n": 1}


async def test_a_caller_cannot_change_a_document_from_outside(documents: Documents) -> None:
    given: dict[str, Any] = {"words": ["kept"]}
    written = await documents.transact("c", "a", lambda current, now: given)
    for found in (given, written, await documents.read("c", "a")):
        found["words"].append("changed")
    assert await documents.read("c", "a") == {"words": ["kept"]}


async def test_decisions_that_come_together_are_taken_one_after_the_other(documents: Documents) -> None:
    results = await asyncio.gather(*(documents.transact("c", "a", count) for _ in range(50)))
    assert sorted(result["n"] for result in results) == list(range(1, 51))


async def test_a_refused_decision_takes_none_of_its_neighbours_with_it(documents: Documents) -> None:
    def refuse(current: JSON, now: int) -> JSON:
        raise KeyError("refused")

    work = [documents.transact("c", "a", refuse if n % 3 == 0 else count) for n in range(30)]
    results = await asyncio.gather(*work, return_exceptions=True)
    assert [isinstance(result, KeyError) for result in results] == [n % 3 == 0 for n in range(30)]
    assert await documents.read("c", "a") == {"n": 20}


async def test_several_stores_over_one_file_lose_nothing(tmp_path: Path) -> None:
    stores = [SQLiteDocuments(tmp_path / "d") for _ in range(3)]
    await asyncio.gather(*(store.transact("c", "a", count) for store in stores * 10))
    assert [await store.read("c", "a") for store in stores] == [{"n": 30}] * 3
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_file_keeps_its_documents(kind: type, tmp_path: Path) -> None:
    store = SQLiteDocuments(kind(tmp_path / "d"))
    assert store.durable_state_paths() == (tmp_path / "d",)
    await store.transact("c", "a", lambda current, now: {"b": 1, "a": "ü"})
    await store.aclose()
    with closing(sqlite3.connect(tmp_path / "d")) as raw:
        assert raw.execute("SELECT body FROM documents").fetchall() == [('{"b":1,"a":"ü"}'.encode(),)]
    again = SQLiteDocuments(kind(tmp_path / "d"))
    assert await again.read("c", "a") == {"a": "ü", "b": 1}
    await again.aclose()
    with pytest.raises(StoreClosed):
        await again.read("c", "a")


def test_a_store_in_memory_has_no_file() -> None:
    assert InMemoryDocuments().durable_state_paths() == ()


async def test_documents_and_sessions_share_a_file_and_its_documents(tmp_path: Path) -> None:
    documents, sessions = SQLiteDocuments(tmp_path / "all.db"), SQLiteSessionStore(tmp_path / "all.db")
    await documents.transact("c", "a", count)
    assert await sessions.transact("c", "a", count) == {"n": 2}
    assert await documents.read("c", "a") == {"n": 2}
    await documents.aclose()
    await sessions.aclose()
