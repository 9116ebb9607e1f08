"""Every state of a prompt, driven through its buttons over a real store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from widgets.support import AGENT, FREE, SENT, buttons, first_lab_action, html, inside, letters, question, settle, until

from cayu import ToolPolicy
from cayu.errors import HeadlessDecisionMissing, InvalidInput, StoreBusy, StoreOutcomeUnknown
from cayu.notebook import Lab, headless
from cayu.providers import ModelStreamEvent
from cayu.sessions import RecoveryDecision
from cayu.sessions.records import PendingAction
from cayu.tools import (
    AllowAllToolPolicy,
    AlwaysRequireApprovalToolPolicy,
    ToolPolicyDecision,
    ToolPolicyRequest,
    ToolPolicyResult,
)
from cayu_widgets import ApprovalPrompt, PromptState
from cayu_widgets.prompt import BY_HAND, CUT_OFF, NO_ANSWER, NOT_SENT

if TYPE_CHECKING:
    from widgets.conftest import OpenLab

HOSTILE = "</pre><script>alert(1)</script>\"'<b>"


def prompt_of(lab: Lab, number: int = 0) -> ApprovalPrompt:
    return ApprovalPrompt(lab.pending()[number])


def reach(prompt: ApprovalPrompt, state: PromptState) -> None:
    until(lambda: prompt.shown.state is state, f"{state} instead of {prompt.shown}")


def editor(prompt: ApprovalPrompt) -> Any:
    return next(each for each in inside(prompt) if each._model_name == "TextareaModel")


def test_a_pending_prompt_shows_what_a_decider_needs(open_lab: OpenLab) -> None:
    lab = open_lab(policy=AlwaysRequireApprovalToolPolicy(expires_in_seconds=3600))
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)
    assert list(buttons(prompt)) == ["Deny", "Edit…", "Approve"]
    assert all(each.tooltip and not each.disabled for each in buttons(prompt).values())
    shown = html(prompt)
    for told in ("Run send?", "pending", session.id, AGENT, "external", "&quot;to&quot;: &quot;ann&quot;"):
        assert told in shown
    assert prompt.action.arguments_digest is not None
    assert prompt.action.arguments_digest[:16] in shown
    assert prompt.action.expires_at is not None
    assert f"{prompt.action.expires_at:%H:%M:%S} UTC" in shown
    assert prompt.shown.state is PromptState.PENDING
    assert SENT == []


def test_both_ways_to_make_one(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    handle = lab.pending()[0]
    made = [ApprovalPrompt(lab, handle.action), ApprovalPrompt(lab, handle), ApprovalPrompt(handle)]
    assert all(prompt.action == handle.action and prompt.lab is lab for prompt in made)
    with pytest.raises(InvalidInput, match=r"lab.pending\(\)"):
        ApprovalPrompt(lab)


def test_approve_runs_the_call_and_says_how_long_it_took(open_lab: OpenLab) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    buttons(prompt)["Approve"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "approved, applied"
    assert "; ran in " in prompt.shown.note
    assert buttons(prompt) == {}
    assert SENT == [{"to": "ann", "text": "hello"}]
    assert session.refresh().status == "completed"
    lab.check_quiet()


def test_deny_runs_nothing(open_lab: OpenLab) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    buttons(prompt)["Deny"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "denied, applied"
    assert "it did not run" in prompt.shown.note
    assert SENT == []
    assert session.refresh().status == "completed"


def test_buttons_are_off_while_a_decision_is_on_its_way_and_it_is_sent_once(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)
    sends = []
    free = threading.Event()
    original = Lab.aapprove

    async def slow(self: Lab, action: PendingAction, **more: Any) -> Any:
        sends.append(action.id)
        while not free.is_set():
            await asyncio.sleep(0.01)
        return await original(self, action, **more)

    monkeypatch.setattr(Lab, "aapprove", slow)
    approve, deny = buttons(prompt)["Approve"], buttons(prompt)["Deny"]
    approve.click()
    assert prompt.shown.state is PromptState.SUBMITTING
    assert "submitting" in html(prompt)
    assert list(buttons(prompt)) == ["Deny", "Edit…", "Approve"]
    assert all(each.disabled for each in buttons(prompt).values())
    approve.click()
    deny.click()
    until(lambda: sends)
    free.set()
    reach(prompt, PromptState.APPLIED)
    assert sends == [prompt.action.id]
    assert prompt.shown.badge == "approved, applied"
    assert len(SENT) == 1


def test_what_came_of_a_decision_shows_before_the_session_ends(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), [ModelStreamEvent.tool_call("pause")], "done"))
    session = lab.run(AGENT, "go")
    prompt, other = prompt_of(lab), prompt_of(lab)
    buttons(prompt)["Approve"].click()
    reach(prompt, PromptState.APPLIED)
    reach(other, PromptState.ELSEWHERE)
    assert session.refresh().status == "running"
    FREE.set()
    until(lambda: session.refresh().status == "completed" and not lab.app.services.drives)
    lab.check_quiet()


@pytest.mark.parametrize("first, second", [("Approve", "Deny"), ("Deny", "Approve"), ("Approve", "Approve")])
def test_of_two_prompts_the_second_says_who_was_first(open_lab: OpenLab, first: str, second: str) -> None:
    lab, elsewhere = open_lab(), open_lab()
    lab.run(AGENT, "go")
    one, other = prompt_of(lab), prompt_of(elsewhere)
    settle(elsewhere)
    buttons(one)[first].click()
    reach(one, PromptState.APPLIED)
    assert other.shown.state is PromptState.PENDING
    buttons(other)[second].click()
    reach(other, PromptState.ELSEWHERE)
    word = "Approved" if first == "Approve" else "Denied"
    assert f"{word} by " in other.shown.note
    assert " UTC; " in other.shown.note
    assert buttons(other) == {}
    assert len(SENT) == (first == "Approve")
    elsewhere.check_quiet()


def test_a_race_that_the_runtime_settles_is_told_too(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, elsewhere = open_lab(), open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(elsewhere)
    settle(elsewhere)
    original = Lab.aapprove

    async def late(self: Lab, action: PendingAction, **more: Any) -> Any:
        await asyncio.to_thread(lab.deny, action, by="eve")
        return await original(self, action, **more)

    monkeypatch.setattr(Lab, "aapprove", late)
    buttons(prompt)["Approve"].click()
    reach(prompt, PromptState.ELSEWHERE)
    assert "Denied by eve at " in prompt.shown.note
    assert SENT == []
    elsewhere.check_quiet()


def test_a_second_prompt_of_the_same_lab_follows_by_itself(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    one, other = prompt_of(lab), prompt_of(lab)
    buttons(one)["Approve"].click()
    reach(one, PromptState.APPLIED)
    reach(other, PromptState.ELSEWHERE)
    until(lambda: "ran in" in other.shown.note)


def test_a_prompt_made_after_the_decision_says_so(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    action = first_lab_action(lab)
    lab.approve(action, by="eve")
    prompt = ApprovalPrompt(lab, action)
    reach(prompt, PromptState.ELSEWHERE)
    assert "Approved by eve at " in prompt.shown.note


def test_a_decided_call_waits_for_the_rest_of_its_round(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann", "bob"), "done"))
    lab.run(AGENT, "go")
    one, other = prompt_of(lab, 0), prompt_of(lab, 1)
    buttons(one)["Approve"].click()
    reach(one, PromptState.APPROVED)
    assert "when the round's other decision is made (1 pending)" in one.shown.note
    assert SENT == []
    buttons(other)["Deny"].click()
    reach(other, PromptState.APPLIED)
    reach(one, PromptState.APPLIED)
    assert one.shown.badge == "approved, applied"
    assert [each["to"] for each in SENT] == ["ann"]


def test_a_decision_of_others_while_one_is_on_its_way_is_not_missed(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = open_lab(batches=(letters("ann", "bob"), "done"))
    lab.run(AGENT, "go")
    first, second = lab.pending()
    prompt = ApprovalPrompt(first)
    original = Lab.aapprove

    async def overtaken(self: Lab, action: PendingAction, **more: Any) -> Any:
        handle = await original(self, action, **more)
        await original(self, second.action)
        return handle

    monkeypatch.setattr(Lab, "aapprove", overtaken)
    buttons(prompt)["Approve"].click()
    reach(prompt, PromptState.APPLIED)
    assert len(SENT) == 2


def test_edited_arguments_run_in_their_place(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    buttons(prompt)["Edit…"].click()
    assert list(buttons(prompt)) == ["Deny", "Cancel", "Approve edited"]
    assert '"to": "ann"' in editor(prompt).value
    editor(prompt).value = '{"to": "dan"}'
    buttons(prompt)["Approve edited"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "edited, applied"
    assert SENT == [{"to": "dan", "text": "hello"}]


def test_an_edit_can_be_left_and_unchanged_arguments_are_no_edit(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    buttons(prompt)["Edit…"].click()
    buttons(prompt)["Cancel"].click()
    assert list(buttons(prompt)) == ["Deny", "Edit…", "Approve"]
    buttons(prompt)["Edit…"].click()
    buttons(prompt)["Approve edited"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "approved, applied"


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"to": ', "line 1 column 8"),
        ("[1]", "JSON object"),
        ('{"to": NaN}', "NaN is no JSON number"),
        ('{"to": 100000000000000000000000}', "JSON domain"),
    ],
)
def test_text_that_is_no_json_object_is_not_sent(open_lab: OpenLab, text: str, told: str) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)
    version = session.refresh().view.version
    buttons(prompt)["Edit…"].click()
    editor(prompt).value = text
    buttons(prompt)["Approve edited"].click()
    assert told in html(prompt)
    assert prompt.shown.state is PromptState.PENDING
    assert not any(each.disabled for each in buttons(prompt).values())
    assert session.refresh().view.version == version
    lab.check_quiet()


def test_arguments_outside_the_schema_are_refused_and_the_buttons_come_back(open_lab: OpenLab) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    version = session.refresh().view.version
    buttons(prompt)["Edit…"].click()
    editor(prompt).value = '{"to": 3}'
    buttons(prompt)["Approve edited"].click()
    until(lambda: "Refused, and nothing was written" in html(prompt))
    assert prompt.shown.state is PromptState.PENDING
    assert list(buttons(prompt)) == ["Deny", "Cancel", "Approve edited"]
    assert not any(each.disabled for each in buttons(prompt).values())
    assert session.refresh().view.version == version
    lab.check_quiet()
    editor(prompt).value = '{"to": "eve"}'
    buttons(prompt)["Approve edited"].click()
    reach(prompt, PromptState.APPLIED)
    assert "Refused" not in html(prompt)


def test_after_the_deadline_only_going_on_is_left(open_lab: OpenLab) -> None:
    lab = open_lab(policy=AlwaysRequireApprovalToolPolicy(expires_in_seconds=0.2))
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    until(lambda: list(buttons(prompt)) == ["Go on without it"])
    assert "pending, deadline passed" in html(prompt)
    buttons(prompt)["Go on without it"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "expired, applied"
    assert "Expired at " in prompt.shown.note
    assert "it did not run" in prompt.shown.note
    assert SENT == []
    assert session.refresh().status == "completed"


def test_a_question_is_answered_by_an_option(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(question("Which one?", options=["A", "B"]), "done"))
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    assert list(buttons(prompt)) == ["A", "B"]
    buttons(prompt)["B"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "answered, applied"
    assert "the agent has the answer" in prompt.shown.note
    assert session.calls_df()["content"][0] == "B"


def test_a_question_is_answered_in_own_words(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(question("Which one?", options=["A"], allow_other=True), "done"))
    session = lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    assert list(buttons(prompt)) == ["A", "Answer"]
    buttons(prompt)["Answer"].click()
    assert "Type an answer first" in html(prompt)
    field = next(each for each in inside(prompt) if each._model_name == "TextModel")
    field.value = "none of them"
    buttons(prompt)["Answer"].click()
    reach(prompt, PromptState.APPLIED)
    assert session.calls_df()["content"][0] == "none of them"


def test_an_unanswered_question_expires(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(question("Which one?", options=["A"]), "done"), expires_in_seconds=0.2)
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    until(lambda: list(buttons(prompt)) == ["Go on without it"])
    buttons(prompt)["Go on without it"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "expired, applied"


def test_a_closed_lab_is_unreachable_and_nothing_is_sent(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)
    lab.close()
    buttons(prompt)["Approve"].click()
    assert prompt.shown.state is PromptState.UNREACHABLE
    assert prompt.shown.note == NOT_SENT
    assert list(buttons(prompt)) == ["Retry"]
    assert [problem.type for problem in lab.problems.unread()] == ["LabClosed"]
    buttons(prompt)["Retry"].click()
    assert prompt.shown.state is PromptState.UNREACHABLE
    assert open_lab().pending()[0].id == prompt.action.id
    assert SENT == []


@pytest.mark.parametrize("error, note", [(StoreBusy(path="runs.db"), NOT_SENT), (StoreOutcomeUnknown(), NO_ANSWER)])
def test_retry_sends_the_same_decision_again(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch, error: Exception, note: str
) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)

    async def failing(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Lab, "adeny", failing)
        buttons(prompt)["Deny"].click()
        reach(prompt, PromptState.UNREACHABLE)
    assert prompt.shown.note == note
    until(lambda: type(error).__name__ in html(prompt))
    buttons(prompt)["Retry"].click()
    reach(prompt, PromptState.APPLIED)
    assert prompt.shown.badge == "denied, applied"
    assert type(error).__name__ not in html(prompt)
    assert [(kept.type, kept.source, kept.session_id) for kept in lab.problems.read()] == [
        (type(error).__name__, "ApprovalPrompt", prompt.action.session)
    ]


def test_a_lab_that_closes_meanwhile_says_so(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)
    begun = threading.Event()

    async def never(*_: Any, **__: Any) -> Any:
        begun.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(Lab, "aapprove", never)
    buttons(prompt)["Approve"].click()
    assert begun.wait(5)
    lab.close()
    assert prompt.shown.state is PromptState.UNREACHABLE
    assert prompt.shown.note == CUT_OFF


def test_any_other_error_is_shown_and_kept(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)
    settle(lab)

    async def broken(*_: Any, **__: Any) -> Any:
        raise KeyError(HOSTILE)

    monkeypatch.setattr(Lab, "aapprove", broken)
    buttons(prompt)["Approve"].click()
    until(lambda: "KeyError" in html(prompt))
    assert HOSTILE not in html(prompt)
    assert prompt.shown.state is PromptState.PENDING
    assert not any(each.disabled for each in buttons(prompt).values())
    assert lab.errors_df()["type"].tolist() == ["KeyError"]


def test_an_error_in_a_callback_itself_is_shown_and_kept(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt = prompt_of(lab)

    def broken(**_: Any) -> None:
        raise RuntimeError("no editor today")

    monkeypatch.setattr(prompt._controls, "shown", broken)
    buttons(prompt)["Edit…"].click()
    assert "RuntimeError: no editor today" in html(prompt)
    assert lab.errors_df()["type"].tolist() == ["RuntimeError"]


def test_an_application_that_changed_is_told_and_nothing_is_decided(open_lab: OpenLab) -> None:
    open_lab().run(AGENT, "go")
    changed = open_lab(policy=AlwaysRequireApprovalToolPolicy())
    prompt = prompt_of(changed)
    buttons(prompt)["Approve"].click()
    until(lambda: "ExecutionProfileMismatchError" in html(prompt))
    assert prompt.shown.state is PromptState.PENDING
    assert SENT == []


def test_a_lab_that_only_looks_refuses(open_lab: OpenLab, tmp_path: Path) -> None:
    open_lab().run(AGENT, "go")
    with Lab.open(tmp_path / "runs.db", mode="ro") as looking:
        prompt = prompt_of(looking)
        buttons(prompt)["Approve"].click()
        until(lambda: "This lab only looks" in html(prompt))
        assert prompt.shown.state is PromptState.PENDING


def test_what_the_session_no_longer_waits_for_is_superseded(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    gone = first_lab_action(lab).model_copy(update={"id": "gone.approval", "tool_call_id": "gone"})
    prompt = ApprovalPrompt(lab, gone)
    reach(prompt, PromptState.SUPERSEDED)
    assert buttons(prompt) == {}


def test_an_unknown_outcome_has_no_buttons(open_lab: OpenLab) -> None:
    lab = open_lab(batches=([ModelStreamEvent.tool_call("stuck")], "done"), policy=AllowAllToolPolicy())
    running = threading.Thread(target=lab.run, args=(AGENT, "go"))
    running.start()
    until(lambda: not lab.calls_df(where={"state": "started"}).empty)
    lab.interrupt(lab.sessions_df()["session_id"][0])
    running.join()
    (handle,) = lab.pending()
    assert handle.action.kind == "manual_recovery"
    prompt = ApprovalPrompt(handle)
    settle(lab)
    assert prompt.shown.state is PromptState.PENDING
    assert buttons(prompt) == {}
    assert BY_HAND in html(prompt)
    plan = lab.plan_recovery(handle.action.session)
    call_id = plan.df["tool_call_id"][0]
    found = RecoveryDecision(session_id=handle.action.session, tool_call_id=call_id, action="tool_mark_failed")
    plan.execute("found", [found], by="ann")
    settled = ApprovalPrompt(handle)
    settle(lab)
    assert "Found that it did not act, by ann" in html(settled)
    lab.check_quiet()


class HostilePolicy(ToolPolicy):
    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, reason=HOSTILE)


def test_markup_from_models_policies_and_people_stays_text(open_lab: OpenLab) -> None:
    asked = ModelStreamEvent.tool_call(
        "ask_user", {"question": HOSTILE, "options": [HOSTILE], "allow_other": True}, "q"
    )
    lab = open_lab(batches=([*letters("ann", text=HOSTILE), asked], "done"), policy=HostilePolicy())
    lab.run(AGENT, "go")
    for handle in lab.pending():
        hostile = handle.action.model_copy(update={"title": HOSTILE, "tool_name": HOSTILE, "agent_name": HOSTILE})
        prompt = ApprovalPrompt(lab, hostile)
        settle(lab)
        for shown in (html(prompt), prompt.static_html()):
            assert "<script>" not in shown
            assert "&lt;script&gt;" in shown
    assert {each.action.kind for each in lab.pending()} == {"tool_approval", "user_input"}


def test_a_closed_prompt_hears_nothing(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    prompt, other = prompt_of(lab), prompt_of(lab)
    settle(lab)
    prompt.close()
    buttons(other)["Approve"].click()
    reach(other, PromptState.APPLIED)
    settle(lab)
    assert prompt.shown.state is PromptState.PENDING


# Headless.


@pytest.fixture
def _headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(headless.HEADLESS, "1")


@pytest.mark.usefixtures("_headless")
@pytest.mark.parametrize("decision, badge", [("approve", "approved, applied"), ("deny", "denied, applied")])
def test_headless_prompts_follow_the_script(open_lab: OpenLab, decision: str, badge: str) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    headless.script_decisions([decision])
    prompt = prompt_of(lab)
    assert prompt.shown.badge == badge
    assert "by headless script at " in prompt.shown.note
    assert buttons(prompt) == {}
    assert "lab.pending(" in html(prompt)
    assert session.refresh().status == "completed"
    assert len(SENT) == (decision == "approve")


@pytest.mark.usefixtures("_headless")
def test_headless_questions_take_their_answer_from_the_script(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(question("Which one?"), "done"))
    session = lab.run(AGENT, "go")
    headless.script_decisions(["approve"])
    assert prompt_of(lab).shown.badge == "answered, applied"
    assert session.calls_df()["content"][0] == "approve"


@pytest.mark.usefixtures("_headless")
def test_headless_without_a_script_fails_at_once_and_decides_nothing(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    with pytest.raises(HeadlessDecisionMissing):
        prompt_of(lab)
    headless.script_decisions(["approved"])
    with pytest.raises(InvalidInput, match="neither 'approve' nor 'deny'"):
        prompt_of(lab)
    assert len(lab.pending()) == 1
    assert SENT == []


@pytest.mark.usefixtures("_headless")
def test_headless_again_shows_what_was_decided_and_takes_no_decision(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    action = first_lab_action(lab)
    lab.deny(action)
    headless.script_decisions(["approve"])
    assert ApprovalPrompt(lab, action).shown.state is PromptState.ELSEWHERE
    assert headless.next_decision(action) == "approve"
