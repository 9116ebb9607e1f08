"""Where events and timing records go beside the caller: sinks that never fail a run.

Events come after their commit, in order. Timing records come when there is time, and may be dropped.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Protocol

from cayu.events import Event
from cayu.timing.records import TimingRecord


class TimingSink(Protocol):
    """Takes timing records; what it may take longer for than the configured timeout is dropped."""

    async def emit_timing(self, record: TimingRecord) -> None:
        """Take one record."""
        ...


class EventSink(ABC):
    """Receives every stored event in order, after it is durable. An exception is logged and otherwise ignored."""

    @abstractmethod
    async def emit(self, event: Event) -> None:
        """Take one event."""

    async def emit_timing(self, record: TimingRecord) -> None:  # noqa: B027 - to be overridden by those who want it
        """Take one timing record; a sink that does not override this is given none."""

    @property
    def takes_timing(self) -> bool:
        """True when the sink wants timing records."""
        return type(self).emit_timing is not EventSink.emit_timing

    async def close_timing(self) -> None:  # noqa: B027 - to be overridden by those who hold records back
        """Let go of what is held back; called once, when the delivery of timing is closed."""


class InMemoryEventSink(EventSink):
    """Keeps events and timing records in lists, for tests and notebooks."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.timings: list[TimingRecord] = []

    async def emit(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)

    async def emit_timing(self, record: TimingRecord) -> None:
        """Keep it."""
        self.timings.append(record)


class LoggingEventSink(EventSink):
    """Writes one line per event to a logger: type, ids and sequence, never content.

    With `log_runtime_timing` it also writes each timing record as JSON, at DEBUG.
    """

    def __init__(
        self, logger: logging.Logger | None = None, level: int = logging.INFO, *, log_runtime_timing: bool = False
    ) -> None:
        self._logger = logger or logging.getLogger("cayu.events")
        self._level = level
        self._log_runtime_timing = log_runtime_timing

    async def emit(self, event: Event) -> None:
        """Write it."""
        self._logger.log(self._level, "%s session=%s sequence=%s", event.type, event.session_id, event.sequence)

    @property
    def takes_timing(self) -> bool:
        """True when it was asked to log timing."""
        return self._log_runtime_timing or type(self).emit_timing is not LoggingEventSink.emit_timing

    async def emit_timing(self, record: TimingRecord) -> None:
        """Write it."""
        self._logger.debug("%s", record.model_dump_json())
