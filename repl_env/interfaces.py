"""The base classes of environments: OpenEnv's interfaces, without its dependencies.

An environment has three methods: `reset`, `step`, `state`. The asynchronous twins, the transform,
the rubric and the metadata have defaults. `examples/` has a small environment on this base.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar

from pydantic import BaseModel, ConfigDict

from repl_env.common.threads import capture_error, capture_error_async, run_in_thread
from repl_env.common.values import check_callable
from repl_env.models import Action, Observation, State
from repl_env.rubrics import Rubric, check_rubric, is_pending, returns_at_once

__all__ = [
    "ActT",
    "Environment",
    "EnvironmentMetadata",
    "Message",
    "ModelTokenizer",
    "ObsT",
    "StateT",
    "TaskProvider",
    "Transform",
]

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)


class Message(TypedDict):
    """One chat message, in the form of Hugging Face's chat templates."""

    role: str
    content: str | list[dict[str, Any]]
    name: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]


class ModelTokenizer(Protocol):
    """The part of a tokenizer that environments use; tokenizers of `transformers` have it."""

    def apply_chat_template(
        self, conversation: list[Message], tokenize: bool = True, **kwargs: Any
    ) -> Any:
        """Return the conversation as token ids, or as text if `tokenize` is False."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Return the text of `token_ids`."""


