"""Two processes at the same trials, and a sweep that dies half-way: nothing is done twice, and nothing is missing."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from memory import crash_trials as trials

from cayu import SQLiteSessionStore
from cayu.sessions.streams import HeadQuery
from cayu.snapshots.components import OVERLAYS
from cayu.storage.snapshots import SQLiteAgentSnapshotStore
from cayu.testing import run_child

CHILDREN = str(Path(trials.__file__))
RACED = 40
HEAD_STARTS_MS = {
    "together": [0.0],
    "behind": [0.0, 2.0, 5.0, 9.0, 14.0, 20.0, 27.0, 35.0, 44.0, 54.0],
}
"""How much later than the first process the second one begins each trial, in turn."""
SWEEP_ENDS = ("trial.dispatching:11", "trial.evaluating:12", "commit.prepared:200")


async def capture(folder: Path) -> None:
    async with trials.laboratory(folder):
        pass


async def sessions_of(folder: Path) -> dict[str, list[str]]:
    """Every session that there is, with the types of its events."""
    store = SQLiteSessionStore(folder / "trials.db")
    try:
        page = await store.heads(HeadQuery(limit=1000))
        found = {}
        for head in page.rows:
            loaded = await store.load(head.row.id)
            assert loaded is not None
            assert loaded.head.state.owner is None
            found[head.row.id] = [record.type for record in loaded.records]
        assert page.total == len(found)
        return found
    finally:
        await store.aclose()


async def overlays_of(folder: Path, outcomes: list[dict[str, Any]]) -> list[Any]:
    """The overlay of each trial."""
    store = SQLiteAgentSnapshotStore(folder / "trials.db")
    try:
        names = [outcome["execution"]["materialization_fingerprint"] for outcome in outcomes]
        scopes = [(await store.read("materializations", name))["state_scope_id"] for name in names]
        return [await store.read(OVERLAYS, scope) for scope in scopes]
    finally:
        await store.aclose()


def by_operation(folder: Path, name: str) -> dict[str, list[str]]:
    """The calls of a component, by operation."""
    found: dict[str, list[str]] = {}
    for line in trials.notes(folder, name):
        found.setdefault(line["operation"], []).append(line["call"])
    return found


@pytest.mark.slow
@pytest.mark.requirement("B084", "B043", "B050")
@pytest.mark.parametrize("start", list(HEAD_STARTS_MS))
async def test_two_processes_at_one_request_do_it_once(start: str, tmp_path: Path) -> None:
    await capture(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        waits = [HEAD_STARTS_MS["together"], HEAD_STARTS_MS[start]]
        children = pool.map(lambda wait: run_child(f"{CHILDREN}:race", [str(tmp_path), RACED, wait]), waits)
        left, right = [child.result for child in children]
    assert [found for found in (*left, *right) if isinstance(found, str)] == []
    assert left == right, "two processes were told of different outcomes of one request"
    assert {outcome["execution"]["status"] for outcome in left} == {"completed"}
    assert {outcome["execution"]["revision"] for outcome in left} == {6}
    sessions = await sessions_of(tmp_path)
    assert sessions.keys() == {outcome["execution"]["session_id"] for outcome in left}
    assert len(sessions) == RACED
    for types in sessions.values():
        assert (types.count("session.started"), types.count("session.completed")) == (1, 1)
        assert types.count("session.resumed") == 0
    for overlay in await overlays_of(tmp_path, left):
        assert len(overlay["operations"]) == 1
        assert [entry["revision"] for entry in overlay["entries"].values()] == [2]
    verdicts = Counter(line["session"] for line in trials.notes(tmp_path, "verdicts"))
    assert verdicts == dict.fromkeys(sessions, 1)
    for name, first in (("overlay", "apply"), ("runner", "run"), ("evaluator", "evaluate")):
        calls = by_operation(tmp_path, name)
        assert len(calls) == RACED
        assert all(called.count(first) <= 1 for called in calls.values()), name
    ran = [line["pid"] for line in trials.notes(tmp_path, "runner")]
    assert len(ran) == RACED, "a session was gone on with that nobody had lost"
    assert start == "behind" or len({*ran}) == 2, "one process ran every session, so there was no race"


# A sweep.


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder in which the agent is captured, and the records of a sweep that nothing has happened to."""
    folder = tmp_path_factory.mktemp("swept")
    asyncio.run(capture(folder))
    plain = folder / "plain"
    plain.mkdir()
    shutil.copyfile(folder / "trials.db", plain / "trials.db")
    records: list[dict[str, Any]] = run_child(f"{CHILDREN}:sweep", [str(plain)]).result
    return folder, records


