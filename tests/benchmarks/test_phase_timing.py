"""The benchmark of timing: what it refuses, what its workers count, how it judges, and its three forms."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cayu
from cayu import Message, RunRequest, SQLiteSessionStore
from cayu.benchmarks import phase_timing
from cayu.benchmarks.phase_timing import Configuration, at_least_one, checkout_of, in_turn, main, run_worker
from cayu.benchmarks.report import as_text, compare, judge, make_report, quartiles, summarise
from cayu.benchmarks.workload import BASELINE, DISABLED, ENABLED, Sample, Shape, build, measure
from cayu.sessions.streams import HeadQuery, StreamState, Unit
from cayu.storage.sql.sqlite.database import Database
from cayu.storage.sql.sqlite.metering import MeteredConnection

SHAPE = Shape(ENABLED, iteration=0, backend="sqlite", rounds=3, calls=2, sessions=1, runs=2)
ASKED = {"backend": "sqlite", "rounds": 3, "calls": 2, "sessions": 1, "iterations": 5, "runs": 2, "pid": 1}
COMMAND = [sys.executable, "-m", "cayu.benchmarks.phase_timing"]
SMALL = ["--iterations", "2", "--rounds", "3", "--runs", "2"]

OLDER = """
_Present, _off = CayuApp, RuntimeTimingConfig(enabled=False)
del RuntimeTimingConfig


class CayuApp(_Present):
    def __init__(self, *, session_store=None):
        super().__init__(session_store=session_store, runtime_timing=_off)

    runtime_timing_status = property()
"""
"""What makes a checkout look like one from before timing: the names of it are gone."""


def sample(configuration: str, iteration: int, round_ms: float, **others: Any) -> Sample:
    """A worker's numbers as they might be."""
    usual = Sample(
        configuration,
        iteration,
        pid=100 + iteration,
        timing_records=64 if configuration == ENABLED else 0,
        round_ms=round_ms,
        floor_ms=0.5,
        transactions_per_round=2.0,
        events_per_round=7.0,
        bytes_per_round=1100.0,
        commits_per_second=1000.0,
        peak_memory_mb=50.0,
    )
    return replace(usual, **others)


def pairs(*differences_us: float, disabled_ms: float = 1.0) -> list[Sample]:
    """Workers with timing on and off, an iteration for each difference."""
    return [
        sample(name, iteration, disabled_ms + more)
        for iteration, us in enumerate(differences_us)
        for name, more in ((ENABLED, us / 1000), (DISABLED, 0.0))
    ]


# What is refused.


@pytest.mark.parametrize("name", ["iterations", "rounds", "calls", "sessions", "runs"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_what_is_no_count_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([f"--{name}={value}"])
    assert refused.value.code == 2
    assert f"argument --{name}: {value!r} is no count; give a whole number from 1" in capsys.readouterr().err


def test_a_baseline_without_the_package_is_refused_before_any_worker_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase_timing, "run_worker", lambda *_: pytest.fail("a worker was started"))
    for path, problem in ((tmp_path, "holds no cayu package"), (tmp_path / "nowhere", "is no folder")):
        with pytest.raises(SystemExit) as refused:
            main(["--baseline-src", str(path)])
        assert refused.value.code == 2
        assert f"{str(path)!r} {problem}; give the root of a checkout" in capsys.readouterr().err


def test_a_baseline_is_a_checkout_or_the_folder_of_its_sources(tmp_path: Path) -> None:
    package = tmp_path / "src" / "cayu"
    package.mkdir(parents=True)
    with pytest.raises(argparse.ArgumentTypeError):
        checkout_of(str(tmp_path))  # the folder is there, and holds no package
    (package / "__init__.py").touch()
    assert checkout_of(str(tmp_path)) == checkout_of(str(tmp_path / "src")) == (tmp_path / "src").resolve()


def test_a_count_is_a_whole_number() -> None:
    assert at_least_one("20") == 20


@pytest.mark.slow
def test_a_worker_that_fails_ends_the_benchmark_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "cayu").mkdir()
    (tmp_path / "cayu" / "__init__.py").write_text("raise ImportError('this version is too old')")
    with pytest.raises(SystemExit, match=r"worker for baseline .* failed: ImportError: this version is too old"):
        run_worker(Configuration(BASELINE, tmp_path), SHAPE)


