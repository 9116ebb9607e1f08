"""What counts against a run's limits, and which of them is reached.

Time is the store's. With `scope="run"` it is the run's active time: a pause counts from its commit to the *first*
human decision as waiting, everything else as work, also what a crash has cost.
"""

from __future__ import annotations

from cayu.clock import MICROSECOND
from cayu.sessions.limits import RunLimits
from cayu.sessions.view import SessionView

PAUSES_EXCLUDED_SINCE = 2
"""The version of accounting from which on human waits are no work; runs begun under an older one keep its verdict."""


def elapsed_us(view: SessionView, now: int, limits: RunLimits) -> int:
    """Return the time that counts against `limits`, in microseconds, when the store's clock stands at `now`."""
    if limits.scope == "session":
        return now - view.started_at
    run = view.run
    waiting = now - run.waiting_since if run.waiting_since is not None else 0
    excluded = run.waited_us + waiting if run.accounting >= PAUSES_EXCLUDED_SINCE else 0
    return now - run.started_at - excluded


def step_limit(view: SessionView, now: int) -> tuple[str, int | float] | None:
    """Return (name, value) of the limit that forbids another model step, None when none does."""
    run, limits = view.run, view.run.limits
    if run.steps >= run.max_steps:
        return "max_steps", run.max_steps
    counted = view if limits.scope == "session" else run
    usage = counted.usage
    for name, spent in (
        ("max_input_tokens", usage.input_tokens),
        ("max_output_tokens", usage.output_tokens),
        ("max_total_tokens", usage.input_tokens + usage.output_tokens),
    ):
        bound = getattr(limits, name)
        if bound is not None and spent >= bound:
            return name, bound
    return _time_limit(view, now, limits)


def call_limit(view: SessionView, now: int, beginning: int) -> tuple[str, int | float] | None:
    """Return the limit that forbids one more call beside the `beginning` ones that are about to begin."""
    limits = view.run.limits
    begun = (view if limits.scope == "session" else view.run).tool_calls
    if limits.max_tool_calls is not None and begun + beginning >= limits.max_tool_calls:
        return "max_tool_calls", limits.max_tool_calls
    return _time_limit(view, now, limits)


def _time_limit(view: SessionView, now: int, limits: RunLimits) -> tuple[str, float] | None:
    bound = limits.max_elapsed_seconds
    if bound is not None and elapsed_us(view, now, limits) >= bound * MICROSECOND:
        return "max_elapsed_seconds", bound
    return None
