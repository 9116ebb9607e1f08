"""What a driver's connection counts while somebody measures, and that nobody can tell it from the driver's own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from cayu import SQLiteSessionStore
from cayu.canonical import dumps
from cayu.storage.sql.sqlite.database import Database, OneHopConnection
from cayu.storage.sql.sqlite.metering import READING, WRITING, MeteredConnection, MeteredRows
from cayu.timing.costs import StoreCost, metered

MILLISECOND = 1_000_000
HELD_SECONDS = 0.1
HELD_NS = 90 * MILLISECOND
"""What at least is measured of such a wait; timers of two threads may differ a little."""


class Account:
    """A meter that keeps each unit's costs apart."""

    def __init__(self) -> None:
        self.costs: list[StoreCost] = []

    def measure(self) -> StoreCost:
        self.costs.append(StoreCost())
        self.costs[-1].in_use = True
        return self.costs[-1]

    def take(self, cost: StoreCost) -> None:
        raise AssertionError("nobody is inside")


@contextmanager
def charging() -> Iterator[Account]:
    """Charge what this task does in stores to an account."""
    account = Account()
    metered(account)
    try:
        yield account
    finally:
        metered(None)


def connect(path: Path, isolation_level: Any = None, timeout: float = 5.0) -> MeteredConnection:
    return sqlite3.connect(
        path, timeout=timeout, isolation_level=isolation_level, check_same_thread=False, factory=MeteredConnection
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with three rows, as another program would leave it."""
    made = tmp_path / "m.db"
    with closing(sqlite3.connect(made)) as raw:
        raw.execute("CREATE TABLE marks (n INTEGER UNIQUE, body)")
        raw.executemany("INSERT INTO marks VALUES (?, ?)", [(n, None) for n in (1, 2, 3)])
        raw.commit()
    return made


@pytest.fixture
def raw(path: Path) -> Iterator[MeteredConnection]:
    """A connection that measures; `raw.cost` is where."""
    with closing(connect(path)) as made:
        made.cost = StoreCost()
        yield made


def cost_of(raw: MeteredConnection) -> StoreCost:
    assert raw.cost is not None
    return raw.cost


@asynccontextmanager
async def opened(folder: Path, writer: type[MeteredConnection] = MeteredConnection) -> AsyncIterator[Database]:
    """A database of ours with one table."""
    database = Database(folder / "d.db", writer=writer)
    try:
        await database.write(lambda raw: raw.execute("CREATE TABLE marks (n INTEGER)").close())
        yield database
    finally:
        await database.aclose()


# Transactions


@pytest.mark.requirement("A130")
def test_explicit_implicit_and_autocommit_are_one_each(path: Path) -> None:
    with closing(connect(path, isolation_level="")) as raw:
        cost = raw.cost = StoreCost()
        raw.begin(WRITING)
        raw.execute("INSERT INTO marks VALUES (10, 'a')")
        raw.execute("INSERT INTO marks VALUES (11, 'b')")
        raw.commit()
        assert cost.transactions == 1
        raw.execute("INSERT INTO marks VALUES (12, 'c')")  # the driver begins
        raw.execute("INSERT INTO marks VALUES (13, 'd')")
        raw.commit()
        assert cost.transactions == 2
        assert raw.execute("SELECT count(*) FROM marks").fetchone() == (7,)
        assert not raw.in_transaction
        assert cost.transactions == 3


@pytest.mark.parametrize(
    "isolation_level, statements, expected",
    [
        (None, ["BEGIN", "INSERT INTO marks VALUES (10, 1)", "COMMIT"], 1),
        (None, ["BEGIN", "INSERT INTO marks VALUES (10, 1)", "ROLLBACK"], 1),
        (None, ["BEGIN", "SAVEPOINT s", "DELETE FROM marks", "ROLLBACK TO s", "RELEASE s", "COMMIT"], 1),
        (None, ["INSERT INTO marks VALUES (10, 1)", "INSERT INTO marks VALUES (11, 1)"], 2),
        (None, ["SELECT 1", "SELECT 2"], 2),
        ("", ["SELECT 1", "DELETE FROM marks", "SELECT 2", "COMMIT", "SELECT 3"], 3),
    ],
)
def test_only_what_begins_a_transaction_counts(
    path: Path, isolation_level: str | None, statements: list[str], expected: int
) -> None:
    with closing(connect(path, isolation_level)) as raw:
        raw.cost = StoreCost()
        for statement in statements:
            raw.execute(statement)
        assert cost_of(raw).transactions == expected


def test_a_driver_that_begins_for_many_rows_begins_once(path: Path) -> None:
    with closing(connect(path, isolation_level="")) as raw:
        raw.cost = StoreCost()
        raw.executemany("INSERT INTO marks VALUES (?, ?)", [(n, "x") for n in range(10, 20)])
        raw.commit()
        assert cost_of(raw).transactions == 1


# Commits


def slow_commits(raw: MeteredConnection) -> None:
    """Make each commit take a while."""
    raw.set_trace_callback(lambda statement: time.sleep(0.02) if statement == "COMMIT" else None)


@pytest.mark.requirement("A132")
@pytest.mark.parametrize("how", [READING, WRITING])
@pytest.mark.parametrize("statement", ["SELECT * FROM marks", "DELETE FROM marks WHERE n = 77"])
def test_a_commit_of_nothing_costs_no_commit(raw: MeteredConnection, how: str, statement: str) -> None:
    slow_commits(raw)
    raw.begin(how)
    raw.execute(statement)
    raw.commit()
    raw.commit()
    assert cost_of(raw).commit_ns == 0
    assert cost_of(raw).transactions == 1


@pytest.mark.parametrize("how", [READING, WRITING])
def test_a_commit_of_something_counts_once_and_as_nothing_else(raw: MeteredConnection, how: str) -> None:
    slow_commits(raw)
    raw.begin(how)
    raw.execute("INSERT INTO marks VALUES (10, 'a')")
    raw.commit()
    spent = cost_of(raw).commit_ns
    assert spent >= 20 * MILLISECOND
    assert cost_of(raw).execution_ns < 20 * MILLISECOND
    raw.commit()
    assert cost_of(raw).commit_ns == spent


def test_what_was_changed_before_anybody_measured_is_not_committed_again(path: Path) -> None:
    with closing(connect(path)) as raw:
        slow_commits(raw)
        raw.begin(WRITING)
        raw.execute("INSERT INTO marks VALUES (10, 'a')")
        raw.commit()
        raw.cost = StoreCost()
        raw.begin(READING)
        raw.execute("SELECT * FROM marks").fetchall()
        raw.commit()
        assert raw.cost.commit_ns == 0


# Bytes


class Word(StrEnum):
    """A word of text, as types of events are."""

    LONG = "a.word.of.twenty-two.b"


WRITES: list[tuple[str, Callable[[MeteredConnection], object], int]] = [
    ("text", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, "plain")), 5),
    ("utf-8", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, "größer €")), 12),
    ("blob", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, b"\0" * 300)), 300),
    ("numbers", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, 1.5)), 0),
    ("nothing", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, None)), 0),
    ("names", lambda raw: raw.execute("INSERT INTO marks VALUES (:n, :b)", {"n": 10, "b": "plain"}), 5),
    ("list", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", [10, "plain"]), 5),
    ("literals", lambda raw: raw.execute("INSERT INTO marks VALUES (10, 'plain')"), 0),
    ("update", lambda raw: raw.execute("UPDATE marks SET body = ?", ("plain",)), 5),
    ("word", lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (10, Word.LONG)), 22),
    ("many", lambda raw: raw.executemany("INSERT INTO marks VALUES (?, ?)", [(10, "ab"), (11, b"cde")]), 5),
    ("generated", lambda raw: raw.executemany("INSERT INTO marks VALUES (?, ?)", ((n, "é") for n in (10, 11))), 4),
    ("read", lambda raw: raw.execute("SELECT * FROM marks WHERE body = ?", ("plain",)).fetchall(), 0),
    ("missed", lambda raw: raw.execute("UPDATE marks SET body = ? WHERE n = 77", ("plain",)), 0),
    ("missed many", lambda raw: raw.executemany("UPDATE marks SET body = ? WHERE n = 77", [("plain",)]), 0),
]


@pytest.mark.requirement("A132")
@pytest.mark.parametrize("write, expected", [each[1:] for each in WRITES], ids=[each[0] for each in WRITES])
def test_bytes_are_those_of_the_bound_text_and_blobs(
    raw: MeteredConnection, write: Callable[[MeteredConnection], object], expected: int
) -> None:
    raw.begin(WRITING)
    write(raw)
    raw.commit()
    assert cost_of(raw).bytes_written == expected


@pytest.mark.requirement("A132")
async def test_bytes_of_a_document_hold_its_json(tmp_path: Path) -> None:
    store, document = SQLiteSessionStore(tmp_path / "s.db"), {"größe": "x" * 1000, "list": [1, 2, 3]}
    with charging() as account:
        await store.transact("notes", "first", lambda current, now: document)
        [cost] = account.costs
        assert cost.bytes_written == len("notes") + len("first") + len(dumps(document))
        await store.transact("notes", "first", lambda current, now: None)
        assert account.costs[1].bytes_written == account.costs[1].commit_ns == 0
        assert [cost.transactions for cost in account.costs] == [1, 1]
        assert [cost.in_use for cost in account.costs] == [False, False]
    await store.aclose()


# Locks


@contextmanager
def lock_held(path: Path, seconds: float) -> Iterator[None]:
    """Another connection holds the write lock for a while."""
    locked = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked.set()
            time.sleep(seconds)
            other.execute("COMMIT")

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    yield
    holder.join()


@pytest.mark.requirement("A134")
def test_waiting_for_the_write_lock_is_lock_wait_and_execution(raw: MeteredConnection, path: Path) -> None:
    cost = cost_of(raw)
    with lock_held(path, HELD_SECONDS):
        raw.begin(WRITING)
    raw.commit()
    assert cost.lock_wait_ns >= HELD_NS
    assert cost.execution_ns >= HELD_NS
    assert cost.commit_ns == 0


def test_reading_begins_without_a_lock(raw: MeteredConnection) -> None:
    raw.begin(READING)
    raw.commit()
    assert cost_of(raw).lock_wait_ns == 0
    assert cost_of(raw).execution_ns > 0


@pytest.mark.requirement("A133")
@pytest.mark.parametrize("way", ["read", "write"])
async def test_waiting_for_the_connections_thread_is_lock_wait(tmp_path: Path, way: str) -> None:
    async with opened(tmp_path) as database:
        work = database.read if way == "read" else database.write
        await work(lambda raw: None)
        connection = database._reader if way == "read" else database._writer
        assert connection is not None
        await connection.hop(lambda raw: None)  # the thread has left what it did before
        held = asyncio.ensure_future(connection.hop(lambda raw: time.sleep(HELD_SECONDS)))
        await asyncio.sleep(0)
        with charging() as account:
            await work(lambda raw: None)
        await held
        [cost] = account.costs
        assert cost.lock_wait_ns >= HELD_NS
        assert cost.execution_ns < HELD_NS


# Errors


@pytest.mark.requirement("A130")
def test_a_begin_that_fails_counts_no_transaction(path: Path) -> None:
    with closing(connect(path, timeout=0.0)) as raw, lock_held(path, 0.05):
        cost = raw.cost = StoreCost()
        with pytest.raises(sqlite3.OperationalError):
            raw.begin(WRITING)
        assert cost.transactions == 0
        assert cost.execution_ns >= cost.lock_wait_ns > 0


@pytest.mark.parametrize("isolation_level", [None, ""])
@pytest.mark.parametrize("statement", ["SELCT 1", "INSERT INTO nowhere VALUES (1)", "SELECT ?"])
def test_a_statement_that_never_ran_counts_nothing(path: Path, isolation_level: str | None, statement: str) -> None:
    with closing(connect(path, isolation_level)) as raw:
        cost = raw.cost = StoreCost()
        with pytest.raises(sqlite3.Error):
            raw.execute(statement)
        assert not raw.in_transaction
        assert (cost.transactions, cost.bytes_written, cost.commit_ns) == (0, 0, 0)


@pytest.mark.parametrize(
    "fail",
    [
        lambda raw: raw.execute("INSERT INTO marks VALUES (?, ?)", (1, "a long body")),
        lambda raw: raw.executemany("INSERT INTO marks VALUES (?, ?)", [(20, "fine"), (1, "a long body")]),
        lambda raw: raw.executemany("INSERT INTO marks VALUES (?, ?)", (("a", 1 // 0) for _ in range(1))),
    ],
    ids=["one", "many", "its rows"],
)
def test_a_refused_statement_leaves_the_transaction_as_it_counted(
    raw: MeteredConnection, fail: Callable[[MeteredConnection], object]
) -> None:
    raw.begin(WRITING)
    raw.execute("INSERT INTO marks VALUES (?, ?)", (10, "abc"))
    with pytest.raises((sqlite3.IntegrityError, ZeroDivisionError)):
        fail(raw)
    cost = cost_of(raw)
    assert (cost.transactions, cost.bytes_written, cost.commit_ns) == (1, 3, 0)
    raw.execute("ROLLBACK")
    raw.begin(READING)
    raw.commit()
    assert (cost.transactions, cost.bytes_written, cost.commit_ns) == (2, 3, 0)


@pytest.mark.parametrize("way", ["read", "write"])
async def test_a_unit_that_fails_leaves_the_next_one_alone(tmp_path: Path, way: str) -> None:
    def fail(raw: MeteredConnection) -> None:
        raise KeyError("x")

    async with opened(tmp_path) as database:
        work = database.read if way == "read" else database.write
        with charging() as account:
            with pytest.raises(KeyError):
                await work(fail)
            assert await work(lambda raw: type(raw.execute("SELECT 1"))) is MeteredRows
        assert [(cost.transactions, cost.in_use) for cost in account.costs] == [(1, False), (1, False)]
        assert await work(lambda raw: type(raw.execute("SELECT 1"))) is sqlite3.Cursor


# The driver's own


@pytest.mark.requirement("A154")
def test_without_a_measure_the_cursors_are_the_drivers(raw: MeteredConnection) -> None:
    statements = ("SELECT * FROM marks", "INSERT INTO marks VALUES (9, 1)", "DELETE FROM marks WHERE n = 9")
    assert isinstance(raw.execute("SELECT * FROM marks"), MeteredRows)
    raw.cost = None
    for statement in statements:
        assert type(raw.execute(statement)) is sqlite3.Cursor
    assert type(raw.executemany("INSERT INTO marks VALUES (?, ?)", [(9, 1)])) is sqlite3.Cursor


@pytest.mark.requirement("A154")
@pytest.mark.parametrize("way", ["read", "write"])
async def test_a_unit_of_nobody_works_on_the_drivers_cursors(tmp_path: Path, way: str) -> None:
    async with opened(tmp_path) as database:
        work = database.read if way == "read" else database.write
        kinds = [await work(lambda raw: type(raw.execute("SELECT 1")))]
        with charging():
            kinds.append(await work(lambda raw: type(raw.execute("SELECT 1"))))
        kinds.append(await work(lambda raw: type(raw.execute("SELECT 1"))))
        assert kinds == [sqlite3.Cursor, MeteredRows, sqlite3.Cursor]


def _one_by_one(cursor: Any) -> list[Any]:
    return [cursor.fetchone() for _ in range(5)]


def _first_and_rest(cursor: Any) -> list[Any]:
    return [cursor.fetchone(), *cursor.fetchall(), cursor.fetchone()]


def _left_and_taken_up(cursor: Any) -> list[Any]:
    taken = []
    for row in cursor:
        taken.append(row)
        break
    return [*taken, "then", *cursor, "then", *cursor.fetchall()]


def _told(cursor: Any) -> list[Any]:
    return [cursor.rowcount, [column[0] for column in cursor.description], cursor.arraysize]


@pytest.mark.parametrize(
    "take",
    [
        _one_by_one,
        _first_and_rest,
        _left_and_taken_up,
        _told,
        list,
        next,
        lambda cursor: cursor.fetchall(),
        lambda cursor: cursor.fetchmany(2),
        lambda cursor: [list(row) for row in cursor],
        lambda cursor: dict(cursor),
    ],
    ids=["one by one", "first and rest", "left", "told", "list", "next", "all", "some", "loop", "dict"],
)
def test_rows_are_read_as_from_the_driver(raw: MeteredConnection, take: Callable[[Any], object]) -> None:
    query = "SELECT n, body FROM marks ORDER BY n"
    measured = take(raw.execute(query))
    raw.cost = None
    assert measured == take(raw.execute(query))


@pytest.mark.parametrize("take", [_one_by_one, list, lambda cursor: cursor.fetchall()], ids=["one", "loop", "all"])
def test_reading_rows_is_execution(raw: MeteredConnection, take: Callable[[Any], object]) -> None:
    def slow(n: int) -> int:
        time.sleep(0.01)
        return n

    raw.create_function("slow", 1, slow)
    take(raw.execute("SELECT slow(n) FROM marks"))
    assert cost_of(raw).execution_ns >= 30 * MILLISECOND
    assert (cost_of(raw).commit_ns, cost_of(raw).lock_wait_ns) == (0, 0)


# Units that come together


class Slow(MeteredConnection):
    """A connection whose commits take a while."""

    def commit(self) -> None:
        self.set_trace_callback(lambda statement: time.sleep(0.02) if statement == "COMMIT" else None)
        super().commit()


def mark(raw: MeteredConnection) -> None:
    raw.execute("INSERT INTO marks VALUES (?)", ("twelve bytes",))


def refuse(raw: MeteredConnection) -> None:
    mark(raw)
    raise KeyError("x")


def look(raw: MeteredConnection) -> None:
    raw.execute("SELECT * FROM marks").fetchall()


async def together(
    connection: OneHopConnection, works: Sequence[tuple[Callable[[MeteredConnection], None], StoreCost | None]]
) -> list[object]:
    """Run units that have all come before the connection's thread gets to the first."""
    gate = threading.Event()
    await connection.hop(lambda raw: None)  # the thread has left what it did before
    busy = asyncio.ensure_future(connection.hop(lambda raw: gate.wait(5)))
    await asyncio.sleep(0)
    running = [asyncio.ensure_future(connection.unit(work, cost)) for work, cost in works]
    await asyncio.sleep(0.03)
    gate.set()
    await busy
    return list(await asyncio.gather(*running, return_exceptions=True))


async def test_units_that_share_a_commit_count_one_transaction_each_and_all_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path, Slow) as database:
        writer = database._writer
        assert writer is not None
        costs = [StoreCost() for _ in range(4)]
        works = [(mark, costs[0]), (mark, None), (refuse, costs[1]), (look, costs[2]), (mark, costs[3])]
        begun = time.perf_counter_ns()
        results = await together(writer, works)
        elapsed = time.perf_counter_ns() - begun
        assert [type(result) for result in results] == [type(None), type(None), KeyError, type(None), type(None)]
        assert [cost.transactions for cost in costs] == [1, 1, 1, 1]
        assert len({cost.commit_ns for cost in costs}) == 1
        assert costs[0].commit_ns >= 20 * MILLISECOND
        assert [cost.bytes_written for cost in (costs[0], costs[2], costs[3])] == [12, 0, 12]
        for cost in costs:
            assert cost.lock_wait_ns >= 25 * MILLISECOND
            assert cost.lock_wait_ns + cost.commit_ns <= elapsed
        assert await database.read(lambda raw: raw.execute("SELECT count(*) FROM marks").fetchone()) == (3,)


async def test_units_of_nobody_that_share_a_commit_have_the_drivers_cursors(tmp_path: Path) -> None:
    kinds: list[type] = []

    def note(raw: MeteredConnection) -> None:
        kinds.append(type(raw.execute("SELECT 1")))

    async with opened(tmp_path) as database:
        writer = database._writer
        assert writer is not None
        assert await together(writer, [(note, None), (note, StoreCost()), (note, None)]) == [None, None, None]
        assert kinds == [sqlite3.Cursor, MeteredRows, sqlite3.Cursor]


async def test_a_shared_lock_that_is_not_got_counts_no_transaction(tmp_path: Path) -> None:
    database = Database(tmp_path / "d.db", busy_seconds=0.05)
    await database.write(lambda raw: raw.execute("CREATE TABLE marks (n INTEGER)").close())
    writer = database._writer
    assert writer is not None
    costs = [StoreCost(), StoreCost()]
    with lock_held(database.path, 0.3):
        results = await together(writer, [(mark, cost) for cost in costs])
    assert [type(result) for result in results] == [sqlite3.OperationalError] * 2
    assert [cost.transactions for cost in costs] == [0, 0]
    assert all(cost.lock_wait_ns >= 45 * MILLISECOND for cost in costs)
    await database.aclose()
