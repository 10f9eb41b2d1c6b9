"""Top-level `await`: coroutines of cells on one event loop that lives as long as the session.

The loop runs only while a cell awaits. Tasks that one cell starts continue when a later one awaits;
a cell that does not await may start tasks, too.
"""

from __future__ import annotations

import re
import sys
from _contextvars import Context, copy_context
from _thread import get_ident
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from threading import main_thread
from typing import TYPE_CHECKING, Any

from ..display.tracebacks import has_lines
from ..namespace.main_namespace import Namespace
from ..namespace.trusted_imports import from_library, import_trusted

if TYPE_CHECKING:
    import asyncio

# Seconds for an interrupted cell to leave its `finally` blocks: less than the host waits between an
# interrupt and a kill (Limits.grace, 0.5 by default).
_CANCEL_GRACE = 0.2

_UNSET = object()
_replaced: list[asyncio.AbstractEventLoop] = []
_modules = sys.modules

# Functions of asyncio that start tasks on a running loop, and otherwise fail or use another loop.
# The rest of asyncio is unchanged: `asyncio.run` works in a cell that does not await, and libraries
# that ask for a running loop find none there.
_STARTERS = ("create_task", "ensure_future", "gather", "shield")

_imports_asyncio = re.compile(r"\b(?:import|from)\s+asyncio\b").search


def offer_loop(source: str, namespace: Namespace) -> None:
    """Let a cell that awaits nothing start tasks on the session's loop, if it imports asyncio.

    Called once, in the session's process, as soon as asyncio is loaded or `source` imports it.
    """
    if "asyncio" not in _modules and not _imports_asyncio(source):
        return
    if type(namespace.globals.get("__builtins__")) is dict:  # of a policy without `await`
        return
    namespace.offers_loop = True
    try:
        asyncio = import_trusted("asyncio")
        starters = {name: _starting(getattr(asyncio, name), namespace) for name in _STARTERS}
        finders = {"get_event_loop": _finding(asyncio.get_event_loop, namespace)}
        for name, replacement in {**starters, **finders}.items():
            setattr(asyncio, name, replacement)
    # Boundary: the session's code may have replaced the module, and the cell runs all the same.
    except Exception:  # noqa: BLE001
        pass


def _starting(function: Callable[..., Any], namespace: Namespace) -> Callable[..., Any]:
    """Return `function` with the session's loop as the running loop where none runs."""
    _set_running_loop = import_trusted("asyncio.events")._set_running_loop

    def start(*args: Any, **kwargs: Any) -> Any:
        if not _is_idle():
            return function(*args, **kwargs)
        _set_running_loop(_loop(namespace))
        try:
            return function(*args, **kwargs)
        finally:
            _set_running_loop(None)

    return _as(function, start)


def _finding(function: Callable[..., Any], namespace: Namespace) -> Callable[..., Any]:
    """Return `function` with the session's loop as current, unless code has set another."""

    def get_event_loop() -> Any:
        if _is_idle() and not _has_current():
            import_trusted("asyncio").set_event_loop(_loop(namespace))
        return function()

    return _as(function, get_event_loop)


def _as(function: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    replacement = wraps(function)(replacement)
    replacement.__module__ = "asyncio"  # its import path, for pickle
    return replacement


def _is_idle() -> bool:
    """Return whether this is the thread of the cells, and no loop runs in it."""
    return (
        import_trusted("asyncio.events")._get_running_loop() is None
        and get_ident() == main_thread().ident
    )


def _has_current() -> bool:
    """Return whether the thread has a current loop; assumed for a policy of another class."""
    events = import_trusted("asyncio.events")
    local = getattr(vars(events).get("_event_loop_policy"), "_local", _UNSET)
    if local is _UNSET:
        return vars(events).get("_event_loop_policy") is not None
    loop = getattr(local, "_loop", None)
    return loop is not None and not loop.is_closed()


def run_coroutine(coroutine: Coroutine[Any, Any, object], namespace: Namespace) -> object:
    """Run a cell's coroutine to its end and return its value.

    Raises:
        Exception: any exception of the coroutine; KeyboardInterrupt or SystemExit from anything on
            the
            loop, after the coroutine was cancelled. The loop can be used again in every case.
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
    """Run `coroutine`, and add its final context to `contexts`."""
    try:
        return await coroutine
    finally:
        contexts.append(copy_context())


def _keep(context: Context) -> None:
    """Apply a task's context variables to all later cells: a task runs in a copy of the context."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


def _locate(error: BaseException, task: asyncio.Task[object]) -> None:
    """Add the cell's waiting position to `error`, if it arrived while only the loop ran."""
    try:
        task.exception()  # retrieved here, so that the loop does not report it later
    except import_trusted("asyncio").CancelledError as cancelled:
        if not has_lines(error):
            error.__traceback__ = cancelled.__traceback__


def _loop(namespace: Namespace) -> asyncio.AbstractEventLoop:
    loop = namespace.loop
    if loop is None or loop.is_closed():
        # Imported on demand: sessions that never await do not pay for the module.
        with from_library():
            asyncio = import_trusted("asyncio")
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        loop.set_exception_handler(_complain)
        namespace.loop = loop
    return loop


def replace_loop(namespace: Namespace) -> list[str]:
    """In a process that has taken over: close the loop and its tasks; a new loop is made later.

    Its resources ended with the process of the loop, except handlers of signals.
    """
    loop = namespace.loop
    if loop is None or loop.is_closed():
        return []
    tasks = import_trusted("asyncio.tasks").all_tasks(loop)
    for task in tasks:
        with suppress(AttributeError):  # of another class
            task._log_destroy_pending = False  # reported once already
    handlers = dict(getattr(loop, "_signal_handlers", {}))
    if type(loop) is import_trusted("asyncio.unix_events").SelectorEventLoop:
        with suppress(Exception):  # session code has changed it
            loop.close()
    if not loop.is_closed():
        # A loop of another class may act on lost descriptors when it is collected.
        _replaced.append(loop)
    import_trusted("asyncio.events").set_event_loop(None)
    namespace.loop = None
    if handlers:  # otherwise made on demand: a branch may never await
        with suppress(Exception):  # a policy of session code: the next await reports its error
            new = _loop(namespace)
            for number, handle in handlers.items():
                new.add_signal_handler(number, handle._callback, *handle._args)
    return [f"task {task.get_name()!a}" for task in tasks]


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report exceptions that nobody awaited, except those that ended a cell through the loop.

    A task that an interrupt hit keeps it as its exception. The cell's outcome reported it; a report
    from the collector would land in an unrelated cell's output.
    """
    if not isinstance(context.get("exception"), (KeyboardInterrupt, SystemExit)):
        loop.default_exception_handler(context)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
    """Let a cancelled task finish, but no longer than the grace period.

    An interrupt may arrive inside the loop, between removing a step from its queue and running it;
    then the task is never scheduled again, and waiting for it alone would not end.
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
        task.remove_done_callback(stop)  # otherwise it would stop the loop under a later cell
