"""Rubrics: composable functions from an action and an observation to a reward.

A `Rubric` registers its children on assignment, like a neural network module, and remembers its
last score, so that composites can be inspected after a step. Names and behaviour are those of
OpenEnv's rubrics (RFC 004).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from typing import Any, TypeAlias, TypeGuard

from repl_env.common.argument_checks import check_callable
from repl_env.common.set_module import set_module

Score: TypeAlias = "float | Awaitable[float]"
ForwardHook: TypeAlias = Callable[["Rubric", Any, Any, float], None]
ForwardPreHook: TypeAlias = Callable[["Rubric", Any, Any], None]


@set_module("repl_env")
class Rubric:
    """Base of rubrics. Subclasses define `forward`, which may be a coroutine function.

    Attributes:
        last_score: the result of the last call; None before the first and after `reset`.
        shaping: names of `components` that are not the task's own reward, such as penalties.
    """

    last_score: float | None = None
    shaping: Collection[str] = ()
    # Class attributes, replaced on first use, so that a subclass may define `__init__` freely.
    _hooks: tuple[ForwardHook, ...] = ()
    _pre_hooks: tuple[ForwardPreHook, ...] = ()

    def forward(self, action: Any, observation: Any) -> Score:
        """Return the reward of this step."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def reset(self) -> None:
        """Forget the last episode."""
        self.last_score = None
        for child in self.children():
            child.reset()

    def components(self) -> dict[str, float]:
        """The parts of the last score, by name; their sum is the score."""
        return {} if self.last_score is None else {type(self).__name__: self.last_score}

    def __call__(self, action: Any, observation: Any) -> Any:
        """Score a step; the result is awaitable if `forward`, here or in a child, is
        asynchronous.
        """
        for pre_hook in self._pre_hooks:
            pre_hook(self, action, observation)
        score: Any = self.forward(action, observation)
        if type(score) is not float and is_pending(score):
            return PendingScore(score, lambda known: self._finish(known, action, observation))
        return self._finish(score, action, observation)

    def _finish(self, score: float, action: Any, observation: Any) -> float:
        self.last_score = score
        for hook in self._hooks:
            hook(self, action, observation, score)
        return score

    def register_forward_hook(self, hook: ForwardHook) -> None:
        """Register `hook(rubric, action, observation, score)` to be called after each scoring."""
        check_callable(hook, "hook")
        self._hooks = (*self._hooks, hook)

    def register_forward_pre_hook(self, hook: ForwardPreHook) -> None:
        """Register `hook(rubric, action, observation)` to be called before each scoring."""
        check_callable(hook, "hook")
        self._pre_hooks = (*self._pre_hooks, hook)

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """Yield the rubrics assigned to attributes of this one, by name, in order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Rubric):
                yield name, value

    def children(self) -> Iterator[Rubric]:
        """Yield the children without their names."""
        return (child for _, child in self.named_children())

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """Yield every rubric below this one, depth first, with its dotted path."""
        for name, child in self.named_children():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)


def is_pending(score: object) -> TypeGuard[Awaitable[Any]]:
    """Return whether a score must be awaited; floats, the common case, skip the abstract class
    check.
    """
    return type(score) is not float and inspect.isawaitable(score)


class PendingScore(Awaitable[float]):
    """A score that can be awaited, or dropped with `close`."""

    def __init__(self, score: Awaitable[float], finish: Callable[[float], float]) -> None:
        self._score = score
        self._finish = finish

    def __await__(self) -> Generator[Any, None, float]:
        return self._finish((yield from self._score.__await__()))

    def close(self) -> None:
        """Drop the score: the awaitable will not run."""
        close = getattr(self._score, "close", None)
        if close is not None:
            close()
