"""`cayu pending`, `approve`, `deny`, `answer`: what a human has to see, and decisions that are made once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cli.support import TARGET, Bench, cayu
from cli.workbench import NASTY, SECRET
from runtime.support import has

from cayu import SQLiteSessionStore
from cayu.canonical import loads
from cayu.errors import StoreFull
from cayu.events import EventType as E
from cayu.sessions import SessionStatus
from cayu.sessions.streams import Unit


def pending(bench: Bench, *more: object) -> Any:
    return cayu("pending", "--store", bench.store, *more)


def planning(session: str, target: str, bench: Bench) -> str:
    """The command that plans a session's recovery over the bench's store."""
    return f"cayu recovery plan {target} --session {session} --output plan.json --store {bench.store}"


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


def test_a_call_of_which_nobody_knows_says_that_no_approval_settles_it(bench: Bench) -> None:
    bench.run("talk", "above")
    bench.lose("send x", "a b", parent_session_id="above")
    assert cayu("recovery", "resume", "a b", "--target", TARGET, "--store", bench.store).code == 1
    done = pending(bench)
    assert "no approve settles it" in done.out
    command = "cayu recovery plan MODULE:FACTORY --session 'a b' --output plan.json"
    assert f"{command} --store {bench.store}\n" in done.out
    assert re.search(r"^works for +above$", done.out, re.MULTILINE)
    (action,) = pending(bench, "--json").json["actions"]
    assert (action["kind"], action["parent_session_id"]) == ("manual_recovery", "above")
    assert action["arguments"] == {"item": "x"}
    assert '"item": "x"' in done.out
    assert '"item": "x"' not in pending(bench, "--no-arguments").out


def test_what_waits_says_what_to_do_next(bench: Bench) -> None:
    bench.run("order x")
    bench.run("ask x", "q")
    out = pending(bench).out
    over = f"--target MODULE:FACTORY --store {bench.store}\n"
    assert f"cayu approve {bench.actions()[0]} {over}" in out
    assert f"cayu answer {bench.actions('q')[0]} TEXT {over}" in out
    assert "works for" not in out


def test_nothing_that_one_copies_is_broken_on_a_narrow_terminal(bench: Bench) -> None:
    name = "a-session-whose-id-" + "is-long-" * 12
    bench.run("order x", name)
    bench.lose("send x", "lost " * 20 + "end")
    assert cayu("recovery", "resume", "lost " * 20 + "end", "--target", TARGET, "--store", bench.store).code == 1
    store = ("--store", bench.store)
    for command in (("pending", *store), ("sessions", "list", *store), ("recovery", "plan", TARGET, *store)):
        narrow, wide = cayu(*command, width=80).out, cayu(*command, width=2000).out
        found = {each for each in wide.split() if len(each) > 20}
        assert found
        assert found <= set(narrow.split())
        assert name in narrow
        assert "lost " * 20 + "end\n" in narrow
    (action,) = bench.actions(name)
    shown = cayu("sessions", "show", name, *store, "--events", width=80).out
    for copied in (name, action, bench.view(name).rounds[0].calls[0].id):
        assert copied in shown.split()
    ran = cayu("approve", action, "--target", TARGET, *store, width=80).out
    assert name in ran.split()


def test_an_approval_of_a_session_that_was_cut_off_says_so(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    original = SQLiteSessionStore.append

    async def append(self: SQLiteSessionStore, unit: Unit) -> Any:
        if has(unit, E.TOOL_STAGED):
            raise StoreFull(path="x")
        return await original(self, unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SQLiteSessionStore, "append", append)
        assert decide(bench, "approve", action).code == 1
    again = decide(bench, "approve", action)
    assert again.code == 0
    assert "running (cut off)" in again.out
    assert f"{planning('s', TARGET, bench)}\n" in again.out
    told = decide(bench, "approve", action, "--json").json
    assert (told["cut_off"], told["repeated"]) == (True, True)


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
        "why": None,
        "cut_off": False,
        "pending": [],
        "store": str(bench.store),
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
    assert f"cayu approve {second} --target {TARGET} --store {bench.store}\n" in done.out
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
    error = decide(bench, "approve", action, "--json").error
    assert "waits for an answer" in error["message"]
    assert error["hint"] == f"cayu pending --store {bench.store} --session s"
    bench.lose("send x", "lost")
    assert cayu("recovery", "resume", "lost", "--target", TARGET, "--store", bench.store).code == 1
    (open_call,) = bench.actions("lost")
    error = decide(bench, "approve", open_call, "--json").error
    assert "cayu recovery plan" in error["message"]
    assert error["hint"] == planning("lost", TARGET, bench)


def test_an_action_that_is_not_there(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    error = decide(bench, "approve", "no-such", "--json").error
    assert (error["type"], error["action_id"]) == ("PendingActionNotFound", "no-such")
    assert "`cayu pending`" in error["message"]
    told = f"looked in store {bench.store}; cayu pending --store {bench.store} lists what waits there"
    assert error["hint"] == told
    assert decide(bench, "approve", "no-such").err.endswith(f"hint: {told}\n")
    assert decide(bench, "approve", "no-such.recovery", "--json").error["hint"] == told
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
