"""`REPLToolEnv`: an episode as TRL's `environment_factory` wants it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.threads import ThreadPool
from repl_env.env.async_episode import Result
from repl_env.env.rows import escaped, message_of
from repl_env.errors import EpisodeAborted
from repl_env.integrations.trl.dataset_rows import columns_of, request_of
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction, action_of
from repl_sandbox.errors import SandboxError

# Sessions open while the model writes; on two cores more threads than these bring nothing.
_openers = ThreadPool(8, "repl-trl-open")

_LOST = "The session was lost. This episode will not be scored."
_OVER = "The episode is over."


@set_module("repl_env.integrations.trl")
class REPLToolEnv:
    """A session whose tools are `python(code)` and `submit(answer)`, for one rollout at a time.

    ```python
    trainer = GRPOTrainer(model, environment_factory=REPLToolEnv, train_dataset=dataset, ...)
    ```
    TRL makes as many as a batch has rollouts, resets each with the columns of its row and reads
    `get_reward` at the end. For arguments, `functools.partial(REPLToolEnv, max_iterations=4)`.

    Args:
        columns: arguments of the reset by the names of columns: {"answer": "expected_answer"}.
            Columns that are named as an argument need no entry.
        max_iterations: cells of an episode, where no column says it.
        timeout_s: seconds of execution for one cell; None: the sandbox's limit.
        template_tokens: texts that must not stand in what the model is shown, beside those of
            published chat templates:
            `repl_env.env.rows.template_tokens(tokenizer)`.
        arguments: those of `LocalREPLEnv`; `rubric` scores.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    # TRL takes every public function of the class for a tool: all else here is private or a
    # property.

    def __init__(
        self,
        *,
        columns: Mapping[str, str] | None = None,
        max_iterations: int | None = None,
        timeout_s: float | None = None,
        template_tokens: Iterable[str] = (),
        **arguments: Any,
    ) -> None:
        self._columns = columns_of(columns)
        self._shared = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._timeout_s = timeout_s
        self._tokens = frozenset(template_tokens)
        self._env = LocalREPLEnv(**arguments)
        self._opening: list[Future[Result]] = []  # the reset under way, if there is one
        self._error: Exception | None = None  # a fault of the trainer's arguments
        self._last: Result | None = None
        self._reward = 0.0
        self._masked = False
        # TRL never closes an environment.
        weakref.finalize(self, _close, self._env, self._opening)

    def reset(self, **row: Any) -> None:
        """Begin an episode with the columns of a row; the session opens in the background."""
        self._opened()
        self._last, self._error, self._reward, self._masked = None, None, 0.0, False
        request = self._shared | request_of(row, self._columns)
        env = self._env
        self._opening.append(_openers.submit(lambda: env.reset(**request)))

    def python(self, code: str) -> str:
        """Run Python code in a session that keeps its variables, and return what it printed.

        `FINAL(value)` in the code submits the answer and ends the episode.

        Args:
            code: The Python code to run.
        """
        return self._step(action_of(code))

    def submit(self, answer: str) -> str:
        """Submit the final answer, which ends the episode.

        Args:
            answer: The answer, as text.
        """
        return self._step(REPLAction(is_final=True, final_answer=answer))

    def get_reward(self) -> float | None:
        """The rewards of the episode's steps together; None after an infrastructure error.

        Raises:
            Exception: of the reset, whose columns are no arguments, or of the rubric.
        """
        self._opened()
        if self._error is not None:
            raise self._error
        return None if self._masked else self._reward

    @property
    def masked(self) -> bool:
        """Whether an infrastructure error touched the episode."""
        self._opened()
        return self._masked

    @property
    def last(self) -> Result | None:
        """The result of the last step, or of the reset before the first one."""
        self._opened()
        return self._last

    @property
    def env(self) -> LocalREPLEnv:
        """The environment below."""
        return self._env

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{type(self).__name__} holds a session and cannot be pickled; pickle the class, or "
            "functools.partial of it"
        )

    def _opened(self) -> None:
        """Wait for the reset under way, and keep what it came to."""
        while self._opening:
            self._last = self._guarded(self._opening.pop().result)

    def _step(self, action: REPLAction) -> str:
        self._opened()
        if self._last is None:
            return _LOST
        if self._last.done:
            return _OVER
        result = self._guarded(lambda: self._env.step(action, timeout_s=self._timeout_s))
        self._last = result
        if result is None:
            return _LOST
        self._reward += result.reward or 0.0
        self._masked = self._masked or bool((result.metadata or {}).get("mask"))
        return escaped(message_of(result.observation), self._tokens)

    def _guarded(self, act: Callable[[], Result]) -> Result | None:
        """Return the result of `act()`, or None if it fails; `get_reward` reports the failure."""
        try:
            return act()
        except (SandboxError, EpisodeAborted):
            self._masked = True
        # The border to TRL, which makes a message for the model of what a tool raises, and goes on.
        except Exception as error:  # noqa: BLE001
            self._error = error
        return None


def _close(env: LocalREPLEnv, opening: list[Future[Result]]) -> None:
    for future in opening:
        future.exception()
    env.close()
