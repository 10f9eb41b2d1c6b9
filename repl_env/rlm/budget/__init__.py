"""Budgets: limits, reservations, usage and prices of one run tree. Names load at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Budget, Price, Spent

__all__ = [
    "Budget",
    "Price",
    "Spent",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "repl_env.rlm.budget.budget_limits": (
            "Budget",
            "Price",
            "Spent",
        )
    },
)
