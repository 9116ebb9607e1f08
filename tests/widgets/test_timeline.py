"""The timeline of a session's rounds: every state that it can show, over a real store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets
import pytest
from widgets.support import AGENT, buttons, html, inside, letters, settle, until

from cayu.errors import StoreBusy
from cayu.notebook import Lab
from cayu.notebook.figures import worked_example
from cayu.timing import ToolRoundTiming
from cayu_widgets import PhaseTimeline

if TYPE_CHECKING:
    from widgets.conftest import OpenLab

HOSTILE = "<img src=x onerror=alert(1)>"


def picker(view: PhaseTimeline) -> ipywidgets.Dropdown:
    (found,) = [each for each in inside(view) if isinstance(each, ipywidgets.Dropdown)]
    return found


def records(monkeypatch: pytest.MonkeyPatch, *numbers: int, **more: Any) -> None:
    """Have the lab read made-up rounds."""
    made = tuple(
        worked_example().model_copy(update={"tool_round_id": f"round {number}", "duration_seconds": number, **more})
        for number in numbers
    )

    async def read(self: Lab, session: Any = None) -> tuple[ToolRoundTiming, ...]:
        return made

    monkeypatch.setattr(Lab, "atimings", read)


def test_the_rounds_of_a_real_session(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), "done"))
    session = lab.run(AGENT, "go")
    view = PhaseTimeline(session)
    until(lambda: view.state == "shown")
    assert "1 call, incomplete" in html(view)
    lab.pending()[0].approve()
    buttons(view)["Refresh"].click()
    until(lambda: "execution" in html(view))
    shown = html(view)
    for told in ("<svg", "1. send", "round_commit"):
        assert told in shown
    assert len(view.rounds) == 2
    assert view.round == view.rounds[-1]
    assert view.rounds[-1].tool_round_id in shown
    lab.check_quiet()


def test_a_session_without_rounds_is_empty(open_lab: OpenLab) -> None:
    lab = open_lab(batches=("done",))
    view = PhaseTimeline(lab.run(AGENT, "go"))
    until(lambda: view.state == "empty")
    assert "No round of this session has been timed yet" in html(view)
    assert "No round of this session has been timed yet" in view.static_html()
    assert picker(view).layout.display == "none"
    assert view.round is None


def test_what_is_not_read_yet_is_not_called_empty(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=("done",))
    session = lab.run(AGENT, "go")
    monkeypatch.setattr(PhaseTimeline, "begin", lambda self, work: None)
    view = PhaseTimeline(session)
    assert view.state == "loading"
    assert "still being read" in view.static_html()


def test_another_round_is_chosen_and_stays_chosen(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=("done",))
    records(monkeypatch, 1, 2)
    view = PhaseTimeline(lab.run(AGENT, "go"))
    until(lambda: view.state == "shown")
    assert "round 2" in html(view)
    picker(view).value = 0
    assert "round 1" in html(view)
    assert "round 1" in view.static_html()
    assert "<svg" in view.static_html()
    assert "<select" not in view.static_html()
    records(monkeypatch, 1, 2, 3)
    buttons(view)["Refresh"].click()
    until(lambda: len(view.rounds) == 3)
    settle(lab)
    assert picker(view).value == 0
    picker(view).value = 2
    records(monkeypatch, 1, 2, 3, 4)
    view.heard(lab.sessions_df()["session_id"][0])
    until(lambda: len(view.rounds) == 4)
    settle(lab)
    assert picker(view).value == 3
    assert "round 4" in html(view)


def test_what_tools_and_ids_are_called_is_text(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=("done",))
    records(monkeypatch, 1, session_id=HOSTILE, calls=_hostile_calls())
    view = PhaseTimeline(lab.run(AGENT, "go"))
    until(lambda: view.state == "shown")
    for shown in (html(view), view.static_html()):
        assert "&lt;img" in shown
        assert "<img" not in shown


def _hostile_calls() -> tuple[Any, ...]:
    calls = worked_example().calls
    return tuple(call.model_copy(update={"tool_name": HOSTILE, "tool_call_id": HOSTILE}) for call in calls)


def test_a_closed_lab_leaves_what_was_read(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), "done"))
    view = PhaseTimeline(lab.run(AGENT, "go"))
    until(lambda: view.state == "shown")
    lab.close()
    buttons(view)["Refresh"].click()
    assert view.state == "stale"
    assert "read last" in html(view)
    assert "<svg" in html(view)


def test_records_that_cannot_be_read_are_an_error(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=(letters("ann"), "done"))
    session = lab.run(AGENT, "go")

    async def busy(self: Lab, session: Any = None) -> Any:
        raise StoreBusy(path="runs.db")

    with monkeypatch.context() as patched:
        patched.setattr(Lab, "atimings", busy)
        view = PhaseTimeline(session)
        until(lambda: "StoreBusy" in html(view))
    assert view.state == "error"
    assert lab.errors_df()["session_id"].tolist() == [session.id]
    buttons(view)["Refresh"].click()
    until(lambda: view.state == "shown")
    until(lambda: "StoreBusy" not in html(view))
