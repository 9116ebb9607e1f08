"""The board of an experiment: every state that it can show, over a real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from notebook.memory_lab import TRIALS, MemoryLab, broken, sweep
from widgets.support import buttons, html, inside, until

from cayu.errors import InvalidInput
from cayu.experiments import Experiment, baseline, omit_expected, recall_off
from cayu.notebook import ExperimentHandle, Lab
from cayu_widgets import ExperimentBoard, board

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    monkeypatch.setattr(board, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(board, "EFFECTS_SECONDS", 0.04)
    made = MemoryLab(tmp_path)
    yield made
    made.close()


def held(room: MemoryLab, lab: Lab, after: int = 0) -> ExperimentHandle:
    """An experiment that has done a few trials and stands still."""
    room.hold(after)
    handle = lab.experiment(sweep(), room.study(lab))
    until(lambda: room.provider.asked > room.provider.free)
    return handle


def bar(shown: ExperimentBoard) -> ipywidgets.IntProgress:
    (found,) = [each for each in inside(shown) if isinstance(each, ipywidgets.IntProgress)]
    return found


def finished(shown: ExperimentBoard) -> None:
    until(lambda: "finished, " in html(shown) and VIEW not in shown._repr_mimebundle_(), "the board to finish")


def test_progress_and_effects_arrive(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab)
    shown = ExperimentBoard(handle)
    until(lambda: f"running, 0 of {TRIALS} trials" in html(shown))
    assert board.NOTHING_YET in html(shown)
    assert "<svg" not in html(shown)
    assert (bar(shown).value, bar(shown).max, bar(shown).layout.display) == (0, TRIALS, None)
    assert list(buttons(shown)) == ["Stop"]
    assert buttons(shown)["Stop"].tooltip
    room.provider.freed.set()
    finished(shown)
    assert bar(shown).layout.display == "none"
    assert buttons(shown)["Stop"].layout.display == "none"
    told = html(shown)
    for words in (f"finished, {TRIALS} of {TRIALS} trials", "recall_off", "omit_expected", "What the memory was worth"):
        assert words in told
    assert told.count("Experiment sweep") == 1
    assert board.NOTHING_YET not in told
    assert repr(shown) == f"<ExperimentBoard 'sweep': finished, {TRIALS} of {TRIALS} trials>"
    lab.check_quiet()


def test_effects_are_shown_before_the_end(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab, TRIALS - 2)
    shown = ExperimentBoard(handle)
    until(lambda: "<svg" in html(shown), "effects of a part of the trials")
    assert handle.state == "running"
    assert "running, " in html(shown)
    assert "<svg" in shown.static_html()
    room.provider.freed.set()
    finished(shown)


def test_stop_lets_trials_in_work_end(room: MemoryLab) -> None:
    lab = room.open()
    handle = held(room, lab, 2)
    shown = ExperimentBoard(handle)
    buttons(shown)["Stop"].click()
    [stop] = buttons(shown).values()
    assert stop.disabled
    assert stop.description == "Stopping, trials in work end"
    assert handle.state == "running"
    room.provider.freed.set()
    until(lambda: "cancelled, " in html(shown))
    assert 2 < len(handle.run.records) < TRIALS
    assert handle.run.failures == []
    assert stop.layout.display == "none"
    assert "cayu-interrupted" in html(shown)
    lab.check_quiet()
    after = ExperimentBoard(lab.experiment(sweep(), room.study(lab)))
    finished(after)
    assert f"{TRIALS} of {TRIALS} trials" in html(after)
    assert room.provider.asked == TRIALS


def test_a_failure_is_told_as_text(room: MemoryLab) -> None:
    lab = room.open()
    handle = lab.experiment(sweep(arms=[baseline(), broken(InvalidInput(HOSTILE))]), room.study(lab))
    shown = ExperimentBoard(handle)
    until(lambda: "failed, " in html(shown))
    for each in (html(shown), shown.static_html()):
        assert "InvalidInput: &lt;img" in each
        assert "<img" not in each


def test_names_are_text(room: MemoryLab) -> None:
    lab = room.open()
    arms = [baseline(), recall_off(), omit_expected(HOSTILE)]
    handle = lab.experiment(Experiment(sweep().cases, arms, name=HOSTILE), room.study(lab))
    shown = ExperimentBoard(handle)
    finished(shown)
    for each in (html(shown), shown.static_html()):
        assert each.count("&lt;img") >= 3  # the title, the table and the figure
        assert "<img" not in each


def test_what_has_ended_is_plain_html(room: MemoryLab) -> None:
    lab = room.open()
    shown = ExperimentBoard(lab.experiment(sweep(), room.study(lab)).wait(20))
    finished(shown)
    bundle = shown._repr_mimebundle_()
    for words in ("finished, ", "recall_off", "<svg"):
        assert words in bundle["text/html"]
    assert "Stop" not in bundle["text/html"]
    assert bundle["text/html"].count("Experiment sweep") == 1


class Place:
    """One output of a page."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        self.bundles = [bundle]

    def update(self, bundle: dict[str, Any], *, raw: bool) -> None:
        assert raw
        self.bundles.append(bundle)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """Everything that is displayed."""
    places: list[Place] = []

    def display(bundle: dict[str, Any], *, raw: bool, display_id: bool) -> Place:
        assert (raw, display_id) == (True, True)
        places.append(Place(bundle))
        return places[-1]

    monkeypatch.setattr(board, "display", display)
    return places


