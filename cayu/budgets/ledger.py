"""The ledger of shared budgets: set aside before a model is asked, settled after, given back after a crash.

An account is one document, so a cap holds however many sessions reserve at once. Every call may be repeated: a
reservation is known by its id, and one that was settled or given back is not found again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cayu.canonical import JSON
from cayu.errors import BudgetExceeded
from cayu.messages import Frozen
from cayu.sessions.limits import BudgetLimit
from cayu.sessions.streams import Decide

COLLECTION = "budgets"
PER_MILLION = Decimal("0.000001")
EXACT = Context(prec=60, traps=[InvalidOperation, Inexact])
"""Costs are exact, whatever the caller's decimal context says."""


class Amount(NamedTuple):
    """Tokens with what they cost."""

    tokens: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(self.tokens + other.tokens, EXACT.add(self.cost, other.cost))


class BudgetAccount(Frozen):
    """Where one budget stands."""

    budget_id: str
    spent_tokens: int = 0
    spent_cost: Decimal = Decimal(0)
    reserved_tokens: int = 0
    reserved_cost: Decimal = Decimal(0)
    reservations: tuple[str, ...] = ()
    """Ids of what is set aside at this moment."""


def amount_of(limit: BudgetLimit, input_tokens: int, output_tokens: int) -> Amount:
    """Return what tokens come to under a limit's prices; without prices they cost nothing."""
    if limit.prices is None:
        return Amount(input_tokens + output_tokens)
    put_in = EXACT.multiply(limit.prices.input_per_million, Decimal(input_tokens))
    put_out = EXACT.multiply(limit.prices.output_per_million, Decimal(output_tokens))
    cost = EXACT.multiply(EXACT.add(put_in, put_out), PER_MILLION)
    return Amount(input_tokens + output_tokens, cost)


class BudgetLedger(ABC):
    """What is spent and set aside, by budget id."""

    @abstractmethod
    async def reserve(self, budget_id: str, reservation_id: str, wanted: Amount, limit: BudgetLimit) -> None:
        """Set an amount aside, in place of what the reservation held before.

        Raises `BudgetExceeded` when what is spent and set aside would go beyond the caps of `limit`.
        """

    @abstractmethod
    async def reconcile(self, budget_id: str, reservation_id: str, spent: Amount) -> None:
        """Turn a reservation into what was spent; nothing happens when there is no such reservation."""

    @abstractmethod
    async def release(self, budget_id: str, reservation_id: str) -> bool:
        """Give a reservation back; False when there is none, because it was settled or given back before."""

    @abstractmethod
    async def account(self, budget_id: str) -> BudgetAccount:
        """Return where a budget stands; one that nobody used stands at zero."""

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold the accounts; none by default."""
        return ()

    @abstractmethod
    async def aclose(self) -> None:
        """Give up what the ledger opened itself; safe to call twice."""


class Documents(Protocol):
    """The store primitive that the ledger needs."""

    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document by what `decide` answers."""
        ...

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold the documents."""
        ...


class DocumentBudgetLedger(BudgetLedger):
    """A ledger on the documents of a session store."""

    def __init__(self, documents: Documents) -> None:
        """Keep accounts in `documents`, which somebody else closes."""
        self._documents = documents

    async def reserve(self, budget_id: str, reservation_id: str, wanted: Amount, limit: BudgetLimit) -> None:
        """Set an amount aside in one transaction."""

        def decide(current: JSON, now: int) -> JSON:
            account = _read(current)
            account.reserved.pop(reservation_id, None)
            _check(budget_id, account, wanted, limit)
            account.reserved[reservation_id] = wanted
            return account.as_json()

        await self._documents.transact(COLLECTION, budget_id, decide)

    async def reconcile(self, budget_id: str, reservation_id: str, spent: Amount) -> None:
        """Settle a reservation in one transaction."""
        await self._documents.transact(COLLECTION, budget_id, lambda now, _: _without(now, reservation_id, spent))

    async def release(self, budget_id: str, reservation_id: str) -> bool:
        """Give a reservation back in one transaction."""
        found = False

        def decide(current: JSON, now: int) -> JSON:
            nonlocal found
            without = _without(current, reservation_id, Amount())
            found = without is not None
            return without

        await self._documents.transact(COLLECTION, budget_id, decide)
        return found

    async def account(self, budget_id: str) -> BudgetAccount:
        """Read one account."""
        found = _read(await self._documents.transact(COLLECTION, budget_id, lambda current, _: None))
        held = found.held
        return BudgetAccount(
            budget_id=budget_id,
            spent_tokens=found.spent.tokens,
            spent_cost=found.spent.cost,
            reserved_tokens=held.tokens,
            reserved_cost=held.cost,
            reservations=tuple(sorted(found.reserved)),
        )

    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files of the documents."""
        return self._documents.durable_state_paths()

    async def aclose(self) -> None:
        """Nothing was opened here."""


class _Account(NamedTuple):
    spent: Amount
    reserved: dict[str, Amount]

    @property
    def held(self) -> Amount:
        total = Amount()
        for amount in self.reserved.values():
            total = total.plus(amount)
        return total

    def as_json(self) -> dict[str, Any]:
        return {
            "spent": _pair(self.spent),
            "reserved": {name: _pair(amount) for name, amount in self.reserved.items()},
        }


def _pair(amount: Amount) -> list[int | str]:
    return [amount.tokens, str(amount.cost)]


def _amount(pair: list[Any]) -> Amount:
    return Amount(pair[0], Decimal(pair[1]))


def _read(document: Mapping[str, Any] | None) -> _Account:
    if document is None:
        return _Account(Amount(), {})
    return _Account(_amount(document["spent"]), {name: _amount(pair) for name, pair in document["reserved"].items()})


def _without(document: JSON, reservation_id: str, spent: Amount) -> JSON:
    account = _read(document)
    if account.reserved.pop(reservation_id, None) is None:
        return None
    return account._replace(spent=account.spent.plus(spent)).as_json()


def _check(budget_id: str, account: _Account, wanted: Amount, limit: BudgetLimit) -> None:
    taken = account.spent.plus(account.held)
    for unit, cap, used, asked in (
        ("tokens", limit.max_tokens, taken.tokens, wanted.tokens),
        ("of cost", limit.max_cost, taken.cost, wanted.cost),
    ):
        left = None if cap is None else EXACT.subtract(Decimal(cap), Decimal(used))
        if left is not None and left < asked:
            raise BudgetExceeded(
                budget_id=budget_id, unit=unit, cap=str(cap), left=str(max(left, 0)), wanted=str(asked)
            )
