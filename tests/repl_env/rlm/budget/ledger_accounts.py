"""Reservations in a ledger, and the check that its totals add up."""

import asyncio

from repl_env.rlm import Budget, ModelUsage, Spent

UNLIMITED = Budget(calls=None, children=None)
PICO = 10**12


def reserve(account, asks=None, *, input_tokens=0, model=None):
    return account.reserve(model=model, input_tokens=input_tokens, output_tokens=asks)


def reserve_async(account, asks=None, *, input_tokens=0, model=None):
    return account.reserve_async(model=model, input_tokens=input_tokens, output_tokens=asks)


def settle(reservation, given=0, taken=0, **more):
    """The endpoint says that it took `taken` tokens and gave `given`."""
    usage = ModelUsage(taken, given, more.pop("usd", None))
    reservation.settle(usage, input_estimate=7, output_estimate=9, **more)


async def waiting(coroutine):
    """A task that has come as far as it can."""
    task = asyncio.create_task(coroutine)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def is_below(account, other):
    """Whether `other` is `account` or above it."""
    return account is other or (account.parent is not None and is_below(account.parent, other))


def assert_adds_up(tally):
    """Whether at each node the total is its own and the totals below."""
    for name in Spent.__slots__:
        below = [getattr(child.total, name) for child in tally.children]
        unit = {"usd": PICO, "cpu_seconds": 10**9}.get(name, 1)
        whole = round(getattr(tally.total, name) * unit)
        assert whole == sum(round(part * unit) for part in [getattr(tally.own, name), *below]), name
    for child in tally.children:
        assert_adds_up(child)
