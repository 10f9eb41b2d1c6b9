"""Functions that users give, plain or async: what they take, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from repl_env.concurrency.daemon_threads import in_thread


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the signature of `function` admits `arguments`; False if it tells none."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def check_takes(function: Callable[..., Any], what: str, name: str) -> None:
    """TypeError naming the argument, if calls by `(what)` and by `(what, model)` both fail.

    One whose signature tells nothing may be right.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if not any(accepts(function, *given) for given in ((None,), (None, None))):
        raise TypeError(f"{name} must take ({what}) or ({what}, model), not {signature}")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a coroutine."""
    call = getattr(function, "__call__", function)  # noqa: B004 (its kind, not whether it is)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def call_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` comes to. A plain function runs in a thread: it may block.

    Not in one of the loop's own threads: a loop that ends waits for what they are at.
    """
    if is_async(function):
        return await _awaited(function(*arguments))
    answer = await in_thread(function, *arguments)
    return await _awaited(answer) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    """What `answer` comes to. A `sys.exit` in it ends no loop, which others are on."""
    try:
        return await answer
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}, raised by a function of the user's") from error
