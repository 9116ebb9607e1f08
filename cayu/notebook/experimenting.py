"""Experiments from a lab: capture an agent, run a sweep in the background, and look on while it runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

from cayu.errors import InvalidInput, NotebookError
from cayu.evals.cases import EvalCase
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.design import Experiment
from cayu.experiments.effects import Effect, estimate_effects
from cayu.experiments.keys import key_beside
from cayu.experiments.study import MemoryStudy
from cayu.experiments.subjects import StudyStores, Subject
from cayu.experiments.sweep import DEFAULT_CONCURRENCY, ExperimentRun, Progress, run_experiment
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey
from cayu.notebook import trials
from cayu.notebook.figures.forest import signed, too_few_topics
from cayu.notebook.figures.words import counted
from cayu.notebook.frames import Conditions, finished
from cayu.notebook.handles import Bundle
from cayu.notebook.html import card, esc, table
from cayu.notebook.problems import Problem, Problems
from cayu.notebook.tables import asked
from cayu.runtime.app import CayuApp
from cayu.sessions.streams import SessionStore

T = TypeVar("T")
STOPPING_SECONDS = 5.0
"""How long the end of a lab waits for trials in work before it stops them; the next run attempts them anew."""
_stores: WeakKeyDictionary[MemoryStudy, SessionStore] = WeakKeyDictionary()
"""The session store that each study was made on; a restart of its lab closes it."""


class Experimenting(ABC):
    """What a lab does with experiments on memory. Their trials are sessions of the lab's store like any other."""

    where: str
    app: CayuApp
    problems: Problems
    experiments: list[ExperimentHandle]
    """Those that were begun in this lab, the oldest first."""

    @abstractmethod
    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine on the lab's loop and wait for it."""

    @abstractmethod
    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Await any coroutine that runs on the lab's loop."""

    @abstractmethod
    def _working(self) -> CayuApp:
        """Return the application, when the lab has one to work with."""

    def study(
        self,
        subject: Subject,
        cases: Iterable[EvalCase],
        *,
        key: MemoryInterventionRequestFingerprintKey | None = None,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
        snapshot_fingerprint: str | None = None,
    ) -> MemoryStudy:
        """Capture an agent for trials on its memory, which stand in the lab's store.

        Without a `key` the lab keeps one in the file `<store>.key`, which makes trials go on after a restart.
        """
        return self.call(self._study(subject, cases, key, scoring, snapshot_fingerprint))

    async def astudy(
        self,
        subject: Subject,
        cases: Iterable[EvalCase],
        *,
        key: MemoryInterventionRequestFingerprintKey | None = None,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
        snapshot_fingerprint: str | None = None,
    ) -> MemoryStudy:
        """Await `study`."""
        return await self.acall(self._study(subject, cases, key, scoring, snapshot_fingerprint))

    async def _study(
        self,
        subject: Subject,
        cases: Iterable[EvalCase],
        key: MemoryInterventionRequestFingerprintKey | None,
        scoring: AnswerScoring,
        snapshot: str | None,
    ) -> MemoryStudy:
        sessions = self._working().session_store
        made = key or key_beside(self.where)
        stores = StudyStores.beside(sessions)
        study = await MemoryStudy.open(subject, cases, stores, made, scoring, snapshot_fingerprint=snapshot)
        _stores[study] = sessions
        return study

    def experiment(
        self,
        experiment: Experiment,
        study: MemoryStudy,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        progress: Progress | None = None,
        retry: Collection[str] = (),
    ) -> ExperimentHandle:
        """Start an experiment and return at once; `wait()` on the handle, or `await` it, for its end.

        Trials that were run before are read from the journal, and those that came to no result are attempted anew if
        `retry` names their status. `progress` is called after each trial, on the lab's loop.
        Raises `InvalidInput` while an experiment of that name runs, and for a study from before a restart of the lab.
        """
        return self.call(self._begin(experiment, study, concurrency, progress, retry))

    async def aexperiment(
        self,
        experiment: Experiment,
        study: MemoryStudy,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        progress: Progress | None = None,
        retry: Collection[str] = (),
    ) -> ExperimentHandle:
        """Await `experiment`: its beginning, and not its end."""
        return await self.acall(self._begin(experiment, study, concurrency, progress, retry))

    async def _begin(
        self,
        experiment: Experiment,
        study: MemoryStudy,
        concurrency: int,
        progress: Progress | None,
        retry: Collection[str],
    ) -> ExperimentHandle:
        sessions = self._working().session_store
        if _stores.get(study, sessions) is not sessions:
            words = "This study's store is not, or no longer, open in this lab; after lab.restart()"
            raise InvalidInput(f"{words} call lab.study(...) again.")
        for running in self.experiments:
            if running.experiment.name == experiment.name and not running.done:
                raise InvalidInput(f"Experiment {experiment.name!r} is running already; wait for it, or cancel it.")
        run = ExperimentRun(experiment, total=len(experiment.trials()))

        def told(done: ExperimentRun) -> None:
            try:
                if progress is not None:
                    progress(done)
            except Exception as error:  # noqa: BLE001 - who looks on never fails an experiment
                self.problems.keep("progress", error)

        work = run_experiment(experiment, study, concurrency=concurrency, progress=told, run=run, retry=retry)
        handle = ExperimentHandle(self, run, asyncio.create_task(work, name="cayu experiment"))
        self.experiments.append(handle)
        return handle

    def _runs(self) -> list[ExperimentRun]:
        """Return the latest run of each experiment."""
        return list({handle.experiment.name: handle.run for handle in self.experiments}.values())

    async def _end_experiments(self) -> None:
        """End what runs: no more trials begin, those in work end, and slow ones are stopped."""
        stopping = [handle._stop() for handle in self.experiments if not handle.done]
        if not stopping:
            return
        _, slow = await asyncio.wait(stopping, timeout=STOPPING_SECONDS)
        for task in slow:
            task.cancel()
        if slow:
            await asyncio.wait(slow)


