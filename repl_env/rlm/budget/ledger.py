"""`Ledger`: the one account of what a tree of runs spends, held on the host.

Before a model is asked, the most that the call may take is reserved; when it has answered, what it
took is spent and the rest is free again. What is spent and what is reserved never exceed the budget
together, however many ask at the same time: so nobody overspends but an endpoint that gives more
than it was allowed, and that is written down as it was.

Everything here may be called from any thread and from any event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from repl_env.common.argument_checks import of_public_kind
from repl_env.concurrency.fair_queue import FairQueue
from repl_env.errors import BudgetExceeded, REPLError
from repl_env.rlm.budget.budget_limits import Budget, Price, Spent
from repl_env.rlm.budget.prices import TokenRates
from repl_env.rlm.budget.remaining_budget import BudgetDemand, BudgetLeft, RemainingBudget
from repl_env.rlm.budget.reservation import Reservation
from repl_env.rlm.budget.usage_totals import NANOSECONDS, UsageTally, UsageTotals

__all__ = ["BudgetLeft", "Ledger", "LedgerAccount", "Reservation", "UsageTally"]

# A model is told when so much of the budget is spent, in percent: early enough to change course,
# and once more when it is time to answer.
_WARN_AT = (80, 95)


class Ledger:
    """What a tree of runs may spend, has spent and has in reserve. Its time begins now.

    Args:
        budget: of the whole tree.
        prices: of models, by the names that they are asked for by. A call to any other model has
            no known price: with `budget.usd` it is refused, and without it counts in
            `Spent.unpriced_calls`, unless the endpoint itself names a price.
        clock: seconds, from whenever.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        budget: Budget = Budget(),  # noqa: B008 (frozen)
        *,
        prices: Mapping[str, Price] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        of_public_kind(budget, Budget, "budget", home="repl_env.rlm")
        start = clock()
        self.budget = budget
        self.root = LedgerAccount(self, None)
        self._rates = TokenRates({} if prices is None else prices)
        self._allowance = RemainingBudget(
            budget, self._rates, self.root._total, elapsed=lambda: clock() - start
        )
        # Reentrant, for the reason that `FairQueue` gives.
        self._lock = threading.RLock()
        self._line: FairQueue[_Wish, _Answer] = FairQueue(self._lock, self._serve, _take_back)

    def _serve(self, wish: _Wish) -> _Answer | None:
        """What the first in the line gets: all that it can ever get, or nothing yet."""
        try:
            wish.account._must_be_open()
            most = self._allowance.grant(wish.demand, _NOTHING)
        except REPLError as error:
            return error
        try:
            now = self._allowance.grant(wish.demand, self._allowance.held)
        except BudgetExceeded:
            return None
        return wish.account._hold(wish.demand, now) if now == most else None


