"""Evaluation: asked for once per trial, completed after a cut under the same operation, and scored from the log."""

from __future__ import annotations

import pytest
from memory.support import (
    CASE,
    CODE,
    OTHER,
    Bench,
    CountingEvaluator,
    JournalProxy,
    Lost,
    arm,
    at,
    change,
    once,
)
from runtime.support import FakeTool, calls

from cayu.canonical import dumps
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.evals import AnswerScoring, EvalCase, EvalTrialResult
from cayu.experiments import omit_expected, recall_off
from cayu.memory import MemoryInterventionRuntimeResult, MemoryInterventionTrialOutcome
from cayu.memory.evaluators import AnswerEvaluator
from cayu.providers import ScriptedModelProvider
from cayu.providers.base import ModelStreamEvent
from cayu.tools import KnowledgeSearchTool


@pytest.mark.requirement("B050")
async def test_an_uninterrupted_trial_is_evaluated_once() -> None:
    bench = await Bench().open()
    judge = CountingEvaluator(bench.study.executor.evaluator)
    executor = bench.executor(evaluator=judge)
    outcome = await executor.execute_trial(bench.request())
    assert [how for how, _ in judge.asked] == ["evaluate"]
    assert await executor.execute_trial(bench.request()) == outcome
    assert [how for how, _ in judge.asked] == ["evaluate", "recover"]
    assert len({operation for _, operation in judge.asked}) == 1


@pytest.mark.requirement("B050")
@pytest.mark.parametrize(
    ("phase", "before", "expected"),
    [
        ("runtime_terminal", True, ["recover"]),
        ("runtime_terminal", False, ["recover"]),
        ("evaluated", True, ["evaluate", "recover"]),
        ("evaluated", False, ["evaluate", "recover"]),
        ("finalized", True, ["evaluate", "recover"]),
        ("finalized", False, ["evaluate", "recover"]),
    ],
)
async def test_an_evaluation_that_was_cut_off_is_completed_under_the_same_operation(
    phase: str, before: bool, expected: list[str]
) -> None:
    """`evaluate` is asked at most once: whoever comes later cannot know that it was not."""
    bench = await Bench().open()
    judge = CountingEvaluator(bench.study.executor.evaluator)
    hook = at(phase, once())
    journal = JournalProxy(bench.stores.executions, **{"before" if before else "after": hook})
    executor = bench.executor(evaluator=judge, executions=journal)
    with pytest.raises(Lost):
        await executor.execute_trial(bench.request())
    outcome = await executor.execute_trial(bench.request())
    assert [how for how, _ in judge.asked] == expected
    assert len({operation for _, operation in judge.asked}) == 1
    smooth = await (await Bench().open()).execute()
    assert outcome.binding is not None
    assert smooth.binding is not None
    assert outcome.binding.fingerprint == smooth.binding.fingerprint
    assert outcome.execution.eval_result_revision == smooth.execution.eval_result_revision


@pytest.mark.requirement("B050")
async def test_an_evaluator_that_fails_is_asked_to_recover_the_next_time() -> None:
    bench = await Bench().open()
    judge = CountingEvaluator(bench.study.executor.evaluator)
    inner, judge.inner = judge.inner, Failing(judge.inner)
    executor, request = bench.executor(evaluator=judge), bench.request()
    with pytest.raises(Lost):
        await executor.execute_trial(request)
    stands = await bench.journal(request)
    assert stands is not None
    assert stands.phase == "runtime_terminal"
    judge.inner = inner
    assert (await executor.execute_trial(request)).execution.status == "completed"
    assert [how for how, _ in judge.asked] == ["evaluate", "recover"]


class Failing(CountingEvaluator):
    """An evaluator that fails."""

    async def evaluate(self, **given: object) -> EvalTrialResult:
        raise Lost


class Moody(CountingEvaluator):
    """An evaluator that says something else the second time."""

    async def recover(self, **given: object) -> EvalTrialResult:
        return EvalTrialResult(status="skipped")


async def test_an_evaluator_that_changes_its_mind_is_a_conflict() -> None:
    bench = await Bench().open()
    judge = Moody(bench.study.executor.evaluator)
    executor = bench.executor(
        evaluator=judge, executions=JournalProxy(bench.stores.executions, after=at("evaluated", once()))
    )
    with pytest.raises(Lost):
        await executor.execute_trial(bench.request())
    with pytest.raises(MemoryInterventionExecutionConflict, match="the evaluator gives another result"):
        await executor.execute_trial(bench.request())


