"""Where events go beside the caller: sinks receive them after their commit, and never fail a run."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from cayu.events import Event


class EventSink(ABC):
    """Receives every stored event in order, after it is durable. An exception is logged and otherwise ignored."""

    @abstractmethod
    async def emit(self, event: Event) -> None:
        """Take one event."""


class InMemoryEventSink(EventSink):
    """Keeps events in a list, for tests and notebooks."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def emit(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)


class LoggingEventSink(EventSink):
    """Writes one line per event to a logger: type, ids and sequence, never content."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("cayu.events")
        self._level = level

    async def emit(self, event: Event) -> None:
        """Write it."""
        self._logger.log(self._level, "%s session=%s sequence=%s", event.type, event.session_id, event.sequence)
