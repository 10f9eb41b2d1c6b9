"""Threads for the functions of users that block, for as many calls as are open.

There must be one for each open call: a function may begin a run of its own and wait for calls of
that, and parents that held all threads would wait for ever. How many are open at the same time is
the callers' to limit.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from repl_env.pools import Pool

T = TypeVar("T")

_pool: Final = Pool(1 << 14, "repl-function")


def begun(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """`function(*arguments)`, begun in a thread with the caller's context."""
    context = contextvars.copy_context()
    return _pool.submit(lambda: context.run(function, *arguments))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What `function(*arguments)` returns, called in a thread with this task's context."""
    return await asyncio.wrap_future(begun(function, *arguments))
