"""What an event loop has a thread do, and what is done whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def put_in_thread(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """`work`, begun in a thread of the running loop's; shielded, it is done whoever is cancelled.

    A task is not: the loop cancels all that are left when it ends, and then `to_thread` begins
    nothing any more, and is over for who waits while its thread goes on.
    """
    return asyncio.get_running_loop().run_in_executor(None, work)
