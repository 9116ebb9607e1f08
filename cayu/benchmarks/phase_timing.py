"""How long a durable tool round takes, beside the floor that the disk sets, measured in the same process.

    python -m cayu.benchmarks.phase_timing --backend sqlite --rounds 50 --iterations 10

Each iteration runs in a fresh worker process: one agent run of R rounds with a no-op tool and a scripted model, without
sinks. The floor is two one-hop commits of three small rows, on the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cayu import AgentSpec, CayuApp, Message, RunRequest, SQLiteSessionStore, ToolEffect, tool
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions.streams import HeadQuery, SessionStore, StreamState, Unit
from cayu.storage import InMemorySessionStore
from cayu.storage.sql.sqlite.database import QUERIES, Database

FLOOR_COMMITS = 200
WARM_ROUNDS = 5
FRAME_UNITS = 2
"""Units of work of a run that belong to no round: its start and its end."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one worker measured."""

    round_ms: float
    """Wall time of the run over its rounds, in milliseconds."""
    floor_ms: float
    """Two one-hop commits, in milliseconds; 0 without a disk."""
    transactions_per_round: float
    bytes_per_round: float
    commits_per_second: float
    """Of all sessions together."""
    peak_memory_mb: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What one worker runs."""

    backend: str
    rounds: int
    calls: int
    sessions: int


@tool(version="1", effect=ToolEffect.NONE)
async def no_op(n: int) -> str:
    """Do nothing."""
    return "ok"


def build(store: SessionStore, rounds: int, calls: int) -> CayuApp:
    """Return an application whose model asks for `rounds` rounds of `calls` no-op calls and then answers."""

    def batch(request: ModelRequest) -> list[ModelStreamEvent]:
        return [ModelStreamEvent.tool_call("no_op", {"n": index}, id=f"c{index}") for index in range(calls)]

    app = CayuApp(session_store=store)
    app.register_provider(ScriptedModelProvider([batch] * rounds + ["done"]))
    app.register_agent(AgentSpec(name="bench", model="scripted"), tools=[no_op])
    return app


class _Counting(SessionStore):
    """Counts the units of work of the store that it is mixed into."""

    units = 0

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        """Count and pass on."""
        self.units += 1
        return await super().append(unit)  # type: ignore[safe-super]


class _CountingSQLite(_Counting, SQLiteSessionStore):
    """The SQLite store, counted."""


class _CountingMemory(_Counting, InMemorySessionStore):
    """The in-memory store, counted."""


async def floor(folder: Path) -> float:
    """Return the median time of two one-hop commits of three small rows, in milliseconds."""
    database = Database(folder / "floor.db")
    times = []
    for commit in range(FLOOR_COMMITS):
        work = partial(_three_rows, commit)
        begun = time.perf_counter()
        await database.write(work)
        times.append(time.perf_counter() - begun)
    await database.aclose()
    return 2000 * statistics.median(times)


def _three_rows(commit: int, raw: sqlite3.Connection) -> None:
    rows = [(1, 3 * commit + index, "floor", commit, b'{"n":1}') for index in range(3)]
    raw.executemany(QUERIES["insert_event"], rows)


async def measure(shape: Shape, folder: Path) -> Sample:
    """Measure the sessions of one shape in this process, after a short one that warms it up."""
    path = folder / "bench.db"
    warm = _open(shape.backend, path)
    await _consume(build(warm, WARM_ROUNDS, shape.calls))
    await warm.aclose()
    size = _bytes(path)
    store = _open(shape.backend, path)
    await store.heads(HeadQuery(limit=1))
    app = build(store, shape.rounds, shape.calls)
    begun = time.perf_counter()
    await asyncio.gather(*(_consume(app) for _ in range(shape.sessions)))
    seconds = time.perf_counter() - begun
    await store.aclose()
    rounds = shape.rounds * shape.sessions
    return Sample(
        round_ms=1000 * seconds / rounds,
        floor_ms=await floor(folder) if shape.backend == "sqlite" else 0.0,
        transactions_per_round=(store.units - FRAME_UNITS * shape.sessions) / rounds,
        bytes_per_round=(_bytes(path) - size) / rounds,
        commits_per_second=store.units / seconds,
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _open(backend: str, path: Path) -> _Counting:
    return _CountingSQLite(path) if backend == "sqlite" else _CountingMemory()


async def _consume(app: CayuApp) -> None:
    async for _ in app.run(RunRequest(agent_name="bench", messages=(Message.text("user", "go"),))):
        pass


def _bytes(path: Path) -> int:
    """Return the size of a closed store, whose write-ahead log is folded into it; 0 without a file."""
    return path.stat().st_size if path.exists() else 0


def _worker(options: argparse.Namespace) -> None:
    shape = Shape(options.backend, options.rounds, options.calls, options.sessions)
    with tempfile.TemporaryDirectory() as folder:
        sample = asyncio.run(measure(shape, Path(folder)))
    print(json.dumps(asdict(sample)))


def _sample(options: argparse.Namespace) -> Sample:
    numbers = ("rounds", "calls", "sessions")
    shape = [word for name in numbers for word in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, "-m", "cayu.benchmarks.phase_timing", "--backend", options.backend, *shape, "--worker"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Sample(**json.loads(done.stdout))


def _report(options: argparse.Namespace, samples: list[Sample]) -> dict[str, Any]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in samples))

    times = sorted(sample.round_ms for sample in samples)
    report = {
        "backend": options.backend,
        "rounds": options.rounds,
        "calls": options.calls,
        "sessions": options.sessions,
        "iterations": len(samples),
        "round_ms": round(median("round_ms"), 3),
        "round_ms_spread": [round(times[0], 3), round(times[-1], 3)],
        "transactions_per_round": median("transactions_per_round"),
        "peak_memory_mb": round(median("peak_memory_mb"), 1),
    }
    if options.backend == "sqlite":
        report["floor_ms"] = round(median("floor_ms"), 3)
        report["ratio_to_floor"] = round(statistics.median(s.round_ms / s.floor_ms for s in samples), 2)
        report["bytes_per_round"] = round(median("bytes_per_round"))
        report["commits_per_second"] = round(median("commits_per_second"))
        writer = statistics.median(2000 / sample.floor_ms for sample in samples)
        report["share_of_one_writer"] = round(report["commits_per_second"] / writer, 2)
    return report


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print medians."""
    parser = argparse.ArgumentParser(description="Time of a durable tool round beside the floor of the disk.")
    parser.add_argument("--backend", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=50, help="tool rounds of one run")
    parser.add_argument("--calls", type=int, default=1, help="calls of one round")
    parser.add_argument("--sessions", type=int, default=1, help="sessions at once")
    parser.add_argument("--iterations", type=int, default=5, help="fresh worker processes")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        _worker(options)
        return
    report = _report(options, [_sample(options) for _ in range(options.iterations)])
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:>24}  {value}")


if __name__ == "__main__":
    main()