class ExperimentHandle:
    """An experiment that was begun; shows how far it is and what it has found."""

    def __init__(self, lab: Experimenting, run: ExperimentRun, task: asyncio.Task[ExperimentRun]) -> None:
        self.lab = lab
        self.run = run
        """The trials that are done, growing while the experiment runs."""
        self._task = task
        self._end: Future[None] = Future()
        self._problem: Problem | None = None
        task.add_done_callback(self._tell)

    def _tell(self, task: asyncio.Task[ExperimentRun]) -> None:
        """Tell other threads of the end; a failure that nobody waits for is kept for `lab.errors_df()`."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._problem = self.lab.problems.keep(f"experiment {self.experiment.name}", error)
        self._end.set_result(None)

    @property
    def experiment(self) -> Experiment:
        """The design."""
        return self.run.experiment

    @property
    def done(self) -> bool:
        """True once nothing of it runs any more."""
        return self._end.done()

    @property
    def state(self) -> str:
        """`running`, `finished`, `cancelled` or `failed`."""
        if not self.done:
            return "running"
        if self._task.cancelled():
            return "cancelled"
        return "failed" if self.failure is not None else "finished"

    @property
    def failure(self) -> BaseException | None:
        """What the experiment failed with. A trial that fails is a row of `trials_df`, and the others go on."""
        return self._task.exception() if self.done and not self._task.cancelled() else None

    def wait(self, timeout: float | None = None) -> ExperimentHandle:
        """Wait for the end, at most `timeout` seconds, and return this handle.

        Raises `TimeoutError` when it runs longer, what it failed with, and `NotebookError` when it was cancelled. An
        interrupted cell stops waiting; the experiment goes on. Raises `OnLabLoop` on the lab's loop: await it there.
        """
        if not self.done:
            self.lab.call(asyncio.sleep(0))  # refuses to block the lab's own loop
        wait([self._end], timeout)
        return self._told()

    def __await__(self) -> Generator[Any, None, ExperimentHandle]:
        """Await the end, and give this handle; raises as `wait` does."""
        return self._ended().__await__()

    async def _ended(self) -> ExperimentHandle:
        if not self.done:
            await asyncio.wait([asyncio.wrap_future(self._end)])
        return self._told()

    def _told(self) -> ExperimentHandle:
        """Return this handle, or raise what stands against it; a failure that is raised counts as read."""
        name, failure = self.experiment.name, self.failure
        if not self.done:
            raise TimeoutError(f"Experiment {name!r} goes on: {progress_text(self)}.")
        if self._task.cancelled():
            raise NotebookError(f"Experiment {name!r} was cancelled; begin it again to go on from there.")
        if failure is not None:
            if self._problem is not None:
                self._problem.read = True
            raise failure
        return self

    def cancel(self) -> None:
        """Begin no more trials, and wait for those in work; the same experiment goes on when it is begun again."""
        if not self.done:
            self.lab.call(self._at_rest())

    async def acancel(self) -> None:
        """Await `cancel`."""
        if not self.done:
            await self.lab.acall(self._at_rest())

    async def _at_rest(self) -> None:
        await asyncio.wait([self._stop()])

    def _stop(self) -> asyncio.Task[ExperimentRun]:
        """Begin no more trials. Asking twice does no more: a task cancelled twice gives up the trials in work."""
        if not self._task.cancelling():
            self._task.cancel()
        return self._task

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effect of each intervention, from the trials that are done."""
        return estimate_effects(self.run)

    def trials_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the experiment's trials; takes the arguments of `Lab.trials_df`."""
        return finished(asked("trials_df", where, **ask), trials.trials_data([self.run]))

    def effects_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return the experiment's effects; takes the arguments of `Lab.effects_df`."""
        found = [(self.experiment.name, self.effects)]
        return finished(asked("effects_df", where, **ask), trials.effects_data(found))

    def __repr__(self) -> str:
        """Say how far the experiment is."""
        return f"<Experiment {self.experiment.name!r}: {progress_text(self)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": repr(self), "text/html": experiment_html(self)}


