"""The sensors' example: the same readings, serial and parallel, with the same commits and different waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cayu import CayuApp, Message, RunRequest, SQLiteSessionStore, run_to_completion
from cayu.examples import sensors
from cayu.observability import ToolRoundTiming


async def timed(app: CayuApp, way: str) -> ToolRoundTiming:
    request = RunRequest(agent_name="caretaker", messages=(Message.text("user", f"Read them {way}."),))
    outcome = await run_to_completion(app, request)
    assert outcome.final_text == "All sensors are fine."
    [record] = await app.inspect_recent_tool_round_timing(outcome.session_id)
    return record


async def test_both_ways_commit_the_same_and_wait_differently(tmp_path: Path) -> None:
    async with sensors.build_app(session_store=SQLiteSessionStore(tmp_path / "sensors.db")) as app:
        serial, parallel = await timed(app, sensors.SERIAL), await timed(app, sensors.PARALLEL)
    commits = [{phase.name: phase.store_transaction_count for phase in each.phases} for each in (serial, parallel)]
    assert commits[0] == commits[1]
    assert sum(commits[0].values()) == len(sensors.SENSORS) + 1
    assert serial.duration_seconds > len(sensors.SENSORS) * sensors.SECONDS > parallel.duration_seconds
    waits = [[call.phase("sibling_wait").duration_seconds for call in each.calls] for each in (serial, parallel)]
    assert waits[0][0] > 2 * sensors.SECONDS * 0.9
    assert waits[0][0] > waits[0][1] > waits[0][2] == 0
    assert max(waits[1]) < sensors.SECONDS


async def test_the_program_prints_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    await sensors.main()
    printed = capsys.readouterr().out
    assert all(word in printed for word in (sensors.SERIAL, sensors.PARALLEL, "publication_queue_wait"))
