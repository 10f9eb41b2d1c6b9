"""`put_in_thread`: work in a thread that an event loop waits for and that cancellation does not
stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def put_in_thread(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """Start `work` in a thread of the running loop; the work is done even if the caller is
    cancelled.

    A task for `asyncio.to_thread` would not do: the loop cancels all remaining tasks when it ends;
    then a thread that has not begun never begins, and the task ends before a thread that has begun.
    """
    return asyncio.get_running_loop().run_in_executor(None, work)
