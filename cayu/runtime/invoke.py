"""One dispatch of one tool: its own code, and what its result becomes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from cayu.canonical import dumps, normalise
from cayu.crashpoints import reach
from cayu.errors import NotJson
from cayu.runtime.config import RuntimeConfig
from cayu.sessions.texts import CUT_OFF, UNSTORABLE
from cayu.sessions.view import CallResult
from cayu.tools.reconcilers import ToolOutcomeUnknown
from cayu.tools.spec import Tool, ToolContext, ToolResult

logger = logging.getLogger("cayu.tools")

MAX_EXCEPTION_TEXT = 2000
"""Characters of an exception's own words that the model reads."""


CUT_OFF_CODES = frozenset({"timed_out", "cancelled_itself", "outcome_unknown"})
"""Codes of calls that were cut off: a NONE call has failed, any other may have acted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dispatched call ended."""

    result: CallResult
    code: str | None = None
    """None when the tool returned what can be kept, `unstorable` when it cannot, `raised` when it did not return, or
    one of `CUT_OFF_CODES`."""


async def invoke(tool: Tool, ctx: ToolContext, args: dict[str, Any], config: RuntimeConfig) -> Outcome:
    """Run a tool and return what it gave, as an error result where it raised or gave something that cannot be kept."""
    reach("tool.dispatched")
    try:
        async with asyncio.timeout(config.tool_timeout_seconds) as deadline:
            given = await tool.run(ctx, args)
    except TimeoutError:
        return cut_off("timed_out")
    except ToolOutcomeUnknown:
        return cut_off("outcome_unknown")
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if deadline.expired():
            return cut_off("timed_out")
        logger.exception("tool %s raised in session %s", tool.spec.name, ctx.session_id)
        return Outcome(CallResult(content=_words(error), is_error=True), code="raised")
    reach("tool.returned")
    return kept_outcome(given, tool.spec.max_terminal_payload_bytes or config.max_result_bytes)


def cut_off(code: str) -> Outcome:
    """Return the outcome of a call that did not come to its end."""
    return Outcome(CallResult(content=CUT_OFF, is_error=True), code=code)


def _words(error: BaseException) -> str:
    """Return an exception as the model reads it; one that cannot say what it is gives its name."""
    name = type(error).__name__
    try:
        return str(normalise(f"{name}: {error}"[:MAX_EXCEPTION_TEXT]))
    except Exception:  # noqa: BLE001 - whatever its own words do, the call has ended
        return name


def kept_outcome(given: object, max_bytes: int) -> Outcome:
    """Return a tool's result as it is kept; one that cannot be kept becomes an error result of a completed call."""
    if not isinstance(given, ToolResult):
        return _unstorable(f"the tool returned {type(given).__name__}, not a ToolResult")
    try:
        result = CallResult(
            content=str(normalise(given.content)),
            structured=normalise(given.structured),
            artifacts=tuple(normalise(list(given.artifacts))),
            is_error=given.is_error,
        )
    except NotJson as error:
        return _unstorable(f"its value at {error.path} is {error.problem}")
    size = len(dumps([result.content, result.structured, result.artifacts]))
    if size > max_bytes:
        return _unstorable(f"it has {size} bytes of JSON and the bound is {max_bytes}")
    return Outcome(result)


def _unstorable(problem: str) -> Outcome:
    return Outcome(CallResult(content=UNSTORABLE.format(problem=problem), is_error=True), code="unstorable")
