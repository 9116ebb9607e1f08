"""What went wrong where nobody could be told: kept, so that a reader finds it and a headless notebook fails."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

logger = logging.getLogger("cayu.notebook")


@dataclass(slots=True)
class Problem:
    """One caught exception."""

    at: int
    """Microseconds since 1970."""
    source: str
    session_id: str | None
    type: str
    message: str
    read: bool = False


class Problems:
    """The exceptions caught in callbacks and background work of one lab; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Problem] = []

    def keep(self, source: str, error: BaseException, session_id: str | None = None) -> Problem:
        """Keep an exception and return how it is shown."""
        logger.warning("%s: %s", source, type(error).__name__, exc_info=error)
        problem = Problem(time.time_ns() // 1000, source, session_id, type(error).__name__, str(error))
        with self._lock:
            self._kept.append(problem)
        return problem

    def read(self) -> list[Problem]:
        """Return every problem as it stands, and count them all as read from now on."""
        with self._lock:
            shown = [Problem(p.at, p.source, p.session_id, p.type, p.message, p.read) for p in self._kept]
            for problem in self._kept:
                problem.read = True
        return shown

    def unread(self) -> list[Problem]:
        """Return what nobody has looked at yet."""
        with self._lock:
            return [problem for problem in self._kept if not problem.read]