def test_the_end_takes_the_place_of_the_live_board(room: MemoryLab, page: list[Place]) -> None:
    lab = room.open()
    handle = held(room, lab)
    shown = ExperimentBoard(handle)
    shown._ipython_display_()
    shown._ipython_display_()
    assert [VIEW in place.bundles[0] for place in page] == [True, True]
    assert all(f"0 of {TRIALS} trials" in place.bundles[0]["text/html"] for place in page)
    room.provider.freed.set()
    until(lambda: all(len(place.bundles) == 2 for place in page), "the end on the page")
    for place in page:
        assert VIEW not in place.bundles[1]
        assert f"finished, {TRIALS} of {TRIALS} trials" in place.bundles[1]["text/html"]
    shown._ipython_display_()  # once more, after the end
    assert VIEW not in page[-1].bundles[0]


def test_a_lab_closed_meanwhile_leaves_what_is_known(room: MemoryLab, page: list[Place]) -> None:
    lab = room.open()
    handle = held(room, lab, 6)
    shown = ExperimentBoard(handle)
    shown._ipython_display_()
    threading.Timer(0.1, room.provider.freed.set).start()
    lab.close()
    assert handle.state == "cancelled"
    assert "cancelled, " in html(shown)
    assert "cancelled, " in page[0].bundles[-1]["text/html"]
    late = ExperimentBoard(handle)
    assert "cancelled, " in html(late)
    assert list(late._repr_mimebundle_()) == ["text/plain", "text/html"]
    late.close()


def test_a_board_taken_off_the_page_does_no_more(room: MemoryLab, page: list[Place]) -> None:
    lab = room.open()
    handle = held(room, lab)
    shown = ExperimentBoard(handle)
    shown._ipython_display_()
    shown.close()
    room.provider.freed.set()
    handle.wait(20)
    lab.check_quiet()
    assert len(page[0].bundles) == 1


def test_effects_that_cannot_be_told_are_an_error(room: MemoryLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = room.open()
    handle = held(room, lab)

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("no numbers")

    with monkeypatch.context() as patched:
        patched.setattr(board, "effects", fails)
        patched.setattr(ExperimentHandle, "effects", property(fails))
        shown = ExperimentBoard(handle)
        until(lambda: "ZeroDivisionError: no numbers" in html(shown))
        assert "ZeroDivisionError" in shown.static_html()
    assert lab.errors_df()["source"].tolist() == ["ExperimentBoard"]
    room.provider.freed.set()
    handle.wait(20)


@pytest.mark.parametrize("wrong", [None, "sweep", 3])
def test_anything_but_a_handle_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"what lab\.experiment\(\.\.\.\) returned"):
        ExperimentBoard(wrong)


def test_decisions_of_sessions_do_not_concern_it(room: MemoryLab) -> None:
    lab = room.open()
    shown = ExperimentBoard(held(room, lab))
    before = html(shown)
    shown.heard("any")
    assert html(shown) == before
    room.provider.freed.set()
    finished(shown)
