"""The executor: one trial per request, refused before anything is written when it is not what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory.support import (
    CASE,
    KEY,
    OTHER,
    Bench,
    CountingEvaluator,
    JournalProxy,
    Lost,
    arm,
    at,
    change,
    contents,
    counting_overlay,
    once,
)
from pydantic import ValidationError

from cayu import Message, RunRequest
from cayu.canonical import fingerprint
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.evals import AnswerScoring
from cayu.experiments import StudyStores, omit_expected, recall_off
from cayu.memory import (
    CayuMemoryInterventionRuntimeRunner,
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
)
from cayu.memory.evaluators import AnswerEvaluator

Tamper = Callable[[MemoryInterventionTrialRequest], MemoryInterventionTrialRequest]


@pytest.mark.requirement("B041")
@pytest.mark.parametrize("made", [None, recall_off(), omit_expected()], ids=["baseline", "recall_off", "omit"])
async def test_a_trial_is_executed_once_and_then_replayed(made: Any) -> None:
    bench = await Bench().open()
    first = await bench.execute(made)
    built = len(bench.apps)
    before = contents(bench)
    again = await bench.executor().execute_trial(bench.request(made))
    assert again == first
    assert (first.execution.phase, first.execution.status, first.execution.revision) == ("finalized", "completed", 6)
    assert len(bench.apps) == built
    assert contents(bench) == before


async def test_the_same_request_has_the_same_outcome_in_other_stores() -> None:
    """All that identifies a trial, and all that came of it, follows from what was asked for."""
    one, two = [await (await Bench().open()).execute(omit_expected()) for _ in range(2)]
    assert one.binding is not None
    assert two.binding is not None
    assert one.binding.fingerprint == two.binding.fingerprint
    assert one.execution.replay_identity() == two.execution.replay_identity()
    assert one.execution.runtime_result_fingerprint == two.execution.runtime_result_fingerprint


@pytest.mark.requirement("B042")
@pytest.mark.parametrize("made", [None, recall_off(), omit_expected()], ids=["baseline", "recall_off", "omit"])
async def test_a_refused_admission_leaves_every_store_as_it_was(made: Any) -> None:
    bench = await Bench().open()
    request, before = bench.request(made), contents(bench)

    def refuse() -> None:
        raise PermissionError("the budget of the study is spent")

    with pytest.raises(PermissionError, match="budget of the study"):
        await bench.study.executor.execute_trial(request, admission_check=refuse)
    assert contents(bench) == before
    assert await bench.journal(request) is None
    assert not await bench.has_session(request)
    asked: list[bool] = []
    outcome = await bench.study.executor.execute_trial(request, admission_check=lambda: asked.append(True))
    assert (outcome.execution.status, asked) == ("completed", [True])


async def test_admission_is_asked_again_for_a_trial_that_was_cut_off_and_not_for_one_that_is_over() -> None:
    bench = await Bench().open()
    request, asked = bench.request(), [0]

    def admit() -> None:
        asked[0] += 1

    journal = JournalProxy(bench.stores.executions, before=at("evaluated", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request, admission_check=admit)
    await bench.study.executor.execute_trial(request, admission_check=admit)
    await bench.study.executor.execute_trial(request, admission_check=admit)
    assert asked == [2]


async def test_what_is_no_request_is_refused() -> None:
    bench = await Bench().open()
    with pytest.raises(InvalidInput, match="dict is not a MemoryInterventionTrialRequest"):
        await bench.study.executor.execute_trial({"trial_id": "t1"})  # type: ignore[arg-type]


@pytest.mark.requirement("B025")
@pytest.mark.parametrize("field", ["session_id", "task_id", "parent_session_id", "causal_budget_id"])
async def test_a_run_request_with_an_identity_of_its_own_is_refused(field: str) -> None:
    bench = await Bench().open()
    request = bench.request()
    theirs = RunRequest(agent_name="reader", messages=(Message.text("user", "hush"),), **{field: "mine"})
    with pytest.raises(ValidationError, match=f"the executor chooses {field} of a trial") as refused:
        MemoryInterventionTrialRequest(
            spec=request.spec, candidate_id="c1", trial_id="t1", case=request.case, run_request=theirs
        )
    assert "hush" not in str(refused.value)
    assert "mine" not in str(refused.value)


def other_case(request: MemoryInterventionTrialRequest) -> MemoryInterventionTrialRequest:
    return request.model_copy(update={"case": OTHER.contract})


def other_question(request: MemoryInterventionTrialRequest) -> MemoryInterventionTrialRequest:
    run = request.run_request.model_copy(update={"messages": (Message.text("user", "Another question?"),)})
    return request.model_copy(update={"run_request": run})


def other_timeout(request: MemoryInterventionTrialRequest) -> MemoryInterventionTrialRequest:
    return request.model_copy(update={"timeout_seconds": 17})


@pytest.mark.requirement("B028")
@pytest.mark.parametrize("tamper", [other_case, other_question, other_timeout])
@pytest.mark.parametrize("finished", [True, False])
async def test_a_changed_request_under_the_same_ids_is_a_conflict(tamper: Tamper, finished: bool) -> None:
    bench = await Bench().open()
    request = bench.request()
    hook = None if finished else at("evaluated", once())
    executor = bench.executor(executions=JournalProxy(bench.stores.executions, before=hook))
    if finished:
        await executor.execute_trial(request)
    else:
        with pytest.raises(Lost):
            await executor.execute_trial(request)
    before = contents(bench)
    with pytest.raises(MemoryInterventionExecutionConflict, match="another identity of the request") as refused:
        await bench.study.executor.execute_trial(tamper(request))
    assert refused.value.execution_id == request.execution_id
    assert contents(bench) == before
    assert (await bench.study.executor.execute_trial(request)).execution.status == "completed"


@pytest.mark.requirement("B028")
async def test_a_changed_intervention_under_the_same_ids_is_a_conflict() -> None:
    bench = await Bench().open()
    await bench.execute(arm("same", "omit_items", change("cold-room")))
    before = contents(bench)
    with pytest.raises(MemoryInterventionExecutionConflict, match="the request"):
        await bench.execute(arm("same", "omit_items", change("lamp")))
    assert contents(bench) == before


@pytest.mark.requirement("B033")
@pytest.mark.parametrize("finished", [True, False])
async def test_a_record_of_an_older_key_replays_while_the_key_is_there(finished: bool) -> None:
    bench = await Bench().open()
    request = bench.request()
    hook = None if finished else at("evaluated", once())
    try:
        await bench.executor(executions=JournalProxy(bench.stores.executions, before=hook)).execute_trial(request)
    except Lost:
        assert not finished
    newer = MemoryInterventionRequestFingerprintKey("k2", b"the secret of another year")
    rotated = bench.executor(request_keys={"k1": KEY, "k2": newer}, current_request_key_id="k2")
    outcome = await rotated.execute_trial(request)
    assert (outcome.execution.status, outcome.execution.request_key_id) == ("completed", "k1")
    fresh = await rotated.execute_trial(bench.request(trial_id="t2"))
    assert fresh.execution.request_key_id == "k2"

    before = contents(bench)
    without = bench.executor(request_keys={"k2": newer}, current_request_key_id="k2")
    with pytest.raises(MemoryInterventionExecutionConflict, match=r"request key 'k1'.*not among the keys"):
        await without.execute_trial(request)
    assert contents(bench) == before


@pytest.mark.requirement("B033")
async def test_another_secret_under_the_same_key_id_is_a_conflict() -> None:
    bench = await Bench().open()
    await bench.execute()
    changed = MemoryInterventionRequestFingerprintKey("k1", b"not the secret that it was")
    with pytest.raises(MemoryInterventionExecutionConflict, match="the request"):
        await bench.executor(request_keys={"k1": changed}).execute_trial(bench.request())


@pytest.mark.requirement("B034")
async def test_the_current_key_has_to_be_among_the_keys() -> None:
    bench = await Bench().open()
    with pytest.raises(InvalidInput, match="no request key 'k9'"):
        bench.executor(current_request_key_id="k9")
    with pytest.raises(InvalidInput, match="no request key 'k2'"):
        bench.executor(request_keys={"k2": KEY}, current_request_key_id="k2")


@pytest.mark.requirement("B034")
async def test_keys_that_the_caller_takes_away_later_stay() -> None:
    bench = await Bench().open()
    keys = {"k1": KEY}
    executor = bench.executor(request_keys=keys)
    keys.clear()
    assert (await executor.execute_trial(bench.request())).execution.status == "completed"


@pytest.mark.requirement("B036")
@pytest.mark.parametrize("name", ["snapshots", "executions", "overlay_provider", "runtime_runner", "evaluator"])
async def test_the_components_are_the_bound_objects_and_stay(name: str) -> None:
    bench = await Bench().open()
    given = object.__getattribute__(bench.study.executor, name)
    executor = bench.executor(**{name: given})
    assert getattr(executor, name) is given
    with pytest.raises(AttributeError):
        setattr(executor, name, given)
    assert getattr(executor, name) is given


@pytest.mark.requirement("B037")
async def test_the_authority_follows_the_options_of_the_provider() -> None:
    cold = await Bench(options={"temperature": 0}).open()
    warm = await Bench(options={"temperature": 1}).open()
    one, two = cold.study.executor.execution_authority, warm.study.executor.execution_authority
    assert one.provider_configuration_fingerprint != two.provider_configuration_fingerprint
    assert one.runtime_runner_fingerprint != two.runtime_runner_fingerprint
    assert one.fingerprint != two.fingerprint
    assert one == (await Bench(options={"temperature": 0}).open()).study.executor.execution_authority


@pytest.mark.requirement("B037")
async def test_the_authority_is_current_and_earlier_ones_are_detached() -> None:
    bench = await Bench().open()
    evaluator = CountingEvaluator(bench.study.executor.evaluator)
    runner = CayuMemoryInterventionRuntimeRunner(bench.factory())
    executor = bench.executor(evaluator=evaluator, runtime_runner=runner)
    before = executor.execution_authority
    held, name = before.model_dump(), before.fingerprint
    evaluator.evaluator_fingerprint = fingerprint("test", "another evaluator")
    after = executor.execution_authority
    assert after.evaluator_fingerprint == evaluator.evaluator_fingerprint
    assert after.fingerprint != name
    assert (before.model_dump(), before.fingerprint) == (held, name)
    with pytest.raises(ValidationError):
        before.evaluator_fingerprint = after.evaluator_fingerprint  # type: ignore[misc]
    assert after.provider_execution_mode == "hermetic"


@pytest.mark.requirement("B039")
async def test_the_state_paths_are_those_of_the_exact_stores(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    bench = await Bench(stores=StudyStores.in_file(path)).open()
    paths = bench.study.executor.durable_state_paths()
    assert (paths.snapshot_store, paths.execution_store) == ((path,), (path,))
    assert (paths.runtime_session_store, paths.runtime_budget_ledger) == ((path,), (path,))
    assert str(tmp_path) not in repr(paths)
    assert str(tmp_path) not in str(paths)
    apart = bench.executor(executions=StudyStores.in_file(tmp_path / "journal.db").executions).durable_state_paths()
    assert apart.execution_store == (tmp_path / "journal.db",)
    assert apart.snapshot_store == (path,)
    await bench.stores.aclose()


@pytest.mark.requirement("B039")
async def test_memory_has_no_state_paths() -> None:
    paths = (await Bench().open()).study.executor.durable_state_paths()
    assert paths.snapshot_store == paths.execution_store == ()
    assert paths.runtime_session_store == paths.runtime_budget_ledger == ()


def other_overlay(bench: Bench) -> dict[str, Any]:
    made = counting_overlay(bench)
    made.execution_profile_fingerprint = fingerprint("test", "another overlay")
    return {"overlay_provider": made}


def other_overlay_id(bench: Bench) -> dict[str, Any]:
    made = counting_overlay(bench)
    made.provider_id = "another"
    return {"overlay_provider": made}


def other_runner(bench: Bench) -> dict[str, Any]:
    made = CayuMemoryInterventionRuntimeRunner(bench.factory())
    made.execution_profile_fingerprint = fingerprint("test", "another runner")
    return {"runtime_runner": made}


def other_evaluator(bench: Bench) -> dict[str, Any]:
    made = CountingEvaluator(bench.study.executor.evaluator)
    made.evaluator_fingerprint = fingerprint("test", "another evaluator")
    return {"evaluator": made}


@pytest.mark.requirement("B046")
@pytest.mark.parametrize("phase", ["trial_bound", "effect_resolved", "runtime_terminal", "finalized"])
@pytest.mark.parametrize(
    ("other", "named"),
    [
        (other_overlay, "overlay provider"),
        (other_overlay_id, "overlay provider"),
        (other_runner, "runtime runner"),
        (other_evaluator, "evaluator"),
    ],
)
async def test_another_component_between_attempts_is_a_conflict_that_names_it(
    phase: str, other: Callable[[Bench], dict[str, Any]], named: str
) -> None:
    bench = await Bench().open()
    request = bench.request(omit_expected())
    journal = JournalProxy(bench.stores.executions, after=at(phase, once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    before, stands = contents(bench), await bench.journal(request)
    assert stands is not None
    assert stands.phase == phase
    with pytest.raises(MemoryInterventionExecutionConflict, match=named):
        await bench.executor(**other(bench)).execute_trial(request)
    assert contents(bench) == before
    assert (await bench.study.executor.execute_trial(request)).execution.status == "completed"


@pytest.mark.requirement("B049")
async def test_an_evaluator_other_than_the_snapshots_is_refused_before_anything_begins() -> None:
    bench = await Bench().open()
    request, before = bench.request(), contents(bench)
    stricter = AnswerEvaluator([CASE, OTHER], bench.stores.sessions, scoring=AnswerScoring.EXACT)
    laxer = AnswerEvaluator([CASE, OTHER], bench.stores.sessions, passing_score=0.5)
    for evaluator in (stricter, laxer, other_evaluator(bench)["evaluator"]):
        with pytest.raises(MemoryInterventionExecutionConflict, match="the evaluator is not the one that the snapshot"):
            await bench.executor(evaluator=evaluator).execute_trial(request)
    assert contents(bench) == before
    assert await bench.journal(request) is None


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("memory_state_fingerprint", "the memory is not"),
        ("execution_profile_fingerprint", "the execution profile is not"),
        ("authority_scope_fingerprint", "the access scope is not"),
    ],
)
async def test_a_spec_that_is_not_about_its_snapshot_is_refused_before_anything_begins(field: str, named: str) -> None:
    bench = await Bench().open()
    request = bench.request()
    fields = request.spec.model_dump(exclude={"fingerprint"}) | {field: fingerprint("test", "another")}
    forged = request.model_copy(update={"spec": type(request.spec).create(**fields)})
    before = contents(bench)
    with pytest.raises(MemoryInterventionExecutionConflict, match=named):
        await bench.study.executor.execute_trial(forged)
    assert contents(bench) == before
