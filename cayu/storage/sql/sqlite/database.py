"""One SQLite file: a writer and a reader connection, units of work in one hop, and driver errors made typed.

A unit of work runs from BEGIN to COMMIT inside the connection's own thread, so a cancelled caller can neither leave a
transaction open nor tear one apart; the cancellation reaches it after it has the unit's result. The driver's thread is
not a daemon: a watcher stops it once the main thread has ended, so that a script which forgot to close still exits.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import aiosqlite

from cayu.errors import (
    InvalidInput,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreNotADatabase,
    StoreOutcomeUnknown,
    StoreReadOnly,
    StoreTooNew,
)
from cayu.shielding import Unstoppable, settled
from cayu.storage.sql.queries import load_migrations, load_queries
from cayu.storage.sql.sqlite.metering import READING, WRITING, MeteredConnection
from cayu.storage.sql.sqlite.units import UnitQueue, Waiting, Work, in_transaction
from cayu.timing.costs import StoreCost, measure

T = TypeVar("T")
Mode = Literal["rw", "ro"]

APPLICATION_ID = 0x43415955
"""Marks a file as ours ("CAYU")."""
DEFAULT_BUSY_SECONDS = 5.0
WAL_ATTEMPTS = 50

QUERIES = load_queries("cayu.storage.sql.sqlite")
MIGRATIONS = load_migrations("cayu.storage.sql.sqlite")
SCHEMA_VERSION = MIGRATIONS[-1].number


class OneHopConnection(aiosqlite.Connection):
    """A driver connection that runs a whole function in its thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._units = UnitQueue()

    def begin(self) -> None:
        """Start the connection's thread and, unless it is a daemon by birth, see that it stops at the exit."""
        self._thread.start()
        if not self._thread.daemon:
            _stop_at_exit(self)

    def join(self) -> None:
        """Wait until the connection's thread has ended."""
        self._thread.join()

    async def open(self) -> None:
        """Connect; may be called by several tasks at once."""
        await self._connect()

    @property
    def ended(self) -> bool:
        """True once the connection's thread has been told to stop."""
        return not self._running

    async def unit(self, work: Work[T], cost: StoreCost | None = None) -> T:
        """Run one writing unit of work, alone or together with others that wait; see `units`."""
        raw = self._raw()
        future, idle = self._units.add(work, asyncio.get_running_loop(), cost)
        if idle:
            self._tx.put_nowait((None, partial(self._units.drain, raw)))
        return await settled(future)

    async def hop(self, work: Work[T], cost: StoreCost | None = None) -> T:
        """Run `work(connection)` in the connection's thread, to its end even when the caller is cancelled."""
        raw = self._raw()
        future: Unstoppable[T] = Unstoppable(loop=asyncio.get_running_loop())
        self._tx.put_nowait((None, partial(Waiting(work, future, cost).run, raw)))
        return await settled(future)

    def _raw(self) -> MeteredConnection:
        if self.ended or not isinstance(self._connection, MeteredConnection):
            raise StoreClosed
        return self._connection


_alive: weakref.WeakSet[OneHopConnection] = weakref.WeakSet()
_watching = threading.Lock()
_watcher: threading.Thread | None = None


def _stop_at_exit(connection: OneHopConnection) -> None:
    """Have one watcher per process, which stops every connection once the main thread has ended."""
    global _watcher  # noqa: PLW0603 - one per process, like the process's one main thread
    with _watching:
        _alive.add(connection)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_stop_all, name="cayu-sqlite-exit", daemon=True)
            _watcher.start()


def _stop_all() -> None:
    threading.main_thread().join()
    with _watching:
        for connection in list(_alive):
            connection.stop()