def progress_text(handle: ExperimentHandle) -> str:
    """Return how far an experiment is, in words."""
    run, failed = handle.run, len(handle.run.failures)
    words = f"{handle.state}, {len(run.records)} of {run.total} trials"
    return f"{words}, {failed} without a score" if failed else words


def experiment_html(handle: ExperimentHandle) -> str:
    """Return an experiment as a card: how far it is, and its effects."""
    found = handle.effects if handle.run.records else ()
    few = too_few_topics(found)
    notes = [f'<div class="cayu-muted">{esc(few)}</div>'] if few else []
    return experiment_card(handle, [*experiment_lines(handle, found), *notes])


def experiment_card(handle: ExperimentHandle, body: Iterable[str]) -> str:
    """Return lines of HTML as the card of an experiment."""
    return card(f"Experiment {handle.experiment.name}", progress_text(handle), body, kind=STATE_KINDS.get(handle.state))


def experiment_lines(handle: ExperimentHandle, found: Sequence[Effect]) -> list[str]:
    """Return what an experiment is and the effects that are known, as lines of HTML."""
    design = handle.experiment
    facts = [counted(len(design.cases), "question"), counted(len(design.interventions) - 1, "intervention")]
    facts += [f"beside the {design.baseline.name}", counted(design.repeats, "repeat"), f"seed {design.seed}"]
    told = [", ".join(facts).replace(", beside", " beside")]
    body = []
    if any(effect.questions for effect in found):
        body.append(table(EFFECT_HEAD, map(effect_row, found)))
    left_out = [f"{each.intervention}: {', '.join(each.reasons)}" for each in found if each.incomparable]
    told += [f"Not comparable, and left out: {'; '.join(left_out)}"] if left_out else []
    failures = Counter(record.failure or record.status for record in handle.run.failures)
    unscored = [f"{name} ({count})" for name, count in failures.most_common()]
    told += [f"Without a score, and left out: {', '.join(unscored)}"] if unscored else []
    told += [f"{type(handle.failure).__name__}: {handle.failure}"] if handle.failure is not None else []
    lead, *notes = [f'<div class="cayu-muted">{esc(line)}</div>' for line in told]
    return [lead, *body, *notes]


STATE_KINDS = {"finished": "completed", "running": "running", "cancelled": "interrupted", "failed": "failed"}
"""How the states are coloured: as those of a session."""
EFFECT_HEAD = ("Intervention", "Questions", "Topics", "Baseline", "Score", "Difference", "95 % interval", "p (Holm)")


def effect_row(effect: Effect) -> tuple[object, ...]:
    """Return an effect as the cells of a table."""
    interval = None
    if effect.low is not None and effect.high is not None:
        interval = f"{signed(effect.low)} to {signed(effect.high)}"
    return (
        effect.intervention,
        effect.questions,
        effect.topics,
        None if effect.baseline is None else f"{effect.baseline:.2f}",
        None if effect.score is None else f"{effect.score:.2f}",
        None if effect.difference is None else signed(effect.difference),
        interval,
        None if effect.p_holm is None else p_text(effect.p_holm),
    )


def p_text(p_value: float) -> str:
    """Return a p-value with three digits."""
    return "< 0.001" if p_value < SMALLEST_P else f"{p_value:.3f}"


SMALLEST_P = 0.001
"""Below this the digits of a p-value say nothing more."""
