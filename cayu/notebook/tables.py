"""The frames of a lab: one method each, all with the same arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pandas as pd

from cayu.experiments.effects import estimate_effects
from cayu.experiments.sweep import ExperimentRun
from cayu.notebook import frames, timings, trials
from cayu.notebook.frames import Ask, Conditions, Data, Progress
from cayu.notebook.problems import Problems
from cayu.notebook.schemas import columns_of
from cayu.observability.timing_files import TimingsRead
from cayu.sessions.streams import SessionStore
from cayu.timing.records import TimingRecord

Gather = Callable[[SessionStore, Ask], Coroutine[Any, Any, Data]]
Tabulate = Callable[[Sequence[TimingRecord], Ask], Data]


class Frames(ABC):
    """What a lab shows as DataFrames.

    Every frame takes `where` (column, or column with a comparison -> value), `columns` (names, in order), `limit`
    (rows, None for all) and `progress` (called with sessions done and in all), has its
    fixed schema also when it is empty, and says in `attrs["cayu"]` whether it was cut. Raises `InvalidInput` for
    columns that do not exist and values that do not fit.
    """

    problems: Problems

    @abstractmethod
    def _gathered(self, gather: Gather, ask: Ask) -> Data:
        """Run one gathering over the store and return its columns."""

    @abstractmethod
    def _runs(self) -> list[ExperimentRun]:
        """Return the latest run of each experiment."""

    @abstractmethod
    def _timings_read(self, session: str | None) -> TimingsRead:
        """Return the timing records of one session, or of all."""

    def sessions_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per session, newest first. See `cayu.notebook.schema("sessions_df")`."""
        return self._frame("sessions_df", frames.sessions_data, where, **ask)

    def events_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per stored event. See `cayu.notebook.schema("events_df")`."""
        return self._frame("events_df", frames.events_data, where, **ask)

    def messages_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per part of the conversations. See `cayu.notebook.schema("messages_df")`."""
        return self._frame("messages_df", frames.messages_data, where, **ask)

    def rounds_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per timed attempt at a tool round. See `cayu.notebook.schema("rounds_df")`."""
        return self._timing_frame("rounds_df", timings.rounds_data, where, **ask)

    def calls_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per tool call. See `cayu.notebook.schema("calls_df")`."""
        return self._frame("calls_df", frames.calls_data, where, **ask)

    def phases_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per phase of each round, call and preparation. See `cayu.notebook.schema("phases_df")`.

        Sum over one `kind` only: what a call took is in its round too.
        """
        return self._timing_frame("phases_df", timings.phases_data, where, **ask)

    def approvals_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per approval or question, decided or pending. See `cayu.notebook.schema("approvals_df")`."""
        return self._frame("approvals_df", frames.approvals_data, where, **ask)

    def recall_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per memory that a recall considered. See `cayu.notebook.schema("recall_df")`."""
        return self._frame("recall_df", trials.recall_data, where, **ask)

    def trials_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per trial of the experiments of this lab. See `cayu.notebook.schema("trials_df")`.

        After a restart, run an experiment again: its trials are read from the journal.
        """
        return frames.finished(asked("trials_df", where, **ask), trials.trials_data(self._runs()))

    def effects_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return a row per intervention of the experiments of this lab. See `cayu.notebook.schema("effects_df")`."""
        found = [(run.experiment.name, estimate_effects(run)) for run in self._runs()]
        return frames.finished(asked("effects_df", where, **ask), trials.effects_data(found))

    def errors_df(self, where: Conditions = None, **ask: Any) -> pd.DataFrame:
        """Return what was caught in callbacks and background work, and count it as read."""
        wanted = asked("errors_df", where, **ask)
        shown = self.problems.read()
        names = [column.name for column in columns_of("errors_df")]
        return frames.finished(wanted, {name: [getattr(problem, name) for problem in shown] for name in names})

    def _frame(self, name: str, gather: Gather, where: Conditions, **more: Any) -> pd.DataFrame:
        ask = asked(name, where, **more)
        return frames.finished(ask, self._gathered(gather, ask))

    def _timing_frame(self, name: str, tabulate: Tabulate, where: Conditions, **more: Any) -> pd.DataFrame:
        ask = asked(name, where, **more)
        read = self._timings_read(ask.session_id)
        frame = frames.finished(ask, tabulate(read.records, ask))
        if read.skipped:
            frame.attrs["cayu"]["skipped_lines"] = read.skipped
        return frame


def asked(
    name: str,
    where: Conditions,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Ask:
    """Return what is wanted of a frame. Raises `InvalidInput` for what it does not have."""
    ask = Ask(name, where or {}, columns, limit, progress)
    ask.wanted()
    return ask
