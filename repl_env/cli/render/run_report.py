"""`RunReport`: the answer of a run, a line of totals, and the exit status."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import typer

from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.rlm.budget.budget_limits import Spent

from ..exit_status import ExitStatus
from ..options.budget_options import refusal_text
from .live_progress import Progress
from .live_run_tree import RunTotals, exact
from .terminal_text import harmless, one_line
from .tree_drawing import amounts, duration


class RunReport:
    """The end of a run: its result, whole or partial, its status, and the reason if cut short."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._began = time.monotonic()
        self.result: Any = None
        self.status = ExitStatus.FAILED
        self.reason: str | None = None

    def done(self, result: Any) -> None:
        """Record the result of a run that ended by itself."""
        self.result, self.status = result, status_of(result)
        if self.status is ExitStatus.BUDGET:
            exceeded = _get(result, "exceeded")
            why = "the budget ran out" if exceeded is None else refusal_text(exceeded)
            has = _get(result, "final_answer") is not None
            self.reason = f"{why}; {'the answer is what there was' if has else 'no answer'}"
        elif self.status is ExitStatus.OK:
            if _get(result, "stop_reason") == "max_iterations":
                self.reason = "no answer within --max-iterations; the answer is from one more reply"
        else:
            self.reason = f"no answer: {_get(result, 'error_kind') or _get(result, 'stop_reason')}"
        streak = str(self.progress.tree.streak)
        if self.reason is not None and streak and _get(result, "final_answer") is None:
            self.reason = f"{self.reason}; {streak}"

    def failed(self, status: ExitStatus, reason: str, error: BaseException | None = None) -> None:
        """Record the error that ended a run, and the partial result of the error."""
        self.result = _get(error, "result", self.result)
        self.status, self.reason = status, reason

    def show(self, *, as_json: bool, quiet: bool) -> None:
        """Print the answer to stdout, and the reason and the totals to stderr."""
        answer = _get(self.result, "final_answer")
        if as_json:
            print(json.dumps(self.as_json(), ensure_ascii=False), flush=True)
        elif answer is not None:
            print(harmless(answer) if sys.stdout.isatty() else answer, flush=True)
        if self.reason is not None:
            typer.echo(f"repl-env: {one_line(self.reason, 500)}", err=True)
        if not quiet:
            typer.echo(self.totals(), err=True)

    def totals(self) -> str:
        """Return one line with turns, usage and time."""
        tree = self.progress.tree
        turns = _get(self.result, "iterations", 0 if tree.root is None else tree.root.turn)
        took = duration(time.monotonic() - self._began)
        return f"{turns} turn{'' if turns == 1 else 's'} · {amounts(self._spent())} · {took}"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON; `usage` is known without a result, too."""
        result, spent = self.result, self._spent()
        return {
            "answer": _get(result, "final_answer"),
            "answer_value": _get(result, "answer_value"),
            "stop_reason": _get(result, "stop_reason")
            or ("cancelled" if self.status is ExitStatus.INTERRUPTED else None),
            "error_kind": _get(result, "error_kind"),
            "reason": self.reason,
            "iterations": _get(result, "iterations"),
            "usage": asdict(spent),
            "cost": None if spent.unpriced else spent.usd,
            "seconds": round(time.monotonic() - self._began, 3),
            "status": int(self.status),
        }

    def _spent(self) -> RunTotals:
        usage = _get(self.result, "usage")
        return exact(usage) if isinstance(usage, Spent) else self.progress.tree.spent()


def status_of(result: Any) -> ExitStatus:
    """Return the exit status of a result; a used-up budget counts before an answer."""
    if _get(result, "stop_reason") == "budget":
        return ExitStatus.BUDGET
    if _get(result, "final_answer") is not None:
        return ExitStatus.OK
    return (
        ExitStatus.INFRASTRUCTURE
        if _get(result, "error_kind") in INFRASTRUCTURE_KINDS
        else ExitStatus.FAILED
    )


def _get(holder: Any, name: str, default: Any = None) -> Any:
    """Return a field of a result that may be partial or None."""
    return getattr(holder, name, default)
