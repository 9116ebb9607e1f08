"""Tests what SQLite stores do with the files of the real world: foreign, damaged, locked, full, shared, read-only."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cayu import KnowledgeAccessScope, KnowledgeEntry, KnowledgeQuery
from cayu.errors import (
    InvalidInput,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreNotADatabase,
    StoreReadOnly,
    StoreTooNew,
)
from cayu.sessions.streams import HeadQuery, ItemQuery, Record, RecordQuery, StreamRow, Take, Unit
from cayu.storage import SQLiteKnowledgeStore, SQLiteSessionStore
from cayu.storage.sql.sqlite.database import SCHEMA_VERSION

SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab",))
QUERY = KnowledgeQuery(text="cold", namespace="lab")


def entry(id: str) -> KnowledgeEntry:
    return KnowledgeEntry(id=id, text="the cold room", namespace="lab")


def unit(id: str) -> Unit:
    """The first write of a session."""
    row = StreamRow(id=id, instance_id=f"i-{id}", agent_name="ann", provider_name="p", model="m")
    record = Record("session.started", b"{}")
    return Unit(stream=id, expected_version=0, fence=Take("owner"), records=(record,), create=row, release=True)


async def read_sessions(path: Path, **more: Any) -> int:
    store = SQLiteSessionStore(path, **more)
    try:
        return (await store.heads(HeadQuery())).total
    finally:
        await store.aclose()


async def write_sessions(path: Path, **more: Any) -> int:
    store = SQLiteSessionStore(path, **more)
    try:
        return (await store.append(unit("one")))[0].version
    finally:
        await store.aclose()


async def read_knowledge(path: Path, **more: Any) -> int:
    store = SQLiteKnowledgeStore(path, **more)
    try:
        return len((await store.search(QUERY, SCOPE)).hits)
    finally:
        await store.aclose()


async def write_knowledge(path: Path, **more: Any) -> int:
    store = SQLiteKnowledgeStore(path, **more)
    try:
        return (await store.create_entry(entry("a"))).revision
    finally:
        await store.aclose()


READS = [read_sessions, read_knowledge]
WRITES = [write_sessions, write_knowledge]
each_read = pytest.mark.parametrize("read", READS)
each_use = pytest.mark.parametrize("use", [*READS, *WRITES])
Use = Callable[..., Any]


def sql(path: Path, *statements: str) -> list[Any]:
    """Run statements as another program would, and return the rows of the last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        return [raw.execute(statement).fetchall() for statement in statements][-1]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
async def _threads_end() -> AsyncIterator[None]:
    """Let the threads of connections that failed to open end before their loop does."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(
        "connection_worker" in each.name for each in set(threading.enumerate()) - before
    ):
        await asyncio.sleep(0.01)


@pytest.fixture
async def made(tmp_path: Path) -> Path:
    """A store's file with one session and one entry, closed."""
    path = tmp_path / "made.db"
    await write_sessions(path)
    await write_knowledge(path)
    assert list(snapshot(tmp_path)) == ["made.db"]
    return path


# What is no store


@each_use
@pytest.mark.parametrize("data", [b"no", b"not a database " * 100, os.urandom(8192)], ids=["short", "text", "noise"])
async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, use: Use, data: bytes) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(data)
    with pytest.raises(StoreNotADatabase, match=r"notes\.db") as caught:
        await use(path)
    assert caught.value.path == str(path)
    assert snapshot(tmp_path) == {"notes.db": data}


@each_use
@pytest.mark.parametrize("application_id", [0, 12345])
async def test_the_database_of_another_program_is_left_alone(tmp_path: Path, use: Use, application_id: int) -> None:
    path = tmp_path / "theirs.db"
    sql(path, f"PRAGMA application_id = {application_id}", "CREATE TABLE events (a)", "INSERT INTO events VALUES (1)")
    before = snapshot(tmp_path)
    with pytest.raises(StoreNotADatabase, match="not made by Cayu"):
        await use(path)
    assert snapshot(tmp_path) == before