def steady(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records in the order of their trials, without the time that each has taken."""
    kept = [{name: value for name, value in record.items() if name != "duration_ms"} for record in records]
    return sorted(kept, key=lambda record: str(record["trial_id"]))


@pytest.mark.slow
@pytest.mark.requirement("B043", "B050", "B055")
@pytest.mark.parametrize("point", SWEEP_ENDS)
async def test_a_sweep_that_dies_is_finished_and_runs_no_trial_twice(
    point: str, swept: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    captured, usual = swept
    shutil.copyfile(captured / "trials.db", tmp_path / "trials.db")
    child = run_child(f"{CHILDREN}:sweep", [str(tmp_path)], crash_at=point)
    assert child.killed, f"it has not come to {point}: {child.stderr}"
    done = trials.notes(tmp_path, "progress")
    total = 3 * trials.SWEPT
    assert 0 < len(done) < total
    before = await _as_left(tmp_path)
    records = run_child(f"{CHILDREN}:sweep", [str(tmp_path), 1]).result
    assert len(records) == total
    assert steady(records) == steady(usual)
    assert {record["status"] for record in records} == {"completed"}
    sessions = await sessions_of(tmp_path)
    assert sessions.keys() == {record["session_id"] for record in records}
    for name, types in sessions.items():
        assert (types.count("session.started"), types.count("session.completed")) == (1, 1)
        assert types[: len(before.get(name, ()))] == before.get(name, [])
    finished = {line["trial"] for line in done}
    for record in records:
        if record["trial_id"] in finished:
            assert sessions[record["session_id"]] == before[record["session_id"]], "a finished session was gone on with"
    verdicts = Counter(line["session"] for line in trials.notes(tmp_path, "verdicts"))
    assert verdicts == dict.fromkeys(sessions, 1)
    for name, first in (("overlay", "apply"), ("runner", "run"), ("evaluator", "evaluate")):
        calls = by_operation(tmp_path, name)
        assert len(calls) == total
        assert all(called.count(first) <= 1 for called in calls.values()), name
    runs = by_operation(tmp_path, "runner").values()
    assert sum(len(called) > 1 for called in runs) <= 4, "more sessions were cut off than ran at once"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["trial.prepared", "trial.dispatching", "trial.settled", "trial.finalizing"])
async def test_a_new_attempt_that_dies_is_finished_and_not_begun_again(
    point: str, swept: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    captured, usual = swept
    shutil.copyfile(captured / "trials.db", tmp_path / "trials.db")
    done = run_child(f"{CHILDREN}:stopped_sweep", [str(tmp_path)]).result
    assert 1 <= done < 3 * trials.SWEPT
    child = run_child(f"{CHILDREN}:sweep", [str(tmp_path)], crash_at=point)
    assert child.killed, f"it has not come to {point}: {child.stderr}"
    records = run_child(f"{CHILDREN}:sweep", [str(tmp_path), 1]).result
    assert {record["status"] for record in records} == {"completed"}
    anew = [record for record in records if record["attempt"] > 1]
    assert 1 <= len(anew) < 4, "of four trials at once, one was done"
    assert {record["attempt"] for record in anew} == {2}
    ids = ("session_id", "execution_id", "attempt")
    found, wanted = ([{**each, **dict.fromkeys(ids)} for each in steady(listed)] for listed in (records, usual))
    assert found == wanted
    sessions = await sessions_of(tmp_path)
    assert len(sessions) == 3 * trials.SWEPT + len(anew)
    for types in sessions.values():
        assert types.count("session.started") == 1
    assert sum("session.interrupted" in types for types in sessions.values()) == len(anew)


async def _as_left(folder: Path) -> dict[str, list[str]]:
    """Every session as the dead process has left it."""
    store = SQLiteSessionStore(folder / "trials.db")
    try:
        heads = (await store.heads(HeadQuery(limit=1000))).rows
        loaded = [await store.load(head.row.id) for head in heads]
        return {each.head.row.id: [record.type for record in each.records] for each in loaded if each is not None}
    finally:
        await store.aclose()
