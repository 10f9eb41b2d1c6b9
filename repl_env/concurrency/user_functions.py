"""Functions of users, plain or async: accepted arguments, and calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from repl_env.concurrency.daemon_threads import in_thread


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether the signature of `function` accepts `arguments`; False without a signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def check_takes(function: Callable[..., Any], what: str, name: str) -> None:
    """Raise TypeError if neither `(what)` nor `(what, model)` fits; functions without a signature
    pass.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if not any(accepts(function, *arguments) for arguments in ((None,), (None, None))):
        raise TypeError(f"{name} must take ({what}) or ({what}, model), not {signature}")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether `function(...)` returns a coroutine."""
    call = getattr(function, "__call__", function)  # noqa: B004 (its kind, not whether it is)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def call_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `function(*arguments)`; a plain function runs in a thread, as it may
    block.

    The thread is not one of the loop's executor: a loop waits for those before it ends.
    """
    if is_async(function):
        return await _awaited(function(*arguments))
    answer = await in_thread(function, *arguments)
    return await _awaited(answer) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    """Await `answer`. A `sys.exit` inside must not end the loop that others share."""
    try:
        return await answer
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}, raised by a function of the user's") from error