async def test_a_passed_answer_is_scored_from_the_log() -> None:
    outcome = await (await Bench().open()).execute()
    found = outcome.eval_result
    assert found is not None
    assert (found.status, found.score, found.error) == ("passed", 1.0, None)
    assert CODE in (found.final_output or "")
    assert {item.name: item.passed for item in found.assertions} == {
        "answer_contains": True,
        "expected_entries_seen": True,
    }
    assert found.memory_attribution is not None
    assert found.memory_attribution.observed_exposures == 1
    assert found.evidence_complete
    assert found.duration_ms is not None
    assert found.duration_ms >= 0
    assert found.session_id == outcome.execution.session_id


@pytest.mark.parametrize("made", [recall_off(), omit_expected()], ids=["recall_off", "omit"])
async def test_without_the_memory_the_answer_fails_and_nothing_was_seen(made: object) -> None:
    found = (await (await Bench().open()).execute(made)).eval_result
    assert found is not None
    assert (found.status, found.score) == ("failed", 0.0)
    assert [item.passed for item in found.assertions] == [False, False]


async def test_a_session_that_failed_has_no_score() -> None:
    bench = await Bench(provider=ScriptedModelProvider([[ModelStreamEvent.error("refused")]])).open()
    found = (await bench.execute()).eval_result
    assert found is not None
    assert (found.status, found.error, found.score) == ("error", "failed", None)


async def evaluated(bench: Bench, outcome: MemoryInterventionTrialOutcome, cases: list[EvalCase]) -> EvalTrialResult:
    """What an evaluator over these cases says of a finished trial."""
    payload = outcome.execution.runtime_result_payload
    assert payload is not None
    runtime = MemoryInterventionRuntimeResult.model_validate_json(dumps(payload))
    judge = AnswerEvaluator(cases, bench.stores.sessions)
    return await judge.evaluate(operation_id="o", case=CASE.contract, runtime=runtime)


async def test_a_case_that_the_evaluator_does_not_have_is_unavailable() -> None:
    bench = await Bench().open()
    outcome, changed = await bench.execute(), CASE.model_copy(update={"expected_answer": "another"})
    for cases in ([OTHER], [changed]):
        found = await evaluated(bench, outcome, cases)
        assert (found.status, found.error) == ("unavailable", "unknown_case")


async def test_a_session_that_is_gone_is_unavailable() -> None:
    bench = await Bench().open()
    outcome = await bench.execute()
    bench.stores.sessions._streams.clear()  # type: ignore[attr-defined]
    found = await evaluated(bench, outcome, [CASE])
    assert (found.status, found.error, found.evidence_complete) == ("unavailable", "no_session", False)


async def test_the_identity_of_an_evaluator_is_its_rule() -> None:
    sessions = (await Bench().open()).stores.sessions
    one = AnswerEvaluator([CASE, OTHER], sessions)
    assert one.evaluator_fingerprint == AnswerEvaluator([OTHER, CASE], sessions).evaluator_fingerprint
    assert one.evaluator_fingerprint == AnswerEvaluator([CASE], sessions).evaluator_fingerprint
    others = [
        AnswerEvaluator([CASE, OTHER], sessions, scoring=AnswerScoring.F1),
        AnswerEvaluator([CASE, OTHER], sessions, passing_score=0.5),
    ]
    assert len({one.evaluator_fingerprint, *(other.evaluator_fingerprint for other in others)}) == 3
    with pytest.raises(InvalidInput, match="one id"):
        AnswerEvaluator([CASE, CASE], sessions)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        AnswerEvaluator([CASE], sessions, passing_score=1.5)


async def test_tools_that_read_knowledge_count_as_seen_in_the_assertion() -> None:
    """Automatic recall is off; the expected entry comes by a tool's artifact."""
    bench = await Bench(tools=[KnowledgeSearchTool()]).open()
    outcome = await bench.execute(recall_off())
    assert outcome.eval_result is not None
    assert [item.passed for item in outcome.eval_result.assertions] == [True, True]
    silent = await Bench(
        provider=ScriptedModelProvider([calls("look"), f"It is {CODE}."]), tools=[FakeTool("look")]
    ).open()
    guessed = (await silent.execute(recall_off())).eval_result
    assert guessed is not None
    assert [item.passed for item in guessed.assertions] == [True, False]


async def test_an_expected_entry_counts_as_seen_only_at_the_revision_that_holds_the_answer() -> None:
    """What was put in its place under the same id stands before the model at another revision."""
    bench = await Bench().open()
    stale = change("cold-room", text="The door code of the cold room is 1234.")
    outcome = await bench.execute(arm("replace", "replace_items", stale))
    found = outcome.eval_result
    assert found is not None
    assert found.memory_attribution is not None
    assert found.memory_attribution.observed_exposures == 1
    assert "1234" in (found.final_output or "")
    assert {item.name: item.passed for item in found.assertions}["expected_entries_seen"] is False