@each_use
async def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path, made: Path, use: Use) -> None:
    sql(made, f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = snapshot(tmp_path)
    with pytest.raises(StoreTooNew) as caught:
        await use(made)
    assert (caught.value.found, caught.value.known) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
    assert snapshot(tmp_path)["made.db"] == before["made.db"]


@each_read
@pytest.mark.parametrize("mode", ["rw", "ro"])
async def test_a_damaged_store_is_told_as_such(made: Path, read: Use, mode: str) -> None:
    data = bytearray(made.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    made.write_bytes(data)
    with pytest.raises(StoreNotADatabase, match=r"made\.db"):
        await read(made, mode=mode)


@each_use
async def test_an_empty_file_becomes_a_store_when_it_may_be_written(tmp_path: Path, use: Use) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert await use(path) in (0, 1)
    assert sql(path, "PRAGMA application_id")[0][0] == 0x43415955
    assert sql(path, "PRAGMA user_version")[0][0] == SCHEMA_VERSION
    assert sql(path, "PRAGMA journal_mode")[0][0] == "wal"


@pytest.mark.parametrize("kind", [SQLiteSessionStore, SQLiteKnowledgeStore])
def test_a_database_in_memory_is_refused(kind: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidInput, match="in-memory store"):
        kind(":memory:")


# Where nothing can be written


@each_use
async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, use: Use) -> None:
    with pytest.raises(StoreReadOnly, match="folder"):
        await use(tmp_path / "missing" / "made.db")
    assert snapshot(tmp_path) == {}


@each_use
async def test_a_folder_is_no_file(tmp_path: Path, use: Use) -> None:
    with pytest.raises((StoreReadOnly, StoreNotADatabase)):
        await use(tmp_path)
    assert snapshot(tmp_path) == {}


@each_read
async def test_reading_only_makes_no_file(tmp_path: Path, read: Use) -> None:
    for path in (tmp_path / "made.db", tmp_path / "missing" / "made.db"):
        with pytest.raises(StoreNotADatabase, match="no such file"):
            await read(path, mode="ro")
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreNotADatabase):
        await read(tmp_path / "empty.db", mode="ro")
    assert snapshot(tmp_path) == {"empty.db": b""}


@pytest.mark.parametrize("write", WRITES)
async def test_reading_only_refuses_to_write(tmp_path: Path, made: Path, write: Use) -> None:
    before = made.read_bytes()
    with pytest.raises(StoreReadOnly):
        await write(made, mode="ro")
    assert made.read_bytes() == before
    with pytest.raises(StoreReadOnly):
        await write(tmp_path / "missing.db", mode="ro")
    assert not (tmp_path / "missing.db").exists()


@each_read
async def test_reading_only_reads_and_leaves_the_file_as_it_is(made: Path, read: Use) -> None:
    before = made.read_bytes()
    assert await read(made, mode="ro") == 1
    assert made.read_bytes() == before


def test_a_store_that_is_never_used_makes_no_file(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "made.db")
    SQLiteKnowledgeStore(tmp_path / "made.db")
    assert snapshot(tmp_path) == {}
    assert store.path == tmp_path / "made.db"
    assert store.durable_state_paths() == (tmp_path / "made.db",)


# Locks


