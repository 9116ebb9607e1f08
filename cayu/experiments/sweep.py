"""Runs an experiment's trials, a few at a time; one that was run before is not run again but read from the journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field

from cayu.errors import CayuError, InvalidInput
from cayu.experiments.design import Experiment, PlannedTrial
from cayu.experiments.study import MemoryStudy
from cayu.interventions.comparability import MemoryInterventionComparability, MemoryInterventionMismatch
from cayu.interventions.evidence import MemoryInterventionReceiptStatus, MemoryInterventionTrialBinding
from cayu.interventions.phases import MemoryInterventionExecutionStatus
from cayu.interventions.results import MemoryInterventionTrialOutcome
from cayu.messages import Frozen
from cayu.shielding import is_cancelling

logger = logging.getLogger("cayu.experiments")

DEFAULT_CONCURRENCY = 4
STOPPED = MemoryInterventionExecutionStatus.CANCELLED
RETRIABLE = (
    STOPPED,
    MemoryInterventionExecutionStatus.FAILED,
    MemoryInterventionExecutionStatus.TIMED_OUT,
    MemoryInterventionExecutionStatus.OUTCOME_UNKNOWN,
)
"""What an attempt may have come to that a later run can be asked to try anew."""


class TrialRecord(Frozen):
    """What came of one planned trial."""

    trial_id: str
    case_id: str
    topic: str
    intervention: str
    repeat: int
    status: str
    """The execution's status; `error` when it could not be executed, `not_applicable` when nothing is to be done."""
    attempt: int | None = None
    """From 1, counted up when a trial whose attempt came to no result is attempted anew; None if none was executed."""
    phase: str | None = None
    score: float | None = None
    """From 0 to 1; None when there is no evaluation."""
    passed: bool | None = None
    expected_seen: bool | None = None
    """Whether every memory that holds the answer stood before the model."""
    answer: str | None = None
    receipt: str | None = None
    exposures: int | None = None
    """Requests that held memory."""
    duration_ms: float | None = None
    """Of the session, by the store's clock."""
    session_id: str | None = None
    execution_id: str | None = None
    failure: str | None = None
    """The failure code, or the name of the error."""


@dataclass(slots=True)
class ExperimentRun:
    """An experiment with the trials that are known so far."""

    experiment: Experiment
    records: list[TrialRecord] = field(default_factory=list)
    """In the order in which they were done."""
    bindings: dict[str, MemoryInterventionTrialBinding] = field(default_factory=dict)
    """Those of finished trials, by trial id."""
    total: int = 0
    finished: bool = False

    @property
    def failures(self) -> list[TrialRecord]:
        """Trials without a score that ought to have one."""
        return [record for record in self.records if record.score is None and record.status != NOT_APPLICABLE]

    def pairs(self) -> Iterator[Pair]:
        """Yield each trial of an intervention beside the baseline's trial of the same case and repeat."""
        name = self.experiment.baseline.name
        before = {(item.case_id, item.repeat): item for item in self.records if item.intervention == name}
        for record in self.records:
            beside = before.get((record.case_id, record.repeat))
            if record.intervention == name or beside is None or record.status == NOT_APPLICABLE:
                continue
            yield Pair(beside, record, self._mismatches(beside, record))

    def _mismatches(self, before: TrialRecord, after: TrialRecord) -> tuple[MemoryInterventionMismatch, ...]:
        if after.receipt in _NO_EFFECT:
            return (MemoryInterventionMismatch.CHANGED_ITEM_REVISIONS,)
        baseline, other = self.bindings.get(before.trial_id), self.bindings.get(after.trial_id)
        if baseline is None or other is None:
            return ()
        return MemoryInterventionComparability.create(baseline=baseline, intervention=other).mismatches


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trials of one case that ought to differ in nothing but the intervention."""

    baseline: TrialRecord
    intervention: TrialRecord
    mismatches: tuple[MemoryInterventionMismatch, ...]
    """Why they are not compared; empty when they are."""

    @property
    def difference(self) -> float | None:
        """The intervention's score less the baseline's; None when either has none."""
        if self.baseline.score is None or self.intervention.score is None:
            return None
        return self.intervention.score - self.baseline.score


NOT_APPLICABLE = "not_applicable"
_NO_EFFECT = (str(MemoryInterventionReceiptStatus.CONFLICTING), str(MemoryInterventionReceiptStatus.INDETERMINATE))
ERROR = "error"
Progress = Callable[[ExperimentRun], None]


async def run_experiment(
    experiment: Experiment,
    study: MemoryStudy,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
    run: ExperimentRun | None = None,
    retry: Collection[str] = (),
) -> ExperimentRun:
    """Run every trial, `concurrency` at once, and return what came of them.

    Safe to repeat after a crash or a cancellation, with the same study. A trial that cannot be executed is recorded and
    the others go on. A cancellation begins no more trials and waits for those in work; a second one stops them, and the
    next run gives each a new attempt, in a session of its own. `retry` names what else is attempted anew when an
    earlier run left it so: `failed`, `timed_out`, `outcome_unknown`. `progress` is called after each trial; `run` is
    filled in place, for those who look on. Raises `InvalidInput`, before any trial, for an arm that fits no case.
    """
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput("concurrency is a whole number from 1 on.")
    anew = _statuses(retry)
    study.check(experiment)
    run = run or ExperimentRun(experiment)
    if run.experiment != experiment:
        raise InvalidInput(f"The run is of experiment {run.experiment.name!r}; leave it out, or pass one of this.")
    run.records.clear()
    run.bindings.clear()
    waiting = list(reversed(experiment.trials()))
    run.total = len(waiting)

    async def work() -> None:
        while waiting:
            planned = waiting.pop()
            run.records.append(await _record(run, study, planned, anew))
            _tell(progress, run)

    tasks = [asyncio.create_task(work(), name="cayu trial") for _ in range(min(concurrency, run.total))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        waiting.clear()
        await _drained(tasks)
    for task in tasks:
        task.result()
    run.finished = True
    return run


async def _drained(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for trials in work; when even this wait is cancelled, stop them."""
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def _tell(progress: Progress | None, run: ExperimentRun) -> None:
    """Tell whoever looks on; one that fails, fails alone."""
    if progress is None:
        return
    try:
        progress(run)
    except Exception:
        logger.warning("the progress of experiment %r could not be told", run.experiment.name, exc_info=True)


