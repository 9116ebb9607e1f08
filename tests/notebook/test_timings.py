"""A lab's timing: records across restarts and processes, each once; its frames, their sums, and their size."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from notebook.conftest import Workshop, ask

from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.errors import InvalidInput, LabClosed, StoreError
from cayu.notebook import Lab, schema, timings
from cayu.notebook.frames import Ask, finished
from cayu.observability import RuntimeTimingConfig, TimingRecord, ToolRoundTiming
from cayu.observability.timing_files import TimingFileSink, read_timings
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.testing import run_child
from cayu.timing.phases import PREPARATION_PHASES, ROUND_PHASES, UNATTRIBUTED, WAITS
from cayu.tools import tool

CHILDREN = str(Path(__file__).with_name("timing_children.py"))
FRAMES = ("rounds_df", "phases_df")
TWO = [ModelStreamEvent.tool_call("look", {"word": "x"}, "c1"), ModelStreamEvent.tool_call("boom", {}, "c2")]
SCRIPTS: dict[str, list[Any]] = {
    "two": [TWO, "done"],
    "twice": [ask("look", word="x"), ask("look", word="y"), "done"],
    "unknown": [ask("nope"), "done"],
    "letter": [ask("send", to="ann"), "sent"],
}


@pytest.fixture
def lab(workshop: Workshop) -> Lab:
    workshop.scripts |= SCRIPTS
    return workshop.open()


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab in which calls of several kinds were timed, before and after a restart."""
    lab = Workshop(tmp_path_factory.mktemp("timed"), dict(SCRIPTS)).open()
    lab.run("a", "two", session_id="two")
    lab.run("a", "letter", session_id="letter").pending[0].approve()
    lab.restart()
    lab.run("a", "twice", session_id="twice")
    lab.run("a", "unknown", session_id="unknown")
    yield lab
    lab.close()


def frame_of(lab: Lab, name: str, *args: Any, **more: Any) -> pd.DataFrame:
    found = getattr(lab, name)(*args, **more)
    assert isinstance(found, pd.DataFrame)
    return found


def rounds_of(records: tuple[TimingRecord, ...]) -> list[ToolRoundTiming]:
    return [record for record in records if isinstance(record, ToolRoundTiming)]


def kept(workshop: Workshop) -> Path:
    return workshop.folder / "runs.db.timing"


def factory_of(config: RuntimeTimingConfig, calls: int = 1) -> Callable[..., CayuApp]:
    """A factory of applications that time so, and whose agent makes that many calls in its one round."""

    def build(*, session_store: Any = None, **_: Any) -> CayuApp:
        app = CayuApp(session_store=session_store, runtime_timing=config)
        asked = [ModelStreamEvent.tool_call("look", {}, f"p{number}") for number in range(calls)]
        app.register_provider(ScriptedModelProvider([asked, "done"]))
        app.register_agent(AgentSpec(name="a", model="m"), tools=[_look])
        return app

    return build


@tool(version="1", effect=ToolEffect.NONE)
def _look() -> str:
    """Look around."""
    return "nothing"


# Records.


def test_what_was_timed_outlives_restarts_and_the_lab(lab: Lab, workshop: Workshop) -> None:
    lab.run("a", "two", session_id="s")
    before = lab.timings()
    assert [record.kind for record in before] == ["model_step_preparation", "tool_round", "model_step_preparation"]
    lab.restart()
    assert lab.app.runtime_timing_status().recent_records == 0
    assert lab.timings() == before
    lab.run("a", "twice", session_id="t")
    everything = lab.timings()
    assert everything[:3] == before
    assert len(everything) == 8
    lab.close()
    with pytest.raises(LabClosed):
        lab.timings()
    assert read_timings(kept(workshop)).records == everything
    for how in ({}, {"factory": None}, {"mode": "ro"}):
        assert workshop.open(**how).timings() == everything  # type: ignore[arg-type]
    assert read_timings(kept(workshop)).records == everything


def test_each_record_is_there_once_and_the_oldest_comes_first(lab: Lab, workshop: Workshop) -> None:
    lab.app.add_timing_sink(TimingFileSink(kept(workshop)))  # everything stands in the files twice
    lab.run("a", "twice")
    lab.run("a", "two")
    found = lab.timings()
    assert len(read_timings(kept(workshop)).records) == 2 * len(found) == 16
    assert len({(record.kind, record.model_step_id) for record in found}) == len(found)
    assert [record.started_at for record in found] == sorted(record.started_at for record in found)