# The order of the workers.


def test_the_order_rotates_and_every_iteration_has_each_configuration_once() -> None:
    listed = [Configuration(name, Path()) for name in (ENABLED, DISABLED, BASELINE)]
    order = [(iteration, found.name) for iteration, found in in_turn(listed, 4)]
    assert [name for _, name in order[:3]] == [ENABLED, DISABLED, BASELINE]
    assert [name for iteration, name in order if iteration == 1] == [DISABLED, BASELINE, ENABLED]
    assert [name for _, name in order[::3]] == [ENABLED, DISABLED, BASELINE, ENABLED]
    assert len(order) == len(set(order)) == 12


# What a worker counts.


@pytest.mark.slow
@pytest.mark.requirement("A153")
@pytest.mark.parametrize("backend", ["sqlite", "memory"])
@pytest.mark.parametrize("calls", [1, 3])
async def test_a_round_writes_the_same_with_timing_on_and_off(tmp_path: Path, backend: str, calls: int) -> None:
    found = {}
    for name in (ENABLED, DISABLED):
        folder = tmp_path / name
        folder.mkdir()
        found[name] = await measure(replace(SHAPE, configuration=name, backend=backend, calls=calls), folder)
    on, off = found[ENABLED], found[DISABLED]
    assert (on.timing_records > 0, off.timing_records) == (True, 0)
    assert on.transactions_per_round == off.transactions_per_round == calls + 1
    assert on.events_per_round == off.events_per_round == 4 + 3 * calls
    assert on.bytes_per_round == off.bytes_per_round


