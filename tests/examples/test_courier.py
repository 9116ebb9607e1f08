"""The courier's bad night, in a process of its own: nothing is sent twice, and either way of finding out works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cayu.examples.courier import Courier, build_app, build_new_app
from cayu.runtime.outcome import outcome_of
from cayu.sessions import RecoveryPlanRequest
from cayu.testing import run_child

NIGHT = "night-run"
pytestmark = pytest.mark.slow


def go_wrong(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cayu.examples.courier"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


async def test_the_night_leaves_one_parcel_and_a_session_that_only_the_first_release_can_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = go_wrong(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cayu recovery plan" in done.stdout
    assert len(Courier(tmp_path / "courier.db").all()) == 1
    monkeypatch.chdir(tmp_path)
    for build, code in ((build_app, "tool_effect_outcome_unknown"), (build_new_app, "registration_incompatible")):
        async with build() as app:
            [item] = (await app.plan_recovery(RecoveryPlanRequest(session_ids=(NIGHT,)))).items
            assert code in item.blocker_codes
    assert go_wrong(tmp_path).returncode == 1, "the session exists already"


@pytest.mark.requirement("A044")
@pytest.mark.parametrize(("point", "sent"), [("tool.dispatched", 0), ("tool.returned", 1)])
async def test_a_registered_reconciler_finds_out_by_itself(point: str, sent: int, tmp_path: Path) -> None:
    child = run_child("cayu.examples.courier:run_in", [str(tmp_path), NIGHT], crash_at=point)
    assert child.killed
    async with build_app(folder=tmp_path, reconciled=True) as app:
        async for _ in app.recover_incomplete_session(NIGHT):
            pass
        outcome = await outcome_of(app, NIGHT)
    assert outcome.status == "completed"
    [call] = outcome.tool_calls
    assert (call.state, call.is_error) == (("completed", False) if sent else ("failed", True))
    assert len(Courier(tmp_path / "courier.db").all()) == sent
