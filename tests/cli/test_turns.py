"""`cayu sessions interrupt` and `resume`: what is stopped, what goes on and how far, and what errors advise."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from cli.support import TARGET, Bench, cayu
from cli.workbench import SECRET

from cayu.canonical import loads
from cayu.events import EventType as E
from cayu.sessions import SessionStatus


def turn(bench: Bench, verb: str, *more: object) -> Any:
    return cayu("sessions", verb, *more, "--target", TARGET, "--store", bench.store)


def over(bench: Bench) -> str:
    return f"--target {TARGET} --store {bench.store}"


def test_a_session_that_was_lost_is_closed(bench: Bench) -> None:
    bench.lose("send x")
    done = turn(bench, "interrupt", "s", "--reason", "closing time", "--by", "a clerk")
    assert done.code == 0
    assert "closed  s\n" in done.out
    assert "interrupted" in done.out
    assert f"cayu recovery plan {TARGET} --session s --output plan.json --store {bench.store}\n" in done.out
    assert bench.view().status == SessionStatus.INTERRUPTED
    (asked,) = [loads(each.body) for each in bench.log().records if each.type == E.SESSION_INTERRUPT_REQUESTED]
    assert (asked["reason"], asked["requested_by"]) == ("closing time", "a clerk")
    assert bench.acts == ["send x"]


def test_a_session_below_is_closed_with_it(bench: Bench) -> None:
    bench.lose("send x")
    bench.lose("send y", "below", parent_session_id="s")
    told = turn(bench, "interrupt", "s", "--json").json
    assert (sorted(told["closed"]), told["asked"], told["status"]) == (["below", "s"], [], "interrupted")
    assert told["store"] == str(bench.store)


def test_a_session_in_another_hand_is_asked(bench: Bench) -> None:
    bench.hold("send x")
    told = turn(bench, "interrupt", "s", "--json")
    assert (told.code, told.json["asked"], told.json["closed"]) == (0, ["s"], [])
    assert "asked to stop  s\n" in turn(bench, "interrupt", "s").out
    error = turn(bench, "resume", "s", "go on", "--json").error
    assert (error["type"], error["hint"]) == ("SessionRunning", f"cayu sessions interrupt s {over(bench)}")


def test_with_nothing_to_stop_the_way_on_is_told(bench: Bench) -> None:
    bench.run("talk")
    before = bench.log().records
    error = turn(bench, "interrupt", "s", "--json").error
    assert (error["type"], error["status"]) == ("SessionNotRunning", "completed")
    assert error["hint"] == f"cayu sessions resume s TEXT {over(bench)}"
    shown = turn(bench, "interrupt", "s")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.splitlines()[0] == f"store {bench.store}"
    assert shown.err.splitlines()[1].startswith("Error: ")
    assert shown.err.splitlines()[2] == f"hint: {error['hint']}"
    assert bench.log().records == before


def test_a_session_goes_on_event_by_event(bench: Bench) -> None:
    bench.run("talk")
    done = turn(bench, "resume", "s", f"and now? {SECRET}")
    assert done.code == 0
    lines = done.out.splitlines()
    resumed = next(index for index, line in enumerate(lines) if line.endswith("session.resumed"))
    ended = next(index for index, line in enumerate(lines) if line.endswith("session.completed"))
    assert resumed < ended
    assert "status   completed" in lines
    assert SECRET not in done.out
    assert f"and now? {SECRET}" in [message.plain_text for message in bench.view().transcript]
    told = turn(bench, "resume", "s", "more", "--json").json
    assert (told["status"], told["pending"], told["events"][-1]["type"]) == ("completed", [], "session.completed")


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        (("--max-tool-calls", 1), "max_tool_calls"),
        (("--max-total-tokens", 1), "max_total_tokens"),
        (("--max-elapsed-seconds", 0.001), "max_elapsed_seconds"),
        (("--max-steps", 1), "max_steps"),
    ],
)
def test_a_turn_is_kept_within_its_limits(bench: Bench, bound: tuple[str, object], limit: str) -> None:
    bench.run("talk")
    done = turn(bench, "resume", "s", "again", *bound)
    assert done.code == 0
    assert f"why      limit_reached: {limit}" in done.out.splitlines()
    shown = cayu("sessions", "show", "s", "--store", bench.store)
    assert f"limit_reached: {limit}\n" in shown.out
    told = cayu("sessions", "show", "s", "--store", bench.store, "--json").json
    assert (told["interruption"]["reason"], told["interruption"]["limit"]) == ("limit_reached", limit)
    assert turn(bench, "resume", "s", "go on", "--json").json["status"] == "completed"


@pytest.mark.parametrize("wrong", [("--max-steps", 0), ("--max-tool-calls", 0), ("--max-elapsed-seconds", 0)])
def test_limits_that_are_none_are_wrong_usage(bench: Bench, wrong: tuple[str, object]) -> None:
    bench.run("talk")
    assert turn(bench, "resume", "s", "again", *wrong).code == 2


def test_a_turn_that_leaves_an_outcome_open_is_not_done(bench: Bench) -> None:
    bench.run("talk")
    done = turn(bench, "resume", "s", "send unsure", "--json")
    assert (done.code, done.json["why"]) == (1, "manual_recovery")
    assert [each["kind"] for each in done.json["pending"]] == ["manual_recovery"]


def test_a_session_that_waits_says_how_to_decide(bench: Bench) -> None:
    bench.run("order x", "s s")
    error = turn(bench, "resume", "s s", "go on", "--json").error
    assert error["type"] == "SessionAwaitingHuman"
    assert error["hint"].startswith(f"cayu pending --store {bench.store} --session 's s', then cayu approve")
    (listed,) = cayu(*shlex.split(error["hint"].partition(",")[0])[1:], "--json").json["actions"]
    assert listed["session"] == "s s"


def test_a_session_that_was_cut_off_says_how_to_recover_it(bench: Bench) -> None:
    bench.lose("send x", "a b")
    error = turn(bench, "resume", "a b", "go on", "--json").error
    assert error["type"] == "SessionNeedsRecovery"
    command = f"cayu recovery plan {TARGET} --session 'a b' --output plan.json --store {bench.store}"
    assert error["hint"] == command


def test_a_session_that_is_not_there_names_the_store(bench: Bench) -> None:
    bench.run("talk")
    for verb, more in (("interrupt", ()), ("resume", ("go on",))):
        error = turn(bench, verb, "no", *more, "--json").error
        assert error["type"] == "SessionNotFound"
        assert error["hint"].startswith(f"looked in store {bench.store}; cayu sessions list --store {bench.store} ")
    nowhere = cayu("sessions", "interrupt", "no", "--target", "cli.workbench:build_fixed", "--json").error
    assert nowhere["hint"] == "looked in store in memory"
