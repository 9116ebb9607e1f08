"""Budgets: caps that sessions share, and the ledger that holds them."""

from cayu.budgets.ledger import Amount, BudgetAccount, BudgetLedger, DocumentBudgetLedger
from cayu.sessions.limits import BudgetLimit, TokenPrices

__all__ = ["Amount", "BudgetAccount", "BudgetLedger", "BudgetLimit", "DocumentBudgetLedger", "TokenPrices"]
