"""`Ledger`: the spending of a tree of runs, kept on the host; it reserves before it spends."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from repl_env.common.display import set_module
from repl_env.common.threads import FairQueue
from repl_env.common.values import of_public_kind
from repl_env.errors import BudgetExceeded, REPLError
from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget import Budget, Price, Spent, TokenRate, TokenRates
from repl_env.rlm.usage import (
    NANOSECONDS,
    BudgetDemand,
    BudgetLeft,
    RemainingBudget,
    UsageTally,
    UsageTotals,
    of_answer,
)

# `Reservation`: amounts reserved for one call to a model.


@set_module("repl_env.rlm")
class Reservation:
    """Amounts reserved for one call. It ends once, by `settle` or `fail`; a second does nothing.

    As a context manager it fails if the block leaves it open.

    Attributes:
        output_tokens: the limit of the answer, at least 1; None: no limit.
        reserved: all reserved amounts.
    """

    def __init__(
        self,
        output_tokens: int | None,
        reserved: UsageTotals,
        rate: TokenRate | None,
        rates: TokenRates,
        end: Callable[[Reservation, UsageTotals], None],
    ) -> None:
        self.output_tokens = output_tokens
        self.reserved = reserved
        self._rate = rate
        self._rates = rates
        self._finish = end

    def settle(
        self,
        usage: ModelUsage,
        *,
        input_estimate: int,
        output_estimate: int,
        price_model: str | None = None,
    ) -> None:
        """Spend the cost of an answered call.

        Args:
            usage: as reported, and trusted, even if it exceeds the reservation. Impossible numbers
                (negative, not ints, beyond a billion) count as not reported.
            input_estimate, output_estimate: for counts that are not reported.
            price_model: the model that answered, if it is not the requested one. If its price is
                unknown, the requested model's price counts.
        """
        rate = self._rates.of(price_model) or self._rate
        spent = of_answer(
            usage, input_estimate=input_estimate, output_estimate=output_estimate, rate=rate
        )
        self._finish(self, spent)

    def fail(self, usage: ModelUsage | None = None) -> None:
        """End a call that failed: it counts, with the tokens in `usage`."""
        spent = UsageTotals(calls=1)
        # otherwise its price is not unknown, but zero
        if usage is not None and usage != ModelUsage():
            spent = of_answer(usage, input_estimate=0, output_estimate=0, rate=self._rate)
        spent.failed_calls = 1
        self._finish(self, spent)

    def drop(self) -> None:
        """End a call that was never made: nothing was spent."""
        self._finish(self, UsageTotals())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.fail()


# `Ledger`: the spending of a tree of runs, kept on the host.
#
# Before a request to a model, the most that the call may take is reserved; after the answer, its
# cost is spent and the rest released. Spending and reservations never exceed the budget together,
# with any number of concurrent requests. Only an endpoint that exceeds its allowance can
# overspend, and that is recorded as it was.
#
# All functions may be called from any thread and event loop.

__all__ = ["BudgetLeft", "Ledger", "LedgerAccount", "Reservation", "UsageTally"]

# The model gets a warning at these percentages of the budget: early enough to change course, and
# again when it is time to answer.
_WARN_AT = (80, 95)


@set_module("repl_env.rlm")
class Ledger:
    """The budget, the spending and the reservations of a tree of runs. Its time begins now.

    Args:
        budget: of the whole tree.
        prices: by the names of models in requests. Other models have no known price: with
            `budget.usd` their calls are refused, and without it they count in
            `Spent.unpriced_calls`, unless the endpoint itself reports a price.
        clock: returns seconds from any origin.

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
        self._remaining = RemainingBudget(
            budget, self._rates, self.root._total, elapsed=lambda: clock() - start
        )
        # Reentrant, for the reason in `FairQueue`.
        self._lock = threading.RLock()
        self._queue: FairQueue[_QueuedDemand, _Answer] = FairQueue(
            self._lock, self._serve, _release
        )

    def _serve(self, queued: _QueuedDemand) -> _Answer | None:
        """Return the grant of the first in the queue: as much as it can ever get, or nothing
        yet.
        """
        try:
            queued.account._check_open()
            maximum = self._remaining.grant(queued.demand, _NOTHING)
        except REPLError as error:
            return error
        try:
            now = self._remaining.grant(queued.demand, self._remaining.reserved)
        except BudgetExceeded:
            return None
        return queued.account._reserve(queued.demand, now) if now == maximum else None