def _statuses(retry: Collection[str]) -> frozenset[str]:
    """Return the statuses that are attempted anew. Raises `InvalidInput` for one that is not."""
    named = (retry,) if isinstance(retry, str) else tuple(retry)
    for status in named:
        if status not in RETRIABLE:
            raise InvalidInput(f"retry names statuses of trials out of {', '.join(RETRIABLE)}; {status!r} is none.")
    return frozenset({STOPPED, *named})


async def _record(run: ExperimentRun, study: MemoryStudy, planned: PlannedTrial, anew: Set[str]) -> TrialRecord:
    known = {
        "trial_id": planned.trial_id,
        "case_id": planned.case.case_id,
        "topic": planned.case.topic,
        "intervention": planned.intervention.name,
        "repeat": planned.repeat,
    }
    try:
        if not planned.intervention.applies_to(planned.case, study.memories):
            return TrialRecord(**known, status=NOT_APPLICABLE)
        attempt, outcome = await _executed(study, planned, anew)
    except asyncio.CancelledError:
        if is_cancelling():
            raise
        return TrialRecord(**known, status=ERROR, failure="CancelledError")
    except Exception as error:  # noqa: BLE001 - the others go on
        words = str(error) if isinstance(error, CayuError) else type(error).__name__  # other messages may quote content
        name = type(error).__name__
        if not any(record.failure == name for record in run.records):  # the first of its kind; the records count them
            logger.warning("trial %r could not be executed: %s", planned.trial_id, words)
        return TrialRecord(**known, status=ERROR, failure=name)
    if outcome.binding is not None:
        run.bindings[planned.trial_id] = outcome.binding
    return TrialRecord(**known, attempt=attempt, **_found(outcome))


async def _executed(
    study: MemoryStudy, planned: PlannedTrial, anew: Set[str]
) -> tuple[int, MemoryInterventionTrialOutcome]:
    """Bring a trial's latest attempt to its end and return it, or a new one when that ended so in an earlier run."""
    attempt, request = 1, study.request(planned)
    begun_before = await study.executor.executions.load(request.execution_id) is not None
    while True:
        outcome = await study.executor.execute_trial(request)
        if not begun_before or outcome.execution.status not in RETRIABLE:
            return attempt, outcome
        request = study.request(planned, attempt + 1)
        begun_before = await study.executor.executions.load(request.execution_id) is not None
        if not begun_before and outcome.execution.status not in anew:
            return attempt, outcome
        attempt += 1


def _found(outcome: MemoryInterventionTrialOutcome) -> dict[str, object]:
    execution, evaluated = outcome.execution, outcome.eval_result
    found: dict[str, object] = {
        "status": str(execution.status),
        "phase": str(execution.phase),
        "session_id": execution.session_id,
        "execution_id": execution.execution_id,
        "failure": execution.failure_code,
        "receipt": str(outcome.receipt.status) if outcome.receipt is not None else None,
    }
    if outcome.binding is not None:
        found["exposures"] = outcome.binding.attribution.observed_exposures
    if evaluated is None:
        return found
    checks = {check.name: check.passed for check in evaluated.assertions}
    return found | {
        "score": evaluated.score,
        "passed": evaluated.status == "passed" if evaluated.score is not None else None,
        "expected_seen": checks.get("expected_entries_seen"),
        "answer": evaluated.final_output,
        "duration_ms": evaluated.duration_ms,
    }
