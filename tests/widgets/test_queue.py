"""The queue over a real store: what waits, what came of it, and the script of a headless notebook."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from widgets.support import AGENT, SENT, buttons, html, letters, question, settle, until

from cayu.errors import HeadlessDecisionMissing
from cayu.notebook import headless
from cayu_widgets import ApprovalQueue, PromptState
from cayu_widgets.queue import MOST_PROMPTS

if TYPE_CHECKING:
    from widgets.conftest import OpenLab

EMPTY = "Nothing waits for a decision"


def test_an_empty_queue_says_so_in_words(open_lab: OpenLab) -> None:
    queue = ApprovalQueue(open_lab())
    until(lambda: EMPTY in html(queue))
    assert list(buttons(queue)) == ["Refresh"]
    assert EMPTY in queue.static_html()


def test_the_queue_shows_all_that_waits_and_what_came_of_it(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann", "bob"), "done"))
    lab.run(AGENT, "one")
    lab.run(AGENT, "two")
    queue = ApprovalQueue(lab)
    until(lambda: "4 decisions pending" in html(queue))
    assert [prompt.action.id for prompt in queue.prompts] == [handle.id for handle in lab.pending()]
    for prompt in queue.prompts[:2]:
        buttons(prompt)["Approve"].click()
    until(lambda: "2 decisions pending" in html(queue))
    until(lambda: [p.shown.state for p in queue.prompts[:2]] == [PromptState.APPLIED] * 2)
    assert len(queue.prompts) == 4
    buttons(queue)["Refresh"].click()
    until(lambda: len(queue.prompts) == 2)
    assert {prompt.shown.state for prompt in queue.prompts} == {PromptState.PENDING}
    assert sorted(each["to"] for each in SENT) == ["ann", "bob"]  # they ran side by side
    lab.check_quiet()


def test_a_decision_brings_in_what_newly_waits(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), letters("bob"), "done"))
    lab.run(AGENT, "go")
    queue = ApprovalQueue(lab)
    until(lambda: len(queue.prompts) == 1)
    buttons(queue.prompts[0])["Approve"].click()
    until(lambda: len(queue.prompts) == 2)
    assert queue.prompts[1].shown.state is PromptState.PENDING


def test_refresh_finds_what_others_did(open_lab: OpenLab) -> None:
    lab, elsewhere = open_lab(), open_lab()
    queue = ApprovalQueue(lab)
    until(lambda: EMPTY in html(queue))
    elsewhere.run(AGENT, "go")
    buttons(queue)["Refresh"].click()
    until(lambda: "1 decision pending" in html(queue))
    elsewhere.pending()[0].deny()
    buttons(queue)["Refresh"].click()
    until(lambda: EMPTY in html(queue))
    assert queue.prompts == []


def test_a_new_process_shows_the_same(open_lab: OpenLab) -> None:
    before = open_lab()
    before.run(AGENT, "go")
    first = ApprovalQueue(before)
    until(lambda: len(first.prompts) == 1)
    before.close()
    again = ApprovalQueue(open_lab())
    until(lambda: len(again.prompts) == 1)
    assert again.prompts[0].action == first.prompts[0].action
    buttons(again.prompts[0])["Approve"].click()
    until(lambda: EMPTY in html(again))
    assert len(SENT) == 1


def test_a_long_queue_shows_its_oldest_and_says_so(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters(*(f"to{number}" for number in range(MOST_PROMPTS + 5))), "done"))
    lab.run(AGENT, "go")
    queue = ApprovalQueue(lab)
    until(lambda: queue.waiting == MOST_PROMPTS + 5)
    assert len(queue.prompts) == MOST_PROMPTS
    assert f"The {MOST_PROMPTS} oldest of {MOST_PROMPTS + 5} are shown" in html(queue)
    buttons(queue.prompts[0])["Deny"].click()
    until(lambda: queue.waiting == MOST_PROMPTS + 4)
    buttons(queue)["Refresh"].click()
    oldest = [handle.id for handle in lab.pending()[:MOST_PROMPTS]]
    until(lambda: [prompt.action.id for prompt in queue.prompts] == oldest)


def test_it_says_that_it_is_loading(open_lab: OpenLab) -> None:
    lab = open_lab()
    free = threading.Event()

    async def hold() -> None:
        free.wait(10)

    holding = lab._bridge.submit(hold())
    queue = ApprovalQueue(lab)
    assert "loading" in html(queue)
    assert "loading" in repr(queue)
    free.set()
    holding.result()
    until(lambda: EMPTY in html(queue))


def test_errors_are_shown_and_kept(open_lab: OpenLab) -> None:
    lab = open_lab()
    queue = ApprovalQueue(lab)
    until(lambda: EMPTY in html(queue))
    lab.call(lab.app.session_store.aclose())
    buttons(queue)["Refresh"].click()
    until(lambda: "StoreClosed" in html(queue))
    assert lab.errors_df()["source"].tolist() == ["ApprovalQueue"]


def test_a_closed_lab_is_told(open_lab: OpenLab) -> None:
    lab = open_lab()
    queue = ApprovalQueue(lab)
    until(lambda: EMPTY in html(queue))
    lab.close()
    buttons(queue)["Refresh"].click()
    assert "LabClosed" in html(queue)


def test_closing_it_closes_its_prompts(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    queue = ApprovalQueue(lab)
    until(lambda: len(queue.prompts) == 1)
    settle(lab)
    queue.close()
    assert all(prompt.ended and prompt.comm is None for prompt in queue.prompts)


def test_headless_it_answers_everything_from_the_script(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=(letters("ann", "bob"), question("Which one?"), "done"))
    session = lab.run(AGENT, "go")
    monkeypatch.setenv(headless.HEADLESS, "1")
    headless.script_decisions(["approve", "deny", "the blue one"])
    queue = ApprovalQueue(lab)
    assert EMPTY in html(queue)
    assert buttons(queue) == {}
    assert [prompt.shown.badge.partition(",")[0] for prompt in queue.prompts] == ["approved", "denied", "answered"]
    assert session.refresh().status == "completed"
    assert [each["to"] for each in SENT] == ["ann"]


def test_headless_without_enough_decisions_fails(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=(letters("ann", "bob"), "done"))
    lab.run(AGENT, "go")
    monkeypatch.setenv(headless.HEADLESS, "1")
    headless.script_decisions(["approve"])
    with pytest.raises(HeadlessDecisionMissing):
        ApprovalQueue(lab)
    assert len(lab.pending()) == 1
    assert SENT == []
