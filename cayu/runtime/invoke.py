"""One dispatch of one tool: its own code, and what its result becomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from cayu.canonical import dumps, normalise
from cayu.crashpoints import reach
from cayu.errors import NotJson
from cayu.runtime.config import RuntimeConfig
from cayu.sessions.projection import CHILD_STOPPED
from cayu.sessions.texts import CUT_OFF, UNSTORABLE
from cayu.sessions.view import CallResult
from cayu.timing.phases import EXECUTION, RESULT_PROCESSING
from cayu.timing.session import CallTimer
from cayu.tools.reconcilers import ChildStopped, ToolOutcomeUnknown
from cayu.tools.spec import Tool, ToolContext, ToolResult

logger = logging.getLogger("cayu.tools")

MAX_EXCEPTION_TEXT = 2000
"""Characters of an exception's own words that the model reads."""


CUT_OFF_CODES = frozenset({"timed_out", "cancelled_itself", "outcome_unknown", CHILD_STOPPED})
"""Codes of calls that were cut off: a NONE call has failed, any other may have acted."""


GIVEN_UP_CODES = frozenset({"timed_out", "cancelled_itself"})
"""Those of them after which the tool's code may be at work still; the others are its own word that it has ended."""
CUT_OFF_HERE: set[str] = set()
"""Calls that this process has cut off, by id. A thread of theirs may be at work still, as long as the process lives, so
that nobody here can say that they have not acted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dispatched call ended."""

    result: CallResult
    code: str | None = None
    """None when the tool returned what can be kept, `unstorable` when it cannot, `raised` when it did not return, or
    one of `CUT_OFF_CODES`."""


async def invoke(
    tool: Tool, ctx: ToolContext, args: dict[str, Any], config: RuntimeConfig, timer: CallTimer
) -> Outcome:
    """Run a tool and return what it gave, as an error result where it raised or gave something that cannot be kept."""
    timer.begin()
    reach("tool.dispatched")
    try:
        with timer.within(EXECUTION):
            given = await _bounded(tool.run(ctx, args), config)
    except TimeoutError:
        return cut_off("timed_out")
    except ChildStopped:
        return cut_off(CHILD_STOPPED)
    except ToolOutcomeUnknown:
        return cut_off("outcome_unknown")
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        with timer.within(RESULT_PROCESSING):
            logger.exception("tool %s raised in session %s", tool.spec.name, ctx.session_id)
            return Outcome(CallResult(content=_words(error), is_error=True), code="raised")
    reach("tool.returned")
    with timer.within(RESULT_PROCESSING):
        return kept_outcome(given, tool.spec.max_terminal_payload_bytes or config.max_result_bytes)


async def _bounded(work: Awaitable[ToolResult], config: RuntimeConfig) -> ToolResult:
    """Wait for a tool as long as it may take, and for the grace after that; then raise `TimeoutError`.

    What a tool says after it was cancelled counts only when it is a result: its exceptions tell nothing of its effect.
    """
    if config.tool_timeout_seconds is None:
        return await work
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=config.tool_timeout_seconds)
    except asyncio.CancelledError:
        task.cancel()
        return await task
    if done:
        return task.result()
    task.cancel()
    await asyncio.wait([task], timeout=config.cancel_grace_seconds)
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    task.add_done_callback(forget)
    raise TimeoutError


def forget(task: asyncio.Future[Any]) -> None:
    """Take the result of a tool that ended after its grace, so that nothing complains about it."""
    if not task.cancelled():
        task.exception()


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
