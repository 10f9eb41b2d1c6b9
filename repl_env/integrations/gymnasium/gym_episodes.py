"""Episodes as Gymnasium has them: tasks are drawn, observations are texts, facts are infos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from repl_env.common.values import at_least, one_of
from repl_env.env.rows import EpisodeRows, RowResult
from repl_env.episode.observations import clip
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction

Request: TypeAlias = Mapping[str, Any]
Tasks: TypeAlias = Sequence[Request] | Callable[[np.random.Generator], Request]
Actions: TypeAlias = Literal["code", "replies"]

# Entries of an observation's metadata that are the same in each run of the same code: no times.
_FACTS = ("error_kind", "mask", "task_reward", "final_answer", "stop_reason")
_MARK = 100  # characters, at most, of the mark where a text was cut


class GymEpisodes:
    """n episodes side by side, for the environments of this package.

    Args:
        n: the episodes.
        tasks: what episodes are about: a list of arguments of `LocalREPLEnv.reset`, of which each
            reset draws one, or a function that makes them of a random number generator. An entry
            `task_id` is no argument, but in the infos. None: each reset says it in its options.
        actions: "code": an action is a cell. "replies": an action is a reply of a model, whose
            code blocks are run and whose prose is not.
        max_iterations: steps of an episode whose task does not say.
        max_length: characters of an observation. Of a longer one the middle is left out.
        arguments: those of `LocalREPLEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        n: int,
        *,
        tasks: Tasks | None,
        actions: Actions,
        max_iterations: int | None,
        max_length: int,
        arguments: Mapping[str, Any],
    ) -> None:
        one_of(actions, get_args(Actions), "actions")
        if max_iterations is not None:
            at_least(max_iterations, 1, "max_iterations")
        self.max_length = at_least(max_length, 2 * _MARK, "max_length")
        self._tasks = _checked(tasks)
        self._reads_replies = actions == "replies"
        self._defaults = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._rows = _rows_with(n, arguments)
        self._labels: list[dict[str, str]] = [{} for _ in range(n)]

    def begin(
        self, rows: Mapping[int, np.random.Generator], options: Mapping[int, Request]
    ) -> dict[int, tuple[str, dict[str, Any]]]:
        """Reset these rows, each by its own random numbers; the observation and info of each.

        Options are the arguments of a row's reset. A task is drawn where there are none.
        """
        requests, labels = [], []
        for row, rng in rows.items():
            request = dict(options.get(row) or self._drawn(rng))
            task = request.pop("task_id", None)
            labels.append({} if task is None else {"task_id": str(task)})
            # Drawn in any case, so that the numbers after it do not depend on the options.
            seed = int(rng.integers(2**31))
            requests.append({**self._defaults, "seed": seed, **request})
        results = self._rows.reset(requests, only=list(rows))
        for row, label in zip(rows, labels, strict=True):
            self._labels[row] = label
        return {row: self.shown(row, result) for row in rows if (result := results[row])}

    def act(self, actions: Mapping[int, str]) -> dict[int, RowResult]:
        """Take a step in each of these rows, side by side."""
        replies: list[str | REPLAction | None] = [None] * len(self._rows)
        for row, action in actions.items():
            if not isinstance(action, str):
                raise TypeError(f"an action must be a str, not {type(action).__name__}")
            replies[row] = str(action) if self._reads_replies else REPLAction(code=str(action))
        results = self._rows.step(replies)
        return {row: result for row, result in enumerate(results) if result is not None}

    def shown(self, row: int, result: RowResult) -> tuple[str, dict[str, Any]]:
        """The observation and the info of a result."""
        metadata = result.observation.metadata
        info = {name: metadata.get(name) for name in _FACTS}
        info["reward_components"] = dict(metadata.get("reward_components") or {})
        info["iteration"] = result.observation.iteration
        text = result.message
        if len(text) > self.max_length:
            text = clip(text, self.max_length - _MARK)
        return text, {**info, **self._labels[row]}

    def close(self) -> None:
        """Close all sessions."""
        self._rows.close()

    def _drawn(self, rng: np.random.Generator) -> Request:
        if self._tasks is None:
            return {}
        if callable(self._tasks):
            return self._tasks(rng)
        number = int(rng.integers(len(self._tasks)))
        return {"task_id": number, **self._tasks[number]}


def _rows_with(n: int, arguments: Mapping[str, Any]) -> EpisodeRows:
    try:
        return EpisodeRows(n, **arguments)
    except TypeError as error:
        known = signature(LocalREPLEnv).parameters
        unknown = next((name for name in arguments if name not in known), None)
        if unknown is None:
            raise
        # In Python's words: TorchRL's GymEnv looks for them, and leaves its `frameskip` out then.
        raise TypeError(f"unexpected keyword argument {unknown!r}: {error}") from None


def _checked(tasks: Tasks | None) -> Tasks | None:
    if tasks is None or callable(tasks):
        return tasks
    if isinstance(tasks, (str, bytes, Mapping)) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks must be a list or a function, not {type(tasks).__name__}")
    if not tasks:
        raise ValueError("tasks must hold at least one task")
    for number, task in enumerate(tasks):
        if not isinstance(task, Mapping):
            raise TypeError(f"tasks[{number}] must be a mapping, not {type(task).__name__}")
    return tasks