class Telling(SQLiteSessionStore):
    """A store that tells of every statement its writer runs, and of every event."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        told: list[str] = []
        self.told = told
        self.written: list[list[str]] = []

        class Writer(MeteredConnection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                self.set_trace_callback(lambda sql: told.append(sql.split()[0]))

        self._database = Database(path, writer=Writer)

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        self.written.append([record.type for record in unit.records])
        return await super().append(unit)


@pytest.mark.requirement("A153")
async def test_timing_adds_no_statement_and_no_event(tmp_path: Path) -> None:
    stores = {}
    for name in (ENABLED, DISABLED):
        store = stores[name] = Telling(tmp_path / f"{name}.db")
        await store.heads(HeadQuery(limit=1))
        store.told.clear()  # the tables are made
        app = build(store, rounds=4, calls=2, configuration=name)
        async for _ in app.run(RunRequest(agent_name="bench", messages=(Message.text("user", "go"),))):
            pass
        await store.aclose()
        assert (app.runtime_timing_status().recent_records > 0) == (name == ENABLED)
    on, off = stores[ENABLED], stores[DISABLED]
    assert on.told == off.told
    assert on.written == off.written
    assert on.told.count("COMMIT") == len(on.written) == 4 * 3 + 2


# What is reported.


@pytest.mark.requirement("A157")
@pytest.mark.parametrize(
    "differences, disabled_ms, allowed_us, cost",
    [
        ((10, 12, 14, 16, 18), 0.5, 40.0, "within"),  # 2 to 4 %, and below 40 us
        ((35, 36, 37, 38, 39), 0.5, 40.0, "within"),  # over 5 % of a short round, and below 40 us
        ((60, 61, 62, 63, 64), 2.0, 100.0, "within"),  # over 40 us, and below 5 % of a long round
        ((41, 42, 43, 44, 45), 0.5, 40.0, "over"),
        ((110, 111, 112, 113, 114), 2.0, 100.0, "over"),
        ((10, 20, 39, 60, 90), 0.5, 40.0, "unclear"),  # the bound lies between the quartiles
        ((10, 12, 14, 16), 0.5, 40.0, "unclear"),  # too few
        ((-5, -3, 0, 2, 4), 0.5, 40.0, "within"),
    ],
)
def test_the_verdict_compares_the_cost_of_timing_with_its_bound(
    differences: tuple[float, ...], disabled_ms: float, allowed_us: float, cost: str
) -> None:
    report = make_report(ASKED, pairs(*differences, disabled_ms=disabled_ms))
    assert report["verdict"] == {"allowed_us": allowed_us, "cost": cost}
    said = {"within": "within its bound", "over": "over its bound", "unclear": "not to be told"}[cost]
    [line] = [line for line in as_text(report).splitlines() if line.startswith("Cost of timing:")]
    assert line.startswith(f"Cost of timing: {said}")
    assert line.endswith(f"{allowed_us} us here.")


def test_differences_are_paired_by_iteration() -> None:
    drifting = [sample(DISABLED, n, ms) for n, ms in enumerate((1.0, 2.0, 3.0))]
    timed = [sample(ENABLED, n, ms) for n, ms in ((2, 3.03), (0, 1.01), (1, 2.02))]
    found = compare(timed, drifting)
    assert found["pairs"] == 3
    assert found["difference_us"] == 20.0
    assert found["difference_us_quartiles"] == [15.0, 25.0]
    assert found["percent_of_round"] == 1.0
    assert judge(found, drifting)["allowed_us"] == 100.0


def test_one_iteration_has_quartiles_without_a_spread() -> None:
    assert quartiles([1.5]) == [1.5, 1.5]


def test_a_summary_holds_medians_and_ratios_to_the_floor_of_the_same_worker() -> None:
    found = summarise([sample(ENABLED, n, ms, floor_ms=ms / 2) for n, ms in enumerate((1.0, 4.0, 2.0))])
    assert (found["round_ms"], found["round_ms_quartiles"]) == (2.0, [1.5, 3.0])
    assert (found["floor_ms"], found["ratio_to_floor"]) == (1.0, 2.0)
    assert found["share_of_one_writer"] == 0.5  # a thousand a second, where two take a millisecond


def test_unequal_work_is_told() -> None:
    more = [*pairs(1, 2), sample(ENABLED, 2, 1.0, transactions_per_round=2.5)]
    assert "timing on and off: NOT equal" in as_text(make_report(ASKED, more))
    assert make_report(ASKED, more)["equal_work"] is False
    assert make_report(ASKED, pairs(1, 2))["equal_work"] is True


# The command.


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, without a terminal."""
    return subprocess.run([*COMMAND, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def older_checkout(folder: Path) -> Path:
    """A copy of the package whose names of timing are gone, and which refuses to be told of it."""
    shutil.copytree(Path(cayu.__file__).parent, folder / "cayu", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "cayu" / "__init__.py").open("a") as package:
        package.write(OLDER)
    return folder


@pytest.mark.slow
@pytest.mark.requirement("A155", "A156", "A157")
def test_sqlite_against_another_checkout(tmp_path: Path) -> None:
    done = run("--backend", "sqlite", *SMALL, "--baseline-src", str(older_checkout(tmp_path)), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report["configurations"]) == [ENABLED, DISABLED, BASELINE]
    assert all(found["round_ms"] > 0 and found["floor_ms"] > 0 for found in report["configurations"].values())
    assert {name: found["timing_records"] > 0 for name, found in report["configurations"].items()} == {
        ENABLED: True,
        DISABLED: False,
        BASELINE: False,
    }
    assert {found["transactions_per_round"] for found in report["configurations"].values()} == {2.0}
    workers = [found["pid"] for found in report["samples"]]
    assert len({*workers, report["pid"], os.getpid()}) == len(workers) + 2 == 8
    assert [found["configuration"] for found in report["samples"]] == [
        *(ENABLED, DISABLED, BASELINE),
        *(DISABLED, BASELINE, ENABLED),
    ]
    assert list(report["comparisons"]) == [
        *("enabled_against_disabled", "enabled_against_baseline", "disabled_against_baseline"),
    ]
    assert report["comparisons"]["enabled_against_disabled"]["pairs"] == 2
    assert report["verdict"]["allowed_us"] >= 40
    assert report["verdict"]["cost"] == "unclear"  # two iterations say nothing
    assert report["equal_work"] is True


@pytest.mark.slow
@pytest.mark.requirement("A155")
@pytest.mark.parametrize("backend", ["sqlite", "memory"])
def test_the_command_runs_unattended_and_tells_in_words(backend: str) -> None:
    done = run("--backend", backend, *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{backend}, rounds 3, calls 1, sessions 1, iterations 2, runs 2\n")
    assert "enabled against disabled" in done.stdout
    assert "Cost of timing: " in done.stdout
    assert "Transactions and events with timing on and off: equal.\n" in done.stdout
    assert ("floor_ms" in done.stdout) == (backend == "sqlite")
    assert "baseline" not in done.stdout
