"""The whole story in processes of their own: one dies inside an external tool, and `cayu` brings its session to an end.

The application's module lies in the folder in which the commands run; nothing of the tests is on their path.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli import workbench
from cli.support import Bench, Ran

from cayu.canonical import loads
from cayu.cli.recovery import ADVICE
from cayu.events import EventType as E
from cayu.sessions import BlockerCode, CallState, SessionStatus
from cayu.testing import run_child

pytestmark = pytest.mark.slow

TARGET = "agents:build_app"


@pytest.fixture
def killed(tmp_path: Path) -> Bench:
    """A folder with the application and a store, whose process was killed after `send` has acted."""
    shutil.copy(workbench.__file__, tmp_path / "agents.py")
    bench = Bench(tmp_path)
    child = run_child(
        f"{tmp_path / 'agents.py'}:run", [str(bench.store), "s", "send a letter"], crash_at="tool.returned"
    )
    assert child.killed, child.stderr
    assert bench.acts == ["send a letter"]
    return bench


def cayu(bench: Bench, *arguments: object) -> Ran:
    """Run one command in a process of its own, in the bench's folder."""
    left_out = ("COLUMNS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "cayu.cli.main", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=bench.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def execute(bench: Bench, *more: object, plan: str = "plan.json", target: str = TARGET, execution: str = "x1") -> Ran:
    return cayu(
        bench, "recovery", "execute", plan, "--target", target, "--execution-id", execution, "--store", "runs.db", *more
    )


def planned(bench: Bench, file: str = "plan.json", target: str = TARGET) -> Ran:
    return cayu(
        bench, "recovery", "plan", target, "--session", "s", "--inactive-for-seconds", 0, "--output", file,
        "--store", "runs.db",
    )  # fmt: skip


@pytest.mark.requirement("A064", "A068", "A069", "A070", "A071", "A072", "A073")
def test_a_session_that_was_killed_in_an_external_call_is_brought_to_its_end(killed: Bench) -> None:
    profile, before = killed.view().profile, killed.log().records

    waits = cayu(killed, "pending", "--store", "runs.db", "--json")
    assert (waits.code, waits.json["actions"], waits.json["cut_off"]) == (0, [], ["s"])

    changed = planned(killed, "changed.json", "agents:build_changed")
    assert changed.code == 0, changed.err
    assert ADVICE[BlockerCode.REGISTRATION_INCOMPATIBLE] in changed.out
    blocked = execute(killed, plan="changed.json", target="agents:build_changed", execution="x0")
    assert (blocked.code, blocked.err) == (1, f"store {killed.store}\n")
    assert "registration_incompatible" in blocked.out

    plan = planned(killed)
    assert plan.code == 0, plan.err
    left = execute(killed, "--json")
    assert left.code == 1
    assert left.json["items"][0]["blocker_codes"] == ["tool_effect_outcome_unknown"]
    assert killed.log().records == before, "neither a plan nor a blocked execution writes"

    (skeleton,) = json.loads(plan.out[plan.out.index("\n[\n") :])
    assert skeleton["action"] == ""
    found_out = [{**skeleton, "action": "tool_mark_completed", "content": "the letter is on its way"}]
    (killed.folder / "found.json").write_text(json.dumps(found_out))
    done = execute(killed, "--decisions", "found.json", "--by", "an operator", "--json")
    assert done.code == 0, done.err
    assert done.json["items"][0]["status"] == "executed"
    view, records = killed.view(), killed.log().records
    assert (view.status, view.profile) == (SessionStatus.COMPLETED, profile)
    (receipt,) = [loads(record.body) for record in records if record.type == E.RECOVERY_ITEM_EXECUTED]
    assert (receipt["execution_id"], receipt["requested_by"]) == ("x1", "an operator")

    again = execute(killed, "--decisions", "found.json", "--by", "an operator", "--json")
    assert (again.code, again.json["items"][0]["status"]) == (0, "repeated")
    assert killed.log().records == records
    assert killed.acts == ["send a letter"], "an unknown external call was begun again"
    assert cayu(killed, "pending", "--store", "runs.db").out == "Nothing waits.\n"


def test_a_paused_session_is_decided_from_another_process(tmp_path: Path) -> None:
    shutil.copy(workbench.__file__, tmp_path / "agents.py")
    bench = Bench(tmp_path)
    assert run_child(f"{tmp_path / 'agents.py'}:run", [str(bench.store), "s", "order x"]).result == "interrupted"
    (action,) = cayu(bench, "pending", "--store", "runs.db", "--json").json["actions"]
    done = cayu(bench, "approve", action["id"], "--target", TARGET, "--store", "runs.db", "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    shown = cayu(bench, "sessions", "show", "s", "--store", "runs.db")
    assert action["tool_call_id"] in shown.out
    assert bench.acts == ["order x"]


def test_ctrl_c_interrupts_the_session_cleanly(tmp_path: Path) -> None:
    shutil.copy(workbench.__file__, tmp_path / "agents.py")
    bench = Bench(tmp_path)
    bench.run(f"order {workbench.HOLD}")
    (action,) = bench.actions()
    command = ["approve", action, "--target", TARGET, "--store", "runs.db"]
    with subprocess.Popen(
        [sys.executable, "-m", "cayu.cli.main", *command],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline().startswith("the tool says")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    assert err.startswith(f"store {bench.store}\nInterrupted; ")
    state = bench.log().head.state
    assert (state.status, state.owner) == (SessionStatus.INTERRUPTED, None)
    assert [each.state for each in bench.view().rounds[0].calls] == [CallState.UNKNOWN]


def test_a_session_is_interrupted_from_another_process(tmp_path: Path) -> None:
    shutil.copy(workbench.__file__, tmp_path / "agents.py")
    bench = Bench(tmp_path)
    bench.run("talk")
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "cayu.cli.main", "sessions", "resume", "s", f"send {workbench.HOLD}"),
            *("--target", TARGET, "--store", "runs.db"),
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert any(line.startswith("the tool says") for line in child.stdout)
        busy = cayu(bench, "sessions", "resume", "s", "more", "--target", TARGET, "--store", "runs.db", "--json").error
        assert busy["type"] == "SessionRunning"
        asked = cayu(bench, *shlex.split(busy["hint"])[1:], "--reason", "closing time", "--json")
        assert (asked.code, asked.json["asked"], asked.json["closed"]) == (0, ["s"], [])
        out, _ = child.communicate(timeout=45)
    assert child.returncode == 1
    assert "why      interrupt_requested\n" in out
    assert [each.state for each in bench.view().rounds[0].calls] == [CallState.UNKNOWN]


def test_errors_are_sentences_also_for_faults_of_others(killed: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cayu(killed, "recovery", "plan", "agents:nothing", "--store", "runs.db")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("Error: Module 'agents' has no 'nothing'")
    assert "Traceback" not in refused.err
    broken = cayu(killed, "recovery", "plan", "agents:build_badly", "--store", "runs.db")
    assert broken.code == 1
    assert broken.err.startswith("Error: factory 'agents:build_badly' raised LookupError at agents.py:")
    assert broken.err.count("\n") == 1
    monkeypatch.setenv("CAYU_TRACEBACK", "1")
    assert cayu(killed, "recovery", "plan", "agents:build_badly", "--store", "runs.db").err.startswith("Traceback")
    usage = cayu(killed, "recovery", "plan")
    assert usage.code == 2


def test_an_output_that_cannot_say_everything_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.run("talk", title="試料")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = cayu(bench, "sessions", "list", "--store", "runs.db")
    assert (done.code, done.err) == (0, f"store {bench.store}\n")
    assert "\\u8a66\\u6599" in done.out
