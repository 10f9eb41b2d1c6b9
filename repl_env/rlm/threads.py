"""Threads for the functions of users that block, for as many calls as are open.

There must be one for each open call: a function may begin a run of its own and wait for calls of
that, and parents that held all threads would wait for ever. How many are open at the same time is
the gate's to limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# Threads start only when none is idle.
_MOST = 1 << 14

_pools: dict[int, ThreadPoolExecutor] = {}  # by process: a fork does not inherit threads


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What `function(*arguments)` returns, called in a thread with this task's context."""
    context = contextvars.copy_context()
    pool = _pools.get(os.getpid())
    if pool is None:
        pool = _pools.setdefault(
            os.getpid(), ThreadPoolExecutor(_MOST, thread_name_prefix="repl-model")
        )
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: context.run(function, *arguments))
