"""Ledgers in a file: shared between applications and processes, beside sessions, and typed when they cannot be used."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from runtime import spending_scenarios as scenarios

from cayu.budgets import Amount, BudgetAccount, BudgetLimit, DocumentBudgetLedger
from cayu.errors import BudgetExceeded, StoreBusy, StoreClosed, StoreNotADatabase
from cayu.storage import InMemoryBudgetLedger, SQLiteBudgetLedger, SQLiteSessionStore
from cayu.testing import run_child

B = "shared"
LIMIT = BudgetLimit(max_tokens=100)
COST = Decimal("0.1234567890123456789")
PROCESSES = 3


async def test_an_account_outlives_its_ledger_to_the_last_digit(tmp_path: Path) -> None:
    first = SQLiteBudgetLedger(tmp_path / "ledger.db")
    await first.reserve(B, "one", Amount(5, COST), LIMIT)
    await first.reserve(B, "two", Amount(7, COST), LIMIT)
    await first.reconcile(B, "one", Amount(4, COST))
    before = await first.account(B)
    await first.aclose()
    second = SQLiteBudgetLedger(tmp_path / "ledger.db")
    assert await second.account(B) == before
    assert (before.spent_cost, before.reserved_cost) == (COST, COST)
    await second.aclose()


async def test_two_ledgers_on_one_file_share_an_account(tmp_path: Path) -> None:
    one, two = SQLiteBudgetLedger(tmp_path / "ledger.db"), SQLiteBudgetLedger(tmp_path / "ledger.db")
    await one.reserve(B, "r", Amount(60), LIMIT)
    with pytest.raises(BudgetExceeded):
        await two.reserve(B, "s", Amount(60), LIMIT)
    await two.release(B, "r")
    await two.reserve(B, "s", Amount(60), LIMIT)
    assert (await one.account(B)).reservations == ("s",)
    await one.aclose()
    await two.aclose()


async def test_a_ledger_stands_beside_sessions_in_one_file(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "sessions.db")
    beside, apart = DocumentBudgetLedger(store), SQLiteBudgetLedger(tmp_path / "sessions.db")
    await beside.reserve(B, "r", Amount(60), LIMIT)
    assert (await apart.account(B)).reserved_tokens == 60
    await beside.aclose()
    await store.now()
    assert (await beside.account(B)).reserved_tokens == 60, "the store is not the ledger's to close"
    await apart.aclose()
    await store.aclose()


async def test_ledgers_in_memory_share_nothing() -> None:
    one, two = InMemoryBudgetLedger(), InMemoryBudgetLedger()
    await one.reserve(B, "r", Amount(60), LIMIT)
    assert await two.account(B) == BudgetAccount(budget_id=B)


async def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = SQLiteBudgetLedger(tmp_path / "ledger.db")
    await ledger.account(B)
    await ledger.aclose()
    with pytest.raises(StoreClosed):
        await ledger.reserve(B, "r", Amount(1), LIMIT)


async def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("dear reader, " * 100, encoding="ascii")
    ledger = SQLiteBudgetLedger(tmp_path / "letter.db")
    with pytest.raises(StoreNotADatabase):
        await ledger.reserve(B, "r", Amount(1), LIMIT)
    await ledger.aclose()


async def test_a_locked_file_is_busy_and_nothing_is_reserved(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "ledger.db", busy_seconds=0.05)
    ledger = DocumentBudgetLedger(store)
    await ledger.account(B)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await ledger.reserve(B, "r", Amount(1), LIMIT)
        other.execute("ROLLBACK")
    assert await ledger.account(B) == BudgetAccount(budget_id=B)
    await ledger.reserve(B, "r", Amount(1), LIMIT)
    await store.aclose()


@pytest.mark.slow
async def test_several_processes_never_pass_the_cap(tmp_path: Path) -> None:
    cap, wanted = 1000, 40
    target = f"{scenarios.__file__}:contend"
    with ThreadPoolExecutor(PROCESSES) as pool:
        found = [
            pool.submit(run_child, target, [str(tmp_path), f"p{number}", 40, cap, wanted, PROCESSES])
            for number in range(PROCESSES)
        ]
        results = [each.result().result for each in found]
    ledger = SQLiteBudgetLedger(tmp_path / "ledger.db")
    account = await ledger.account(B)
    await ledger.aclose()
    assert account.spent_tokens == sum(spent for spent, _ in results), "nothing is lost, nothing counted twice"
    assert (account.reserved_tokens, account.reservations) == (0, ())
    assert max(most for _, most in results) <= cap
    assert account.spent_tokens > cap - 2 * wanted, "the processes did come to the cap"
    assert all(spent for spent, _ in results)
