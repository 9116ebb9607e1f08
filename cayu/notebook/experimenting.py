"""Experiments from a lab: capture an agent, run a sweep in the background, and look on while it runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import pandas as pd

from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.design import Experiment
from cayu.experiments.effects import Effect, estimate_effects
from cayu.experiments.keys import key_beside
from cayu.experiments.study import MemoryStudy, StudyStores, Subject
from cayu.experiments.sweep import DEFAULT_CONCURRENCY, ExperimentRun, Progress, run_experiment
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey
from cayu.notebook import trials
from cayu.notebook.frames import Conditions, finished
from cayu.notebook.handles import Bundle
from cayu.notebook.html import card, esc, table
from cayu.notebook.tables import asked
from cayu.runtime.app import CayuApp

T = TypeVar("T")
Work = tuple[asyncio.Task[ExperimentRun], Future[ExperimentRun]]


class Experimenting(ABC):
    """What a lab does with experiments on memory. Their trials are sessions of the lab's store like any other."""

    where: str
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
    ) -> MemoryStudy:
        """Capture an agent for trials on its memory, which stand in the lab's store.

        Without a `key` the lab keeps one in the file `<store>.key`, which makes trials go on after a restart.
        """
        return self.call(self._study(subject, cases, key, scoring))

    async def astudy(
        self,
        subject: Subject,
        cases: Iterable[EvalCase],
        *,
        key: MemoryInterventionRequestFingerprintKey | None = None,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
    ) -> MemoryStudy:
        """Await `study`."""
        return await self.acall(self._study(subject, cases, key, scoring))

    async def _study(
        self,
        subject: Subject,
        cases: Iterable[EvalCase],
        key: MemoryInterventionRequestFingerprintKey | None,
        scoring: AnswerScoring,
    ) -> MemoryStudy:
        stores = StudyStores.beside(self._working().session_store)
        return await MemoryStudy.open(subject, cases, stores, key or key_beside(self.where), scoring)

    def experiment(
        self,
        experiment: Experiment,
        study: MemoryStudy,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        progress: Progress | None = None,
    ) -> ExperimentHandle:
        """Start an experiment and return at once; `wait()` on the handle, or `await` it, for its end.

        Trials that were run before are read from the journal. `progress` is called after each trial, on the lab's loop.
        """
        self._working()
        for running in self.experiments:
            if running.experiment.name == experiment.name and not running.done:
                raise InvalidInput(f"Experiment {experiment.name!r} is running already; wait for it, or cancel it.")
        run = ExperimentRun(experiment, total=len(experiment.trials()))
        work = run_experiment(experiment, study, concurrency=concurrency, progress=progress, run=run)
        handle = ExperimentHandle(self, run, self.call(_begun(work)))
        self.experiments.append(handle)
        return handle

    def _runs(self) -> list[ExperimentRun]:
        """Return the latest run of each experiment."""
        return list({handle.experiment.name: handle.run for handle in self.experiments}.values())

    async def _end_experiments(self) -> None:
        """End what runs."""
        for handle in self.experiments:
            await handle.acancel()


class ExperimentHandle:
    """An experiment that was begun; shows how far it is and what it has found."""

    def __init__(self, lab: Experimenting, run: ExperimentRun, work: Work) -> None:
        self.lab = lab
        self.run = run
        """The trials that are done, growing while the experiment runs."""
        self._task, self._future = work

    @property
    def experiment(self) -> Experiment:
        """The design."""
        return self.run.experiment

    @property
    def done(self) -> bool:
        """True once nothing of it runs any more."""
        return self._future.done()

    @property
    def state(self) -> str:
        """`running`, `finished`, `cancelled` or `failed`."""
        if not self._future.done():
            return "running"
        if self._future.cancelled():
            return "cancelled"
        return "failed" if self._future.exception() is not None else "finished"

    def wait(self, timeout: float | None = None) -> ExperimentHandle:
        """Wait for the end, at most `timeout` seconds, and return this handle. Raises `TimeoutError`, and what failed.

        An interrupted cell stops waiting; the experiment goes on.
        """
        self._future.result(timeout)
        return self

    def __await__(self) -> Generator[Any, None, ExperimentHandle]:
        """Await the end, and give this handle."""
        return self._ended().__await__()

    async def _ended(self) -> ExperimentHandle:
        await asyncio.shield(asyncio.wrap_future(self._future))
        return self

    def cancel(self) -> None:
        """Begin no more trials, and wait for those in work; the same experiment goes on when it is begun again."""
        self.lab.call(self.acancel())

    async def acancel(self) -> None:
        """Await `cancel`, on the lab's loop."""
        self._task.cancel()
        await asyncio.wait([self._task])

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


async def _begun(work: Coroutine[Any, Any, ExperimentRun]) -> Work:
    """Start an experiment on this loop; the future tells other threads of its end."""
    future: Future[ExperimentRun] = Future()
    task = asyncio.create_task(work, name="cayu experiment")

    def tell(done: asyncio.Task[ExperimentRun]) -> None:
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    task.add_done_callback(tell)
    return task, future


def progress_text(handle: ExperimentHandle) -> str:
    """Return how far an experiment is, in words."""
    run, failed = handle.run, len(handle.run.failures)
    words = f"{handle.state}, {len(run.records)} of {run.total} trials"
    return f"{words}, {failed} without a score" if failed else words


def experiment_html(handle: ExperimentHandle, found: Iterable[Effect] | None = None) -> str:
    """Return an experiment as a card: how far it is, and its effects; `found` are effects that are known already."""
    run = handle.run
    listed = list(handle.effects if found is None and run.records else found or ())
    facts = f"{len(run.experiment.cases)} cases, {len(run.experiment.interventions)} interventions, "
    facts += f"{run.experiment.repeats} repeat{'' if run.experiment.repeats == 1 else 's'}, seed {run.experiment.seed}"
    body = [f'<div class="cayu-muted">{esc(facts)}</div>']
    if any(effect.questions for effect in listed):
        body.append(table(EFFECT_HEAD, map(effect_row, listed)))
    left_out = [f"{each.intervention}: {', '.join(each.reasons)}" for each in listed if each.incomparable]
    if left_out:
        body.append(f'<div class="cayu-muted">Not comparable, and left out: {esc("; ".join(left_out))}</div>')
    kind = {"finished": "completed", "running": "running"}.get(handle.state, "failed")
    return card(f"Experiment {run.experiment.name}", progress_text(handle), body, kind=kind)


EFFECT_HEAD = ("Intervention", "Questions", "Baseline", "Score", "Difference", "95 % interval", "p (Holm)")


def effect_row(effect: Effect) -> tuple[object, ...]:
    """Return an effect as the cells of a table."""
    interval = None
    if effect.low is not None and effect.high is not None:
        interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
    return (
        effect.intervention,
        effect.questions,
        _number(effect.baseline, ".2f"),
        _number(effect.score, ".2f"),
        _number(effect.difference, "+.2f"),
        interval,
        _number(effect.p_holm, ".3f"),
    )


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
