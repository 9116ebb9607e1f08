"""What the README shows is true: its first program runs, and its diagrams are printed from the tables."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cayu import errors
from cayu.sessions.states import CALL, SESSION
from cayu.timing.phases import ROUND_PHASES

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_diagrams_are_the_tables() -> None:
    shown = re.findall(r"```mermaid\n(.*?)\n```", README, re.DOTALL)
    assert shown == [SESSION.diagram(), CALL.diagram()]


def test_it_leads_with_the_two_commands() -> None:
    first = README.split("\n\n")[1]
    assert [line.split()[:2] for line in first.splitlines()] == [["make", "demo"], ["make", "test"]]


def test_the_errors_it_names_exist() -> None:
    for name in ("AlreadyDecided", "ExecutionProfileMismatchError"):
        assert name in README
        assert hasattr(errors, name)


@pytest.mark.slow
def test_the_stuck_session_is_repaired_with_the_commands_as_they_stand(tmp_path: Path) -> None:
    section = README.split("## When a session is stuck")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    first, planning, looking, repair = (block.strip().splitlines() for block in blocks)
    [found] = re.findall(r"```json\n(.*?)```", section, re.DOTALL)

    def run(command: str) -> str:
        program, _, rest = command.partition(" ")
        start = [sys.executable] if program == "python" else [sys.executable, "-m", "cayu.cli.main"]
        done = subprocess.run(
            [*start, *shlex.split(rest)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    _, waiting = [run(command) for command in first]
    assert "night-run" in waiting
    blocked, _ = [run(command) for command in planning]
    assert "registration_incompatible" in blocked
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    [needed] = plan["items"][0]["needed_decisions"]
    call_id = needed["tool_call_id"]
    [book] = [run(command) for command in looking]
    assert book == f"parcel 1 for the cold room, note {needed['idempotency_key']}\n"
    (tmp_path / "decisions.json").write_text(found.replace('"..."', json.dumps(call_id)), encoding="utf-8")
    executed, shown = [run(command) for command in repair]
    assert "executed" in executed
    assert "completed" in shown
    assert "repeated" in run(repair[0])


@pytest.mark.slow
def test_the_first_program_runs_as_it_stands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[0]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    paused, ended = done.stdout.splitlines()
    assert paused.startswith("interrupted")
    assert ended == "completed I have told the lab."


@pytest.mark.slow
def test_the_notebook_program_runs_after_it(tmp_path: Path) -> None:
    program = PROGRAMS[0].replace("asyncio.run(main())", "") + PROGRAMS[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_notebooks_it_lists_are_those_that_are_there() -> None:
    root = Path(__file__).parents[1]
    listed = re.findall(r"\]\((notebooks/\w+\.ipynb)\)", README)
    assert listed == sorted(f"notebooks/{path.name}" for path in root.joinpath("notebooks").glob("*.ipynb"))


def test_the_timing_program_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = [text for text in PROGRAMS if "inspect_recent_tool_round_timing" in text]
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in lines] == list(ROUND_PHASES)
    counts = {words[0]: int(words[3]) for words in lines}
    assert {name: count for name, count in counts.items() if count} == {
        "started_persistence": 1,
        "staging": 2,
        "round_commit": 1,
    }


@pytest.mark.slow
def test_the_memory_program_runs_as_it_stands(tmp_path: Path) -> None:
    [program] = [text for text in PROGRAMS if "estimate_effects" in text]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = {words[0]: float(words[1]) for words in (line.split() for line in done.stdout.splitlines())}
    assert found["omit_expected"] < -0.9
    assert found["irrelevant"] == 0.0
