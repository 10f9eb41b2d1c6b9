"""The functions by which code in a session asks other models, and what answers them.

A `Provider` gives the functions for one episode. They run on the host; the session has only their
names. A model that fails is a text that begins with "Error:", in its own place of a batch, and the
episode is told, because that failure is not the policy's.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from repl_env.llm import LLM

HostFunction: TypeAlias = Callable[..., Any]
Failed: TypeAlias = Callable[[Exception], None]

# How many prompts of a batch are asked at once where only a function for one prompt was given.
BATCH_WIDTH = 8

NAMES = ("llm_query", "llm_query_batched", "llm_batch", "rlm_query", "rlm_query_batched")


@dataclass(frozen=True, slots=True)
class SubcallSettings:
    """What an episode asked for: the model, how deep sub-calls may nest, how long each may work.

    `max_iterations` None means as many as the episode itself has.
    """

    llm: LLM = field(default_factory=LLM)
    max_depth: int = 1
    max_iterations: int | None = None


class Provider(Protocol):
    """Whoever answers sub-calls."""

    def functions(self, settings: SubcallSettings, failed: Failed) -> dict[str, HostFunction]:
        """The functions for one episode, by their names in the session.

        All of `NAMES` are there; one that nothing was configured for raises RuntimeError when it
        is called. `failed` is told of each call that failed, from any thread.
        """

    def configured(self) -> frozenset[str]:
        """Those of `NAMES` that can answer."""


class CallableProvider:
    """Sub-calls answered by functions that the user gave, plain or asynchronous.

    A function takes `(prompt, model)` or `(prompt)`, told apart by its signature. Without a
    function for batches the one for single prompts is used for each; without one for recursive
    calls, they are plain calls.
    """

    def __init__(
        self,
        llm_query_fn: HostFunction | None = None,
        llm_batch_fn: HostFunction | None = None,
        subcall_fn: HostFunction | None = None,
        subcall_batch_fn: HostFunction | None = None,
    ) -> None:
        given = {
            "llm_query_fn": llm_query_fn,
            "llm_batch_fn": llm_batch_fn,
            "subcall_fn": subcall_fn,
            "subcall_batch_fn": subcall_batch_fn,
        }
        calls = {name: None if fn is None else _Call.of(name, fn) for name, fn in given.items()}
        single, batch = calls["llm_query_fn"], calls["llm_batch_fn"]
        # The recursive single function goes before the plain batch: a batch of deep questions must
        # not become a batch of shallow ones because the user gave both kinds.
        deep, deep_batch = calls["subcall_fn"], calls["subcall_batch_fn"]
        self._one = {"llm_query": single, "rlm_query": deep or single}
        self._many = {
            "llm_query_batched": _Pair(batch, single),
            "llm_batch": _Pair(batch, single),
            "rlm_query_batched": _Pair(deep_batch or (None if deep else batch), deep or single),
        }

    def configured(self) -> frozenset[str]:
        """Those of `NAMES` that can answer."""
        one = {name for name, call in self._one.items() if call}
        return frozenset(
            one | {name for name, pair in self._many.items() if pair.batch or pair.one}
        )

    def functions(self, settings: SubcallSettings, failed: Failed) -> dict[str, HostFunction]:
        """The functions for one episode."""
        model = settings.llm.model
        found: dict[str, HostFunction] = {
            name: _unconfigured(name) for name in NAMES if name not in self.configured()
        }
        for name, call in self._one.items():
            if call is not None:
                found[name] = _single(call, model, failed)
        for name, pair in self._many.items():
            if pair.batch is not None:
                found[name] = _batched(pair.batch, model, failed)
            elif pair.one is not None:
                found[name] = _mapped(pair.one, model, failed)
        return found


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of the user's, with what its signature says."""

    name: str
    function: HostFunction
    takes_model: bool
    is_async: bool

    @classmethod
    def of(cls, name: str, function: HostFunction) -> _Call:
        if not callable(function):
            raise TypeError(f"{name} must be callable, not {type(function).__name__}")
        call = getattr(function, "__call__", function)  # noqa: B004 (its kind, not whether it is)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        return cls(name, function, _takes_two(function), is_async)

    def __call__(self, asked: Any, model: str | None) -> Any:
        return self.function(asked, model) if self.takes_model else self.function(asked)