@pytest.fixture
def locked(made: Path) -> Any:
    """Another program's connection that holds the write lock until it is closed."""
    raw = sqlite3.connect(made, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    yield raw
    raw.close()


async def test_a_locked_file_is_told_after_the_timeout_and_nothing_is_written(
    made: Path, locked: sqlite3.Connection
) -> None:
    locked.execute("ROLLBACK")
    sessions, knowledge = SQLiteSessionStore(made, busy_seconds=0.2), SQLiteKnowledgeStore(made, busy_seconds=0.2)
    await sessions.heads(HeadQuery())
    await knowledge.frontier()
    locked.execute("BEGIN IMMEDIATE")
    writes: list[Callable[[], Any]] = [
        lambda: sessions.append(unit("two")),
        lambda: sessions.transact("notes", "a", lambda current, now: {"n": 1}),
        lambda: knowledge.create_entry(entry("b")),
    ]
    for write in writes:
        begun = time.monotonic()
        with pytest.raises(StoreBusy, match=r"made\.db"):
            await write()
        assert 0.15 < time.monotonic() - begun < 2.0
    assert (await sessions.heads(HeadQuery())).total == 1, "reading does not wait for writers"
    assert await knowledge.frontier() == 1
    locked.execute("ROLLBACK")
    assert await sessions.load("two") is None
    for write in writes:
        await write()
    assert (await sessions.heads(HeadQuery())).total == 2
    assert await knowledge.frontier() == 2
    await sessions.aclose()
    await knowledge.aclose()


async def test_a_short_lock_is_waited_for(made: Path, locked: sqlite3.Connection) -> None:
    store = SQLiteSessionStore(made, busy_seconds=5)
    writing = asyncio.create_task(store.append(unit("two")))
    await asyncio.sleep(0.2)
    assert not writing.done()
    locked.execute("ROLLBACK")
    assert (await writing)[0].version == 1
    await store.aclose()


@each_read
@pytest.mark.parametrize("mode", ["rw", "ro"])
async def test_a_store_can_be_opened_and_read_while_another_writes(
    made: Path, locked: sqlite3.Connection, read: Use, mode: str
) -> None:
    assert await read(made, mode=mode, busy_seconds=0.2) == 1


async def test_a_store_that_could_not_be_opened_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "made.db"
    store = SQLiteSessionStore(path)
    with pytest.raises(StoreReadOnly):
        await store.append(unit("one"))
    path.parent.mkdir()
    assert (await store.append(unit("one")))[0].version == 1
    await store.aclose()


# Closing


async def test_a_closed_store_says_so(made: Path) -> None:
    sessions, knowledge = SQLiteSessionStore(made), SQLiteKnowledgeStore(made)
    await sessions.heads(HeadQuery())
    await knowledge.frontier()
    for _ in range(2):
        await sessions.aclose()
        await knowledge.aclose()
    calls: list[Callable[[], Any]] = [
        lambda: sessions.append(unit("two")),
        lambda: sessions.load("one"),
        lambda: sessions.heads(HeadQuery()),
        lambda: sessions.records(RecordQuery()),
        lambda: sessions.items(ItemQuery()),
        lambda: sessions.transact("notes", "a", lambda current, now: {}),
        lambda: knowledge.frontier(),
        lambda: knowledge.search(QUERY, SCOPE),
        lambda: knowledge.create_entry(entry("b")),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            await call()


async def test_closing_leaves_one_file_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        await write_or_read(tmp_path / "made.db")
    deadline = time.monotonic() + 2
    while threading.active_count() > before and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert threading.active_count() <= before, [thread.name for thread in threading.enumerate()]
    assert list(snapshot(tmp_path)) == ["made.db"]


async def write_or_read(path: Path) -> None:
    store = SQLiteKnowledgeStore(path)
    if not (await store.search(QUERY, SCOPE)).hits:
        await store.create_entry(entry("a"))
    await store.aclose()


def test_a_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "made.db")
    for number in range(3):
        asyncio.run(store.append(unit(f"s{number}")))
    assert asyncio.run(store.heads(HeadQuery())).total == 3
    asyncio.run(store.aclose())


# Other processes

PRELUDE = """
import asyncio, os, sys, time
from pathlib import Path
from cayu import KnowledgeAccessScope, KnowledgeEntry, KnowledgeQuery
from cayu.errors import *
from cayu.sessions.streams import HeadQuery, Record, StreamRow, Take, Unit
from cayu.storage import SQLiteKnowledgeStore, SQLiteSessionStore
path = Path(sys.argv[1])
SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab",))
def entry(id, text="the cold room"):
    return KnowledgeEntry(id=id, text=text, namespace="lab")
def unit(id):
    row = StreamRow(id=id, instance_id=f"i-{id}", agent_name="ann", provider_name="p", model="m")
    record = Record("session.started", b"{}")
    return Unit(stream=id, expected_version=0, fence=Take("owner"), records=(record,), create=row, release=True)
"""


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", PRELUDE + script, *map(str, arguments)]


def run(command: list[str], timeout: float = 60) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "last",
    [
        "asyncio.run(main())",
        "asyncio.run(main()); sys.exit(0)",
        "loop = asyncio.new_event_loop(); loop.run_until_complete(main())",
    ],
)
def test_a_process_that_forgets_to_close_still_ends(tmp_path: Path, last: str) -> None:
    script = f"""
import warnings
warnings.simplefilter("ignore")
sessions, knowledge = SQLiteSessionStore(path), SQLiteKnowledgeStore(path)
async def main():
    await sessions.append(unit("one"))
    await knowledge.create_entry(entry("a"))
    await knowledge.frontier()
    print(time.time(), flush=True)
{last}
"""
    ended = float(run(command(script, tmp_path / "made.db"), timeout=20))
    assert time.time() - ended < 1.5
    assert asyncio.run(read_sessions(tmp_path / "made.db")) == 1
    assert asyncio.run(read_knowledge(tmp_path / "made.db")) == 1


