"""Sweeps: a few trials at a time, none twice, what fails is recorded, and what is not comparable is told apart."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import pytest
from experiments.support import CASES, KEY, SCOPE, UNKNOWN, Gauge, Item, Lab, by_id, started

from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.errors import InvalidInput
from cayu.experiments import (
    Experiment,
    ExperimentRun,
    Intervention,
    Pair,
    StudyStores,
    baseline,
    estimate_effects,
    inject,
    omit,
    omit_expected,
    recall_off,
    run_experiment,
)
from cayu.interventions.comparability import MemoryInterventionMismatch as Mismatch
from cayu.interventions.specs import MemoryInterventionChange, MemoryInterventionKind
from cayu.memory import CayuMemoryInterventionRuntimeRunner, MemoryInterventionExecutor
from cayu.memory.applications import TrialApplicationFactory
from cayu.recall import AutomaticRecallPolicy, MemoryAttributionBounds
from cayu.sessions.streams import HeadQuery
from cayu.storage import InMemoryKnowledgeStore

ARMS = (baseline(), recall_off(), omit_expected())
EXPERIMENT = Experiment(CASES, ARMS)


async def sweep(lab: Lab, experiment: Experiment = EXPERIMENT, **options) -> ExperimentRun:
    return await run_experiment(experiment, lab.study, **options)


async def test_a_record_says_what_came_of_its_trial():
    run = await sweep(await Lab().open())
    assert run.finished
    assert run.total == len(run.records) == len(EXPERIMENT.trials())
    assert set(run.bindings) == set(by_id(run))
    assert run.failures == []
    for record in run.records:
        remembers = record.intervention == "baseline"
        assert (record.status, record.phase) == ("completed", "finalized")
        assert (record.score, record.passed, record.expected_seen) == (float(remembers), remembers, remembers)
        assert record.receipt == ("applied" if record.intervention == "omit_expected" else "verified_no_change")
        assert record.failure is None
        assert record.answer
        assert record.duration_ms is not None
        assert record.duration_ms >= 0
        assert record.topic == next(case.topic for case in CASES if case.case_id == record.case_id)
    off = [record for record in run.records if record.intervention == "recall_off"]
    assert [record.exposures for record in off] == [0] * len(CASES)
    assert all(run.bindings[record.trial_id].proves_no_memory_exposure for record in off)
    assert all(record.exposures == 1 for record in run.records if record.intervention == "baseline")


async def test_the_records_do_not_depend_on_how_many_run_at_once():
    def comparable(run):
        return {name: item.model_copy(update={"duration_ms": None}) for name, item in by_id(run).items()}

    one, many = [await sweep(await Lab().open(), concurrency=n) for n in (1, 8)]
    assert comparable(one) == comparable(many)
    assert [record.trial_id for record in one.records] == [trial.trial_id for trial in EXPERIMENT.trials()]


@pytest.mark.parametrize("most", [1, 3])
async def test_never_more_run_at_once_than_asked_for(most):
    provider = Gauge(pause=0.02)
    await sweep(await Lab(provider=provider).open(), concurrency=most)
    assert provider.most == most
    assert provider.asked == len(EXPERIMENT.trials())


async def test_more_at_once_than_there_are_trials_is_no_mistake():
    provider = Gauge(pause=0.02)
    await sweep(await Lab(provider=provider).open(), Experiment(CASES[:2], [baseline()]), concurrency=50)
    assert provider.most == 2


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.0])
async def test_none_at_once_is_refused(concurrency):
    lab = await Lab().open()
    with pytest.raises(InvalidInput, match="whole number"):
        await sweep(lab, concurrency=concurrency)


async def test_progress_is_told_of_each_trial_once():
    seen: list[tuple[int, int, bool]] = []
    run = ExperimentRun(EXPERIMENT)

    def progress(known: ExperimentRun) -> None:
        assert known is run
        seen.append((len(known.records), known.total, known.finished))

    returned = await sweep(await Lab().open(), progress=progress, run=run, concurrency=3)
    total = len(EXPERIMENT.trials())
    assert returned is run
    assert seen == [(n, total, False) for n in range(1, total + 1)]
    assert run.finished


async def test_a_progress_that_fails_does_not_fail_the_sweep():
    def progress(known: ExperimentRun) -> None:
        raise RuntimeError("a plot that cannot be drawn")

    run = await sweep(await Lab().open(), progress=progress)
    assert len(run.records) == len(EXPERIMENT.trials())


def failing(error: Exception, at: int) -> Callable[[], None]:
    """Raise once, the n-th time an application is built; the first time is the capture."""
    built = 0

    def building() -> None:
        nonlocal built
        built += 1
        if built == at:
            raise error

    return building


@pytest.mark.parametrize("error", [InvalidInput("no such tool"), RuntimeError("no such file")], ids=["typed", "other"])
async def test_a_trial_that_cannot_be_executed_is_recorded_and_the_others_go_on(error):
    lab = await Lab(building=failing(error, 4)).open()
    run = await sweep(lab, concurrency=1)
    assert run.finished
    failed = [record for record in run.records if record.status == "error"]
    assert [record.failure for record in failed] == [type(error).__name__]
    assert run.failures == failed
    assert sum(record.status == "completed" for record in run.records) == len(EXPERIMENT.trials()) - 1
    again = await sweep(lab)
    assert {record.status for record in again.records} == {"completed"}
    assert set((await started(lab.stores.sessions, again)).values()) == {1}


async def test_an_arm_that_fits_no_case_is_refused_before_any_trial():
    without = await Lab(recall=AutomaticRecallPolicy(mode="off")).open()
    full = [Item("q-door", "irrelevant", text=f"Note {n}.") for n in range(17)]
    for lab, refused, words in (
        (without, recall_off(), "recall is off already"),
        (await Lab().open(), inject("irrelevant", full), "'irrelevant' does not fit case 'q-door'"),
        (await Lab().open(), omit("gone"), "'gone'"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await sweep(lab, Experiment(CASES, [baseline(), refused]))
        assert await sessions_of(lab) == []


async def test_a_trial_without_a_score_is_counted_with_its_pair():
    lab = await Lab(building=failing(InvalidInput("no such tool"), 4)).open()
    run = await sweep(lab, Experiment(CASES, [baseline(), recall_off()], repeats=2), concurrency=1)
    (failed,) = run.failures
    assert (failed.status, failed.failure, failed.session_id) == ("error", "InvalidInput", None)
    (effect,) = estimate_effects(run)
    assert (effect.unscored, effect.questions, effect.difference) == (1, len(CASES), -1.0)


async def test_a_case_without_anything_to_do_has_no_trial_and_no_pair():
    lab = await Lab().open()
    run = await sweep(lab, Experiment([CASES[0], UNKNOWN], ARMS))
    skipped = [record for record in run.records if record.status == "not_applicable"]
    assert [(record.case_id, record.intervention) for record in skipped] == [("q-none", "omit_expected")]
    assert skipped[0].session_id is None
    assert run.failures == []
    pairs = {(pair.intervention.case_id, pair.intervention.intervention) for pair in run.pairs()}
    assert pairs == {("q-door", "recall_off"), ("q-door", "omit_expected"), ("q-none", "recall_off")}
    assert len(await sessions_of(lab)) == len(run.records) - 1


async def sessions_of(lab: Lab) -> list[str]:
    page = await lab.stores.sessions.heads(HeadQuery(limit=1000))
    return [head.row.id for head in page.rows]


async def test_a_failed_session_has_no_score_and_is_counted():
    lab = await Lab(provider=Gauge(refuses="door code")).open()
    run = await sweep(lab)
    failed = [record for record in run.records if record.case_id == "q-door"]
    assert {(record.status, record.failure, record.score) for record in failed} == {("failed", "runtime_failed", None)}
    assert {record.trial_id for record in run.failures} == {record.trial_id for record in failed}
    for effect in estimate_effects(run):
        assert (effect.unscored, effect.questions, effect.incomparable) == (1, len(CASES) - 1, 0)
        assert effect.difference == -1.0


async def cancelled_after(lab: Lab, provider: Gauge, trials: int, concurrency: int, twice: bool) -> ExperimentRun:
    """Cancel a sweep when so many of its trials are done, while as many as may are before the model."""
    run, gate = ExperimentRun(EXPERIMENT), asyncio.Event()

    def progress(known: ExperimentRun) -> None:
        if len(known.records) >= trials:
            provider.gate = gate

    task = asyncio.create_task(sweep(lab, progress=progress, run=run, concurrency=concurrency))
    while provider.gate is None or provider.now < concurrency:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    if twice:
        task.cancel()
    else:
        gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    provider.gate = None
    return run


def stores_at(path) -> StudyStores:
    return StudyStores.in_memory() if path is None else StudyStores.in_file(path)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_a_cancelled_sweep_goes_on_without_running_a_session_twice(tmp_path, backend, concurrency, twice):
    path = tmp_path / "lab.db" if backend == "sqlite" else None
    provider = Gauge()
    lab = await Lab(provider=provider, stores=stores_at(path)).open()
    before = len(asyncio.all_tasks())
    cut = await cancelled_after(lab, provider, 2, concurrency, twice)
    assert not cut.finished
    assert 2 <= len(cut.records) < len(EXPERIMENT.trials())
    assert provider.asked == len(cut.records) + (concurrency if twice else 0)
    assert len(asyncio.all_tasks()) == before
    assert provider.now == 0
    if path is not None:
        await lab.stores.aclose()
        lab = await Lab(provider=provider, stores=stores_at(path)).open()
    again = await sweep(lab)
    found = by_id(again)
    stopped = concurrency if twice else 0  # they are attempted anew, each in a session of its own
    assert provider.asked == len(EXPERIMENT.trials()) + stopped
    assert {name: found[name] for name in by_id(cut)} == by_id(cut)
    assert by_id(await sweep(lab)) == found
    assert provider.asked == len(EXPERIMENT.trials()) + stopped
    assert set((await started(lab.stores.sessions, again)).values()) == {1}
    assert len(await sessions_of(lab)) == len(EXPERIMENT.trials()) + stopped
    assert {record.status for record in cut.records} == {"completed"}
    assert again.failures == []
    await lab.stores.aclose()


async def test_a_trial_that_was_stopped_is_attempted_anew_as_often_as_it_takes():
    provider = Gauge()
    lab = await Lab(provider=provider).open()
    for _ in range(3):  # the second and the third time, what stands before the model are new attempts
        await cancelled_after(lab, provider, 2, 2, twice=True)
    again = await sweep(lab)
    assert again.failures == []
    assert by_id(again).keys() == {planned.trial_id for planned in EXPERIMENT.trials()}
    page = await lab.stores.sessions.heads(HeadQuery(limit=1000))
    found = Counter(str(head.state.status) for head in page.rows)
    assert found == {"completed": len(EXPERIMENT.trials()), "interrupted": 3 * 2}
    read_back = await sweep(lab)
    assert by_id(read_back) == by_id(again)
    assert provider.asked == found.total()
    assert all(effect.unscored == 0 for effect in estimate_effects(again))
    assert all(not pair.mismatches for pair in again.pairs())


async def test_a_failed_trial_is_attempted_anew_when_that_is_asked_for():
    provider = Gauge(refuses="door code")
    lab = await Lab(provider=provider).open()
    first = await sweep(lab)
    lost = {record.trial_id for record in first.failures}
    assert lost
    assert {record.attempt for record in first.records} == {1}
    asked = provider.asked
    assert by_id(await sweep(lab, retry=("timed_out", "outcome_unknown"))) == by_id(first)
    assert provider.asked == asked
    still = await sweep(lab, retry=("failed",))  # each is attempted once more, not for ever
    assert {record.trial_id for record in still.failures} == lost
    assert {record.attempt for record in still.failures} == {2}
    assert provider.asked == asked + len(lost)
    provider.refuses = None
    healed = await sweep(lab, retry="failed")
    assert healed.failures == []
    assert {record.attempt for record in healed.records if record.trial_id in lost} == {3}
    kept = {name: record for name, record in by_id(first).items() if name not in lost}
    assert kept == {name: record for name, record in by_id(healed).items() if name not in lost}
    assert by_id(await sweep(lab)) == by_id(healed)  # the latest attempt stands, whether or not it is asked for
    assert provider.asked == asked + 2 * len(lost)
    assert all(not pair.mismatches for pair in healed.pairs())


@pytest.mark.parametrize("retry", ["completed", ("failed", "error"), ("active",), [None], "fail"])
async def test_what_cannot_be_attempted_anew_is_refused_before_any_trial(retry):
    lab = await Lab().open()
    with pytest.raises(InvalidInput, match="retry names statuses of trials out of cancelled, failed, timed_out"):
        await sweep(lab, retry=retry)
    assert await sessions_of(lab) == []


async def test_a_study_gives_every_attempt_a_request_of_its_own():
    study, planned = (await Lab().open()).study, EXPERIMENT.trials()[0]
    requests = [study.request(planned, attempt) for attempt in (1, 2, 3)]
    assert requests[0] == study.request(planned)
    assert len({request.execution_id for request in requests}) == 3
    assert len({request.session_id for request in requests}) == 3
    assert {len(request.trial_id) for request in requests} == {len(requests[0].trial_id)}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_a_finished_sweep_that_is_repeated_runs_nothing(tmp_path, backend):
    path = tmp_path / "lab.db" if backend == "sqlite" else None
    provider = Gauge()
    lab = await Lab(provider=provider, stores=stores_at(path)).open()
    first = await sweep(lab)
    asked = provider.asked
    if path is not None:
        await lab.stores.aclose()
        lab = await Lab(provider=provider, stores=stores_at(path)).open()
    second = await sweep(lab, concurrency=2)
    assert provider.asked == asked == len(EXPERIMENT.trials())
    assert by_id(second) == by_id(first)
    assert second.bindings == first.bindings
    assert set((await started(lab.stores.sessions, second)).values()) == {1}
    await lab.stores.aclose()


async def test_two_sweeps_of_one_experiment_at_once_run_each_session_once():
    provider = Gauge(pause=0.01)
    lab = await Lab(provider=provider).open()
    one, other = await asyncio.gather(sweep(lab), sweep(lab))
    assert by_id(one) == by_id(other)
    assert {record.status for record in one.records} == {"completed"}
    assert provider.asked == len(EXPERIMENT.trials())


async def test_a_run_that_is_given_again_holds_each_trial_once():
    provider = Gauge()
    lab = await Lab(provider=provider).open()
    run = await cancelled_after(lab, provider, 2, 1, twice=False)
    await sweep(lab, run=run)
    assert len(by_id(run)) == len(EXPERIMENT.trials())


async def test_a_part_of_a_sweep_pairs_what_has_its_baseline():
    run = await sweep(await Lab().open())
    part = ExperimentRun(EXPERIMENT, [item for item in run.records if item.trial_id.endswith("q-lamp/omit_expected/1")])
    assert list(part.pairs()) == []
    assert [effect.questions for effect in estimate_effects(part)] == [0, 0]
    part.records += [item for item in run.records if item.trial_id.endswith("q-lamp/baseline/1")]
    (pair,) = part.pairs()
    assert pair.difference == -1.0


def missing(revision: int = 1) -> Intervention:
    """An arm that omits what is not there."""
    change = MemoryInterventionChange(entry_id="nowhere", revision=revision)
    return Intervention("missing", MemoryInterventionKind.OMIT_ITEMS, lambda case, memories: [change])


async def test_an_intervention_that_matched_no_items_is_reported_and_not_averaged_in():
    def changes(case, memories):
        if case.case_id == "q-key":
            return [MemoryInterventionChange(entry_id="nowhere", revision=1)]
        return omit_expected().changes(case, memories)

    partly = Intervention("partly", MemoryInterventionKind.OMIT_ITEMS, changes)
    run = await sweep(await Lab().open(), Experiment(CASES, [baseline(), partly, missing()], repeats=2))
    found = {effect.intervention: effect for effect in estimate_effects(run)}
    assert found["partly"].incomparable == 2
    assert found["partly"].questions == 2
    assert found["partly"].difference == -1.0
    assert found["partly"].reasons == (str(Mismatch.CHANGED_ITEM_REVISIONS),)
    assert (found["missing"].questions, found["missing"].incomparable) == (0, 2 * len(CASES))
    assert found["missing"].difference is None
    assert found["missing"].p_holm is None
    assert found["partly"].p_holm == found["partly"].p_value
    receipts = {record.receipt for record in run.records if record.intervention == "missing"}
    assert receipts == {"matched_no_items"}


async def test_an_intervention_that_conflicts_is_told_and_not_averaged_in():
    change = MemoryInterventionChange(entry_id="door", revision=7)
    other = Intervention("conflicts", MemoryInterventionKind.OMIT_ITEMS, lambda case, memories: [change])
    run = await sweep(await Lab().open(), Experiment(CASES, [baseline(), other]))
    (effect,) = estimate_effects(run)
    assert {record.status for record in run.records} == {"completed", "conflicting"}
    assert effect.questions == 0
    assert effect.incomparable + effect.unscored == len(CASES)
    assert len(run.failures) == len(CASES)


async def with_bounds(lab: Lab, bounds: MemoryAttributionBounds) -> None:
    """Let the study's runner keep no more of what a session saw than `bounds` admit."""
    executor, sessions = lab.study.executor, lab.stores.sessions
    ledger = DocumentBudgetLedger(sessions)
    app = lab.build_app(
        session_store=sessions, knowledge_store=lab.knowledge.bind(SCOPE), budget_ledger=ledger, recall=lab.recall
    )
    factory = TrialApplicationFactory(
        lab.build_app, app.assembly("reader"), session_store=sessions, budget_ledger=ledger
    )
    lab.study.executor = MemoryInterventionExecutor(
        snapshots=executor.snapshots,
        executions=executor.executions,
        overlay_provider=executor.overlay_provider,
        runtime_runner=CayuMemoryInterventionRuntimeRunner(factory, attribution_bounds=bounds),
        evaluator=executor.evaluator,
        request_keys={KEY.key_id: KEY},
        current_request_key_id=KEY.key_id,
    )


