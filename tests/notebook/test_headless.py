"""Without a reader, decisions come from a script, in order, and never from a default."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from notebook.conftest import ask

from cayu.errors import HeadlessDecisionMissing
from cayu.notebook import Lab
from cayu.notebook.headless import is_headless, next_decision
from cayu.testing import decide
from cayu_widgets import ApprovalPrompt, ApprovalQueue

if TYPE_CHECKING:
    from notebook.conftest import Workshop


@pytest.fixture
def lab(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("CAYU_HEADLESS", "1")
    workshop.scripts["letter"] = [ask("send", to="ann"), "sent"]
    workshop.scripts["question"] = [
        ask("ask_user", question="Which?"),
        lambda request: request.messages[-1].content[0].content,
    ]
    return workshop.open()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), ("yes", False)])
def test_only_one_value_is_headless(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("CAYU_HEADLESS", value)
    assert is_headless() is expected


def test_a_reader_is_present_by_default() -> None:
    assert not is_headless()


def test_decisions_are_taken_in_order_and_replaced_as_a_whole(lab: Lab) -> None:
    action = lab.run("a", "letter").pending[0].action
    decide(["approve", "deny"])
    assert [next_decision(action), next_decision(action)] == ["approve", "deny"]
    decide(["approve"])
    decide(iter(["a", "b"]))
    assert next_decision(action) == "a"
    decide([])
    with pytest.raises(HeadlessDecisionMissing, match="is scripted for"):
        next_decision(action)


def test_prompts_follow_the_script(lab: Lab, workshop: Workshop) -> None:
    decide(["approve", "deny", "B"])
    first, second = lab.run("a", "letter"), lab.run("a", "letter")
    question = lab.run("a", "question")
    ApprovalPrompt(first.pending[0])
    assert first.refresh().status == "completed"
    ApprovalPrompt(second.pending[0])
    assert second.refresh().calls_df()["code"].tolist() == ["approval_denied"]
    ApprovalPrompt(question.pending[0])
    assert question.refresh().text == "B"
    assert workshop.sent == ["ann"]
    lab.check_quiet()


def test_a_queue_follows_the_script(lab: Lab, workshop: Workshop) -> None:
    decide(["deny", "approve"])
    for _ in range(2):
        lab.run("a", "letter")
    ApprovalQueue(lab)
    assert len(lab.pending()) == 0
    assert workshop.sent == ["ann"]


def test_without_a_script_a_prompt_fails_within_a_second_and_nothing_is_decided(lab: Lab, workshop: Workshop) -> None:
    session = lab.run("a", "letter")
    for make in (lambda: ApprovalPrompt(session.pending[0]), lambda: ApprovalQueue(lab)):
        begun = time.monotonic()
        with pytest.raises(HeadlessDecisionMissing, match=session.pending[0].id) as caught:
            make()
        assert time.monotonic() - begun < 1
        assert caught.value.action_id == session.pending[0].id
    assert workshop.sent == []
    assert len(session.pending) == 1


def test_a_decision_that_is_none_decides_nothing(lab: Lab, workshop: Workshop) -> None:
    session = lab.run("a", "letter")
    decide(["yes please"])
    with pytest.raises(ValueError, match="neither 'approve' nor 'deny'"):
        ApprovalPrompt(session.pending[0])
    assert (workshop.sent, len(session.pending)) == ([], 1)


def test_with_a_reader_the_script_is_left_alone(lab: Lab, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAYU_HEADLESS")
    session = lab.run("a", "letter")
    decide(["approve"])
    ApprovalPrompt(session.pending[0])
    ApprovalQueue(lab)
    time.sleep(0.1)
    assert (workshop.sent, len(session.pending)) == ([], 1)
    assert next_decision(session.pending[0].action) == "approve"
