"""The fixed words with which a model is told why a call has no result of its own."""

from __future__ import annotations

UNEXECUTED: dict[str, str] = {
    "unknown_tool": "Not executed: there is no tool of this name.",
    "invalid_arguments": "Not executed: the arguments do not fit the tool's schema.",
    "policy_denied": "Not executed: the tool policy does not allow this call.",
    "policy_failed": "Not executed: the tool policy failed to decide.",
    "approval_denied": "Not executed: a human denied this call.",
    "approval_expired": "Not executed: nobody approved this call in time.",
    "input_expired": "Not answered: nobody answered this question in time.",
    "not_started": "Not executed: the session was cut off before this call began.",
    "interrupted": "Not executed: the session was interrupted before this call began.",
    "limit_reached": "Not executed: the run reached a limit before this call began.",
}
"""Codes of calls that never ran, with what the model reads."""

LOST = "The call began and was cut off; it has no result, and this kind of call leaves nothing behind."
"""What the model reads of a NONE call that was lost."""

CUT_OFF = "The call began and was cut off before it returned; it leaves nothing behind."
"""What the model reads of a NONE call that ran out of time or was cancelled from within."""

SETTLED: dict[str, str] = {
    "completed": "The call was cut off, and it was found out afterwards that it had acted. It returned no result.",
    "failed": "The call was cut off, and it was found out afterwards that it had not acted.",
}
"""What the model reads of a call whose outcome was found out without a result, by outcome."""

UNSTORABLE = "The tool has done its work, but its result cannot be stored: {problem}."
"""What the model reads of a completed call whose result is outside the JSON domain or over its bound."""


def unexecuted(code: str, reason: str | None = None) -> str:
    """Return the text for a call that did not run."""
    text = UNEXECUTED[code]
    return f"{text} {reason}" if reason else text
