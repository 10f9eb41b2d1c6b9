"""Retries for libraries that have none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from repl_env.errors import ModelError

T = TypeVar("T")

# The waits of the openai SDK, so that both kinds of endpoint behave alike.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0  # seconds, doubled each time
_LONGEST_ASKED_FOR = 120.0  # an endpoint that asks for more than this is down


async def with_retries(attempt: Callable[[], Awaitable[T]], retries: int) -> T:
    """Return the result of `attempt`, repeated up to `retries` times.

    The pause is what the endpoint asked for, else increasing, with a random part, so that calls
    that
    failed together do not return together.

    Raises:
        ModelError: of the last attempt, or one that waiting does not help.
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
