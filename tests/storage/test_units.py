"""Units of work that come together share one commit, and none of them can tell."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cayu.errors import StoreFull
from cayu.storage.sql.sqlite.database import Database

MANY = 20


class Counted:
    """A database whose writer's transactions are counted, and which can be held back while units gather."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.begun = 0
        self._gate = threading.Event()

    async def open(self) -> None:
        def prepare(raw: sqlite3.Connection) -> None:
            raw.execute("CREATE TABLE marks (n INTEGER)")

        await self.database.write(prepare)
        writer = self.database._writer
        assert writer is not None
        await writer.hop(lambda raw: raw.set_trace_callback(self._trace))

    def _trace(self, statement: str) -> None:
        self.begun += statement == "BEGIN IMMEDIATE"

    async def together(self, works: list[Callable[[sqlite3.Connection], object]]) -> list[object]:
        """Run units that have all come before the writer's thread gets to the first of them."""
        self._gate.clear()
        writer = self.database._writer
        assert writer is not None
        busy = asyncio.ensure_future(writer.hop(lambda raw: self._gate.wait(5)))
        await asyncio.sleep(0)
        running = [asyncio.ensure_future(self.database.write(work)) for work in works]
        await asyncio.sleep(0)
        self._gate.set()
        await busy
        return list(await asyncio.gather(*running, return_exceptions=True))

    async def marks(self) -> list[int]:
        found = await self.database.read(lambda raw: raw.execute("SELECT n FROM marks ORDER BY n").fetchall())
        return [n for (n,) in found]


@pytest.fixture
async def counted(tmp_path: Path) -> AsyncIterator[Counted]:
    made = Counted(tmp_path / "units.db")
    await made.open()
    yield made
    await made.database.aclose()


def mark(n: int) -> Callable[[sqlite3.Connection], object]:
    def work(raw: sqlite3.Connection) -> int:
        raw.execute("INSERT INTO marks VALUES (?)", (n,))
        return n

    return work


def refuse(n: int) -> Callable[[sqlite3.Connection], object]:
    def work(raw: sqlite3.Connection) -> int:
        raw.execute("INSERT INTO marks VALUES (?)", (n,))
        raise KeyError(n)

    return work


async def test_units_that_come_together_share_a_commit(counted: Counted) -> None:
    results = await counted.together([mark(n) for n in range(MANY)])
    assert results == list(range(MANY))
    assert counted.begun == 1
    assert await counted.marks() == list(range(MANY))


async def test_units_that_come_alone_have_one_each(counted: Counted) -> None:
    for n in range(3):
        await counted.database.write(mark(n))
    assert counted.begun == 3


async def test_a_refused_unit_leaves_nothing_and_the_others_stand(counted: Counted) -> None:
    works = [refuse(n) if n % 3 == 0 else mark(n) for n in range(MANY)]
    results = await counted.together(works)
    assert [isinstance(result, KeyError) for result in results] == [n % 3 == 0 for n in range(MANY)]
    assert await counted.marks() == [n for n in range(MANY) if n % 3]


async def test_an_error_that_ends_the_transaction_is_everybodys(counted: Counted) -> None:
    def end(raw: sqlite3.Connection) -> None:
        raw.execute("ROLLBACK")
        raise sqlite3.OperationalError("the disk is full")

    results = await counted.together([mark(0), refuse(1), end, mark(2)])
    assert all(isinstance(result, Exception) for result in results)
    assert isinstance(results[1], KeyError)
    assert await counted.marks() == []
    assert await counted.database.write(mark(7)) == 7


async def test_a_commit_that_fails_leaves_nothing_of_any_unit(counted: Counted) -> None:
    def full(raw: sqlite3.Connection) -> None:
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {pages}")

    def large(raw: sqlite3.Connection) -> None:
        raw.execute("CREATE TABLE filler AS SELECT randomblob(100000) AS body")

    await counted.database.write(full)
    results = await counted.together([mark(1), large, mark(2)])
    assert isinstance(results[1], StoreFull)
    kept = await counted.marks()
    assert kept == [n for n, result in zip((1, 2), (results[0], results[2]), strict=True) if result == n]


async def test_cancelled_waiters_do_not_stop_the_others(counted: Counted) -> None:
    learnt: list[int] = []

    async def write(n: int) -> None:
        learnt.append(int(str(await counted.database.write(mark(n)))))

    running = [asyncio.ensure_future(write(n)) for n in range(MANY)]
    await asyncio.sleep(0)
    for task in running[::2]:
        task.cancel()
    await asyncio.wait(running)
    assert sorted(learnt) == list(range(MANY)) == await counted.marks()


def test_a_loop_that_is_gone_is_no_trouble_to_the_next(tmp_path: Path) -> None:
    database = Database(tmp_path / "loops.db")

    def slow(raw: sqlite3.Connection) -> None:
        raw.execute("CREATE TABLE marks (n INTEGER)")
        threading.Event().wait(0.1)

    def slow_read(raw: sqlite3.Connection) -> None:
        threading.Event().wait(0.1)

    for leave in (lambda: database.write(slow), lambda: database.read(slow_read)):
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(leave())
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        del waiting

    async def after() -> int:
        await database.write(mark(1))
        found = await database.read(lambda raw: raw.execute("SELECT count(*) FROM marks").fetchone())
        await database.aclose()
        return int(found[0])

    assert asyncio.run(after()) == 1
