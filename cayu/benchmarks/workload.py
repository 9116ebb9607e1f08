"""What one worker of the benchmark runs and measures, as a script, with whichever checkout stands first on its path.

    PYTHONPATH=CHECKOUT python -P workload.py '{"backend": "sqlite", "rounds": 50, ...}'

It uses only what older versions of the project have as well, and nothing of the modules beside it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cayu
from cayu import AgentSpec, CayuApp, Message, RunRequest, SQLiteSessionStore, ToolEffect, tool
from cayu.canonical import JSON
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions.streams import LEASE_SECONDS, Decide, HeadQuery, Held, SessionStore, StreamState, Unit
from cayu.storage import InMemorySessionStore
from cayu.storage.sql.sqlite.database import QUERIES, Database

ENABLED, DISABLED, BASELINE = "enabled", "disabled", "baseline"
"""Timing on, timing off, and another checkout as it comes."""
FLOOR_COMMITS = 200
FLOOR_COMMITS_PER_ROUND = 2
FLOOR_ROWS = 3
WARM_ROUNDS = 20
FRAME_UNITS, FRAME_EVENTS = 2, 4
"""Units of work and events of a run that belong to no round: its start, its last answer and its end."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one worker runs."""

    configuration: str
    """`ENABLED`, `DISABLED` or `BASELINE`."""
    iteration: int
    """Which iteration of the benchmark it belongs to, from 0."""
    backend: str
    rounds: int
    """Tool rounds of one run."""
    calls: int
    """Calls of one round."""
    sessions: int
    """Runs at once."""
    runs: int
    """How often that is repeated in the worker."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one worker measured."""

    configuration: str
    iteration: int
    pid: int
    """The worker's process."""
    timing_records: int
    """Timing records in the recent view after the last run; 0 where nothing was timed."""
    round_ms: float
    """Wall time of a run over its rounds, in milliseconds; the median of the worker's runs."""
    floor_ms: float | None
    """Two one-hop commits of three small rows, in milliseconds; None without a disk."""
    transactions_per_round: float
    """Writes to the store, each a transaction; sessions that run at once may share commits."""
    events_per_round: float
    """Durable events."""
    bytes_per_round: float | None
    """Growth of the file; None without one."""
    commits_per_second: float
    """Writes of all sessions together."""
    peak_memory_mb: float


@tool(version="1", effect=ToolEffect.NONE)
async def no_op(n: int) -> str:
    """Do nothing."""
    return "ok"


def build(store: SessionStore, rounds: int, calls: int, configuration: str = ENABLED) -> CayuApp:
    """Return an application without sinks, whose model asks for `rounds` rounds of `calls` no-op calls and answers.

    A baseline is left as it comes, and so is a version that knows no timing.
    """

    def batch(request: ModelRequest) -> list[ModelStreamEvent]:
        return [ModelStreamEvent.tool_call("no_op", {"n": index}, id=f"c{index}") for index in range(calls)]

    config = getattr(cayu, "RuntimeTimingConfig", None)
    asked = configuration in (ENABLED, DISABLED) and config is not None
    timing: dict[str, Any] = {"runtime_timing": config(enabled=configuration == ENABLED)} if asked and config else {}
    app = CayuApp(session_store=store, **timing)
    app.register_provider(ScriptedModelProvider([batch] * rounds + ["done"]))
    app.register_agent(AgentSpec(name="bench", model="scripted"), tools=[no_op])
    return app


