"""The ledger's rules on both backends: caps, exact costs, repeats, and what holds under every interleaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu.budgets import Amount, BudgetAccount, BudgetLedger, BudgetLimit, DocumentBudgetLedger, TokenPrices
from cayu.budgets.ledger import amount_of
from cayu.errors import BudgetExceeded
from cayu.storage import InMemoryBudgetLedger, InMemorySessionStore, SQLiteBudgetLedger

B = "budget"
TEN = BudgetLimit(max_tokens=10)
FREE = TokenPrices(input_per_million=Decimal(0), output_per_million=Decimal(0))
CENTS = TokenPrices(input_per_million=Decimal("0.1"), output_per_million=Decimal("0.3"))


@pytest.fixture(params=["memory", "sqlite", "documents"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BudgetLedger]:
    made: dict[str, BudgetLedger] = {
        "memory": InMemoryBudgetLedger(),
        "sqlite": SQLiteBudgetLedger(tmp_path / "budgets.db"),
        "documents": DocumentBudgetLedger(InMemorySessionStore()),
    }
    yield made[request.param]
    for each in made.values():
        await each.aclose()


def tokens(count: int) -> Amount:
    return Amount(count)


def assert_stands(account: BudgetAccount, spent: int, held: int, *names: str) -> None:
    assert (account.spent_tokens, account.reserved_tokens) == (spent, held)
    assert account.reservations == names


async def test_an_unused_budget_stands_at_zero(ledger: BudgetLedger) -> None:
    assert await ledger.account(B) == BudgetAccount(budget_id=B)


async def test_a_reservation_is_held_then_settled_as_spent(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "r", tokens(7), TEN)
    assert_stands(await ledger.account(B), 0, 7, "r")
    await ledger.reconcile(B, "r", tokens(3))
    assert_stands(await ledger.account(B), 3, 0)


async def test_a_release_leaves_nothing(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "r", tokens(7), TEN)
    await ledger.release(B, "r")
    assert_stands(await ledger.account(B), 0, 0)


@pytest.mark.parametrize(("second", "fits"), [(3, True), (4, True), (5, False)])
@pytest.mark.parametrize("settled", [False, True])
async def test_the_cap_holds_over_spent_and_held_alike(
    ledger: BudgetLedger, second: int, fits: bool, settled: bool
) -> None:
    await ledger.reserve(B, "one", tokens(6), TEN)
    if settled:
        await ledger.reconcile(B, "one", tokens(6))
    before = await ledger.account(B)
    if fits:
        await ledger.reserve(B, "two", tokens(second), TEN)
        after = await ledger.account(B)
        assert after.spent_tokens + after.reserved_tokens == 6 + second
        return
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(B, "two", tokens(second), TEN)
    told = refused.value
    assert (told.budget_id, told.unit, told.left, told.wanted) == (B, "tokens", "4", str(second))
    assert await ledger.account(B) == before


async def test_what_is_given_back_can_be_had_again(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "one", tokens(10), TEN)
    with pytest.raises(BudgetExceeded):
        await ledger.reserve(B, "two", tokens(1), TEN)
    await ledger.release(B, "one")
    await ledger.reserve(B, "two", tokens(10), TEN)
    await ledger.reconcile(B, "two", tokens(4))
    await ledger.reserve(B, "three", tokens(6), TEN)
    assert_stands(await ledger.account(B), 4, 6, "three")


async def test_a_second_reservation_of_the_same_id_takes_the_firsts_place(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "r", tokens(9), TEN)
    await ledger.reserve(B, "r", tokens(9), TEN)
    assert_stands(await ledger.account(B), 0, 9, "r")
    await ledger.reserve(B, "r", tokens(10), TEN)
    assert_stands(await ledger.account(B), 0, 10, "r")
    with pytest.raises(BudgetExceeded):
        await ledger.reserve(B, "r", tokens(11), TEN)
    assert_stands(await ledger.account(B), 0, 10, "r")


async def test_only_the_first_settlement_of_a_reservation_counts(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "r", tokens(7), TEN)
    for spent in (3, 3, 9):
        await ledger.reconcile(B, "r", tokens(spent))
    await ledger.release(B, "r")
    await ledger.release(B, "r")
    assert_stands(await ledger.account(B), 3, 0)
    await ledger.reserve(B, "r", tokens(7), TEN)
    assert_stands(await ledger.account(B), 3, 7, "r")
    await ledger.release(B, "r")
    await ledger.reconcile(B, "r", tokens(7))
    assert_stands(await ledger.account(B), 3, 0)


async def test_settling_what_was_never_reserved_does_nothing(ledger: BudgetLedger) -> None:
    await ledger.reconcile(B, "ghost", tokens(3))
    await ledger.release(B, "ghost")
    assert await ledger.account(B) == BudgetAccount(budget_id=B)
    await ledger.reserve(B, "real", tokens(3), TEN)
    await ledger.reconcile(B, "ghost", tokens(3))
    assert_stands(await ledger.account(B), 0, 3, "real")


async def test_what_was_spent_beyond_the_reservation_is_counted_in_full(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "r", tokens(2), TEN)
    await ledger.reconcile(B, "r", tokens(50))
    assert_stands(await ledger.account(B), 50, 0)
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(B, "next", tokens(1), TEN)
    assert refused.value.left == "0", "nothing is left, and never less than nothing"


async def test_budgets_do_not_touch_each_other(ledger: BudgetLedger) -> None:
    await ledger.reserve("one", "r", tokens(10), TEN)
    await ledger.reserve("two", "r", tokens(4), TEN)
    await ledger.reconcile("two", "r", tokens(4))
    assert_stands(await ledger.account("one"), 0, 10, "r")
    assert_stands(await ledger.account("two"), 4, 0)


async def test_a_wider_cap_of_another_request_admits_more(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "one", tokens(10), TEN)
    await ledger.reserve(B, "two", tokens(10), BudgetLimit(max_tokens=20))
    with pytest.raises(BudgetExceeded):
        await ledger.reserve(B, "three", tokens(1), TEN)


async def test_a_reservation_of_nothing_fits_a_full_budget(ledger: BudgetLedger) -> None:
    await ledger.reserve(B, "one", tokens(10), TEN)
    await ledger.reserve(B, "none", tokens(0), TEN)
    assert_stands(await ledger.account(B), 0, 10, "none", "one")


# Costs.


async def test_costs_add_up_without_drift(ledger: BudgetLedger) -> None:
    limit = BudgetLimit(max_cost=Decimal("0.3"), prices=CENTS)
    for number in range(3):
        wanted = amount_of(limit, 1_000_000, 0)
        assert wanted == Amount(1_000_000, Decimal("0.1"))
        await ledger.reserve(B, f"r{number}", wanted, limit)
        await ledger.reconcile(B, f"r{number}", wanted)
    account = await ledger.account(B)
    assert account.spent_cost == Decimal("0.3"), "0.1 three times is 0.3, which floats deny"
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(B, "more", amount_of(limit, 1, 0), limit)
    assert (refused.value.unit, Decimal(refused.value.left)) == ("of cost", 0)
    assert Decimal(refused.value.wanted) == Decimal("0.0000001")


async def test_the_smallest_costs_are_kept(ledger: BudgetLedger) -> None:
    prices = TokenPrices(input_per_million=Decimal("0.000001"), output_per_million=Decimal(0))
    limit = BudgetLimit(max_cost=Decimal(1), prices=prices)
    for number in range(20):
        await ledger.reserve(B, f"r{number}", amount_of(limit, 1, 0), limit)
    held = await ledger.account(B)
    assert held.reserved_cost == 20 * Decimal("1E-12")
    for number in range(20):
        await ledger.reconcile(B, f"r{number}", amount_of(limit, 1, 0))
    assert (await ledger.account(B)).spent_cost == 20 * Decimal("1E-12")


async def test_costs_do_not_depend_on_the_precision_that_the_caller_works_with(ledger: BudgetLedger) -> None:
    """A notebook may have set its own; the ledger's money is not rounded with it."""
    limit = BudgetLimit(max_cost=Decimal(1), prices=CENTS)
    with localcontext() as context:
        context.prec = 3
        for name in ("one", "two"):
            wanted = amount_of(limit, 123_456, 0)
            await ledger.reserve(B, name, wanted, limit)
            await ledger.reconcile(B, name, wanted)
    assert (await ledger.account(B)).spent_cost == 2 * Decimal("0.0123456")


