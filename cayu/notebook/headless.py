"""Notebooks without a reader: whether this process is headless, and the decisions that a script has ready."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable

from cayu.errors import HeadlessDecisionMissing
from cayu.sessions.records import PendingAction

HEADLESS = "CAYU_HEADLESS"
_script: deque[str] = deque()


def is_headless() -> bool:
    """True when nobody can click: `CAYU_HEADLESS=1`."""
    return os.environ.get(HEADLESS) == "1"


def script_decisions(decisions: Iterable[str]) -> None:
    """Have decisions ready for the prompts to come: `approve`, `deny`, or the text of an answer."""
    _script.clear()
    _script.extend(decisions)


def next_decision(action: PendingAction) -> str:
    """Return the script's next decision, or raise `HeadlessDecisionMissing`: nothing is approved by default."""
    if not _script:
        raise HeadlessDecisionMissing(action_id=action.id)
    return _script.popleft()