async def test_a_truncated_attribution_is_reported_and_not_averaged_in():
    lab = await Lab().open()
    await with_bounds(lab, MemoryAttributionBounds(max_exposures=0, max_projection_bytes=4096))
    run = await sweep(lab)
    assert {record.status for record in run.records} == {"completed"}
    for effect in estimate_effects(run):
        assert (effect.incomparable, effect.questions, effect.unscored) == (len(CASES), 0, 0)
        assert effect.reasons == (str(Mismatch.REQUIRED_ATTRIBUTION_AVAILABILITY),)
        assert (effect.baseline, effect.score, effect.difference, effect.p_value) == (None,) * 4


async def test_pairs_are_of_one_case_and_one_repeat():
    arms = [baseline(), inject("irrelevant", [Item(case.case_id, "irrelevant") for case in CASES])]
    run = await sweep(await Lab().open(), Experiment(CASES, arms, repeats=2))
    pairs = list(run.pairs())
    assert len(pairs) == 2 * len(CASES)
    assert all(isinstance(pair, Pair) and pair.mismatches == () for pair in pairs)
    for pair in pairs:
        before, after = pair.baseline, pair.intervention
        assert (before.case_id, before.repeat) == (after.case_id, after.repeat)
        assert (before.intervention, after.intervention) == ("baseline", "irrelevant")
        assert pair.difference == 0.0


