"""What a trial of a memory intervention costs beside its agent's own work, and how long a whole experiment takes.

    python -m cayu.benchmarks.memory_trials --trials 50
    python -m cayu.benchmarks.memory_trials --sweep

One reader of the handbook is captured once. Each trial takes out what answers its question; what it costs is split into
its session, the opening of its copy of memory, and the rest, which is what the executor itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from cayu import AgentSpec, CayuApp, Environment, EnvironmentSpec, Event, ExecutionProfileBehaviorIdentity, RunRequest
from cayu.benchmarks.phase_timing import at_least_one, show_progress
from cayu.benchmarks.report import quartiles
from cayu.benchmarks.workload import FLOOR_ROWS
from cayu.evals import EvalCase, question_cases
from cayu.examples.handbook import READERS, load_handbook
from cayu.experiments import Experiment, Intervention, MemoryStudy, StudyStores, Subject, run_experiment
from cayu.experiments.arms import baseline, inject, omit_expected, recall_off, replace_expected
from cayu.experiments.sweep import ExperimentRun
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey
from cayu.knowledge.store import KnowledgeStore
from cayu.providers import ExtractiveModelProvider
from cayu.storage import InMemoryKnowledgeStore, SQLiteKnowledgeStore, handbook_controls, handbook_questions
from cayu.storage.sql.sqlite.database import QUERIES, Database

MAX_COMMITS = 16
MAX_MS = 20.0
"""What one durable trial may cost without its session and the opening of its copy."""
MAX_SWEEP_SECONDS = 180.0
"""What 60 questions under 6 interventions, twice, may take on two cores."""
SWEEP_REPEATS = 2
WARM_TRIALS = 5
SESSION, MATERIALIZATION, EXECUTOR = "session", "materialization", "executor"
PARTS = (EXECUTOR, SESSION, MATERIALIZATION)
KEY = MemoryInterventionRequestFingerprintKey("benchmark", b"nothing of a benchmark is secret")
ROOM: Final = EnvironmentSpec(
    name="laboratory",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="laboratory", behavior_version="1", implementation_version="1"
    ),
)
_WRITES = frozenset(
    ("append", "renew", "transact", "begin", "compare_and_set", "transition_runtime_dispatch_ownership")
)


@dataclass(slots=True)
class Costs:
    """What the trial at work has cost so far, by part."""

    ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    commits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """Units of work that write; each is a transaction of its own when one trial runs at a time."""
    commit_ms: float | None = None
    """One commit of three small rows right after the trial, in one hop; None without a disk."""


class Account:
    """Charges what happens to the trial at work, and to the part of it that is at work."""

    def __init__(self) -> None:
        self.costs = Costs()
        self._part = EXECUTOR
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Begin a trial at no cost."""
        self.costs, self._part, self._since = Costs(), EXECUTOR, time.perf_counter()

    def end(self) -> Costs:
        """Return what the trial has cost."""
        self._charge()
        return self.costs

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Charge to a part for as long as it is at work."""
        self._charge()
        before, self._part = self._part, part
        try:
            yield
        finally:
            self._charge()
            self._part = before

    def write(self) -> None:
        """Charge one commit."""
        self.costs.commits[self._part] += 1

    def _charge(self) -> None:
        now = time.perf_counter()
        self.costs.ms[self._part] += 1000 * (now - self._since)
        self._since = now


class _Counted:
    """Passes everything on to a store, and counts what writes."""

    def __init__(self, store: Any, account: Account) -> None:
        self._store, self._account = store, account

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _WRITES:
            return found

        async def counted(*given: Any, **named: Any) -> Any:
            self._account.write()
            return await found(*given, **named)

        return counted


class _TimedApp(CayuApp):
    """An application whose runs are charged to their trial's session."""

    account: Account | None = None

    async def run(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Run, and charge."""
        assert self.account is not None
        with self.account.within(SESSION):
            async for event in super().run(request):
                yield event


@dataclass(frozen=True, slots=True)
class Bench:
    """A captured reader with the account of its trials."""

    study: MemoryStudy
    cases: Sequence[EvalCase]
    stores: StudyStores
    knowledge: KnowledgeStore
    account: Account

    @classmethod
    async def open(cls, backend: str, folder: Path, *, counted: bool) -> Bench:
        """Fill the memory and capture the reader; `counted` is for one trial at a time."""
        on_disk, account = backend == "sqlite", Account()
        knowledge = SQLiteKnowledgeStore(folder / "knowledge.db") if on_disk else InMemoryKnowledgeStore()
        await load_handbook(knowledge)
        stores = StudyStores.in_file(folder / "trials.db") if on_disk else StudyStores.in_memory()
        if counted:
            names = [each.name for each in fields(stores)]
            parts: dict[str, Any] = {name: _Counted(getattr(stores, name), account) for name in names}
            stores = StudyStores(**parts)

        def build_app(**given: Any) -> CayuApp:
            return build(account if counted else None, **given)

        cases = question_cases(handbook_questions())
        study = await MemoryStudy.open(Subject(build_app, "reader", knowledge.bind(READERS)), cases, stores, KEY)
        return cls(study, cases, stores, knowledge, account)

    async def aclose(self) -> None:
        """Close what was opened."""
        await self.stores.aclose()
        await self.knowledge.aclose()


def build(
    account: Account | None, *, session_store: Any, knowledge_store: Any, budget_ledger: Any, recall: Any
) -> CayuApp:
    """Return the reader's application, whose runs are charged to an account if there is one."""
    app = CayuApp if account is None else _TimedApp
    made = app(session_store=session_store, budget_ledger=budget_ledger)
    if isinstance(made, _TimedApp):
        made.account = account
    made.register_provider(ExtractiveModelProvider())
    made.register_environment(Environment(ROOM, knowledge_store=knowledge_store), default=True)
    spec = AgentSpec(name="reader", model="extractive", system_prompt="Answer from memory.")
    made.register_agent(spec, recall=recall)
    return made


async def measure(backend: str, trials: int, folder: Path) -> list[Costs]:
    """Return what each of several trials has cost, one after the other, once a few have warmed everything up."""
    bench = await Bench.open(backend, folder, counted=True)
    executor, account = bench.study.executor, bench.account
    materialize = executor.snapshots.materialize

    async def charged(request: Any) -> Any:
        with account.within(MATERIALIZATION):
            return await materialize(request)

    executor.snapshots.materialize = charged  # type: ignore[method-assign]
    repeats = -(-(trials + WARM_TRIALS) // len(bench.cases))
    design = Experiment(bench.cases, [baseline(), omit_expected()], repeats)
    planned = [trial for trial in design.trials() if trial.intervention is not design.baseline]
    floor = Database(folder / "floor.db") if backend == "sqlite" else None
    found = []
    for number, trial in enumerate(planned[: trials + WARM_TRIALS], 1):
        request = bench.study.request(trial)
        account.begin()
        await executor.execute_trial(request)
        found.append(account.end())
        if floor is not None:
            found[-1].commit_ms = await _one_commit(floor, number)
        show_progress(f"trial {number} of {trials + WARM_TRIALS}")
    if floor is not None:
        await floor.aclose()
    await bench.aclose()
    show_progress("")
    return found[WARM_TRIALS:]


async def _one_commit(database: Database, number: int) -> float:
    """Return how long one commit of three small rows takes, in milliseconds."""
    rows = [(1, FLOOR_ROWS * number + index, "floor", number, b'{"n":1}') for index in range(FLOOR_ROWS)]

    def insert(raw: sqlite3.Connection) -> None:
        raw.executemany(QUERIES["insert_event"], rows)

    begun = time.perf_counter()
    await database.write(insert)
    return 1000 * (time.perf_counter() - begun)


def arms() -> list[Intervention]:
    """Return the interventions of the whole experiment."""
    controls = handbook_controls()
    return [
        baseline(),
        recall_off(),
        omit_expected(),
        replace_expected(controls),
        inject("irrelevant", controls),
        inject("conflicting", controls),
    ]


async def sweep(backend: str, folder: Path, cases: int | None = None) -> tuple[float, ExperimentRun]:
    """Run the whole experiment, of the first `cases` questions or all; return the seconds and what came of it."""
    bench = await Bench.open(backend, folder, counted=False)
    experiment = Experiment(bench.cases[:cases], arms(), SWEEP_REPEATS)

    def tell(run: ExperimentRun) -> None:
        show_progress(f"trial {len(run.records)} of {run.total}")

    begun = time.perf_counter()
    run = await run_experiment(experiment, bench.study, progress=tell)
    seconds = time.perf_counter() - begun
    await bench.aclose()
    show_progress("")
    return seconds, run


def make_report(backend: str, found: Sequence[Costs]) -> dict[str, Any]:
    """Return the medians of each part, the targets, and whether the executor keeps within them, ready for JSON.

    The floor of a part is as many commits of three small rows as it makes, measured in the same run.
    """
    floors = [costs.commit_ms for costs in found if costs.commit_ms is not None]
    commit_ms = statistics.median(floors) if floors else None
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        ms = [costs.ms[part] for costs in found]
        commits = statistics.median(costs.commits[part] for costs in found)
        parts[part] = {
            "ms": round(statistics.median(ms), 3),
            "ms_quartiles": [round(value, 3) for value in quartiles(ms)],
            "commits": commits,
            "floor_ms": round(commits * commit_ms, 3) if commit_ms is not None else None,
        }
    most = max(costs.commits[EXECUTOR] for costs in found)
    return {
        "backend": backend,
        "trials": len(found),
        "pid": os.getpid(),
        "commit_ms": round(commit_ms, 4) if commit_ms is not None else None,
        "parts": parts,
        "targets": {"commits": MAX_COMMITS, "ms": MAX_MS},
        "within": {"commits": most <= MAX_COMMITS, "ms": parts[EXECUTOR]["ms"] <= MAX_MS},
    }


def make_sweep_report(backend: str, seconds: float, run: ExperimentRun) -> dict[str, Any]:
    """Return how long an experiment has taken and what came of its arms, ready for JSON."""
    scores = {
        arm.name: [found.score for found in run.records if found.intervention == arm.name and found.score is not None]
        for arm in run.experiment.interventions
    }
    return {
        "backend": backend,
        "trials": len(run.records),
        "seconds": round(seconds, 2),
        "ms_per_trial": round(1000 * seconds / len(run.records), 2),
        "failures": len(run.failures),
        "mean_scores": {name: round(statistics.mean(found), 3) for name, found in scores.items() if found},
        "targets": {"seconds": MAX_SWEEP_SECONDS},
        "within": {"seconds": seconds <= MAX_SWEEP_SECONDS},
    }


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report of single trials for reading."""
    lines = [f"{report['backend']}, trials {report['trials']}", ""]
    lines.append(f"{'':>18}{'commits':>10}{'ms':>10}{'quartiles':>20}{'floor ms':>12}")
    for part, found in report["parts"].items():
        around = "{:.3f} to {:.3f}".format(*found["ms_quartiles"])
        least = f"{found['floor_ms']:.3f}" if found["floor_ms"] is not None else ""
        lines.append(f"{part:>18}{found['commits']:>10g}{found['ms']:>10.3f}{around:>20}{least:>12}")
    own, within = report["parts"][EXECUTOR], report["within"]
    lines += ["", f"{_word(within['commits'])}: {own['commits']:g} commits of the executor, at most {MAX_COMMITS}."]
    lines.append(f"{_word(within['ms'])}: {own['ms']:.1f} ms of the executor, at most {MAX_MS:g}.")
    if report["commit_ms"] is not None:
        each = f"{report['commit_ms']:.3f} ms each here"
        lines.append(f"The floor is as many commits of three small rows, in one hop, {each}.")
    return "\n".join(lines)


def sweep_as_text(report: Mapping[str, Any]) -> str:
    """Return the report of a whole experiment for reading."""
    lines = [f"{report['backend']}, trials {report['trials']}, without a score {report['failures']}", ""]
    lines += [f"{name:>18}{score:>10.3f}" for name, score in report["mean_scores"].items()]
    took = f"{report['seconds']:.1f} s, {report['ms_per_trial']:.1f} ms a trial"
    return "\n".join([*lines, "", f"{_word(report['within']['seconds'])}: {took}, at most {MAX_SWEEP_SECONDS:g} s."])


def _word(within: bool) -> str:
    return "Within its target" if within else "OVER its target"


def make_parser() -> argparse.ArgumentParser:
    """Return what understands the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cayu.benchmarks.memory_trials",
        description="What a trial of a memory intervention costs beside its agent's own work.",
    )
    parser.add_argument("--backend", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--trials", type=at_least_one, default=50, help="trials that are measured (50)")
    parser.add_argument("--sweep", action="store_true", help="run 60 questions under 6 interventions, twice, instead")
    parser.add_argument("--cases", type=at_least_one, help="questions of the sweep (all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its report. Exits with 2 for arguments that make no sense."""
    options = make_parser().parse_args(arguments)
    backend = options.backend
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.sweep:
            report = make_sweep_report(backend, *asyncio.run(sweep(backend, folder, options.cases)))
        else:
            report = make_report(backend, asyncio.run(measure(backend, options.trials, folder)))
    told = sweep_as_text(report) if options.sweep else as_text(report)
    print(json.dumps(report) if options.json else told)


if __name__ == "__main__":
    main()
