"""Experiments of a lab: begun in the background, waited for, cancelled, gone on with, and shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook.conftest import until
from notebook.memory_lab import TRIALS, MemoryLab, broken, sweep
from notebook.reading import HOSTILE, read

from cayu.errors import InvalidInput, LabClosed, LabNotQuiet, NotebookError, OnLabLoop
from cayu.experiments import Experiment, Subject, baseline, recall_off
from cayu.notebook import ExperimentHandle, Lab, experimenting


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MemoryLab]:
    made = MemoryLab(tmp_path)
    yield made
    made.close()


def held(room: MemoryLab, lab: Lab, after: int = 3, **more: Any) -> ExperimentHandle:
    """An experiment that has done a few trials and stands still."""
    room.hold(after)
    handle = lab.experiment(sweep(), room.study(lab), **more)
    until(lambda: room.provider.asked > room.provider.free, "the model to be held")
    return handle


def test_an_experiment_runs_while_the_cell_goes_on(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab)
    assert (handle.state, handle.done, handle.run.total) == ("running", False, TRIALS)
    assert handle.failure is None
    assert len(lab.sessions_df()) > 0  # the loop is free
    room.provider.freed.set()
    assert handle.wait(20) is handle
    assert (handle.state, handle.done, len(handle.run.records)) == ("finished", True, TRIALS)
    assert [effect.difference for effect in handle.effects] == [-1, -1]
    assert repr(handle) == f"<Experiment 'sweep': finished, {TRIALS} of {TRIALS} trials>"
    assert lab.experiments == [handle]
    lab.check_quiet()


def test_waiting_has_an_end_and_the_experiment_goes_on(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab)
    with pytest.raises(TimeoutError, match="'sweep' goes on: running, "):
        handle.wait(0.01)
    assert handle.state == "running"
    room.provider.freed.set()
    handle.wait(20)


def test_an_interrupted_cell_stops_waiting_only(room: MemoryLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = room.open()
    handle = held(room, lab)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(experimenting, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
    assert handle.state == "running"
    room.provider.freed.set()
    assert handle.wait(20).state == "finished"


async def test_it_is_begun_and_awaited_on_another_loop(room: MemoryLab) -> None:
    lab = await asyncio.to_thread(room.open)
    study = await asyncio.to_thread(room.study, lab)
    handle = await lab.aexperiment(sweep(), study)
    assert await handle is handle
    assert await handle is handle
    assert handle.state == "finished"
    room.hold()
    again = await lab.aexperiment(sweep("again"), study)

    async def waits() -> None:
        await again

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waits(), 0.05)
    assert again.state == "running"  # who stops awaiting stops nothing else
    asyncio.get_running_loop().call_later(0.1, room.provider.freed.set)
    await again.acancel()
    assert again.state == "cancelled"
    with pytest.raises(NotebookError, match="was cancelled; begin it again"):
        await again


def test_the_blocking_verbs_refuse_the_lab_s_own_loop(room: MemoryLab) -> None:
    lab = room.open()
    study = room.study(lab)
    handle = held(room, lab)

    async def misuse(verb: Callable[[], object]) -> None:
        verb()

    for verb in (
        lambda: lab.experiment(sweep("other"), study),
        lambda: room.study(lab),
        handle.wait,
        handle.cancel,
    ):
        with pytest.raises(OnLabLoop):
            lab.call(misuse(verb))
    assert handle.state == "running"

    async def properly() -> ExperimentHandle:
        return await (await lab.aexperiment(sweep("other"), study))

    room.provider.freed.set()
    assert lab.call(properly()).state == "finished"
    handle.wait(20)


def test_one_name_runs_once_at_a_time(room: MemoryLab) -> None:
    lab = room.open()
    study = room.study(lab)
    handle = held(room, lab)
    with pytest.raises(InvalidInput, match="'sweep' is running already; wait for it, or cancel it"):
        lab.experiment(sweep(), study)
    assert lab.experiments == [handle]
    room.provider.freed.set()
    handle.wait(20)
    asked = room.provider.asked
    assert len(lab.experiment(sweep(), study).wait(20).run.records) == TRIALS
    assert room.provider.asked == asked  # read from the journal


def test_a_cancelled_experiment_loses_no_trial_and_goes_on(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab, concurrency=2)
    threading.Timer(0.1, room.provider.freed.set).start()
    handle.cancel()
    assert handle.state == "cancelled"
    assert 3 < len(handle.run.records) < TRIALS
    assert handle.run.failures == []
    handle.cancel()  # a second time there is nothing to do
    with pytest.raises(NotebookError, match="'sweep' was cancelled"):
        handle.wait()
    lab.check_quiet()
    again = lab.experiment(sweep(), room.study(lab)).wait(20)
    assert len(again.run.records) == TRIALS
    assert again.run.failures == []
    assert room.provider.asked == TRIALS
    assert len(lab.trials_df()) == TRIALS  # of the latest run of the name


def test_two_that_cancel_do_not_tear_trials_away(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab)
    for _ in range(2):
        lab.submit(handle.acancel())
        lab.call(asyncio.sleep(0.05))
    assert handle.state == "running"  # a trial is in work
    room.provider.freed.set()
    handle.cancel()
    assert handle.run.failures == []


@pytest.mark.parametrize("end", ["restart", "close"])
def test_the_end_of_the_lab_ends_the_experiment_and_loses_nothing(room: MemoryLab, end: str) -> None:
    lab = room.open()
    handle = held(room, lab)
    threading.Timer(0.1, room.provider.freed.set).start()
    getattr(lab, end)()
    assert handle.state == "cancelled"
    assert len(handle.run.records) < TRIALS
    assert handle.run.failures == []
    assert f"{len(handle.run.records)} of {TRIALS} trials" in repr(handle)  # still readable
    if end == "close":
        with pytest.raises(LabClosed):
            lab.experiment(sweep(), None)  # type: ignore[arg-type]
        lab = room.open()
    again = lab.experiment(sweep(), room.study(lab)).wait(20)
    assert (len(again.run.records), again.run.failures) == (TRIALS, [])
    assert room.provider.asked == TRIALS


def test_a_slow_trial_is_stopped_at_the_end_of_the_lab_and_attempted_anew(
    room: MemoryLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experimenting, "STOPPING_SECONDS", 0.1)
    lab = room.open()
    handle = held(room, lab, concurrency=1)
    lab.restart()
    assert handle.state == "cancelled"
    room.provider.freed.set()
    again = lab.experiment(sweep(), room.study(lab)).wait(20)
    assert (len(again.run.records), again.run.failures) == (TRIALS, [])
    assert room.provider.asked == TRIALS + 1


def test_a_study_from_before_a_restart_is_refused(room: MemoryLab) -> None:
    lab = room.open()
    study = room.study(lab)
    lab.restart()
    with pytest.raises(InvalidInput, match=r"after lab.restart\(\) call lab.study"):
        lab.experiment(sweep(), study)
    assert lab.experiments == []


def test_a_lab_that_only_looks_runs_no_experiment(room: MemoryLab) -> None:
    lab = room.open()
    study = room.study(lab)
    looking = Lab.open(room.path, mode="ro")
    room.labs.append(looking)
    for refused in (lambda: room.study(looking), lambda: looking.experiment(sweep(), study)):
        with pytest.raises(InvalidInput, match="only looks"):
            refused()
    assert len(looking.trials_df()) == 0


def test_a_running_experiment_is_not_quiet(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab)
    with pytest.raises(LabNotQuiet, match="experiment sweep still runs"):
        lab.check_quiet()
    room.provider.freed.set()
    handle.wait(20)
    lab.check_quiet()


def test_a_failed_experiment_is_told_to_whoever_waits(room: MemoryLab) -> None:
    lab = room.open()
    handle = lab.experiment(sweep(arms=[baseline(), broken(InvalidInput(HOSTILE))]), room.study(lab))
    with pytest.raises(InvalidInput, match="img src"):
        handle.wait(20)
    assert (handle.state, type(handle.failure)) == ("failed", InvalidInput)
    lab.check_quiet()  # it was raised, and so read
    shown = read(handle._repr_mimebundle_()["text/html"])
    assert "failed, " in shown.text
    assert f"InvalidInput: {HOSTILE}" in shown.text


def test_a_failure_that_nobody_waits_for_is_kept(room: MemoryLab) -> None:
    lab = room.open()
    handle = lab.experiment(sweep(arms=[baseline(), broken(InvalidInput("no"))]), room.study(lab))
    until(lambda: handle.done, "the experiment to fail")
    with pytest.raises(LabNotQuiet, match="InvalidInput in experiment sweep"):
        lab.check_quiet()
    assert lab.errors_df()["source"].tolist() == ["experiment sweep"]
    lab.check_quiet()


def test_who_looks_on_fails_nothing(room: MemoryLab) -> None:
    lab = room.open()
    counts: list[int] = []

    def progress(run: Any) -> None:
        counts.append(len(run.records))
        if len(counts) == 2:
            raise ValueError("no such bar")

    lab.experiment(sweep(), room.study(lab), progress=progress).wait(20)
    assert counts == list(range(1, TRIALS + 1))
    assert lab.errors_df()[["source", "type"]].values.tolist() == [["progress", "ValueError"]]


def test_trials_go_on_in_another_lab_by_the_key_beside_the_store(room: MemoryLab) -> None:
    lab = room.open()
    lab.experiment(sweep(), room.study(lab)).wait(20)
    asked = room.provider.asked
    lab.close()
    other = room.open()
    assert other.experiment(sweep(), room.study(other)).wait(20).run.failures == []
    assert room.provider.asked == asked


def test_a_study_of_nothing_to_read_is_refused(room: MemoryLab) -> None:
    lab = room.open()
    with pytest.raises(InvalidInput, match="bound to what the agent may read"):
        lab.study(Subject(room.build_app, "reader", room.knowledge), sweep().cases)


def test_a_card_says_what_was_found_and_how_sure_it_is(room: MemoryLab) -> None:
    lab = room.open()
    arms = [baseline(), recall_off()]
    handle = lab.experiment(Experiment(sweep().cases, arms, repeats=2, name=HOSTILE), room.study(lab)).wait(20)
    bundle = handle._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    shown = read(bundle["text/html"]).text
    assert f"Experiment {HOSTILE}" in shown
    for words in (
        "finished, 12 of 12 trials",
        "3 questions, 1 intervention beside the baseline, 2 repeats, seed 0",
        "\N{MINUS SIGN}1.00 to \N{MINUS SIGN}1.00",
        "2 topics and 1 intervention are too few to decide anything: p cannot fall below 0.50.",
    ):
        assert words in shown


def test_what_is_to_be_attempted_anew_is_passed_on_and_checked(room: MemoryLab) -> None:
    lab = room.open()
    study = room.study(lab)
    with pytest.raises(InvalidInput, match="'completed' is none"):
        lab.experiment(sweep(), study, retry="completed").wait(20)
    again = lab.experiment(sweep(), study, retry=("failed", "timed_out")).wait(20)
    assert (len(again.run.records), again.run.failures) == (TRIALS, [])
    assert set(lab.trials_df()["attempt"]) == {1}
