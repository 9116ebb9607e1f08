"""Budgets around one model step: set aside before the provider is asked, settled after, given back after a crash.

The reservation and the step's start are durable before the request goes out, so a crash in between is known for what it
is: a step of which nobody knows whether the provider did it. A reservation carries the epoch of the claim that made it,
so an owner that was fenced touches nothing of its successor's.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cayu.budgets.ledger import Amount, BudgetLedger, amount_of
from cayu.errors import BudgetExceeded, CayuError, InvalidInput, ProviderError, StoreError
from cayu.events import EventType as E
from cayu.providers.base import ModelProvider, ModelRequest
from cayu.runtime.log import SessionLog
from cayu.runtime.rounds import limit_drafts
from cayu.sessions.limits import BudgetLimit
from cayu.sessions.projection import Draft
from cayu.sessions.view import SessionView
from cayu.shielding import finish, is_cancelling
from cayu.timing.phases import COUNTING

logger = logging.getLogger("cayu.runtime")

LIMIT = "budget"
_EPOCH = re.compile(r"\.m\d+\.e(\d+)\.b\d+$")


class StepBudget:
    """What one model step sets aside in the ledger."""

    def __init__(self, ledger: BudgetLedger, log: SessionLog) -> None:
        self._ledger = ledger
        self._log = log
        self._held = _holdings(log)
        self._wanted: dict[str, Amount] = {}
        self.spent: dict[str, Amount] = {}
        """What the step has used, by reservation id; empty before the provider has answered."""

    async def reserve(
        self, provider: ModelProvider, request: ModelRequest, memory: Sequence[Draft], start: Sequence[Draft]
    ) -> bool:
        """Set aside what the step may take, and make durable what has to be so before the provider is asked.

        That is the reservation and what the request holds of `memory`, and with either of them the step's `start`. Asks
        for every limit or none. When one refuses, the run ends as having reached a limit, and False is returned.
        """
        if not self._held:
            if memory:
                await self._log.commit([*memory, *start])
            return True
        with self._log.timing.within(COUNTING, None):
            tokens = await _counted(provider, request)
        self._log.check_lease()
        try:
            drafts = [await self._set_aside(name, tokens) for name in self._held]
            await self._log.commit([*drafts, *memory, *start])
        except BudgetExceeded as refused:
            kept = await self._give_back()
            await self._log.commit([*kept, *self._refusal(refused)], release=True)
            return False
        except CayuError:
            await finish(self._give_back())
            raise
        return True

    def _refusal(self, refused: BudgetExceeded) -> list[Draft]:
        told = {"budget_id": refused.budget_id, "unit": refused.unit, "left": refused.left, "wanted": refused.wanted}
        reached = Draft(E.BUDGET_LIMIT_REACHED, told | {"cap": refused.cap})
        return [reached, *limit_drafts((LIMIT, int(refused.cap) if refused.unit == "tokens" else refused.cap))]

    async def _set_aside(self, name: str, tokens: int) -> Draft:
        budget_id, limit = self._held[name]
        wanted = amount_of(limit, tokens, limit.reserve_output_tokens)
        self._wanted[name] = wanted
        await self._log.insist(lambda: self._ledger.reserve(budget_id, name, wanted, limit))
        return _reserved(budget_id, name, wanted)

    async def reconcile(self, usage: dict[str, int]) -> list[Draft]:
        """Turn the reservations into what was used; without a report from the provider, into what was set aside."""
        reported = {"input_tokens", "output_tokens"} <= usage.keys()
        for name, (_, limit) in self._held.items():
            used = amount_of(limit, usage["input_tokens"], usage["output_tokens"]) if reported else None
            self.spent[name] = used or self._wanted[name]
        return [await self._log.insist(partial(self._settle, name)) for name in self._held]

    async def _settle(self, name: str) -> Draft:
        return await _settled(self._ledger, self._held[name][0], name, self.spent[name])

    async def _give_back(self) -> list[Draft]:
        """Release what was set aside; return what is to be written of that which could not be given back now."""
        kept = []
        for name, wanted in self._wanted.items():
            budget_id = self._held[name][0]
            try:
                await self._ledger.release(budget_id, name)
            except StoreError as unreachable:
                _warn(self._log.view, unreachable)
                kept.append(_reserved(budget_id, name, wanted))
        return kept


async def release_open(ledger: BudgetLedger, log: SessionLog, spent: Mapping[str, Amount] | None = None) -> list[Draft]:
    """Give back what a step that came to nothing holds; return what to write of it.

    `spent` is what the step has used after all, and did not come to write.

    Takes in reservations that a crash has left in the ledger and not in the log, and none of a later claim than the one
    that the session was found under. A ledger that cannot be reached keeps no session from ending: the log still names
    the reservation, and the next entry gives it back.
    """
    view, drafts = log.view, []
    budgets = {budget_id for budget_id, _ in _holdings(log).values()} | set(view.reservations.values())
    try:
        for name, budget_id in view.reservations.items():
            if spent and name in spent:
                drafts.append(await _settled(ledger, budget_id, name, spent[name]))
                continue
            drafts.append(_reconciled(budget_id, name, {"released": await ledger.release(budget_id, name)}))
        for budget_id in budgets:
            for name in (await ledger.account(budget_id)).reservations:
                found = _EPOCH.search(name) if name.startswith(f"{view.row.instance_id}.m") else None
                if found is not None and int(found[1]) <= (log.lease.epoch or log.found_epoch):
                    await ledger.release(budget_id, name)
    except StoreError as unreachable:
        _warn(view, unreachable)
    return drafts


async def _counted(provider: ModelProvider, request: ModelRequest) -> int:
    """Return the size of a request. Raises `ProviderError`, whatever the provider raised."""
    try:
        return int(await provider.count_input_tokens(request))
    except ProviderError:
        raise
    except asyncio.CancelledError:
        if is_cancelling():
            raise
        raise ProviderError("The provider cancelled its own count.", code="CancelledError") from None
    except Exception as error:
        raise ProviderError(code=type(error).__name__) from error


def check_budgets(limits: Sequence[BudgetLimit], causal_budget_id: str | None) -> None:
    """Refuse two limits on one account: a step would be charged to it twice."""
    names = [limit.budget_id or causal_budget_id for limit in limits]
    if len(set(names)) < len(names):
        raise InvalidInput("Two budget limits name one budget; give it one limit, which may cap tokens and cost.")


def _holdings(log: SessionLog) -> dict[str, tuple[str, BudgetLimit]]:
    """Return the reservations of the coming model step: id -> (budget id, limit)."""
    row, step, epoch = log.view.row, log.view.model_steps + 1, log.lease.epoch
    return {
        f"{row.instance_id}.m{step}.e{epoch}.b{index}": (limit.budget_id or row.causal_budget_id or row.id, limit)
        for index, limit in enumerate(log.view.run.budget_limits, 1)
    }


async def _settled(ledger: BudgetLedger, budget_id: str, name: str, spent: Amount) -> Draft:
    """Charge what was spent, as often as it takes, and return what is written of it."""
    await ledger.reconcile(budget_id, name, spent)
    return _reconciled(budget_id, name, {"tokens": spent.tokens, "cost": str(spent.cost)})


def _reserved(budget_id: str, reservation: str, wanted: Amount) -> Draft:
    told = {"budget_id": budget_id, "reservation_id": reservation, "tokens": wanted.tokens, "cost": str(wanted.cost)}
    return Draft(E.BUDGET_RESERVED, told)


def _reconciled(budget_id: str, reservation: str, told: dict[str, Any]) -> Draft:
    return Draft(E.BUDGET_RECONCILED, {"budget_id": budget_id, "reservation_id": reservation, **told})


def _warn(view: SessionView, unreachable: StoreError) -> None:
    name = type(unreachable).__name__
    logger.warning("the budget of session %s could not be given back now: %s", view.row.id, name)
