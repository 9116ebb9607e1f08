"""The words of the widgets: counts, durations, list rows and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets
import pytest
from widgets.support import AGENT, buttons, inside, question, settle

from cayu.sessions.streams import StreamHead, StreamRow, StreamState
from cayu_widgets import ApprovalPrompt, ApprovalQueue, SessionBrowser, SessionView
from cayu_widgets.markup import MOST_CALLS, duration_text, grouped, page_text, rounds_html, row_header, row_label

if TYPE_CHECKING:
    from widgets.conftest import OpenLab


def head(**row: Any) -> StreamHead:
    fields = {"id": "s1", "instance_id": "i", "agent_name": "clerk", "provider_name": "p", "model": "m"} | row
    return StreamHead(StreamRow(**fields), StreamState(status="interrupted", pending=2, created_at=0))


@pytest.mark.parametrize("number, text", [(0, "0"), (999, "999"), (4213, "4 213"), (1234567, "1 234 567")])
def test_counts_are_grouped_by_narrow_spaces(number: int, text: str) -> None:
    assert grouped(number) == text.replace(" ", "\u202f")


def test_pages_say_which_rows_they_hold() -> None:
    assert page_text(0, 50, 4213) == "1-50 of 4\u202f213"
    assert page_text(50, 7, 57) == "51-57 of 57"
    assert page_text(0, 0, 0) == "0 of 0"


@pytest.mark.parametrize("ms, text", [(0.25, "0.2 ms"), (41.4, "41 ms"), (999, "999 ms"), (3210, "3.2 s")])
def test_durations_keep_what_matters(ms: float, text: str) -> None:
    assert duration_text(ms) == text


def test_rows_stand_under_their_column_names() -> None:
    label, names = row_label(head(title="A\ntitle"), opened=False), row_header()
    for name, cell in (("Status", "interrupted"), ("Waits", "2"), ("Agent", "clerk"), ("Title", "A\xa0title")):
        assert label.index(cell) == names.index(name)
    assert " " not in label
    long = row_label(head(agent_name="x" * 40, title="y" * 90), opened=True)
    assert long.startswith(">")
    assert long.count("…") == 2
    assert long.index("y") == names.index("Title")


def test_a_long_table_of_calls_says_what_it_leaves_out(open_lab: OpenLab) -> None:
    view = open_lab().run(AGENT, "go").view
    assert "The last" not in rounds_html(view)
    opened = view.rounds[0]
    many = replace(view, rounds=[replace(opened, calls=opened.calls * (MOST_CALLS + 1))])
    assert f"The last {MOST_CALLS} of {MOST_CALLS + 1} calls" in rounds_html(many)
    assert rounds_html(many).count("<tr>") == MOST_CALLS + 1
    assert "No tool has been called." in rounds_html(replace(view, rounds=[]))


def test_every_control_has_words_and_a_tooltip(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(question("Which?", options=["A"], allow_other=True), "done"))
    session = lab.run(AGENT, "go")
    shown = [ApprovalPrompt(lab.pending()[0]), ApprovalQueue(lab), SessionView(session), SessionBrowser(lab)]
    settle(lab)
    settle(lab)
    for widget in shown:
        for control in inside(widget):
            if isinstance(control, ipywidgets.Button):
                assert control.description
                assert control.tooltip
            elif isinstance(control, ipywidgets.Text | ipywidgets.Textarea | ipywidgets.Dropdown):
                assert control.tooltip
        bundle = widget._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert "<div" in bundle["text/html"]
        assert type(widget).__name__ in bundle["text/plain"]
    assert buttons(shown[0])
