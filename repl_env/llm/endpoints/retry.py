"""Asking again, where the library that asks does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from repl_env.errors import ModelError

T = TypeVar("T")

# The waits of the openai SDK, so that both kinds of endpoint are treated alike.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0  # seconds, doubled each time
_LONGEST_ASKED_FOR = 120.0  # an endpoint that wants more than this is down


async def with_retries(attempt: Callable[[], Awaitable[T]], retries: int) -> T:
    """What `attempt` returns, at the first or one of `retries` more times.

    Between them it waits as long as the endpoint asked for, else longer each time, and never the
    same, so that calls that failed together do not come back together.

    Raises:
        ModelError: of the last attempt, or one that no waiting helps.
    """
    for number in range(retries):
        try:
            return await attempt()
        except ModelError as error:
            asked_for = error.retry_after or 0.0
            if not error.retryable or asked_for > _LONGEST_ASKED_FOR:
                raise
        wait = min(_FIRST_WAIT * 2**number, _LONGEST_WAIT) * random.uniform(0.75, 1.0)
        await asyncio.sleep(asked_for or wait)
    return await attempt()
