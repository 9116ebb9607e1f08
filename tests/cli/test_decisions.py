"""`cayu pending`, `approve`, `deny`, `answer`: what a human has to see, and decisions that are made once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli.support import TARGET, Bench, cayu
from cli.workbench import NASTY, SECRET

from cayu.canonical import loads
from cayu.events import EventType as E
from cayu.sessions import SessionStatus


def pending(bench: Bench, *more: object) -> Any:
    return cayu("pending", "--store", bench.store, *more)


def decide(bench: Bench, verb: str, *more: object) -> Any:
    return cayu(verb, *more, "--target", TARGET, "--store", bench.store)


def test_what_waits_is_shown_with_its_arguments_and_can_be_read_safely(bench: Bench) -> None:
    bench.run(f"order {NASTY}")
    bench.run(f"ask {NASTY}", "q")
    done = pending(bench)
    assert done.code == 0
    assert "\\u001b[31mred\\u001b[0m" in done.out, "in arguments, what cannot be seen is escaped"
    assert "\\u202e" in done.out
    assert "[bold]bold[/bold]" in done.out, "markup stays text"
    assert not {"\x1b", "\u202e", "\x07"} & set(done.out)
    for action in (*bench.actions(), *bench.actions("q")):
        assert action in done.out
    assert "yes | no" in done.out
    hidden = pending(bench, "--no-arguments")
    assert "\\u001b" not in hidden.out
    (approval, question) = pending(bench, "--json").json["actions"]
    assert approval["arguments"] == {"item": NASTY}
    assert question["question"] == NASTY
    assert "arguments" not in pending(bench, "--json", "--no-arguments").json["actions"][0]
    assert not {"\x1b", "\u202e"} & set(pending(bench, "--json").out)


def test_what_waits_is_found_by_session_by_kind_and_by_page(bench: Bench) -> None:
    bench.run("order x")
    bench.run("ask x", "q")
    bench.lose("send x", "gone")
    whole = pending(bench, "--json").json
    assert (whole["total"], whole["cut_off"], whole["next_cursor"]) == (2, ["gone"], None)
    assert [each["session"] for each in pending(bench, "--json", "--session", "q").json["actions"]] == ["q"]
    assert pending(bench, "--json", "--session", "q").json["cut_off"] == []
    assert [each["session"] for each in pending(bench, "--json", "--kind", "tool_approval").json["actions"]] == ["s"]
    first = pending(bench, "--json", "--limit", 1).json
    rest = pending(bench, "--json", "--limit", 1, "--cursor", first["next_cursor"]).json
    assert [each["session"] for each in (*first["actions"], *rest["actions"])] == ["s", "q"]
    shown = pending(bench, "--limit", 1)
    assert "--cursor" in shown.out
    assert "Cut off at work" in shown.out
    assert "gone" in shown.out
    assert pending(bench, "--kind", "other").code == 2


def test_nothing_waits(bench: Bench) -> None:
    bench.run("talk")
    assert pending(bench).out == "Nothing waits.\n"


def test_a_call_is_approved_once(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    done = decide(bench, "approve", action, "--by", "a lead", "--reason", "stock is low")
    assert done.code == 0
    assert "completed" in done.out
    assert SECRET not in done.out
    assert bench.acts == ["order x"]
    (approved,) = [loads(record.body) for record in bench.log().records if record.type == E.TOOL_APPROVED]
    assert approved["resolved_by"] == {"subject": "a lead", "source": "cli", "claims": {}}
    assert approved["reason"] == "stock is low"
    records = bench.log().records
    again = decide(bench, "approve", action, "--json")
    assert (again.code, again.json["repeated"], again.json["status"]) == (0, True, "completed")
    assert "nothing was done" in decide(bench, "approve", action).out
    other = decide(bench, "deny", action, "--json").error
    assert (other["type"], other["decision"], other["decided_by"]) == ("AlreadyDecided", "approve", "a lead")
    assert bench.log().records == records
    assert bench.acts == ["order x"]


def test_with_json_nothing_but_the_document_is_on_stdout(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    done = cayu("approve", action, "--target", "cli.workbench:build_later", "--store", bench.store, "--json")
    assert done.json == {
        "session_id": "s",
        "status": "completed",
        "pending": [],
        "action_id": action,
        "decision": "approved",
        "repeated": False,
    }
    assert "building" in done.err
    assert "the tool says something" in done.err


def test_arguments_are_edited_inline_or_from_a_file(bench: Bench) -> None:
    for name, given in (("s", '{"item": "y"}'), ("t", f"@{bench.folder / 'edited.json'}")):
        (bench.folder / "edited.json").write_text('{"item": "z"}')
        bench.run("order x", name)
        (action,) = bench.actions(name)
        assert decide(bench, "approve", action, "--arguments", given).code == 0
    assert bench.acts == ["order y", "order z"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("[1]", "--arguments: Input should be an object"),
        (f"{{{SECRET}", "--arguments: Invalid JSON"),
        ("@none.json", "none.json cannot be read"),
        ('{"item": 5}', "do not fit the schema of 'order'"),
        ('{"item": NaN}', "outside the JSON domain"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(bench: Bench, given: str, told: str) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    before = bench.log().records
    error = decide(bench, "approve", action, "--arguments", given, "--json").error
    assert told in error["message"]
    assert SECRET not in error["message"]
    assert bench.log().records == before


def test_a_call_is_denied(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    done = decide(bench, "deny", action, "--reason", "over budget", "--json")
    assert (done.code, done.json["decision"], done.json["status"]) == (0, "denied", "completed")
    assert decide(bench, "deny", action).code == 0
    assert decide(bench, "approve", action).code == 1
    assert bench.acts == []
    assert bench.view().rounds[0].calls[0].reason == "over budget"


def test_what_still_waits_is_shown_after_a_decision_that_is_not_the_last(bench: Bench) -> None:
    bench.run("both x")
    first, second = bench.actions()
    done = decide(bench, "approve", first)
    assert done.code == 0
    assert "interrupted" in done.out
    assert second in done.out
    assert bench.acts == []
    assert decide(bench, "deny", second).code == 0
    assert bench.acts == ["order x1"]


def test_a_question_is_answered_once(bench: Bench) -> None:
    bench.run("ask really?")
    (action,) = bench.actions()
    refused = decide(bench, "answer", action, "maybe", "--json").error
    assert "none of the options" in refused["message"]
    assert decide(bench, "answer", action, "yes", "--json").json["decision"] == "answered"
    assert decide(bench, "answer", action, "yes").code == 0
    assert decide(bench, "answer", action, "no", "--json").error["type"] == "AlreadyDecided"
    assert bench.view().status == SessionStatus.COMPLETED


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_decision_that_comes_too_late_is_not_done(bench: Bench, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    monkeypatch.setattr("cayu.runtime.decisions.is_expired", lambda call, now: True)
    done = decide(bench, verb, action)
    assert done.code == 1
    assert "it has expired" in done.out
    assert bench.acts == []
    assert bench.view().rounds[0].calls[0].code == "approval_expired"
    assert decide(bench, verb, action, "--json").error["decision"] == "expired"


def test_an_action_of_another_kind_says_what_it_waits_for(bench: Bench) -> None:
    bench.run("ask x")
    (action,) = bench.actions()
    assert "waits for an answer" in decide(bench, "approve", action, "--json").error["message"]
    bench.lose("send x", "lost")
    assert cayu("recovery", "resume", "lost", "--target", TARGET, "--store", bench.store).code == 1
    (open_call,) = bench.actions("lost")
    assert "cayu recovery plan" in decide(bench, "approve", open_call, "--json").error["message"]


def test_an_action_that_is_not_there(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    error = decide(bench, "approve", "no-such", "--json").error
    assert (error["type"], error["action_id"]) == ("PendingActionNotFound", "no-such")
    assert "`cayu pending --store PATH`" in error["message"]
    elsewhere = decide(bench, "approve", action, "--session", "other", "--json").error
    assert "in session 'other'" in elsewhere["message"]
    assert decide(bench, "approve", action, "--session", "s").code == 0


def test_a_changed_application_decides_nothing(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    done = cayu("approve", action, "--target", "cli.workbench:build_changed", "--store", bench.store, "--json")
    assert done.error["type"] == "ExecutionProfileMismatchError"
    assert json.loads(json.dumps(done.error))["changed_component_classes"] == ["tools"]
    assert bench.acts == []
    assert bench.actions() == [action]