@dataclass(frozen=True, slots=True)
class _Pair:
    batch: _Call | None
    one: _Call | None


def _takes_two(function: HostFunction) -> bool:
    try:
        inspect.signature(function).bind("prompt", None)
    except TypeError:
        return False
    except ValueError:  # a function of an extension that tells no signature
        return False
    return True


def _unconfigured(name: str) -> HostFunction:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} is not configured")

    return refuse


def _single(call: _Call, default: str | None, failed: Failed) -> HostFunction:
    def ask(prompt: str, model: str | None = None) -> str:
        _check_prompt(prompt)
        try:
            return _text(call(prompt, model or default))
        except Exception as error:  # noqa: BLE001 - the model's failure is the cell's text
            return _report(error, failed)

    async def ask_async(prompt: str, model: str | None = None) -> str:
        _check_prompt(prompt)
        try:
            return _text(await call(prompt, model or default))
        except Exception as error:  # noqa: BLE001 - likewise
            return _report(error, failed)

    return ask_async if call.is_async else ask


def _batched(call: _Call, default: str | None, failed: Failed) -> HostFunction:
    def ask(prompts: list[str], model: str | None = None) -> list[str]:
        _check_prompts(prompts)
        try:
            return _texts(call(prompts, model or default), len(prompts))
        except Exception as error:  # noqa: BLE001 - the model's failure is the cell's text
            return [_report(error, failed)] * len(prompts)

    async def ask_async(prompts: list[str], model: str | None = None) -> list[str]:
        _check_prompts(prompts)
        try:
            return _texts(await call(prompts, model or default), len(prompts))
        except Exception as error:  # noqa: BLE001 - likewise
            return [_report(error, failed)] * len(prompts)

    return ask_async if call.is_async else ask


def _mapped(call: _Call, default: str | None, failed: Failed) -> HostFunction:
    """A function for batches made of one for single prompts."""
    one = _single(call, default, failed)

    def ask(prompts: list[str], model: str | None = None) -> list[str]:
        _check_prompts(prompts)
        if len(prompts) < 2:
            return [one(prompt, model) for prompt in prompts]
        with ThreadPoolExecutor(min(len(prompts), BATCH_WIDTH)) as pool:
            return list(pool.map(lambda prompt: one(prompt, model), prompts))

    async def ask_async(prompts: list[str], model: str | None = None) -> list[str]:
        _check_prompts(prompts)
        width = asyncio.Semaphore(BATCH_WIDTH)

        async def within(prompt: str) -> str:
            async with width:
                answer: str = await one(prompt, model)
                return answer

        return list(await asyncio.gather(*map(within, prompts)))

    return ask_async if call.is_async else ask


def _check_prompt(prompt: object) -> None:
    # Code in the session is free to pass anything; a clear error there beats a strange one here.
    if not isinstance(prompt, str):
        raise TypeError(f"a prompt must be a str, not {type(prompt).__name__}")


def _check_prompts(prompts: object) -> None:
    if not isinstance(prompts, list):
        raise TypeError(f"prompts must be a list of str, not {type(prompts).__name__}")
    for prompt in prompts:
        _check_prompt(prompt)


def _report(error: Exception, failed: Failed) -> str:
    failed(error)
    return f"Error: {type(error).__name__}: {error}"


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise TypeError(f"the function returned {type(answer).__name__}, not str")
    return answer


def _texts(answers: Sequence[object], count: int) -> list[str]:
    if isinstance(answers, str) or len(answers) != count:
        raise ValueError(f"the function returned {len(answers)} answers to {count} prompts")
    return [_text(answer) for answer in answers]