class LedgerAccount:
    """What one run of the tree spends, itself and with all runs below it.

    Attributes:
        ledger: the tree's.
        parent: the account of the run that this one is a child of; None for the root.
        depth: 0 for the root.
    """

    def __init__(self, ledger: Ledger, parent: LedgerAccount | None) -> None:
        self.ledger = ledger
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._own = UsageTotals()
        self._total = UsageTotals()
        self._children: list[LedgerAccount] = []
        self._reservations: set[Reservation] = set()
        self._alive = 0
        self._closed = False
        self._warned: dict[str, int] = {}

    @property
    def own(self) -> Spent:
        """What this run spent itself."""
        with self.ledger._lock:
            return self._own.spent()

    @property
    def total(self) -> Spent:
        """What it spent with all runs below it, ended ones too."""
        with self.ledger._lock:
            return self._total.spent()

    def tally(self) -> UsageTally:
        """This account and all below it, at one moment."""
        with self.ledger._lock:
            below = tuple(child.tally() for child in self._children)
            return UsageTally(self._own.spent(), self._total.spent(), below)

    @property
    def alive(self) -> int:
        """How many runs below this one are open."""
        return self._alive

    def reserve(
        self, *, model: str | None, input_tokens: int, output_tokens: int | None
    ) -> Reservation:
        """Set aside what one call to `model` may take at most, at once or not at all.

        It does not stand in the line that `reserving` waits in, and gets what is free now, even
        if that is less than it asks for.

        Args:
            model: decides the price.
            input_tokens: an upper bound of what the question has.
            output_tokens: what the answer may have; None: as much as there is.

        Raises:
            BudgetExceeded: it does not fit beside what is spent and reserved.
            REPLError: the run is over.
        """
        demand = self._demand(model, input_tokens, output_tokens)
        with self.ledger._lock:
            self._must_be_open()
            allowance = self.ledger._allowance
            return self._hold(demand, allowance.grant(demand, allowance.held))

    async def reserving(
        self, *, model: str | None, input_tokens: int, output_tokens: int | None
    ) -> Reservation:
        """`reserve`, but wait while only what others hold in reserve stands in the way.

        Who waits stands in one line for the whole tree and is not overtaken. It gets what it asks
        for, or all that is left once nobody holds any of it. So of calls that ask for "as much as
        there is", under a limit, one at a time is made; those that name a limit of their own run
        side by side as far as the limits fit in. Whoever holds a reservation must not wait for
        another one.

        Raises:
            BudgetExceeded: it does not fit, whatever the others give back; "seconds" also if the
                time of the tree ends meanwhile.
            REPLError: the run is over.
        """
        demand = self._demand(model, input_tokens, output_tokens)
        with self.ledger._lock:
            self._must_be_open()
            self.ledger._allowance.grant(demand, _NOTHING)
        try:
            async with asyncio.timeout(self.seconds_left()):
                answer = await self.ledger._line.get(_Wish(self, demand))
        except TimeoutError as error:
            raise BudgetExceeded("seconds", "budget: time ran out before the call") from error
        if isinstance(answer, Reservation):
            return answer
        raise answer

    def open_child(self) -> LedgerAccount:
        """The account of a new run below this one.

        Raises:
            BudgetExceeded: there may be no more children.
            REPLError: this run is over.
        """
        with self.ledger._lock:
            self._must_be_open()
            self.ledger._allowance.child()
            child = LedgerAccount(self.ledger, self)
            self._children.append(child)
            self._spend(UsageTotals(children=1))
            for account in self._upwards():
                account._alive += 1
            return child

    def close(self) -> None:
        """The run is over, and so are those below it. What they spent stays.

        A reservation that is still open counts as a failed call. Closing again does nothing.
        """
        with self.ledger._lock:
            if self._closed:
                return
            self._closed = True
            for child in self._children:
                child.close()
            for reservation in tuple(self._reservations):
                reservation.fail()
            if self.parent is not None:
                for account in self.parent._upwards():
                    account._alive -= 1
            self.ledger._line.dismiss(lambda wish: wish.account is self, _over)

    def spend_cpu(self, seconds: float) -> None:
        """Write down CPU time that the run's session took, even if that is too much, or late.

        Raises:
            TypeError, ValueError: it is no time.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"seconds must be a number, not {type(seconds).__name__}")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be at least 0, not {seconds}")
        with self.ledger._lock:
            self._spend(UsageTotals(cpu_nanoseconds=round(seconds * NANOSECONDS)))

    def begin_with(self, spent: Spent) -> None:
        """Count what was spent before this account began: the work goes on from elsewhere."""
        with self.ledger._lock:
            self._spend(UsageTotals.of(spent))

    def left(self) -> BudgetLeft:
        """What the whole tree may still spend, less what is reserved."""
        with self.ledger._lock:
            return self.ledger._allowance.left()

    def seconds_left(self) -> float | None:
        """Of wall time, at least 0; None without a limit."""
        with self.ledger._lock:
            return self.ledger._allowance.seconds_left()

    def check(self) -> None:
        """Whether a turn may begin. For use before a turn: a reply's code may run without this.

        Raises:
            BudgetExceeded: time, CPU time, or something that no model can be asked without, is
                spent (what is reserved is not).
        """
        with self.ledger._lock:
            self.ledger._allowance.check()

    def warning(self) -> str | None:
        """A sentence for the model about what is nearly spent; None if there is nothing new.

        Each field is named once when 80 % of it are spent, and once when 95 % are.
        """
        with self.ledger._lock:
            new: dict[str, str] = {}
            for percent in _WARN_AT:
                for field, phrase in self.ledger._allowance.nearly_used(percent).items():
                    if self._warned.get(field, 0) < percent:
                        self._warned[field] = percent
                        new[field] = phrase
            return f"Budget: {'; '.join(new.values())}." if new else None

    def _demand(
        self, model: str | None, input_tokens: int, output_tokens: int | None
    ) -> BudgetDemand:
        _check_count("input_tokens", input_tokens, 0)
        if output_tokens is not None:
            _check_count("output_tokens", output_tokens, 1)
        return BudgetDemand(model, self.ledger._rates.of(model), input_tokens, output_tokens)

    def _hold(self, demand: BudgetDemand, granted: int | None) -> Reservation:
        ledger = self.ledger
        held = ledger._allowance.hold(demand, granted)
        reservation = Reservation(granted, held, demand.rate, ledger._rates, self._end)
        self._reservations.add(reservation)
        return reservation

    def _end(self, reservation: Reservation, spent: UsageTotals) -> None:
        with self.ledger._lock:
            if reservation not in self._reservations:
                return
            self._reservations.remove(reservation)
            self.ledger._allowance.held.add(reservation.held, -1)
            self._spend(spent)
            self.ledger._line.move()

    def _must_be_open(self) -> None:
        if self._closed:
            raise _over()

    def _spend(self, sums: UsageTotals) -> None:
        self._own.add(sums)
        for account in self._upwards():
            account._total.add(sums)

    def _upwards(self) -> Iterator[LedgerAccount]:
        account: LedgerAccount | None = self
        while account is not None:
            yield account
            account = account.parent


@dataclass(frozen=True, slots=True)
class _Wish:
    """Somebody's demand, in the line."""

    account: LedgerAccount
    demand: BudgetDemand


_Answer = Reservation | REPLError
_NOTHING = UsageTotals()


def _take_back(answer: _Answer) -> None:
    """End a reservation that nobody came to use: no call was made."""
    if isinstance(answer, Reservation):
        answer.drop()


def _over() -> REPLError:
    return REPLError("the run is over: its account is closed")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
