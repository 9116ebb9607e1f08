"""`cayu recovery`: plans that are exact and private, decisions that come from a file, executions that repeat."""

from __future__ import annotations

import asyncio
import json
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.support import TARGET, Bench, cayu
from cli.workbench import SECRET
from runtime.support import has

from cayu import SQLiteSessionStore
from cayu.canonical import loads
from cayu.cli.evidence import DECISIONS_EXAMPLE, PLAN_EXAMPLE
from cayu.cli.recovery import ADVICE
from cayu.errors import StoreFull
from cayu.events import EventType as E
from cayu.sessions import BlockerCode, RecoveryPlan, SessionStatus
from cayu.sessions.streams import Record, Unit

CHANGED = "cli.workbench:build_changed"


def planned(bench: Bench, *more: object, target: str = TARGET) -> Path:
    """Plan the recovery of `s` into a file."""
    file = bench.folder / "plan.json"
    done = cayu("recovery", "plan", target, "--session", "s", "--store", bench.store, "--output", file, *more)
    assert done.code == 0, done.err
    return file


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench with a lost session and its plan, for tests of what is refused; none of them may write to the store."""
    bench = Bench(tmp_path_factory.mktemp("lost"))
    bench.lose("send x")
    planned(bench)
    before = bench.log().records
    yield bench
    assert bench.log().records == before


def decided(bench: Bench, action: str, **more: Any) -> Path:
    """Write the decision on the call that was lost, as the skeleton of the plan asks for it."""
    plan = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store, "--json").json
    (skeleton,) = plan["decisions"]
    file = bench.folder / "decisions.json"
    file.write_text(json.dumps([{**skeleton, "action": action, **more}]), encoding="utf-8")
    return file


def execute(bench: Bench, plan: Path, *more: object, target: str = TARGET, execution: str = "x1") -> Any:
    return cayu(
        "recovery", "execute", plan, "--target", target, "--execution-id", execution, "--store", bench.store, *more
    )


@pytest.mark.requirement("A068")
def test_a_plan_is_fresh_exact_and_for_its_owner_only(bench: Bench) -> None:
    bench.lose(f"send {SECRET}")
    before = bench.log()
    file = planned(bench, "--inactive-for-seconds", 0)
    plan = RecoveryPlan.model_validate_json(file.read_bytes())
    (item,) = plan.items
    assert (item.session_id, item.version, item.status) == ("s", before.head.state.version, "running")
    assert item.blocker_codes == (BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN,)
    assert plan.request.inactive_for_seconds == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    assert bench.log().records == before.records
    assert sorted(path.name for path in bench.folder.glob("*.json*")) == ["plan.json"]
    file.chmod(0o644)
    again = RecoveryPlan.model_validate_json(planned(bench, "--inactive-for-seconds", 0).read_bytes())
    assert again.plan_id == plan.plan_id
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_plan_shows_what_to_do_and_a_skeleton_that_decides_nothing(bench: Bench) -> None:
    bench.lose(f"send {SECRET}")
    done = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store)
    assert done.code == 0
    (call,) = bench.view().rounds[0].calls
    for told in ("s", "worker", "running", "leave_intact", call.id, "send", "external", call.digest):
        assert told in done.out
    assert ADVICE[BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN] in done.out
    assert "tool_mark_completed, tool_mark_failed" in done.out
    skeleton = json.loads(done.out[done.out.index("\n[\n") :])
    assert skeleton == [{"session_id": "s", "tool_call_id": call.id, "action": ""}]
    assert SECRET not in done.out
    assert not list(bench.folder.glob("*.json"))
    told = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store, "--json").json
    assert told["decisions"] == skeleton
    (need,) = told["plan"]["items"][0]["needed_decisions"]
    assert (need["attempt"], need["arguments_digest"]) == (1, call.digest)
    assert len(need["idempotency_key"]) == 40
    assert need["idempotency_key"] in done.out


def test_a_skeleton_that_is_not_filled_in_is_refused(bench: Bench) -> None:
    bench.lose("send x")
    plan, before = planned(bench), bench.log().records
    error = execute(bench, plan, "--decisions", decided(bench, ""), "--json").error
    assert error["type"] == "InvalidInput"
    (call,) = bench.view().rounds[0].calls
    allowed = "0.action: the plan allows tool_mark_completed or tool_mark_failed for call"
    assert f"decisions.json: {allowed} {call.id!r}." in error["message"]
    assert bench.log().records == before


def test_every_blocker_has_its_line() -> None:
    assert set(ADVICE) == set(BlockerCode)
    assert all(line == line.strip() and "\n" not in line for line in ADVICE.values())
    assert len(set(ADVICE.values())) == len(ADVICE)


def test_sessions_that_are_not_at_rest_are_found_by_agent_and_by_page(bench: Bench) -> None:
    bench.run("talk", "quiet")
    for name in ("l1", "l2", "l3"):
        bench.lose("send x", name)
    every = cayu("recovery", "plan", TARGET, "--store", bench.store, "--json").json["plan"]
    assert {item["session_id"] for item in every["items"]} == {"l1", "l2", "l3"}
    none = cayu("recovery", "plan", TARGET, "--agent", "nobody", "--store", bench.store, "--json").json["plan"]
    assert none["items"] == []
    first = cayu("recovery", "plan", TARGET, "--agent", "worker", "--limit", 2, "--store", bench.store, "--json").json
    assert len(first["plan"]["items"]) == 2
    cursor = first["plan"]["next_cursor"]
    rest = cayu("recovery", "plan", TARGET, "--agent", "worker", "--cursor", cursor, "--store", bench.store, "--json")
    pages = [*first["plan"]["items"], *rest.json["plan"]["items"]]
    assert {item["session_id"] for item in pages} == {"l1", "l2", "l3"}
    shown = cayu("recovery", "plan", TARGET, "--limit", 2, "--store", bench.store)
    assert "--cursor" in shown.out
    resting = cayu("recovery", "plan", TARGET, "--agent", "nobody", "--store", bench.store)
    assert "Nothing is to be recovered.\n" in resting.out
    assert "--cursor" not in resting.out


def test_a_page_on_which_nothing_is_to_be_recovered_says_that_there_are_more(bench: Bench) -> None:
    bench.run("fail", "f1")
    bench.run("fail", "f2")
    done = cayu("recovery", "plan", TARGET, "--limit", 1, "--store", bench.store)
    assert "Nothing is to be recovered on this page.\n" in done.out
    cursor = shlex.split(done.out.splitlines()[-1])[-1]
    assert (
        cursor
        == cayu("recovery", "plan", TARGET, "--limit", 1, "--store", bench.store, "--json").json["plan"]["next_cursor"]
    )
    while (
        "on this page"
        in (done := cayu("recovery", "plan", TARGET, "--limit", 1, "--cursor", cursor, "--store", bench.store)).out
    ):
        cursor = shlex.split(done.out.splitlines()[-1])[-1]
    assert done.out.endswith("Nothing is to be recovered.\n")


def test_a_session_written_to_a_moment_ago_counts_as_owned(bench: Bench) -> None:
    bench.lose("send x")
    file = planned(bench, "--inactive-for-seconds", 3600)
    assert RecoveryPlan.model_validate_json(file.read_bytes()).items[0].blocker_codes == ("active_execution_owner",)
    assert execute(bench, file).code == 1


@pytest.mark.parametrize(
    "wrong",
    [("--session", "s", "--agent", "a"), ("--session", "s", "--cursor", "c"), ("--limit", "0"), ("--limit", "many"),
     ("--inactive-for-seconds", "-1")],
)  # fmt: skip
def test_wrong_usage_exits_with_2(lost: Bench, wrong: tuple[str, ...]) -> None:
    done = cayu("recovery", "plan", TARGET, "--store", lost.store, *wrong)
    assert (done.code, done.out) == (2, "")


def test_a_plan_of_no_session_and_a_file_that_cannot_be_written(bench: Bench) -> None:
    bench.lose("send x")
    unknown = cayu("recovery", "plan", TARGET, "--session", "no", "--store", bench.store, "--json").error
    assert (unknown["type"], unknown["session_id"]) == ("SessionNotFound", "no")
    for place in (bench.folder / "none" / "plan.json", bench.folder):
        done = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store, "--output", place)
        assert done.code == 1
        assert "cannot be written" in done.err
    assert [each.name for each in bench.folder.iterdir() if "plan" in each.name] == []


@pytest.mark.requirement("A064")
def test_a_session_blocked_by_changed_registrations_is_inspected_with_the_ordinary_planner(bench: Bench) -> None:
    bench.lose("send x")
    before = bench.log().records
    done = cayu("recovery", "plan", CHANGED, "--session", "s", "--store", bench.store)
    assert done.code == 0
    assert ADVICE[BlockerCode.REGISTRATION_INCOMPATIBLE] in done.out
    assert "Decisions needed" not in done.out, "a decision would change nothing"
    missing = cayu("recovery", "plan", "cli.workbench:build_other", "--session", "s", "--store", bench.store, "--json")
    assert missing.json["plan"]["items"][0]["blocker_codes"][0] == "registration_unavailable"
    plan = planned(bench, target=CHANGED)
    refused = execute(bench, plan, "--decisions", decided(bench, "tool_mark_completed"), "--json", target=CHANGED)
    assert refused.code == 1
    assert refused.json["items"][0]["status"] == "blocked"
    assert "registration_incompatible" in refused.json["items"][0]["blocker_codes"]
    assert bench.log().records == before


@pytest.mark.requirement("A073")
def test_without_the_decision_the_item_stays_open_and_with_it_the_run_goes_on(bench: Bench) -> None:
    bench.lose("send x")
    plan, before = planned(bench), bench.log().records
    left = execute(bench, plan)
    assert left.code == 1
    assert "blocked" in left.out
    assert ADVICE[BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN] in left.out
    assert bench.log().records == before
    done = execute(bench, plan, "--decisions", decided(bench, "tool_mark_completed", content="sent, says the service"))
    assert done.code == 0, done.err
    (call,) = bench.view().rounds[0].calls
    assert call.result is not None
    assert (call.state, call.result.content) == ("completed", "sent, says the service")
    assert bench.view().status == SessionStatus.COMPLETED


@pytest.mark.requirement("A069", "A070")
def test_a_plan_is_executed_under_its_id_and_an_exact_repeat_does_nothing(bench: Bench) -> None:
    bench.lose("send x")
    plan, decisions = planned(bench), decided(bench, "tool_mark_failed", reason="the service knows nothing of it")
    done = execute(bench, plan, "--decisions", decisions, "--by", "an operator", "--json")
    assert done.code == 0
    (item,) = done.json["items"]
    assert (item["status"], item["action"], item["session_status"]) == ("executed", "tool_mark_failed", "completed")
    records = bench.log().records
    (receipt,) = [record for record in records if record.type == E.RECOVERY_ITEM_EXECUTED]
    told = loads(receipt.body)
    assert (told["execution_id"], told["requested_by"]) == ("x1", "an operator")
    assert item["receipt_event_id"].endswith(f".{receipt.sequence}")
    (reconciled,) = [loads(record.body) for record in records if record.type == E.EFFECT_RECONCILED]
    assert reconciled["resolved_by"] == {"subject": "an operator", "source": "cli", "claims": {}}
    again = execute(bench, plan, "--decisions", decisions, "--json")
    assert (again.code, again.json["items"][0]["status"]) == (0, "repeated")
    other = execute(bench, plan, "--decisions", decided_otherwise(decisions), "--json").error
    assert (other["type"], other["execution_id"]) == ("RecoveryExecutionConflict", "x1")
    stale = execute(bench, plan, "--decisions", decisions, "--json", execution="x2").error
    assert (stale["type"], stale["session_id"]) == ("StaleRecoveryPlanError", "s")
    assert stale["hint"].startswith(f"cayu recovery plan {TARGET} --session s --output ")
    assert bench.log().records == records


def decided_otherwise(decisions: Path) -> Path:
    (decision,) = json.loads(decisions.read_text())
    decisions.write_text(json.dumps([{**decision, "reason": "another"}]))
    return decisions


@pytest.mark.requirement("A071", "A072")
@pytest.mark.parametrize("action", ["tool_mark_completed", "tool_mark_failed"])
def test_an_execution_adopts_no_profile_and_repeats_no_external_effect(bench: Bench, action: str) -> None:
    bench.lose("send x")
    profile, acted = bench.view().profile, bench.acts
    assert acted == ["send x"]
    changed = planned(bench, target=CHANGED)
    assert execute(bench, changed, "--decisions", decided(bench, action), target=CHANGED).code == 1
    assert bench.view().profile == profile
    assert execute(bench, planned(bench), "--decisions", decided(bench, action)).code == 0
    view = bench.view()
    assert view.status == SessionStatus.COMPLETED
    assert view.profile == profile
    assert not [record for record in bench.log().records if record.type == E.SESSION_PROFILE_DECIDED]
    assert bench.acts == acted


def test_a_call_that_may_be_replayed_needs_no_decision(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    crash_while_deciding(bench, action)
    plan = planned(bench)
    assert execute(bench, plan).code == 0
    assert bench.view().status == SessionStatus.COMPLETED
    assert bench.acts == ["order x", "order x"]


def crash_while_deciding(bench: Bench, action: str) -> None:
    """Approve in a process that dies after the tool has acted."""
    original = SQLiteSessionStore.append

    async def append(self: SQLiteSessionStore, unit: Unit) -> Any:
        if has(unit, E.TOOL_STAGED):
            raise StoreFull(path="x")
        return await original(self, unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SQLiteSessionStore, "append", append)
        done = cayu("approve", action, "--target", TARGET, "--store", bench.store, "--json")
    assert done.error["type"] == "StoreFull"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda plan: plan | {"plan_id": "0" * 64}, "the plan is not what its plan_id says"),
        (lambda plan: plan | {"items": []}, "the plan is not what its plan_id says"),
        (lambda plan: {"plan": plan}, "plan_id: Field required"),
        (lambda plan: plan | {"schema_version": 2}, "schema_version: Input should be 1"),
        (lambda plan: plan | {"created_at": "s3cret-value"}, "created_at: "),
        (lambda plan: [plan], "Input should be an object"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_the_place(lost: Bench, tmp_path: Path, change: Any, told: str) -> None:
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(change(json.loads((lost.folder / "plan.json").read_text()))))
    error = execute(lost, file, "--json").error
    assert error["type"] == "InvalidInput"
    assert error["message"].startswith(f"{file}: ")
    assert told in error["message"]
    assert SECRET not in error["message"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Invalid JSON"),
        ('[{"session_id": "s"', "Invalid JSON"),
        ("{}", "Input should be a valid"),
        ("[5]", "0: Input should be"),
        (f'[{{"session_id": "s", "action": "{SECRET}"}}]', "0.action: "),
        ('[{"session_id": "s", "action": "automatic_repair"}]', "0.action: the plan allows tool_mark_"),
        ('[{"session_id": "s", "action": "tool_mark_failed", "tool_call_id": "c9"}]', "asks for no decision on 'c9'"),
        ('[{"session_id": "s", "action": "tool_mark_failed", "tool_call_id": "c", "sure": true}]', "0.sure: "),
    ],
)
def test_decisions_that_are_none_are_refused_with_the_place(lost: Bench, tmp_path: Path, text: str, told: str) -> None:
    plan, file = lost.folder / "plan.json", tmp_path / "mine.json"
    file.write_text(text)
    error = execute(lost, plan, "--decisions", file, "--json").error
    assert error["message"].startswith(f"{file}: ")
    assert told in error["message"]
    assert SECRET not in error["message"]
    shown = execute(lost, plan, "--decisions", file)
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("Error: ")


def test_files_that_were_mixed_up_say_what_was_expected(lost: Bench, tmp_path: Path) -> None:
    plan, decisions = lost.folder / "plan.json", tmp_path / "mine.json"
    decisions.write_text('[{"session_id": "s", "action": "tool_mark_failed", "tool_call_id": "c"}]')
    single = tmp_path / "single.json"
    single.write_text('{"session_id": "s", "action": "tool_mark_failed", "tool_call_id": "c"}')
    for given in (plan, single):
        error = execute(lost, plan, "--decisions", given, "--json").error
        assert error["hint"] == DECISIONS_EXAMPLE
        json.loads("".join(DECISIONS_EXAMPLE.splitlines()[1:]))
    for given in (decisions, single):
        assert execute(lost, given, "--json").error["hint"] == PLAN_EXAMPLE
    shown = execute(lost, decisions, "--decisions", plan).err
    first, *lines = PLAN_EXAMPLE.splitlines()
    assert shown.splitlines()[1:] == [f"hint: {first}", *lines]
    decisions.write_text('[{"session_id": "s", "action": "model_mark_failed", "tool_call_id": "c"}]')
    wrong = execute(lost, plan, "--decisions", decisions, "--json").error
    assert "0.action: the plan allows tool_mark_completed or tool_mark_failed. " in wrong["message"]
    assert "hint" not in wrong


def test_a_decision_that_is_optional_is_listed_apart_and_not_asked_for(bench: Bench) -> None:
    bench.lose("send x")
    reconciled = "cli.workbench:build_reconciled"
    done = cayu("recovery", "plan", reconciled, "--session", "s", "--store", bench.store)
    assert "May be decided, otherwise found out by itself:" in done.out
    assert "Decisions needed" not in done.out
    assert "Fill each" not in done.out
    told = cayu("recovery", "plan", reconciled, "--session", "s", "--store", bench.store, "--json").json
    assert told["decisions"] == []
    (need,) = told["plan"]["items"][0]["needed_decisions"]
    assert need["optional"] is True
    assert need["idempotency_key"] in done.out
    assert execute(bench, planned(bench, target=reconciled), target=reconciled).code == 0
    assert bench.view().status == SessionStatus.COMPLETED


def test_a_plan_names_the_session_that_another_works_for(bench: Bench) -> None:
    bench.run("talk", "above")
    bench.lose("send x", parent_session_id="above")
    done = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store)
    assert "works for  above\n" in done.out
    told = cayu("recovery", "plan", TARGET, "--session", "s", "--store", bench.store, "--json").json
    assert told["parents"] == {"s": "above"}


def test_files_that_are_not_there_are_told(lost: Bench) -> None:
    missing = execute(lost, lost.folder / "no.json", "--json").error
    assert "no.json cannot be read (no such file or directory)" in missing["message"]
    folder = execute(lost, lost.folder / "plan.json", "--decisions", lost.folder, "--json").error
    assert "cannot be read" in folder["message"]


def test_ids_and_names_that_are_too_long_are_told(lost: Bench) -> None:
    plan = lost.folder / "plan.json"
    error = execute(lost, plan, "--json", execution="x" * 300).error
    assert error["message"].startswith("execution_id: String should have at most 256 characters")
    error = execute(lost, plan, "--by", "x" * 300, "--json").error
    assert error["message"].startswith("subject: String should have at most 256 characters")


def test_a_startup_sweep_ends_what_was_cut_off_and_names_what_stays(bench: Bench) -> None:
    bench.lose("send x")
    quiet = cayu("recovery", "startup", TARGET, "--store", bench.store, "--json")
    assert (quiet.code, quiet.json["status"], quiet.json["scheduled_roots"]) == (0, "completed", 0)
    interrupting(bench)
    blocked = cayu("recovery", "startup", CHANGED, "--store", bench.store)
    assert blocked.code == 1
    assert "registration_incompatible" in blocked.out
    assert ADVICE[BlockerCode.REGISTRATION_INCOMPATIBLE] in blocked.out
    told = cayu("recovery", "startup", CHANGED, "--store", bench.store, "--json")
    assert (told.code, told.json["status"]) == (1, "completed_with_blocked")
    assert told.json["blocked_sessions"][0]["session_id"] == "s"


def interrupting(bench: Bench) -> None:
    """Leave the request to interrupt `s` in its log, and nothing of what follows."""

    async def ask() -> None:
        store = SQLiteSessionStore(bench.store)
        record = Record(E.SESSION_INTERRUPT_REQUESTED, json.dumps({"cascade": {"root": "s"}}).encode())
        await store.append(Unit("s", None, None, (record,)))
        await store.aclose()

    asyncio.run(ask())


def test_a_session_is_resumed_event_by_event(bench: Bench) -> None:
    bench.run("order x")
    (action,) = bench.actions()
    crash_while_deciding(bench, action)
    done = cayu("recovery", "resume", "s", "--target", TARGET, "--store", bench.store)
    assert done.code == 0
    lines = done.out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.endswith("tool.call.started  order"))
    last = next(index for index, line in enumerate(lines) if line.endswith("session.completed"))
    assert first < last
    assert "completed" in lines[-1]
    assert SECRET not in done.out
    nothing = cayu("recovery", "resume", "s", "--target", TARGET, "--store", bench.store, "--json").error
    assert (nothing["type"], nothing["status"]) == ("SessionNotRunning", "completed")


def test_a_resume_that_leaves_an_outcome_open_is_not_done(bench: Bench) -> None:
    bench.lose("send x")
    done = cayu("recovery", "resume", "s", "--target", TARGET, "--store", bench.store, "--json")
    assert done.code == 1
    assert done.json["status"] == "interrupted"
    assert [action["kind"] for action in done.json["pending"]] == ["manual_recovery"]
    assert "tool.effect.outcome_unknown" in [event["type"] for event in done.json["events"]]
    assert "tool.effect.outcome_unknown" in done.err, "progress goes to stderr"
    assert bench.acts == ["send x"]
    plan, decisions = planned(bench), decided(bench, "tool_mark_completed")
    assert execute(bench, plan, "--decisions", decisions).code == 0
    assert bench.view().status == SessionStatus.COMPLETED
    assert bench.acts == ["send x"]


def test_who_decides_is_the_login_name_when_nobody_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "someone")
    bench.lose("send x")
    assert execute(bench, planned(bench), "--decisions", decided(bench, "tool_mark_failed")).code == 0
    (told,) = [loads(record.body) for record in bench.log().records if record.type == E.RECOVERY_ITEM_EXECUTED]
    assert told["requested_by"] == "someone"
