"""Budgets around one model step: set aside before the provider is asked, settled after, given back after a crash.

The reservation and the step's start are durable before the request goes out, so a crash in between is known for what it
is: a step of which nobody knows whether the provider did it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from cayu.budgets.ledger import Amount, BudgetLedger, amount_of
from cayu.errors import BudgetExceeded, StoreError
from cayu.events import EventType as E
from cayu.providers.base import ModelProvider, ModelRequest
from cayu.runtime.rounds import limit_drafts
from cayu.sessions.limits import BudgetLimit
from cayu.sessions.projection import Draft
from cayu.sessions.view import SessionView

logger = logging.getLogger("cayu.runtime")

LIMIT = "budget"


class StepBudget:
    """What one model step sets aside in the ledger."""

    def __init__(self, ledger: BudgetLedger, view: SessionView) -> None:
        self._ledger = ledger
        self._held = _holdings(view)
        self._wanted: dict[str, Amount] = {}

    async def reserve(self, provider: ModelProvider, request: ModelRequest) -> tuple[list[Draft], bool]:
        """Set aside what the step may take; return what to write first, and whether the step may be taken.

        Asks for every limit or none: when a later one refuses, the earlier ones are given back.
        """
        if not self._held:
            return [], True
        tokens = await provider.count_input_tokens(request)
        drafts: list[Draft] = []
        for reservation, (budget_id, limit) in self._held.items():
            wanted = amount_of(limit, tokens, limit.reserve_output_tokens)
            try:
                await self._ledger.reserve(budget_id, reservation, wanted, limit)
            except BudgetExceeded as refused:
                await self.release()
                told = {"budget_id": budget_id, "unit": refused.unit, "left": refused.left, "wanted": refused.wanted}
                value = limit.max_tokens if refused.unit == "tokens" else str(limit.max_cost)
                return [Draft(E.BUDGET_LIMIT_REACHED, told), *limit_drafts((LIMIT, value or 0))], False
            self._wanted[reservation] = wanted
            held = {"budget_id": budget_id, "reservation_id": reservation, "tokens": wanted.tokens}
            drafts.append(Draft(E.BUDGET_RESERVED, held | {"cost": str(wanted.cost)}))
        return drafts, True

    async def reconcile(self, usage: dict[str, int]) -> list[Draft]:
        """Turn the reservations into what was used; without a report from the provider, into what was set aside."""
        drafts = []
        reported = {"input_tokens", "output_tokens"} <= usage.keys()
        for reservation, (budget_id, limit) in self._held.items():
            spent = self._wanted[reservation]
            if reported:
                spent = amount_of(limit, usage["input_tokens"], usage["output_tokens"])
            await self._ledger.reconcile(budget_id, reservation, spent)
            drafts.append(_reconciled(budget_id, reservation, {"tokens": spent.tokens, "cost": str(spent.cost)}))
        return drafts

    async def release(self) -> None:
        """Give back what the step may hold, whether or not it is known to."""
        for reservation, (budget_id, _) in self._held.items():
            await self._ledger.release(budget_id, reservation)


async def release_open(ledger: BudgetLedger, view: SessionView) -> list[Draft]:
    """Give back what a step that came to nothing holds; return what to write of it.

    A crash may have left a reservation that is in the ledger and not in the log; its id is known from the step. A
    ledger that cannot be reached keeps no session from ending: the log still names the reservation, and the next entry
    gives it back.
    """
    try:
        if view.open_round is None:
            await StepBudget(ledger, view).release()
        for reservation, budget_id in view.reservations.items():
            await ledger.release(budget_id, reservation)
    except StoreError as unreachable:
        name = type(unreachable).__name__
        logger.warning("the budget of session %s could not be given back now: %s", view.row.id, name)
        return []
    return [
        _reconciled(budget_id, reservation, {"released": True}) for reservation, budget_id in view.reservations.items()
    ]


def _holdings(view: SessionView) -> dict[str, tuple[str, BudgetLimit]]:
    """Return the reservations of the coming model step: id -> (budget id, limit)."""
    row, step = view.row, view.model_steps + 1
    limits: Sequence[BudgetLimit] = view.run.budget_limits
    return {
        f"{row.instance_id}.m{step}.b{index}": (limit.budget_id or row.causal_budget_id or row.id, limit)
        for index, limit in enumerate(limits, 1)
    }


def _reconciled(budget_id: str, reservation: str, told: dict[str, Any]) -> Draft:
    return Draft(E.BUDGET_RECONCILED, {"budget_id": budget_id, "reservation_id": reservation, **told})