async def test_both_caps_of_a_limit_hold(ledger: BudgetLedger) -> None:
    both = BudgetLimit(max_tokens=100, max_cost=Decimal("0.00001"), prices=CENTS)
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(B, "r", amount_of(both, 101, 0), both)
    assert refused.value.unit == "tokens"
    with pytest.raises(BudgetExceeded) as refused:
        await ledger.reserve(B, "r", amount_of(both, 0, 100), both)
    assert refused.value.unit == "of cost"
    await ledger.reserve(B, "r", amount_of(both, 100, 0), both)


async def test_a_limit_without_prices_costs_nothing_beside_one_that_has_them(ledger: BudgetLedger) -> None:
    priced = BudgetLimit(max_cost=Decimal(1), prices=CENTS)
    await ledger.reserve(B, "r1", amount_of(TEN, 5, 5), TEN)
    await ledger.reserve(B, "r2", amount_of(priced, 5, 5), priced)
    account = await ledger.account(B)
    assert (account.reserved_tokens, account.reserved_cost) == (20, Decimal("0.000002"))


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.decimals(0, 1000, places=6), st.decimals(0, 1000, places=6))
def test_an_amount_is_what_tokens_come_to(given_in: int, given_out: int, price_in: Decimal, price_out: Decimal) -> None:
    limit = BudgetLimit(
        max_cost=Decimal(1), prices=TokenPrices(input_per_million=price_in, output_per_million=price_out)
    )
    found = amount_of(limit, given_in, given_out)
    assert found.tokens == given_in + given_out
    millionths = int(price_in * 10**6) * given_in + int(price_out * 10**6) * given_out
    assert found.cost * 10**12 == millionths
    assert amount_of(TEN, given_in, given_out) == Amount(given_in + given_out, Decimal(0))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_free_tokens_are_counted_all_the_same(given_in: int, given_out: int) -> None:
    free = BudgetLimit(max_tokens=1, prices=FREE)
    assert amount_of(free, given_in, given_out) == Amount(given_in + given_out, Decimal(0))


