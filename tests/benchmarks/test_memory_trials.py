"""The benchmark of trials: what it refuses, what it counts, how it judges, and its forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cayu.benchmarks import memory_trials
from cayu.benchmarks.memory_trials import (
    EXECUTOR,
    MATERIALIZATION,
    MAX_COMMITS,
    SESSION,
    Account,
    Costs,
    as_text,
    main,
    make_report,
    make_sweep_report,
    measure,
    sweep,
    sweep_as_text,
)
from cayu.storage.sql.sqlite import units

COMMAND = [sys.executable, "-m", "cayu.benchmarks.memory_trials"]


def costs(ms: float, commits: int = 11, commit_ms: float | None = 0.2) -> Costs:
    """What one trial might have cost."""
    return Costs(
        {EXECUTOR: ms, SESSION: 5.0, MATERIALIZATION: 2.0},
        {EXECUTOR: commits, SESSION: 3, MATERIALIZATION: 4},
        commit_ms,
    )


@pytest.mark.parametrize("name", ["trials", "cases"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_what_is_no_count_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([f"--{name}={value}"])
    assert refused.value.code == 2
    assert f"argument --{name}: {value!r} is no count; give a whole number from 1" in capsys.readouterr().err


# What is counted.


def test_time_and_commits_are_charged_to_the_part_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.0, 1.0, 2.0, 5.0, 7.0, 8.0])
    monkeypatch.setattr(memory_trials, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    account = Account()
    account.begin()
    account.write()
    with account.within(SESSION):
        account.write()
        with account.within(MATERIALIZATION):
            account.write()
    account.write()
    found = account.end()
    assert found.ms == {EXECUTOR: 2000.0, SESSION: 3000.0, MATERIALIZATION: 3000.0}
    assert found.commits == {EXECUTOR: 2, SESSION: 1, MATERIALIZATION: 1}


async def test_a_trial_has_few_commits_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial more makes as many commits more as are counted, and the one of the floor."""
    made: list[str] = []
    monkeypatch.setattr(units, "reach", made.append)
    durable = []
    for trials in (1, 2):
        made.clear()
        folder = tmp_path / str(trials)
        folder.mkdir()
        found = await measure("sqlite", trials, folder)
        durable.append(made.count("commit.durable"))
    assert found[0].commits == found[1].commits
    assert found[0].commits[EXECUTOR] <= MAX_COMMITS
    assert durable[1] - durable[0] == sum(found[0].commits.values()) + 1
    assert all(each.commit_ms is not None and each.commit_ms > 0 for each in found)


async def test_a_trial_in_memory_writes_as_often(tmp_path: Path) -> None:
    [found] = await measure("memory", 1, tmp_path)
    assert found.commit_ms is None
    assert found.commits == {EXECUTOR: 11, SESSION: 3, MATERIALIZATION: 4}
    assert all(ms > 0 for ms in found.ms.values())


# What is reported.


@pytest.mark.parametrize(
    ("ms", "commits", "words"),
    [
        ((19.0, 20.0, 90.0), 16, ("Within its target: 16 commits", "Within its target: 20.0 ms")),
        ((19.0, 20.1, 90.0), 16, ("Within its target: 16 commits", "OVER its target: 20.1 ms")),
        ((1.0, 1.0, 1.0), 17, ("OVER its target: 17 commits", "Within its target: 1.0 ms")),
    ],
)
def test_the_medians_are_held_against_the_targets(ms: tuple[float, ...], commits: int, words: tuple[str, str]) -> None:
    report = make_report("sqlite", [costs(each, commits) for each in ms])
    text = as_text(report)
    for line in words:
        assert f"\n{line} of the executor, at most " in text
    assert report["parts"][EXECUTOR]["floor_ms"] == pytest.approx(commits * 0.2)
    assert list(report["within"].values()) == [line.startswith("Within") for line in words]


def test_the_most_commits_of_any_trial_count() -> None:
    report = make_report("sqlite", [costs(1.0), costs(1.0), costs(1.0, MAX_COMMITS + 1)])
    assert report["within"] == {"commits": False, "ms": True}


def test_without_a_disk_there_is_no_floor() -> None:
    report = make_report("memory", [costs(1.0, commit_ms=None)])
    assert report["commit_ms"] is None
    assert "floor is" not in as_text(report)


async def test_a_whole_experiment_reports_its_time_and_its_arms(tmp_path: Path) -> None:
    seconds, run = await sweep("memory", tmp_path, cases=2)
    report = make_sweep_report("memory", seconds, run)
    assert (report["trials"], report["failures"]) == (2 * 6 * 2, 0)
    arms = ["baseline", "recall_off", "omit_expected", "stale", "irrelevant", "conflicting"]
    assert list(report["mean_scores"]) == arms
    assert report["mean_scores"]["baseline"] == 1.0
    assert report["mean_scores"]["recall_off"] == 0.0
    assert "\nWithin its target: " in sweep_as_text(report)
    assert "\nOVER its target: 181.0 s" in sweep_as_text(make_sweep_report("memory", 181.0, run))


# The command.


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--sweep", "--cases", "2"]])
@pytest.mark.parametrize("backend", ["sqlite", "memory"])
def test_the_command_runs_unattended(backend: str, options: list[str]) -> None:
    asked = [*COMMAND, "--backend", backend, "--trials", "3", *options]
    done = subprocess.run([*asked, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["backend"] == backend
    assert report["trials"] == (24 if options else 3)
    told = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert told.stdout.startswith(f"{backend}, trials {report['trials']}")
