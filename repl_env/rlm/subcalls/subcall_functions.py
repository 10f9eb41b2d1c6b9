"""Sub-call functions as the code of a session sees them: names, signatures, `help`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from repl_sandbox import HostFunction

_ONE = "(prompt, model=None, *, context=None, schema=None, timeout=None)"
_MANY = "(prompts, model=None, *, context=None, schema=None, timeout=None)"
_RAISES = ("BudgetExceeded",)

_ASK = """Ask {answerer} one question; returns its answer as a str.

context: what the question is about: text, bytes or JSON{context}.
schema: a JSON schema; the answer is JSON that fits it, and .value has it parsed.
timeout: seconds to wait for the answer.
The answer has .ok, .error, .usage, .truncated and .value. One that failed reads "Error: ..."."""
_ASK_ALL = """Ask {answerer} a list of questions at once; returns as many answers, in order.

context: one for all, or a list with one for each. The rest is as for a single question."""
_SPAWN = """Begin a question of rlm_query and go on; returns a handle.

handle.result(timeout=None) waits for the answer, handle.done() looks, handle.cancel() gives up."""
_BUDGET = "What is left of the budget of this work, and what was spent, as a dict."


def subcall_functions(
    *,
    ask: Callable[..., Any],
    ask_all: Callable[..., Any],
    spawn: Callable[..., Any],
    budget: Callable[..., Any],
    handles: Mapping[str, Callable[..., Any]],
) -> dict[str, HostFunction]:
    """Return the functions for the session, by name.

    `ask` and `ask_all` take the kind of call before the code's arguments; `handles` are the methods
    of the result of `spawn`.
    """
    model = "a language model, which sees nothing but the question,"
    recursive_model = "a model that works in a REPL of its own, for tasks of several steps,"
    as_variable = "; it is the child's variable `context`"
    return {
        "llm_query": _host_function(partial(ask, "llm"), _ASK, model, ""),
        "rlm_query": _host_function(partial(ask, "rlm"), _ASK, recursive_model, as_variable),
        "llm_query_batched": _host_function(partial(ask_all, "llm"), _ASK_ALL, model),
        "llm_batch": _host_function(partial(ask_all, "llm"), _ASK_ALL, model),
        "rlm_query_batched": _host_function(partial(ask_all, "rlm"), _ASK_ALL, recursive_model),
        "rlm_spawn": HostFunction(
            _documented(spawn, _SPAWN),
            returns="handle",
            raw=("context",),
            raises=_RAISES,
            signature=_ONE,
            methods=handles,
        ),
        "budget": HostFunction(_documented(budget, _BUDGET), signature="()"),
    }


def _host_function(
    function: Callable[..., Any], doc: str, answerer: str, context: str | None = None
) -> HostFunction:
    single = context is not None
    return HostFunction(
        _documented(function, doc.format(answerer=answerer, context=context)),
        returns="text" if single else "texts",
        raw=("context",),
        raises=_RAISES,
        signature=_ONE if single else _MANY,
    )


def _documented(function: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """Return `function` with a docstring for the code of the session."""

    @wraps(function)
    async def described(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    described.__doc__ = doc
    return described
