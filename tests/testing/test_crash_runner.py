"""The crash runner: functions in processes of their own that return, fail, die by themselves or at a crash point."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cayu.crashpoints import ARMED_BY, CRASH_POINTS, reach
from cayu.testing import Child, crash_points, run_child

HERE = str(Path(__file__))


# What the children run.


def together(*values: Any) -> dict[str, Any]:
    print("some noise, without an end", end="")
    return {"values": list(values), "pid": os.getpid(), "armed": os.environ.get(ARMED_BY)}


async def later(value: int) -> int:
    return value + 1


def fails() -> None:
    raise LookupError("not here")


def not_json() -> object:
    return object()


def leaves(code: int) -> None:
    os._exit(code)


def comes_by(folder: str, point: str, times: int) -> str:
    for number in range(times):
        with open(Path(folder) / "trace", "a") as trace:
            trace.write(f"{number}\n")
        reach(point)
    return "alive"


def sleeps() -> None:
    time.sleep(30)


# The tests.


def test_an_unknown_crash_point_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(subprocess, "run", started)
    for name in ("tool.return", "", ":2", "tool.returned.2"):
        with pytest.raises(ValueError, match=r"is no crash point; known: session\.created"):
            run_child(f"{HERE}:together", crash_at=name)


def test_the_crash_points_are_listed_in_the_order_of_a_run() -> None:
    assert crash_points() == tuple(CRASH_POINTS)
    assert crash_points()[0] == "session.created"
    assert all(CRASH_POINTS.values())


def test_a_child_says_how_it_ended() -> None:
    assert Child(0, "noise\n[1]\n", "").result == [1]
    assert not Child(0, "", "").killed
    assert Child(-9, "", "").killed
    assert not Child(-15, "", "").killed
    assert not Child(9, "", "").killed
    with pytest.raises(ChildProcessError, match=r"ended with -9:\nwords"):
        _ = Child(-9, "[1]\n", "words").result


@pytest.mark.slow
def test_a_child_returns_json_from_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARMED_BY, "tool.returned")  # what this process was armed with is not passed on
    child = run_child(f"{HERE}:together", [1, "ü", None, {"a": [True]}])
    assert child.result["values"] == [1, "ü", None, {"a": [True]}]
    assert child.result["pid"] != os.getpid()
    assert child.result["armed"] is None
    assert (child.returncode, child.killed, child.stderr) == (0, False, "")


@pytest.mark.slow
def test_asynchronous_functions_and_modules() -> None:
    assert run_child(f"{HERE}:later", [41]).result == 42
    assert run_child("cayu.testing.crashes:crash_points").result == list(crash_points())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (f"{HERE}:fails", "LookupError: not here"),
        (f"{HERE}:not_json", "not JSON serializable"),
        (f"{HERE}:nothing_of_this_name", "nothing_of_this_name"),
        ("no.such.module:f", "No module named 'no'"),
    ],
)
def test_a_child_that_fails_says_so_in_its_own_words(target: str, words: str) -> None:
    child = run_child(target)
    assert (child.returncode, child.killed) == (1, False)
    with pytest.raises(ChildProcessError, match="ended with 1") as caught:
        _ = child.result
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_child_that_leaves_by_itself_was_not_killed() -> None:
    child = run_child(f"{HERE}:leaves", [3])
    assert (child.returncode, child.killed) == (3, False)
    with pytest.raises(ChildProcessError):
        _ = child.result


@pytest.mark.slow
@pytest.mark.parametrize(("crash_at", "came"), [("tool.returned", 1), ("tool.returned:1", 1), ("tool.returned:3", 3)])
def test_a_child_dies_at_its_crash_point_and_nowhere_else(tmp_path: Path, crash_at: str, came: int) -> None:
    child = run_child(f"{HERE}:comes_by", [str(tmp_path), "tool.returned", 5], crash_at=crash_at)
    assert child.killed
    assert child.returncode == -9
    assert len((tmp_path / "trace").read_text().splitlines()) == came
    with pytest.raises(ChildProcessError, match="ended with -9"):
        _ = child.result


@pytest.mark.slow
@pytest.mark.parametrize("crash_at", ["tool.returned:6", "round.closed", None])
def test_a_child_that_does_not_reach_its_crash_point_lives(tmp_path: Path, crash_at: str | None) -> None:
    assert run_child(f"{HERE}:comes_by", [str(tmp_path), "tool.returned", 5], crash_at=crash_at).result == "alive"


@pytest.mark.slow
def test_a_child_that_hangs_is_given_up() -> None:
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(f"{HERE}:sleeps", timeout=1)
    assert time.monotonic() - begun < 5