class Shaky(InMemoryKnowledgeStore):
    """A memory that cannot be searched for one word."""

    word: str | None = None

    async def select(self, selection):
        if selection.tokens is not None and self.word in selection.tokens:
            raise OSError("the disk is gone")
        return await super().select(selection)


async def test_a_recall_that_failed_is_reported_and_not_averaged_in():
    knowledge = Shaky()
    lab = await Lab(knowledge=knowledge).open()
    knowledge.word = "lamp"
    run = await sweep(lab)
    assert {record.status for record in run.records} == {"completed"}
    attributions = [run.bindings[item.trial_id].attribution for item in run.records if item.case_id == "q-lamp"]
    reasons = {(found.status, found.reason) for found in attributions if found.reason}
    assert reasons == {("truncated", "recall_failed")}
    for effect in estimate_effects(run):
        assert (effect.incomparable, effect.unscored, effect.questions) == (1, 0, len(CASES) - 1)
        assert effect.reasons == (str(Mismatch.REQUIRED_ATTRIBUTION_AVAILABILITY),)
        assert (effect.baseline, effect.difference) == (1.0, -1.0)


async def test_a_cancellation_that_leaks_from_a_component_is_recorded_and_the_others_go_on():
    lab = await Lab().open()
    judge = lab.study.executor.evaluator
    evaluate, leaked = judge.evaluate, []

    async def leaking(**given):
        if not leaked:
            leaked.append(True)
            raise asyncio.CancelledError
        return await evaluate(**given)

    judge.evaluate = leaking
    run = await sweep(lab)
    assert run.finished
    assert [(record.status, record.failure) for record in run.failures] == [("error", "CancelledError")]
    assert [record.attempt for record in run.failures] == [None]
    assert len(by_id(run)) == len(EXPERIMENT.trials())
    again = await sweep(lab)
    assert again.failures == []
    assert set((await started(lab.stores.sessions, again)).values()) == {1}


async def test_a_run_of_another_experiment_is_refused_and_left_as_it_is():
    lab = await Lab().open()
    other = Experiment(CASES[:1], [baseline()], name="another")
    run = await sweep(lab, other)
    records = list(run.records)
    with pytest.raises(InvalidInput, match="run is of experiment 'another'"):
        await sweep(lab, run=run)
    assert run.records == records
    assert run.finished


async def test_errors_are_logged_once_of_each_kind_without_the_words_of_foreign_ones(caplog):
    built = 0

    def building() -> None:
        nonlocal built
        built += 1
        if built > 2:
            raise (InvalidInput("no such tool") if built % 2 else RuntimeError("the door code is K4711"))

    caplog.set_level(logging.DEBUG)
    lab = await Lab(building=building).open()
    run = await sweep(lab, concurrency=1)
    assert {record.failure for record in run.failures} == {"InvalidInput", "RuntimeError"}
    assert len(run.failures) == len(EXPERIMENT.trials())
    told = [record.getMessage() for record in caplog.records if record.name == "cayu.experiments"]
    assert [words.rpartition(": ")[2] for words in told] == ["no such tool", "RuntimeError"]
    assert "K4711" not in caplog.text