class EnvironmentMetadata(BaseModel):
    """An environment's description of itself."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


class TaskProvider(Protocol):
    """Methods by which an environment lists its tasks; OpenEnv's, which its HTTP routes call.

    An environment has them or not; nothing is inherited. They answer on an environment that was
    never reset. `reset(split=..., index=...)` begins an episode of a task.
    """

    def list_splits(self) -> list[Any]:
        """Return the splits: names, or dicts with `name` and `type`."""

    def list_tasks(self, split: str) -> list[Any]:
        """Return descriptions of the tasks of a split, as `get_task` has them."""

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""

    def get_task(self, split: str, index: int) -> Any:
        """Return the description of a task, as JSON; IndexError if there is none."""

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[Any]:
        """Return descriptions of the tasks from `start` to before `stop`, as a slice."""


class Transform(ABC, Generic[ObsT]):
    """Changes each observation before it is scored and returned."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT:
        """Return the observation that replaces this one."""


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """One environment; one caller at a time.

    Attributes:
        transform: applied to observations by `_apply_transform`, or None.
        rubric: scores steps through `_apply_rubric`, or None.
        SUPPORTS_CONCURRENT_SESSIONS: whether several instances may run in one process.
        REQUIRES_SINGLE_THREAD_EXECUTOR: whether calls must stay on the caller's thread.

    Raises:
        TypeError: `transform` is not a function, or `rubric` not a rubric.
    """

    SUPPORTS_CONCURRENT_SESSIONS = False
    REQUIRES_SINGLE_THREAD_EXECUTOR = False

    def __init__(
        self, transform: Transform[ObsT] | None = None, rubric: Rubric | None = None
    ) -> None:
        if transform is not None:
            check_callable(transform, "transform")
        if rubric is not None:
            check_rubric(rubric, "rubric")
        self.transform = transform
        self.rubric = rubric

    @abstractmethod
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
        """Begin an episode and return its first observation."""

    @abstractmethod
    def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """Take an action and return its observation. `timeout_s` is in seconds."""

    @property
    @abstractmethod
    def state(self) -> StateT:
        """The episode so far."""

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> ObsT:
        """`reset` from an event loop: in a thread, unless the environment is bound to its own
        thread.
        """
        if self.REQUIRES_SINGLE_THREAD_EXECUTOR:
            return self.reset(seed=seed, episode_id=episode_id, **kwargs)
        work = partial(self.reset, seed=seed, episode_id=episode_id, **kwargs)
        return await asyncio.to_thread(capture_error, work)

    async def step_async(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """`step` from an event loop, in the same way."""
        if self.REQUIRES_SINGLE_THREAD_EXECUTOR:
            return self.step(action, timeout_s=timeout_s, **kwargs)
        work = partial(self.step, action, timeout_s=timeout_s, **kwargs)
        return await asyncio.to_thread(capture_error, work)

    def close(self) -> None:
        """Release the resources of the environment. Safe to call twice."""

    async def close_async(self) -> None:
        """`close` from an event loop."""
        self.close()

    def get_metadata(self) -> EnvironmentMetadata:
        """Return name and description; by default those of the class, without inherited ones."""
        name = type(self).__name__
        return EnvironmentMetadata(
            name=name, description=inspect.cleandoc(type(self).__doc__ or name)
        )

    def _apply_transform(self, observation: ObsT) -> ObsT:
        """Return the transformed observation; the observation itself without a transform.

        Raises:
            TypeError: the transform returns something else than an observation.
        """
        if self.transform is None:
            return observation
        changed = self.transform(observation)
        if not hasattr(changed, "done"):  # a transform without `return`; a coroutine
            _give_up(changed)
            name, kind = type(self.transform).__name__, type(changed).__name__
            raise TypeError(f"{name} returned {kind}; a transform must return an observation")
        return changed

    def _apply_rubric(self, action: ActT, observation: ObsT) -> float:
        """Return the rubric's score of a step; 0.0 without a rubric.

        Raises:
            TypeError: the rubric is asynchronous.
            ValueError: its score is not a finite number.
        """
        if self.rubric is None:
            return 0.0
        score = self.rubric(action, observation)
        if is_pending(score):
            _give_up(score)
            raise TypeError(
                f"{type(self.rubric).__name__} is asynchronous; use reset_async and step_async"
            )
        return finite(score, self.rubric)

    async def _apply_rubric_async(self, action: ActT, observation: ObsT) -> float:
        """`_apply_rubric` for rubrics of either kind; a blocking one is called in a thread."""
        if self.rubric is None:
            return 0.0
        work = partial(self.rubric, action, observation)
        score = capture_error(work) if returns_at_once(self.rubric) else await run_in_thread(work)
        return finite(await capture_error_async(score) if is_pending(score) else score, self.rubric)

    def _reset_rubric(self) -> None:
        """Let the rubric forget the last episode; TypeError if it must be awaited."""
        if self.rubric is not None and inspect.iscoroutinefunction(self.rubric.reset):
            raise TypeError(f"{type(self.rubric).__name__}.reset is asynchronous; use reset_async")
        if self.rubric is not None:
            self.rubric.reset()

    async def _reset_rubric_async(self) -> None:
        """`_reset_rubric` for rubrics of either kind."""
        if self.rubric is not None:
            reset: Callable[[], Any] = self.rubric.reset
            done = (
                capture_error(reset) if returns_at_once(self.rubric) else await run_in_thread(reset)
            )
            if inspect.isawaitable(done):
                await capture_error_async(done)


def _give_up(pending: object) -> None:
    """Close a coroutine, so that Python does not warn that it was never awaited."""
    close = getattr(pending, "close", None)
    if close is not None:
        close()


def finite(score: float, rubric: object) -> float:
    """Return `score` as a float, or raise an error that names the rubric: trainers sum rewards."""
    if type(score) is float and math.isfinite(score):
        return score
    name = type(rubric).__name__
    # a metric without `return`; a text, which has no number either
    if not hasattr(score, "__float__"):
        raise TypeError(f"{name} scored {type(score).__name__}; rewards must be numbers")
    try:
        reward = float(score)
    except (TypeError, ValueError, OverflowError) as error:  # an array of several items; 10**400
        raise ValueError(f"{name} scored {type(score).__name__}: {error}") from error
    if not math.isfinite(reward):
        raise ValueError(f"{name} scored {reward}; rewards must be finite")
    return reward