@set_module("repl_env.rlm")
class LedgerAccount:
    """The spending of one run of the tree, alone and with all runs below it.

    Attributes:
        ledger: the tree's.
        parent: the account of the parent run; None for the root.
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
        self._open_children = 0
        self._closed = False
        self._warned: dict[str, int] = {}

    @property
    def own(self) -> Spent:
        """The spending of this run alone."""
        with self.ledger._lock:
            return self._own.spent()

    @property
    def total(self) -> Spent:
        """The spending of this run with all runs below it, including ended ones."""
        with self.ledger._lock:
            return self._total.spent()

    def tally(self) -> UsageTally:
        """This account and all below it, at one moment."""
        with self.ledger._lock:
            below = tuple(child.tally() for child in self._children)
            return UsageTally(self._own.spent(), self._total.spent(), below)

    @property
    def open_children(self) -> int:
        """The number of open runs below this one."""
        return self._open_children

    def reserve(
        self, *, model: str | None, input_tokens: int, output_tokens: int | None
    ) -> Reservation:
        """Reserve the most that one call to `model` may take, at once or not at all.

        The call bypasses the queue of `reserve_async`, and gets what is free now, even if that is
        less than it requests.

        Args:
            model: decides the price.
            input_tokens: an upper bound for the request.
            output_tokens: the limit of the answer; None: as much as there is.

        Raises:
            BudgetExceeded: it does not fit next to spending and reservations.
            REPLError: the run is over.
        """
        demand = self._demand(model, input_tokens, output_tokens)
        with self.ledger._lock:
            self._check_open()
            remaining = self.ledger._remaining
            return self._reserve(demand, remaining.grant(demand, remaining.reserved))

    async def reserve_async(
        self, *, model: str | None, input_tokens: int, output_tokens: int | None
    ) -> Reservation:
        """`reserve`, but wait as long as only other reservations stand in the way.

        The whole tree has one queue without overtaking. A caller gets its request, or all that is
        left once no reservation holds any of it. So calls for "as much as there is" under a limit
        run one at a time; calls with their own limits run concurrently as far as the limits fit.
        The holder of a reservation must not wait for another one.

        Raises:
            BudgetExceeded: it does not fit, whatever others release; "seconds" also if the time of
                the tree ends meanwhile.
            REPLError: the run is over.
        """
        demand = self._demand(model, input_tokens, output_tokens)
        with self.ledger._lock:
            self._check_open()
            self.ledger._remaining.grant(demand, _NOTHING)
        try:
            async with asyncio.timeout(self.seconds_left()):
                answer = await self.ledger._queue.get(_QueuedDemand(self, demand))
        except TimeoutError as error:
            raise BudgetExceeded("seconds", "budget: time ran out before the call") from error
        if isinstance(answer, Reservation):
            return answer
        raise answer

    def open_child(self) -> LedgerAccount:
        """Return the account of a new run below this one.

        Raises:
            BudgetExceeded: the limit on children is reached, or nothing is left for its calls.
            REPLError: this run is over.
        """
        with self.ledger._lock:
            self._check_open()
            self.ledger._remaining.child()
            child = LedgerAccount(self.ledger, self)
            self._children.append(child)
            self._spend(UsageTotals(children=1))
            for account in self._ancestors():
                account._open_children += 1
            return child

    def close(self) -> None:
        """End the run and those below it. Their spending stays.

        An open reservation counts as a failed call. Closing again does nothing.
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
                for account in self.parent._ancestors():
                    account._open_children -= 1
            self.ledger._queue.dismiss(lambda queued: queued.account is self, _closed_error)

    def spend_cpu(self, seconds: float) -> None:
        """Record CPU time of the run's session, even beyond the budget or after the end.

        Raises:
            TypeError, ValueError: it is not a duration.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"seconds must be a number, not {type(seconds).__name__}")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be at least 0, not {seconds}")
        with self.ledger._lock:
            self._spend(UsageTotals(cpu_nanoseconds=round(seconds * NANOSECONDS)))

    def begin_with(self, spent: Spent) -> None:
        """Record earlier spending, of an episode that continues here."""
        with self.ledger._lock:
            self._spend(UsageTotals.of(spent))

    def left(self) -> BudgetLeft:
        """Return the remaining budget of the whole tree, less the reservations."""
        with self.ledger._lock:
            return self.ledger._remaining.left()

    def seconds_left(self) -> float | None:
        """Return the remaining wall time in seconds, at least 0; None without a limit."""
        with self.ledger._lock:
            return self.ledger._remaining.seconds_left()

    def check(self) -> None:
        """Check that a turn may begin; the code of a reply may run without this check.

        Raises:
            BudgetExceeded: time, CPU time, or an amount that every request needs, is spent
                (reservations do not count).
        """
        with self.ledger._lock:
            self.ledger._remaining.check()

    def warning(self) -> str | None:
        """Return a sentence for the model about nearly exhausted amounts; None without news.

        Each field is named once when 80 % of it are spent, and once when 95 % are.
        """
        with self.ledger._lock:
            new: dict[str, str] = {}
            for percent in _WARN_AT:
                for field, phrase in self.ledger._remaining.nearly_used(percent).items():
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

    def _reserve(self, demand: BudgetDemand, granted: int | None) -> Reservation:
        ledger = self.ledger
        reserved = ledger._remaining.reserve(demand, granted)
        reservation = Reservation(granted, reserved, demand.rate, ledger._rates, self._end)
        self._reservations.add(reservation)
        return reservation

    def _end(self, reservation: Reservation, spent: UsageTotals) -> None:
        with self.ledger._lock:
            if reservation not in self._reservations:
                return
            self._reservations.remove(reservation)
            self.ledger._remaining.reserved.add(reservation.reserved, -1)
            self._spend(spent)
            self.ledger._queue.serve_waiting()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed_error()

    def _spend(self, totals: UsageTotals) -> None:
        self._own.add(totals)
        for account in self._ancestors():
            account._total.add(totals)

    def _ancestors(self) -> Iterator[LedgerAccount]:
        account: LedgerAccount | None = self
        while account is not None:
            yield account
            account = account.parent


@dataclass(frozen=True, slots=True)
class _QueuedDemand:
    """A caller's demand, in the queue."""

    account: LedgerAccount
    demand: BudgetDemand


_Answer = Reservation | REPLError
_NOTHING = UsageTotals()


def _release(answer: _Answer) -> None:
    """End a reservation whose caller is gone: no call was made."""
    if isinstance(answer, Reservation):
        answer.drop()


def _closed_error() -> REPLError:
    return REPLError("the run is over: its account is closed")


def _check_count(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
