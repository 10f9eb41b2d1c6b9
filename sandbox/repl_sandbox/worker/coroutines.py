"""Top-level `await`: coroutines of cells on one event loop that lives as long as the session.

The loop turns only while a cell awaits. Tasks that one cell starts go on when a later one awaits.
"""

from __future__ import annotations

from _contextvars import Context, copy_context
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from .namespace import Namespace
from .own_imports import from_library, own
from .tracebacks import has_lines

if TYPE_CHECKING:
    import asyncio

# Seconds for an interrupted cell to leave its `finally` blocks: less than the host waits between
# an interrupt and a kill (Limits.grace, 0.5 by default).
_CANCEL_GRACE = 0.2

_UNSET = object()


def run_coroutine(coroutine: Coroutine[Any, Any, object], namespace: Namespace) -> object:
    """Run a cell's coroutine to its end and return what it returns.

    Raises:
        what the coroutine raises; and KeyboardInterrupt or SystemExit from anything on the loop,
        after the coroutine was cancelled. The loop can be used again in every case.
    """
    loop = _loop(namespace)
    contexts: list[Context] = []
    task = loop.create_task(_noting(coroutine, contexts))
    try:
        return loop.run_until_complete(task)
    except BaseException as error:
        if not task.done():
            _cancel(loop, task)
        if task.done():
            _locate(error, task)
        raise
    finally:
        for context in contexts:
            _keep(context)


async def _noting(coroutine: Coroutine[Any, Any, object], contexts: list[Context]) -> object:
    """Run `coroutine`, and add the context in which it ends to `contexts`."""
    try:
        return await coroutine
    finally:
        contexts.append(copy_context())


def _keep(context: Context) -> None:
    """Set the context variables as a task has: it has a copy, and all cells are to have one."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


def _locate(error: BaseException, task: asyncio.Task[object]) -> None:
    """Have `error` tell where the cell waited, if it struck while the loop did and nothing ran."""
    try:
        task.exception()  # seen here, so that the loop does not complain of it later
    except own("asyncio").CancelledError as cancelled:
        if not has_lines(error):
            error.__traceback__ = cancelled.__traceback__


def _loop(namespace: Namespace) -> asyncio.AbstractEventLoop:
    loop = namespace.loop
    if loop is None or loop.is_closed():
        # Not before it is needed: sessions that never await do not pay for the module.
        with from_library():
            asyncio = own("asyncio")
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        loop.set_exception_handler(_complain)
        namespace.loop = loop
    return loop


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what nobody awaited, but not what went through the loop and ended a cell.

    A task that an interrupt struck keeps it as its exception. The cell's outcome told of it; a
    complaint whenever the collector finds the task would land in an unrelated cell's output.
    """
    if not isinstance(context.get("exception"), (KeyboardInterrupt, SystemExit)):
        loop.default_exception_handler(context)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
    """Let a cancelled task finish, but no longer than the grace.

    An interrupt may strike inside the loop, between taking a step off its queue and running it;
    then the task is never woken again, and waiting for it alone would not end.
    """

    def stop(_: object) -> None:
        loop.stop()

    task.cancel()
    task.add_done_callback(stop)
    timer = loop.call_later(_CANCEL_GRACE, loop.stop)
    try:
        loop.run_forever()
    finally:
        timer.cancel()
        task.remove_done_callback(stop)  # else it would stop the loop under a later cell