class Database:
    """The connections to one file. Opened at first use; nothing is created for `mode="ro"`."""

    def __init__(
        self,
        path: str | Path,
        *,
        mode: Mode = "rw",
        busy_seconds: float = DEFAULT_BUSY_SECONDS,
        writer: type[MeteredConnection] = MeteredConnection,
    ) -> None:
        """`writer` is the class of the driver's connection that writes."""
        if str(path) == ":memory:":
            raise InvalidInput("An in-memory SQLite database cannot be shared; use the in-memory store instead.")
        self.path = Path(path).absolute()
        self.mode = mode
        self._busy_seconds = busy_seconds
        self._writer_type = writer
        self._writer: OneHopConnection | None = None
        self._reader: OneHopConnection | None = None
        self._closed = False

    async def write(self, work: Work[T]) -> T:
        """Run one unit of work in a transaction that holds the write lock from its start."""
        if self.mode == "ro":
            raise StoreReadOnly(path=str(self.path))
        connection = await self._open_writer()
        cost = measure()
        try:
            with _typed_errors(self.path):
                return await connection.unit(work, cost)
        finally:
            if cost is not None:
                cost.end()

    async def read(self, work: Work[T]) -> T:
        """Run one reading unit against a consistent snapshot, without waiting for writers."""
        if self.mode == "rw":
            await self._open_writer()
        connection = await self._open_reader()
        cost = measure()
        try:
            with _typed_errors(self.path):
                return await connection.hop(lambda raw: in_transaction(raw, READING, work), cost)
        finally:
            if cost is not None:
                cost.end()

    async def aclose(self) -> None:
        """Close both connections; safe to call twice."""
        self._closed = True
        connections, self._writer, self._reader = (self._reader, self._writer), None, None
        for connection in connections:
            if connection is not None and not connection.ended:
                await connection.close()

    async def _open_writer(self) -> OneHopConnection:
        if self._writer is None:
            self._refuse_when_closed()
            self._writer = OneHopConnection(_once(self._connect_writer))
            self._writer.begin()
        return await self._opened(self._writer, "_writer")

    async def _open_reader(self) -> OneHopConnection:
        if self._reader is None:
            self._refuse_when_closed()
            self._reader = OneHopConnection(_once(self._connect_reader))
            self._reader.begin()
        return await self._opened(self._reader, "_reader")

    async def _opened(self, connection: OneHopConnection, slot: str) -> OneHopConnection:
        try:
            with _typed_errors(self.path):
                await connection.open()
        except BaseException:
            setattr(self, slot, None)
            if connection.ended:
                connection.join()
            raise
        return connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreClosed

    def _connect_writer(self) -> MeteredConnection:
        if self.path.is_dir():
            raise StoreNotADatabase(path=str(self.path), problem="it is a folder")
        if not self.path.parent.is_dir():
            raise StoreReadOnly(f"The folder of {self.path} does not exist; create it, or give another path.")
        raw = sqlite3.connect(
            self.path,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            factory=self._writer_type,
        )
        return _prepared(raw, lambda: _prepare_writer(raw, self.path))

    def _connect_reader(self) -> MeteredConnection:
        if not self.path.is_file():
            raise StoreNotADatabase(path=str(self.path), problem="there is no such file")
        try:
            return self._reader_of("mode=ro")
        except sqlite3.OperationalError:
            # Beside a file in a folder that cannot be written no shared memory can be made; without a log it may rest.
            if self.path.with_name(f"{self.path.name}-wal").exists():
                raise
            return self._reader_of("mode=ro&immutable=1")

    def _reader_of(self, how: str) -> MeteredConnection:
        uri = f"{self.path.as_uri()}?{how}"
        raw = sqlite3.connect(
            uri,
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            factory=MeteredConnection,
        )
        raw.create_function("casefold", 1, str.casefold, deterministic=True)
        return _prepared(raw, lambda: _check_schema(raw, self.path, allow_empty=False))


def _once(connect: Callable[[], sqlite3.Connection]) -> Callable[[], sqlite3.Connection]:
    made: list[sqlite3.Connection] = []

    def connector() -> sqlite3.Connection:
        if not made:
            made.append(connect())
        return made[0]

    return connector


def _prepared(raw: MeteredConnection, prepare: Callable[[], object]) -> MeteredConnection:
    try:
        prepare()
    except BaseException:
        raw.close()
        raise
    return raw


def _prepare_writer(raw: MeteredConnection, path: Path) -> None:
    found = _check_schema(raw, path, allow_empty=True)
    raw.execute("PRAGMA synchronous = FULL")
    if found < SCHEMA_VERSION:
        _enter_wal(raw)
        in_transaction(raw, WRITING, lambda connection: _migrate(connection, path))


def _enter_wal(raw: MeteredConnection) -> None:
    # Two processes that create the file at once exclude each other here, and SQLite does not wait by itself.
    for attempt in range(WAL_ATTEMPTS):
        try:
            if raw.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        except sqlite3.OperationalError:
            if attempt == WAL_ATTEMPTS - 1:
                raise
        time.sleep(0.02)


def _check_schema(raw: MeteredConnection, path: Path, *, allow_empty: bool) -> int:
    if raw.in_transaction:
        found, ours, tables = _marks(raw)
    else:
        found, ours, tables = in_transaction(raw, READING, _marks)  # another process may be making the file
    if not ours and (tables > 0 or not allow_empty):
        raise StoreNotADatabase(path=str(path), problem="it was not made by Cayu")
    if found > SCHEMA_VERSION:
        raise StoreTooNew(path=str(path), found=found, known=SCHEMA_VERSION)
    return found


def _marks(raw: MeteredConnection) -> tuple[int, bool, int]:
    found: int = raw.execute("PRAGMA user_version").fetchone()[0]
    ours = raw.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    return found, ours, raw.execute(QUERIES["count_tables"]).fetchone()[0]


def _migrate(raw: MeteredConnection, path: Path) -> None:
    found = _check_schema(raw, path, allow_empty=True)
    for migration in MIGRATIONS:
        if migration.number <= found:
            continue
        for statement in migration.statements:
            raw.execute(statement)
        raw.execute(f"PRAGMA user_version = {migration.number}")
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")


class _typed_errors:  # noqa: N801 - reads as the statement it is
    """Turns the driver's errors into ours at the one place where they leave the driver."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode"):
            raise _translated(error, self._path) from error
        if isinstance(error, UnicodeEncodeError):
            raise InvalidInput("A name or an id holds characters that no store keeps; leave out lone surrogates.")


def _translated(error: sqlite3.Error, path: str) -> StoreError:
    code = error.sqlite_errorcode & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(path=path)
        case sqlite3.SQLITE_FULL:
            return StoreFull(path=path)
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StoreNotADatabase(path=path, problem="it is damaged, or another kind of file")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreReadOnly(path=path)
        case sqlite3.SQLITE_IOERR:
            return StoreOutcomeUnknown()
    return StoreError(f"SQLite refused the work on {path} (error {code}); nothing was written.")