@pytest.mark.slow
def test_a_store_that_could_not_be_opened_ends_quietly(tmp_path: Path) -> None:
    script = """
for number in range(20):
    try:
        asyncio.run(SQLiteSessionStore(path / "missing" / "made.db").append(unit("one")))
    except StoreReadOnly:
        print("told")
"""
    done = subprocess.run(command(script, tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["told"] * 20)
    assert "Exception in thread" not in done.stderr


@pytest.mark.slow
def test_processes_may_create_the_same_file_at_once(tmp_path: Path) -> None:
    script = """
async def main():
    store, knowledge = SQLiteSessionStore(path), SQLiteKnowledgeStore(path)
    time.sleep(max(0, float(sys.argv[3]) - time.time()))
    await store.append(unit(sys.argv[2]))
    await knowledge.create_entry(entry(sys.argv[2]))
    await store.aclose()
    await knowledge.aclose()
asyncio.run(main())
"""
    for attempt in range(3):
        path = tmp_path / f"made{attempt}.db"
        start = time.time() + 1.5
        children = [
            subprocess.Popen(command(script, path, name, start), stderr=subprocess.PIPE, text=True) for name in "abcd"
        ]
        for child in children:
            _, errors = child.communicate(timeout=60)
            assert child.returncode == 0, errors
        assert asyncio.run(read_sessions(path)) == 4
        assert asyncio.run(read_knowledge(path)) == 4
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.slow
async def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    script = """
async def main():
    store = SQLiteKnowledgeStore(path)
    for number in range(60):
        await store.create_entry(entry(f"e{number:03}"))
    print("half", flush=True)
    for number in range(60, 120):
        await store.create_entry(entry(f"e{number:03}"))
        await asyncio.sleep(0.005)
    await store.aclose()
asyncio.run(main())
"""
    path = tmp_path / "made.db"
    child = subprocess.Popen(command(script, path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "half\n"
    store = SQLiteKnowledgeStore(path, mode="ro")
    query = KnowledgeQuery(text="cold", namespace="lab", limit=1000)
    seen = []
    while child.poll() is None:
        found = await store.search(query, SCOPE)
        assert len(found.hits) == found.frontier, "each reading sees whole writes only"
        seen.append(found.frontier)
    _, errors = await asyncio.to_thread(child.communicate)
    assert child.returncode == 0, errors
    assert seen == sorted(seen)
    assert seen[0] >= 60
    assert len(set(seen)) > 5
    assert (await store.search(query, SCOPE)).frontier == 120
    await store.aclose()


@pytest.mark.slow
def test_a_file_that_may_not_grow_loses_nothing(tmp_path: Path) -> None:
    script = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    store = SQLiteKnowledgeStore(path)
    await store.create_entry(entry("a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{path}-wal") + 20000, hard))
    try:
        await store.create_entry(entry("b", "cold " * 100_000))
    except StoreError as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.create_entry(entry("c"))
    print([item.id for item in await store.list_entries(SCOPE)])
    await store.aclose()
asyncio.run(main())
"""
    kind, listed = run(command(script, tmp_path / "made.db")).splitlines()
    assert issubclass(getattr(__import__("cayu.errors", fromlist=[kind]), kind), StoreError)
    assert listed == "['a', 'c']"
    assert sql(tmp_path / "made.db", "PRAGMA integrity_check") == [("ok",)]


def in_namespace(setup: str, inner: list[str]) -> list[str]:
    """The command with which a child runs where it may mount; the mounts vanish with it."""
    if not shutil.which("unshare"):
        pytest.skip("unshare is missing")
    trial = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    if trial.returncode:
        pytest.skip("this machine lets nobody mount in a namespace")
    return ["unshare", "-Urm", "sh", "-c", f'set -e; {setup}; exec "$@"', "sh", *inner]


@pytest.mark.slow
def test_a_full_disk_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    script = """
async def main():
    sessions, knowledge = SQLiteSessionStore(path), SQLiteKnowledgeStore(path)
    await sessions.append(unit("one"))
    await knowledge.create_entry(entry("a"))
    ballast = path.parent / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        pass
    for write in (lambda: sessions.append(unit("two")), lambda: knowledge.create_entry(entry("b"))):
        for _ in range(2):
            try:
                await write()
            except StoreError as error:
                print(type(error).__name__)
    print((await sessions.heads(HeadQuery())).total, await knowledge.frontier())
    ballast.unlink()
    await sessions.append(unit("two"))
    await knowledge.create_entry(entry("b"))
    print((await sessions.heads(HeadQuery())).total, await knowledge.frontier())
    await sessions.aclose()
    await knowledge.aclose()
asyncio.run(main())
"""
    setup = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    lines = run(in_namespace(setup, command(script, tmp_path / "made.db"))).splitlines()
    assert lines == ["StoreFull"] * 4 + ["1 1", "2 2"]


@pytest.mark.slow
def test_a_disk_without_room_for_the_schema_is_told(tmp_path: Path) -> None:
    script = """
async def main():
    store = SQLiteSessionStore(path)
    try:
        await store.append(unit("one"))
    except StoreError as error:
        print(type(error).__name__)
    await store.aclose()
asyncio.run(main())
"""
    setup = f"mount -t tmpfs -o size=40k tmpfs {tmp_path}"
    assert run(in_namespace(setup, command(script, tmp_path / "made.db"))).split() == ["StoreFull"]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, made: Path) -> None:
    script = """
async def attempt(label, work):
    try:
        print(label, await work)
    except StoreError as error:
        print(label, type(error).__name__)
async def main():
    for mode in ("rw", "ro"):
        store = SQLiteSessionStore(path, mode=mode)
        await attempt(f"write {mode}", store.append(unit("two")))
        await store.aclose()
    new = SQLiteSessionStore(path.with_name("new.db"))
    await attempt("create", new.append(unit("two")))
    await new.aclose()
asyncio.run(main())
"""
    lines = run(in_namespace(read_only(tmp_path), command(script, made))).splitlines()
    assert lines == ["write rw StoreReadOnly", "write ro StoreReadOnly", "create StoreReadOnly"]


@pytest.mark.slow
def test_a_store_in_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path, made: Path) -> None:
    script = """
async def main():
    store = SQLiteSessionStore(path, mode="ro")
    print((await store.heads(HeadQuery())).total)
    await store.aclose()
asyncio.run(main())
"""
    assert run(in_namespace(read_only(tmp_path), command(script, made))) == "1\n"


def read_only(folder: Path) -> str:
    return f"mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}"