# Interleavings.

ACTS = st.tuples(
    st.sampled_from(["reserve", "reconcile", "release"]), st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 12)
)


@given(st.lists(ACTS, max_size=40), st.integers(1, 30))
def test_the_cap_holds_under_every_interleaving(acts: Sequence[tuple[str, str, int]], cap: int) -> None:
    """Against a model of one line per act; nothing is ever settled for more than it held."""
    asyncio.run(_play(acts, cap))


async def _play(acts: Sequence[tuple[str, str, int]], cap: int) -> None:
    ledger = InMemoryBudgetLedger()
    limit = BudgetLimit(max_tokens=cap, max_cost=Decimal(cap), prices=CENTS)
    held: dict[str, int] = {}
    spent = 0
    for act, name, amount in acts:
        if act == "reserve":
            fits = spent + sum(held.values()) - held.get(name, 0) + amount <= cap
            try:
                await ledger.reserve(B, name, Amount(amount, Decimal(amount)), limit)
                assert fits
                held[name] = amount
            except BudgetExceeded:
                assert not fits
        elif act == "reconcile":
            used = min(amount, held.get(name, 0))
            await ledger.reconcile(B, name, Amount(used, Decimal(used)))
            spent += used if held.pop(name, None) is not None else 0
        else:
            await ledger.release(B, name)
            held.pop(name, None)
        account = await ledger.account(B)
        assert (account.spent_tokens, account.reserved_tokens) == (spent, sum(held.values()))
        assert (account.spent_cost, account.reserved_cost) == (spent, sum(held.values()))
        assert account.reservations == tuple(sorted(held))
        assert account.spent_tokens + account.reserved_tokens <= cap


async def test_many_at_once_never_pass_the_cap(ledger: BudgetLedger) -> None:
    limit = BudgetLimit(max_tokens=100)

    async def one(number: int) -> int:
        try:
            await ledger.reserve(B, f"r{number}", tokens(9), limit)
        except BudgetExceeded:
            return 0
        account = await ledger.account(B)
        assert account.spent_tokens + account.reserved_tokens <= 100
        if number % 4 == 0:
            await ledger.release(B, f"r{number}")
            return 0
        await ledger.reconcile(B, f"r{number}", tokens(7))
        return 7

    spent = sum(await asyncio.gather(*(one(number) for number in range(60))))
    account = await ledger.account(B)
    assert_stands(account, spent, 0)
    assert 0 < spent <= 100


async def test_a_ledger_may_be_closed_twice(ledger: BudgetLedger) -> None:
    await ledger.account(B)
    await ledger.aclose()
    await ledger.aclose()
