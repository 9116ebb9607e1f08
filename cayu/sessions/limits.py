"""How far a run may go: limits on time, tokens and calls, and the one function that says which is reached.

Time is the store's. With `scope="run"` it is the run's active time: a pause counts from its commit to the *first*
human decision as waiting, everything else as work, also what a crash has cost.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from cayu.clock import MICROSECOND
from cayu.messages import Frozen

if TYPE_CHECKING:
    from cayu.sessions.view import SessionView

ACCOUNTING = 2
"""Version of how a run's time is accounted for; 1 counted human waits as work, and runs begun so stay so."""
PAUSES_EXCLUDED_SINCE = 2

Count = Field(default=None, ge=1, strict=True)


Price = Field(ge=0, allow_inf_nan=False, max_digits=20, decimal_places=10)


class RunLimits(Frozen):
    """Bounds of one run; None sets none.

    Tokens are checked before every model step, calls before every dispatch, and time before both.
    """

    max_input_tokens: int | None = Count
    max_output_tokens: int | None = Count
    max_total_tokens: int | None = Count
    """Input and output together."""
    max_tool_calls: int | None = Count
    """Calls that begin; a replay is not counted again."""
    max_elapsed_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False, strict=True)
    scope: Literal["run", "session"] = "run"
    """`run` counts this run and leaves human waits out; `session` counts the whole session, waits included."""


class TokenPrices(Frozen):
    """What tokens cost, in units of the budget's currency per million tokens."""

    input_per_million: Decimal = Price
    output_per_million: Decimal = Price


class BudgetLimit(Frozen):
    """A cap that sessions share: it holds over everything that is spent under its id, at the same time and later.

    One limit may carry both caps. What is spent under a limit without prices costs nothing in the account, so give all
    limits of an account the same prices.
    """

    budget_id: str | None = Field(default=None, min_length=1, max_length=512)
    """The account in the ledger; None takes the session's causal budget, which its child sessions share."""
    max_tokens: int | None = Count
    """Input and output tokens."""
    max_cost: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False, max_digits=20, decimal_places=10)
    """In the currency of `prices`, which it needs."""
    prices: TokenPrices | None = None
    reserve_output_tokens: int = Field(default=4096, ge=0, strict=True)
    """Tokens of an answer that are set aside before a model is asked."""

    def model_post_init(self, _context: object) -> None:
        """Refuse a limit that limits nothing, and a cost without prices."""
        if self.max_tokens is None and self.max_cost is None:
            raise ValueError("a budget limit needs max_tokens or max_cost")
        if self.max_cost is not None and self.prices is None:
            raise ValueError("max_cost needs prices")


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
