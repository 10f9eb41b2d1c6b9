"""`ScriptedModel`: a model with prepared answers, for tests, demos and replays."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from repl_env.common.set_module import set_module
from repl_env.errors import ModelError
from repl_env.llm.base import ChatModel, Completion, ModelRequest, ModelUsage, as_completion

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.replay_model import ReplayModel
    from repl_env.rlm.trajectory.trajectory import Trajectory

Script: TypeAlias = (
    "Iterable[str | Completion]"
    " | Callable[[ModelRequest], str | Completion | Awaitable[str | Completion]]"
)


@set_module("repl_env.rlm")
class ScriptedModel(ChatModel):
    """Answers from a list, in order, or from a function of the request.

    ```python
    ScriptedModel(["```repl\\nn = len(context)\\n```", "```repl\\nFINAL(n)\\n```"])
    ```
    For answers and messages in plain text, tokens are words. `requests` are those made so far. A
    function
    may be asynchronous; a plain one must not block.

    Args:
        script: the answers, or a function that makes them.
        name: as of any model.
        delay: seconds before each answer, as an endpoint would take.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(self, script: Script, *, name: str | None = "scripted", delay: float = 0) -> None:
        if not callable(script) and (isinstance(script, str) or not isinstance(script, Iterable)):
            kind = type(script).__name__
            raise TypeError(f"script must be a list of answers or a function, not {kind}")
        if isinstance(delay, bool) or not isinstance(delay, (int, float)):
            raise TypeError(f"delay must be a number of seconds, not {type(delay).__name__}")
        if not 0 <= delay < math.inf:
            raise ValueError(f"delay must be a finite number of seconds from 0 on, not {delay}")
        self.name = name
        self.requests: list[ModelRequest] = []
        self._delay = delay
        self._answer = script if callable(script) else None
        self._left = iter(()) if callable(script) else iter(list(script))
        self._lock = threading.Lock()

    @staticmethod
    def of(trajectory: Trajectory, *, allow_changed_prompts: bool = False) -> ReplayModel:
        """Return a model that repeats recorded answers: `repl_env.rlm.ReplayModel`."""
        from repl_env.rlm.trajectory.replay_model import ReplayModel

        return ReplayModel(trajectory, allow_changed_prompts=allow_changed_prompts)

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the next answer.

        Raises:
            ModelError: the list is used up; exceptions of the function are passed on.
        """
        self.requests.append(request)
        if self._delay:
            await asyncio.sleep(self._delay)
        answer = self._next() if self._answer is None else self._answer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        completion = as_completion(answer)
        if completion.usage == ModelUsage():
            return _counted(request, completion, self.name)
        return completion

    def _next(self) -> str | Completion:
        with self._lock:
            for answer in self._left:
                return answer
        raise ModelError("script", f"the script has no answer number {len(self.requests)}")


def _counted(request: ModelRequest, completion: Completion, name: str | None) -> Completion:
    """Return `completion` with words as tokens, cut at the limit as an endpoint would do."""
    words, limit = completion.text.split(), request.max_output_tokens
    prompt_words = sum(len(str(message["content"]).split()) for message in request.messages)
    cut = limit is not None and len(words) > limit
    text = " ".join(words[:limit]) if cut else completion.text
    usage = ModelUsage(prompt_words, min(len(words), limit) if limit is not None else len(words))
    reason = "length" if cut else completion.finish_reason or "stop"
    return Completion(text, usage, reason, completion.model or request.model or name)
