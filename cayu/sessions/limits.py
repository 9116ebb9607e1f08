"""How far a run may go: limits on its time, tokens and calls, and caps that sessions share.

What counts against them, and when one is reached, is said in `accounting`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field

from cayu.messages import Frozen

ACCOUNTING = 2
"""Version of how a run's time is accounted for; 1 counted human waits as work, and runs begun so stay so."""

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