class _Counting(SessionStore):
    """Counts what is written to the store that it is mixed into."""

    writes = 0
    events = 0

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        """Count and pass on."""
        self.writes += 1
        self.events += len(unit.records)
        return await super().append(unit)  # type: ignore[safe-super]

    async def renew(self, stream: str, held: Held, lease_seconds: float = LEASE_SECONDS) -> StreamState:
        """Count and pass on."""
        self.writes += 1
        return await super().renew(stream, held, lease_seconds)  # type: ignore[safe-super]

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Count and pass on."""
        self.writes += 1
        return await super().transact(collection, id, decide)  # type: ignore[safe-super]


class _CountingSQLite(_Counting, SQLiteSessionStore):
    """The SQLite store, counted."""


class _CountingMemory(_Counting, InMemorySessionStore):
    """The in-memory store, counted."""


async def floor(folder: Path) -> float:
    """Return the median time of two one-hop commits of three small rows in a file of their own, in milliseconds."""
    database = Database(folder / "floor.db")
    times = []
    for commit in range(FLOOR_COMMITS):
        work = partial(_small_rows, commit)
        begun = time.perf_counter()
        await database.write(work)
        times.append(time.perf_counter() - begun)
    await database.aclose()
    return FLOOR_COMMITS_PER_ROUND * 1000 * statistics.median(times)


def _small_rows(commit: int, raw: sqlite3.Connection) -> None:
    rows = [(1, FLOOR_ROWS * commit + index, "floor", commit, b'{"n":1}') for index in range(FLOOR_ROWS)]
    raw.executemany(QUERIES["insert_event"], rows)


async def measure(shape: Shape, folder: Path) -> Sample:
    """Measure the runs of one shape in this process, after a short one that warms it up; files go to `folder`."""
    path = folder / "bench.db"
    warm = _open(shape.backend, path)
    await _consume(build(warm, WARM_ROUNDS, shape.calls, shape.configuration))
    await warm.aclose()
    size = _bytes(path)
    store = _open(shape.backend, path)
    await store.heads(HeadQuery(limit=1))
    seconds = []
    for _ in range(shape.runs):
        app = build(store, shape.rounds, shape.calls, shape.configuration)
        gc.collect()
        begun = time.perf_counter()
        await asyncio.gather(*(_consume(app) for _ in range(shape.sessions)))
        seconds.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await store.aclose()
    runs, on_disk = shape.sessions * shape.runs, shape.backend == "sqlite"
    rounds = shape.rounds * runs
    return Sample(
        configuration=shape.configuration,
        iteration=shape.iteration,
        pid=os.getpid(),
        timing_records=_timing_records(app),
        round_ms=1000 * statistics.median(seconds) / (shape.rounds * shape.sessions),
        floor_ms=await floor(folder) if on_disk else None,
        transactions_per_round=(store.writes - FRAME_UNITS * runs) / rounds,
        events_per_round=(store.events - FRAME_EVENTS * runs) / rounds,
        bytes_per_round=(_bytes(path) - size) / rounds if on_disk else None,
        commits_per_second=store.writes / sum(seconds),
        peak_memory_mb=peak,
    )


def _timing_records(app: CayuApp) -> int:
    status = getattr(app, "runtime_timing_status", None)
    return status().recent_records if status is not None else 0


def _open(backend: str, path: Path) -> _Counting:
    return _CountingSQLite(path) if backend == "sqlite" else _CountingMemory()


async def _consume(app: CayuApp) -> None:
    async for _ in app.run(RunRequest(agent_name="bench", messages=(Message.text("user", "go"),))):
        pass


def _bytes(path: Path) -> int:
    """Return the size of a closed store, whose write-ahead log is folded into it; 0 without a file."""
    return path.stat().st_size if path.exists() else 0


def main(arguments: list[str]) -> None:
    """Run the shape that stands in the first argument as JSON and print what was measured; the second is the checkout.

    Exits with words on standard error when another checkout than that was imported.
    """
    shape, checkout = Shape(**json.loads(arguments[0])), Path(arguments[1]).resolve()
    found = Path(cayu.__file__).resolve().parents[1]
    if found != checkout:
        raise SystemExit(f"cayu came from {found} instead of {checkout}; look at PYTHONPATH and site-packages.")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(asyncio.run(measure(shape, Path(folder))))))


if __name__ == "__main__":
    main(sys.argv[1:])
