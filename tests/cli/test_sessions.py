"""`cayu sessions`: what a store holds, read without writing, and without what anybody said unless it is asked for."""

from __future__ import annotations

from typing import Any

from cli.support import Bench, cayu
from cli.workbench import NASTY, SECRET


def listed(bench: Bench, *more: object) -> Any:
    return cayu("sessions", "list", "--store", bench.store, *more)


def shown(bench: Bench, *more: object) -> Any:
    return cayu("sessions", "show", "s", "--store", bench.store, *more)


def test_sessions_are_listed_newest_first(bench: Bench) -> None:
    bench.run("talk", "first", title=NASTY, labels={"run": "1"})
    bench.run("order x", "second")
    done = listed(bench)
    assert done.code == 0
    assert done.out.index("second") < done.out.index("first")
    assert "[bold]bold[/bold] red reversed" in done.out
    assert not {"\x1b", "\u202e"} & set(done.out)
    assert "2 of 2" in done.out
    newest, oldest = listed(bench, "--json").json["sessions"]
    assert (newest["id"], newest["status"], newest["pending_actions"]) == ("second", "interrupted", 1)
    assert (oldest["title"], oldest["labels"], oldest["model_steps"]) == (NASTY, {"run": "1"}, 1)


def test_sessions_are_found_by_agent_by_status_by_text_and_by_page(bench: Bench) -> None:
    for name in ("a1", "a2", "b1"):
        bench.run("talk", name)
    bench.run("order x", "w")

    def found(*more: object) -> list[str]:
        return [each["id"] for each in listed(bench, "--json", *more).json["sessions"]]

    assert found("--text", "A2") == ["a2"]
    assert found("--status", "interrupted") == ["w"]
    assert found("--agent", "nobody") == []
    first = listed(bench, "--json", "--limit", 3).json
    assert first["total"] == 4
    assert found("--cursor", first["next_cursor"]) == ["a1"]
    assert "--cursor" in listed(bench, "--limit", 3).out
    assert listed(bench, "--status", "asleep").code == 2
    assert "cursor" in listed(bench, "--cursor", "x", "--json").error["message"]


def test_a_session_is_shown_without_what_was_said(bench: Bench) -> None:
    bench.run(f"order {SECRET}")
    (action,) = bench.actions()
    for done in (shown(bench), shown(bench, "--events"), shown(bench, "--json"), shown(bench, "--events", "--json")):
        assert done.code == 0
        assert SECRET not in done.out
        assert action in done.out
        assert "awaiting_approval" in done.out
    told = shown(bench, "--json", "--events").json
    (call,) = told["rounds"][0]["calls"]
    assert (call["tool_name"], call["effect"], call["state"], call["attempt"]) == (
        "order", "idempotent", "awaiting_approval", 0)  # fmt: skip
    assert (told["run"]["model_steps"], told["run"]["max_steps"], told["usage"]["tool_calls"]) == (1, 1000, 0)
    assert set(told["events"][0]) == {"id", "type", "sequence", "timestamp", "tool_name"}
    assert [event["sequence"] for event in told["events"]] == list(range(1, len(told["events"]) + 1))
    assert "tool.call.approval_requested" in shown(bench, "--events").out


def test_a_session_that_failed_says_why_by_its_codes(bench: Bench) -> None:
    bench.run("fail")
    assert "provider_failed: overloaded" in shown(bench).out
    assert shown(bench, "--json").json["error"] == {"code": "provider_failed", "detail": "overloaded"}
    assert SECRET not in shown(bench, "--content", "--events").out


def test_content_is_shown_when_it_is_asked_for(bench: Bench) -> None:
    bench.run(f"send {NASTY}")
    text = shown(bench, "--content").out
    assert f"all done, {SECRET}" in text
    assert "\\u001b[31m" in text
    assert not {"\x1b", "\u202e"} & set(text)
    told = shown(bench, "--content", "--events", "--json").json
    (call,) = told["rounds"][0]["calls"]
    assert call["arguments"] == {"item": NASTY}
    assert call["result"]["content"] == f"did it with {NASTY}"
    assert told["messages"][-1]["content"][0]["text"] == f"all done, {SECRET}"
    assert told["events"][0]["payload"]


def test_sessions_that_were_cut_off_are_marked_in_the_list(bench: Bench) -> None:
    bench.lose("send x", "gone")
    bench.run("talk", "done")
    bench.hold("send x", "held")
    lines = listed(bench).out.splitlines()
    assert lines.count("status   running (cut off)") == 1
    assert lines.count("status   running") == 1
    told = {each["id"]: each["cut_off"] for each in listed(bench, "--json").json["sessions"]}
    assert told == {"gone": True, "done": False, "held": False}
    gone = cayu("sessions", "show", "gone", "--store", bench.store)
    assert "running (cut off)" in gone.out


def test_a_session_that_was_cut_off_says_how_to_go_on(bench: Bench) -> None:
    bench.lose("send x")
    assert shown(bench, "--json").json["cut_off"] is True
    assert "cayu recovery plan MODULE:FACTORY --session s" in shown(bench).out
    bench.run("talk", "t")
    assert cayu("sessions", "show", "t", "--store", bench.store, "--json").json["cut_off"] is False


def test_a_store_is_only_looked_at(bench: Bench) -> None:
    bench.run("talk")
    before = bench.log()
    assert cayu("sessions", "show", "s", "--store", bench.store).code == 0
    assert bench.log().records == before.records
    missing = bench.folder / "none.db"
    for command in (("sessions", "list"), ("sessions", "show", "s"), ("pending",)):
        error = cayu(*command, "--store", missing, "--json").error
        assert error["type"] == "StoreNotADatabase"
    assert not missing.exists()
    unknown = cayu("sessions", "show", "no", "--store", bench.store, "--json").error
    assert (unknown["type"], unknown["session_id"]) == ("SessionNotFound", "no")
    other = bench.folder / "notes.txt"
    other.write_text("no database")
    assert cayu("sessions", "list", "--store", other, "--json").error["type"] == "StoreNotADatabase"
