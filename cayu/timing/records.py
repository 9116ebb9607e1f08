"""The timing records that callers and sinks read: durations, counts, sizes, ids and names of registered tools.

Never arguments, results, prompts, SQL or the words of an exception. Records are built when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from cayu.errors import InvalidInput
from cayu.messages import Frozen

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class RuntimeTimingConfig:
    """How much timing is kept and delivered. Raises `InvalidInput` for numbers that make no sense."""

    enabled: bool = True
    """False collects and delivers nothing."""
    recent_capacity: int = 64
    """Records kept in this process, of all sessions together."""
    max_calls_per_round: int = 128
    """Calls of one round that get a record of their own."""
    sink_queue_capacity: int = 128
    """Records that may wait for one sink; more are dropped, and counted."""
    sink_timeout_seconds: float = 1.0
    """How long a sink may take for one record, and how long closing waits."""

    def __post_init__(self) -> None:
        if type(self.enabled) is not bool:
            raise InvalidInput(f"enabled is True or False, not {self.enabled!r}.")
        for name in ("recent_capacity", "max_calls_per_round", "sink_queue_capacity"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                raise InvalidInput(f"{name} is a whole number of at least 1, not {count!r}.")
        seconds: object = self.sink_timeout_seconds
        if type(seconds) not in (int, float) or not 0 < self.sink_timeout_seconds < inf:
            raise InvalidInput(f"sink_timeout_seconds is a positive number of seconds, not {seconds!r}.")


class RuntimePhaseTiming(Frozen):
    """One phase of a round, a call or a step; one that did not occur counts zero.

    A phase without bounds was not entered; it still has bytes when events of it were written in another phase's commit.
    """

    name: str
    first_started_at: AwareDatetime | None = None
    """Wall time of the first entry."""
    last_completed_at: AwareDatetime | None = None
    """Wall time of the last exit; a phase entered more than once has a window longer than its duration."""
    duration_seconds: Seconds = 0.0
    """Monotonic time in the phase, without the phases nested in it and without the consumer's time."""
    store_transaction_count: Count = 0
    """Transactions begun in native stores, reads included."""
    store_lock_wait_seconds: Seconds = 0.0
    """Waiting for a connection's thread and for the write lock; a part of the duration, not more of it."""
    store_execution_seconds: Seconds = 0.0
    """Running statements; a part of the duration."""
    store_commit_seconds: Seconds = 0.0
    """Commits that had something to commit; a part of the duration."""
    store_bytes_written: Count = 0
    """Size of the values that were bound to writes, serialized JSON included; not pages, not the write-ahead log."""


class _Phased(Frozen):
    """A record with phases."""

    phases: tuple[RuntimePhaseTiming, ...]
    """Every phase of the record's kind, in order."""

    def phase(self, name: str) -> RuntimePhaseTiming:
        """Return one phase. Raises `InvalidInput` for a name that is none."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise InvalidInput(f"There is no phase {name!r}; phases: {', '.join(phase.name for phase in self.phases)}.")


class ToolCallTiming(_Phased):
    """One call of a timed round. Work that the round did once for all calls stands in the round alone."""

    session_id: str
    tool_round_id: str
    tool_call_id: str
    tool_name: str | None = None
    """None when no tool of that name is registered: what a model invents is not repeated here."""
    tool_effect_completed_at: AwareDatetime | None = None
    """When the tool had returned or raised; None when it did not come to its end here."""
    tool_terminal_staged_at: AwareDatetime | None = None
    """When the result was staged: its write was durable, or, for the last call of a round, the closing began."""
    tool_terminal_publication_started_at: AwareDatetime | None = None
    """When the call's terminal event began to be prepared."""


class ToolRoundTiming(_Phased):
    """One local attempt at one tool round; a continuation or a recovery of the same round gives a record of its own."""

    schema_version: Literal[1] = 1
    kind: Literal["tool_round"] = "tool_round"
    session_id: str
    tool_round_id: str
    model_step_id: str
    """The step whose answer asked for the round."""
    model_attempt_id: str
    """The attempt of that step which was answered."""
    started_at: AwareDatetime
    completed_at: AwareDatetime
    duration_seconds: Seconds
    """Observed wall time on the monotonic clock, the consumer's time included."""
    incomplete: bool = False
    """The attempt paused, or was interrupted or cancelled."""
    recovered: bool = False
    """The attempt closed what another process, or an earlier claim, had begun."""
    calls_truncated: Count = 0
    """Calls beyond the bound, which are in the round's numbers only."""
    calls: tuple[ToolCallTiming, ...] = ()
    """The calls in the model's order."""


class ModelStepPreparationTiming(_Phased):
    """From the last round's commit, if there was one in this claim, to the request to the provider."""

    schema_version: Literal[1] = 1
    kind: Literal["model_step_preparation"] = "model_step_preparation"
    session_id: str
    model_step_id: str
    after_tool_round_id: str | None = None
    """The round whose commit the time runs from; None when it runs from the start of the step."""
    started_at: AwareDatetime
    completed_at: AwareDatetime
    duration_seconds: Seconds
    incomplete: bool = False
    """The provider was not asked after all."""


class RuntimeTimingStatus(Frozen):
    """How collection and delivery stand."""

    recent_records: int = 0
    """Records in the recent view."""
    queued_records: int = 0
    """Records that wait for sinks, or are being delivered."""
    dropped_records: int = 0
    """Records that no sink got: its queue was full, it took too long, or delivery was closed."""
    failed_deliveries: int = 0
    """Records on which a sink raised."""


TimingRecord = ToolRoundTiming | ModelStepPreparationTiming
AnyTimingRecord = Annotated[TimingRecord, Field(discriminator="kind")]
"""For reading records back."""