def test_records_are_read_from_the_recent_view_where_the_files_lack_them(lab: Lab, workshop: Workshop) -> None:
    kept(workshop).touch()  # no folder can be made here
    assert lab.run("a", "two").status == "completed"
    assert len(lab.timings()) == 3
    assert lab.app.runtime_timing_status().failed_deliveries == 3
    lab.restart()
    assert lab.timings() == ()


def test_records_are_read_from_the_files_where_the_recent_view_lacks_them(workshop: Workshop) -> None:
    lab = workshop.open(factory=factory_of(RuntimeTimingConfig(recent_capacity=1)))
    lab.run("a", "go")
    assert lab.app.runtime_timing_status().recent_records == 1
    assert len(lab.timings()) == 3


def test_reading_waits_for_what_is_on_its_way_to_the_files(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = TimingFileSink.emit_timing

    async def slowly(sink: TimingFileSink, record: TimingRecord) -> None:
        await asyncio.sleep(0.03)
        await at_once(sink, record)

    monkeypatch.setattr(TimingFileSink, "emit_timing", slowly)
    lab = workshop.open(factory=factory_of(RuntimeTimingConfig(recent_capacity=1)))
    lab.run("a", "go")
    assert len(lab.timings()) == 3


def test_an_application_that_times_nothing_leaves_no_files(workshop: Workshop) -> None:
    lab = workshop.open(factory=factory_of(RuntimeTimingConfig(enabled=False)))
    assert lab.run("a", "go").status == "completed"
    assert lab.timings() == ()
    assert not kept(workshop).exists()
    assert len(lab.phases_df()) == 0


def test_a_session_is_named_by_handle_id_or_public_reference(lab: Lab) -> None:
    handle = lab.run("a", "two", session_id="s")
    other = lab.run("a", "twice", session_id="t")
    expected = tuple(record for record in lab.timings() if record.session_id == "s")
    assert len(expected) == 3
    assert handle.timings() == expected
    for name in (handle, "s", handle.view.row.instance_id):
        assert lab.timings(name) == expected
    assert len(other.timings()) == 5
    assert lab.timings("nobody") == ()
    with pytest.raises(InvalidInput, match="not by int"):
        lab.timings(5)  # type: ignore[arg-type]


async def test_the_awaited_twin(lab: Lab) -> None:
    session = await lab.arun("a", "two", session_id="s")
    await lab.arun("a", "two")
    assert await lab.atimings() == lab.timings()
    assert await lab.atimings(session) == lab.timings("s")
    assert inspect.signature(Lab.timings) == inspect.signature(Lab.atimings)


def test_a_lab_that_looks_writes_nothing(lab: Lab, workshop: Workshop) -> None:
    lab.run("a", "hello")
    lab.close()
    before = {path: path.read_bytes() for path in kept(workshop).iterdir()}
    looking = workshop.open(mode="ro")
    assert len(looking.timings()) == 1
    assert len(looking.phases_df()) == len(PREPARATION_PHASES)
    looking.restart()
    looking.close()
    assert {path: path.read_bytes() for path in kept(workshop).iterdir()} == before


def test_a_lab_that_fails_to_open_leaves_no_files(workshop: Workshop) -> None:
    workshop.path.write_text("no database, " * 100)
    with pytest.raises(StoreError):
        workshop.open()
    assert not kept(workshop).exists()


def test_a_stuck_sink_keeps_nobody_from_reading(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "FLUSH_SECONDS", 0.05)

    class Stuck:
        async def emit_timing(self, record: TimingRecord) -> None:
            await asyncio.sleep(60)

    lab = workshop.open(factory=factory_of(RuntimeTimingConfig(sink_timeout_seconds=0.4)))
    lab.app.add_timing_sink(Stuck())
    lab.run("a", "go")
    assert len(lab.timings()) == 3
    assert lab.app.runtime_timing_status().queued_records > 0  # nobody waited for all of them


def test_reading_goes_on_beside_a_run(lab: Lab, workshop: Workshop) -> None:
    workshop.scripts["wait"] = [ask("hold"), "done"]
    running = lab.submit(lab.arun("a", "wait", session_id="w"))
    assert workshop.entered.wait(5)
    assert [record.kind for record in lab.timings("w")] == ["model_step_preparation"]
    assert len(lab.rounds_df()) == 0
    workshop.freed.set()
    assert running.result(5).status == "completed"
    assert len(lab.rounds_df()) == 1


# Frames.


@pytest.mark.parametrize("name", FRAMES)
def test_a_damaged_line_is_said(lab: Lab, workshop: Workshop, name: str) -> None:
    lab.run("a", "two")
    whole = frame_of(lab, name)
    assert "skipped_lines" not in whole.attrs["cayu"]
    (segment,) = kept(workshop).iterdir()
    with segment.open("ab") as file:
        file.write(b'{"schema_version":1,"kind":"tool_round","pha\n')
    damaged = frame_of(lab, name)
    assert damaged.attrs["cayu"]["skipped_lines"] == 1
    assert damaged.equals(whole)


def test_phases_have_the_columns_of_the_design() -> None:
    assert schema("phases_df")["column"].tolist() == [
        *("session_id", "kind", "tool_round_id", "tool_call_id", "tool_name", "phase", "started_at", "completed_at"),
        *("duration_ms", "store_transactions", "store_lock_wait_ms", "store_execution_ms", "store_commit_ms"),
        *("store_bytes", "incomplete", "recovered"),
    ]


def test_every_phase_of_every_record_has_a_row(timed: Lab) -> None:
    frame = timed.phases_df()
    expected = []
    for record in timed.timings():
        names = ROUND_PHASES if isinstance(record, ToolRoundTiming) else PREPARATION_PHASES
        expected += [(record.session_id, record.kind, None, phase) for phase in names]
        for call in record.calls if isinstance(record, ToolRoundTiming) else ():
            expected += [(record.session_id, "tool_call", call.tool_call_id, phase) for phase in ROUND_PHASES]
    columns = [frame[name].astype(object) for name in ("session_id", "kind", "tool_call_id", "phase")]
    rows = [tuple(None if pd.isna(value) else str(value) for value in row) for row in zip(*columns, strict=True)]
    assert rows == expected
    assert set(frame["session_id"]) == {"two", "letter", "twice", "unknown"}


def test_the_rows_say_what_the_records_say(timed: Lab) -> None:
    frame = timed.phases_df({"session_id": "two"})
    records = timed.timings("two")
    found = [
        phase
        for record in records
        for phased in (record, *(record.calls if isinstance(record, ToolRoundTiming) else ()))
        for phase in phased.phases
    ]
    assert len(found) == len(frame) == 2 * len(PREPARATION_PHASES) + 3 * len(ROUND_PHASES)
    for phase, row in zip(found, frame.itertuples(), strict=True):
        assert row.phase == phase.name
        if phase.first_started_at is None:
            assert pd.isna(row.started_at)
            assert pd.isna(row.completed_at)
        else:
            assert (row.started_at, row.completed_at) == (phase.first_started_at, phase.last_completed_at)
        for column, value in (
            ("duration_ms", phase.duration_seconds),
            ("store_lock_wait_ms", phase.store_lock_wait_seconds),
            ("store_execution_ms", phase.store_execution_seconds),
            ("store_commit_ms", phase.store_commit_seconds),
        ):
            assert getattr(row, column) == pytest.approx(value * 1000)
        assert (row.store_transactions, row.store_bytes) == (phase.store_transaction_count, phase.store_bytes_written)
    assert frame["started_at"].notna().sum() > 20
    assert frame["store_commit_ms"].max() > 0


def test_who_a_row_is_of(timed: Lab) -> None:
    calls = timed.calls_df({"session_id": "two"})
    frame = timed.phases_df({"session_id": "two", "phase in": ["execution", "handoff"]})
    (round_id,) = set(calls["tool_round_id"])
    kinds = frame["kind"].astype(str).tolist()
    assert kinds == ["model_step_preparation", "tool_round", "tool_call", "tool_call", "model_step_preparation"]
    assert frame["tool_round_id"].fillna("none").tolist() == ["none", *[round_id] * 4]
    called = frame[frame["kind"].astype(str) == "tool_call"]
    assert called["tool_call_id"].tolist() == calls["tool_call_id"].tolist()
    assert called["tool_name"].tolist() == ["look", "boom"]
    others = frame[frame["kind"].astype(str) != "tool_call"]
    assert others[["tool_call_id", "tool_name"]].isna().all().all()
    assert timed.phases_df({"session_id": "unknown", "kind": "tool_call"})["tool_name"].isna().all()


def test_rounds(timed: Lab) -> None:
    frame = timed.rounds_df()
    records = rounds_of(timed.timings())
    assert frame["session_id"].tolist() == ["two", "letter", "letter", "twice", "twice", "unknown"]
    assert frame["calls"].tolist() == [2, 1, 1, 1, 1, 1]
    assert frame["incomplete"].tolist() == [False, True, False, False, False, False]
    assert not frame["recovered"].any()
    for record, row in zip(records, frame.itertuples(), strict=True):
        assert (row.tool_round_id, row.model_step_id) == (record.tool_round_id, record.model_step_id)
        assert (row.started_at, row.completed_at) == (record.started_at, record.completed_at)
        assert row.duration_ms == pytest.approx(record.duration_seconds * 1000)
        assert row.unattributed_ms == pytest.approx(record.phase(UNATTRIBUTED).duration_seconds * 1000)
        assert row.calls_truncated == 0


def test_rounds_are_the_sums_of_their_phases(timed: Lab) -> None:
    rounds = timed.rounds_df({"session_id !=": "letter"}).set_index("tool_round_id")
    phases = timed.phases_df({"kind": "tool_round", "session_id !=": "letter"})
    sums = phases.groupby("tool_round_id")[["store_transactions", "store_commit_ms", "store_bytes"]].sum()
    assert sums["store_transactions"].min() >= 1
    for column in sums.columns:
        assert rounds[column].astype(float).to_dict() == pytest.approx(sums[column].astype(float).to_dict())
    active = phases[~phases["phase"].astype(str).isin(WAITS)].groupby("tool_round_id")["duration_ms"]
    assert rounds["active_ms"].to_dict() == pytest.approx(active.sum().to_dict())
    serial = rounds.loc[rounds["calls"] == 1]
    assert (serial["unattributed_ms"] < serial["active_ms"]).all()
    assert (serial["active_ms"] <= serial["duration_ms"] * 1.0001).all()


def test_calls_beyond_the_bound_are_counted(workshop: Workshop) -> None:
    lab = workshop.open(factory=factory_of(RuntimeTimingConfig(max_calls_per_round=3), calls=5))
    lab.run("a", "go")
    assert lab.rounds_df()[["calls", "calls_truncated"]].values.tolist() == [[5, 2]]
    assert lab.phases_df({"kind": "tool_call"})["tool_call_id"].nunique() == 3


def test_a_handle_reads_its_own_rows(timed: Lab) -> None:
    handle = timed.session("twice")
    assert handle.rounds_df()["session_id"].tolist() == ["twice"] * 2
    assert set(handle.phases_df(where={"kind": "tool_call"})["tool_name"]) == {"look"}
    assert set(handle.phases_df(where={"session_id": "two"})["session_id"]) == {"twice"}
    assert len(handle.phases_df(limit=3)) == 3


@pytest.mark.parametrize("name", FRAMES)
def test_progress_counts_the_sessions_that_were_timed(timed: Lab, name: str) -> None:
    heard: list[tuple[int, int]] = []
    frame_of(timed, name, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(4, 4)]


def test_many_records_become_a_frame_quickly(timed: Lab) -> None:
    (one,) = rounds_of(timed.timings("two"))
    records = [one.model_copy(update={"session_id": f"s{number % 64}"}) for number in range(1600)]
    asked = Ask("phases_df")
    begun = time.process_time()  # other processes may keep the machine busy
    frame = finished(asked, timings.phases_data(records, asked))
    took = time.process_time() - begun
    assert len(frame) == 1600 * 3 * len(ROUND_PHASES)
    assert frame["session_id"].nunique() == 64
    assert took < 1.5, f"1600 rounds of two calls took {took:.1f} s"  # a quarter of a second on an idle machine


# Processes.


@pytest.mark.slow
def test_a_killed_process_leaves_what_it_had_timed(workshop: Workshop) -> None:
    child = run_child(f"{CHILDREN}:run", [str(workshop.path)], crash_at="round.closing:3")
    assert child.killed, child.stderr
    looking = workshop.open(mode="ro")
    before = looking.timings()
    steps = [(record.kind, record.model_step_id.rpartition(".")[2]) for record in before]
    assert steps[:5] == [
        *(("model_step_preparation", "m1"), ("tool_round", "m1"), ("model_step_preparation", "m2")),
        *(("tool_round", "m2"), ("model_step_preparation", "m3")),
    ]
    assert len(steps) == 5  # the round in which it died was never closed there
    assert run_child(f"{CHILDREN}:recover", [str(workshop.path)]).result == "completed"
    after = looking.timings()
    assert after[:5] == before
    assert after == looking.timings("s")
    rounds = looking.rounds_df()
    assert rounds["recovered"].tolist() == [False, False, True]
    assert rounds["tool_round_id"].is_unique
    assert len(list(kept(workshop).iterdir())) == 2
