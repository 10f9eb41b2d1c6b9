"""TRL: an environment class, a rollout function, masked rewards and a template of fenced cells.

Needs `pip install 'repl-env[trl]'`. Only `REPLGRPOTrainer` imports TRL, when it is first used.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from repl_env.common.lazy_imports import lazy_exports
from repl_env.common.threads import ThreadPool, start_in_thread
from repl_env.env.async_episode import Result
from repl_env.env.rollouts import (
    FACTS,
    EpisodeShares,
    EpisodeSummary,
    RecordedRollout,
    RolloutNote,
    RolloutRecorder,
    summary_columns,
)
from repl_env.env.rows import (
    EpisodeRows,
    RowResult,
    escaped,
    message_of,
    reply_of,
    template_tokens,
)
from repl_env.errors import EpisodeAborted
from repl_env.integrations import ARGUMENTS
from repl_env.integrations.trl_rewards import episode_reward, log_shares, masked_rewards
from repl_env.integrations.trl_templates import BetweenReplies, use_fences
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction, action_of
from repl_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from repl_env.integrations.trl_trainer import REPLGRPOTrainer

__all__ = [
    "REPLGRPOTrainer",
    "REPLToolEnv",
    "Rollouts",
    "episode_reward",
    "masked_rewards",
    "rollout_func",
    "use_fences",
]

__getattr__, __dir__ = lazy_exports(
    __name__, {"repl_env.integrations.trl_trainer": ["REPLGRPOTrainer"]}
)

# Rows of a dataset as the arguments of resets.


def columns_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """The argument of a reset that each column is for: `given`, besides those of their own name.

    Raises:
        TypeError, ValueError: naming the argument `columns`.
    """
    if not isinstance(given, Mapping | None):
        raise TypeError(f"columns must be a mapping, not {type(given).__name__}")
    columns = dict(given or {})
    for column, argument in columns.items():
        if argument not in ARGUMENTS:
            names = ", ".join(ARGUMENTS)
            raise ValueError(f"columns: {column!r} is for {argument!r}, which is none of {names}")
    renamed = set(columns.values())
    return columns | {
        name: name for name in ARGUMENTS if name not in renamed and name not in columns
    }


def request_of(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the reset for one row. A column that is None is not given.

    A dataset has one set of columns, so that a `contexts` or `files` of several rows has a key for
    each name that any of the rows has; the keys without a value are left out.
    """
    request = {
        argument: value
        for column, argument in columns.items()
        if (value := row.get(column)) is not None
    }
    for name in ("contexts", "files"):
        if isinstance(request.get(name), Mapping):
            request[name] = {k: v for k, v in request[name].items() if v is not None}
    return request


# `REPLToolEnv`: an episode as TRL's `environment_factory` wants it.

# Sessions open while the model writes; on two cores more threads than these bring nothing.
_openers = ThreadPool(8, "repl-trl-open")

_LOST = "The session was lost. This episode will not be scored."
_OVER = "The episode is over."


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
        record: a folder for trajectory files of the rollouts, which `repl-env view` shows; None: no
            files. A reply is recorded as the call that TRL read in it.
        record_every: of how many groups of rollouts of one task the first is recorded.
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
        record: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        **arguments: Any,
    ) -> None:
        self._columns = columns_of(columns)
        self._recorder = RolloutRecorder.of(record, record_every)
        self._record: RecordedRollout | None = None
        self._shared = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._timeout_s = timeout_s
        self._tokens = frozenset(template_tokens)
        self._env = LocalREPLEnv(**arguments)
        self._opening: list[Future[Result]] = []  # the reset under way, if there is one
        self._error: Exception | None = None  # a fault of the trainer's arguments
        self._last: Result | None = None
        self._episode = EpisodeSummary()
        # TRL never closes an environment.
        _start_closer()
        weakref.finalize(self, _LEFT.put, (self._env, self._opening)).atexit = False

    def reset(self, **row: Any) -> None:
        """Begin an episode with the columns of a row; the session opens in the background."""
        self._opened()
        self._end_record()
        self._last, self._error, self._episode = None, None, EpisodeSummary()
        request = self._shared | request_of(row, self._columns)
        if self._recorder is not None:
            note = RolloutNote(row.get("prompt"), row, role="tool")
            self._record = self._recorder.rollout(request, note)
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
        self._end_record()
        if self._error is not None:
            raise self._error
        return self._episode.reward

    @property
    def masked(self) -> bool:
        """Whether an infrastructure error touched the episode."""
        return self.episode.masked

    @property
    def episode(self) -> EpisodeSummary:
        """The facts of the episode so far."""
        self._opened()
        return self._episode

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
            if self._record is not None and self._last is not None:
                self._record.begun(self._last.observation)

    def _step(self, action: REPLAction) -> str:
        self._opened()
        if self._last is None:
            return _LOST
        if self._last.done:
            return _OVER
        began = time.time()
        result = self._guarded(lambda: self._env.step(action, timeout_s=self._timeout_s))
        self._last = result
        if result is None:
            return _LOST
        self._episode = self._episode.after(result)
        message = escaped(message_of(result.observation), self._tokens)
        if self._record is not None:
            said = reply_of(action), action.code
            self._record.step(*said, message, result.observation, began=began)
        return message

    def _guarded(self, act: Callable[[], Result]) -> Result | None:
        """Return the result of `act()`, or None if it fails; `get_reward` reports the failure."""
        try:
            return act()
        except (SandboxError, EpisodeAborted):
            self._episode = self._episode.lost()
        # The border to TRL, which makes a message for the model of what a tool raises, and goes on.
        except Exception as error:  # noqa: BLE001
            self._error = error
        return None

    def _end_record(self) -> None:
        if self._record is not None:
            self._record.end(self._episode)


# Environments that nobody holds. The collector finds them in any thread, also in one that has a
# lock which closing needs; `put` may be called there.
_LEFT: Final[SimpleQueue[tuple[LocalREPLEnv, list[Future[Result]]]]] = SimpleQueue()


@cache
def _start_closer() -> Future[None]:
    return start_in_thread(_close_left)


def _close_left() -> None:
    while True:
        env, opening = _LEFT.get()
        # Boundary: nobody is there to learn of it, and the others are to be closed.
        with suppress(Exception):
            for future in opening:
                future.exception()
            env.close()
        del env, opening


# `rollout_func`: all rollouts of a batch of TRL, stepped side by side.
#
# TRL's own loop runs the tool calls of a batch one after another, and so its resets.

_batch_reset = ThreadPool(1, "repl-trl-reset")

# The stop reason of a rollout whose tokens are used up.
_CUT = "max_completion_length"

# The arguments of a reset, and the facts of the task for records.
Task = tuple[dict[str, Any], dict[str, Any]]


def rollout_func(dataset: Iterable[Mapping[str, Any]], **arguments: Any) -> Rollouts:
    """The rollout function for the rows of `dataset`; see `Rollouts` for the arguments."""
    return Rollouts(dataset, **arguments)


@dataclass(slots=True)
class Rollout:
    """The tokens of one rollout so far; `sampled` has a 1 for each that the policy wrote."""

    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    max_completion_tokens: int = 0
    episode: EpisodeSummary = field(default_factory=EpisodeSummary)
    active: bool = True

    def add(self, ids: Sequence[int], *, sampled: bool, logprobs: Sequence[float] = ()) -> None:
        """Add tokens of the policy, or of the environment."""
        self.completion += ids
        self.sampled += [int(sampled)] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)


class Rollouts:
    """Plays the episodes of a batch side by side; TRL's `rollout_func`.

    ```python
    trainer = GRPOTrainer(
        model, reward_funcs=episode_reward, rollout_func=rollout_func(dataset), ...
    )
    ```
    The code blocks of a reply run in order and are one step. A rollout ends with its episode, or
    when the next message would not fit into `max_completion_length`. The tokens of a rollout that
    an infrastructure error touched are masked, all of them: it changes nothing in the update.

    TRL tells a rollout function the prompts alone. The row of a prompt, with its context and the
    expected answer, is looked up in `dataset`. If rows differ behind equal prompts, give the
    last message a key of its own, as {"role": "user", "content": "...", "task": "17"}.

    Args:
        dataset: the rows that the trainer has, of training and of evaluation, with a `prompt`.
        columns: arguments of the reset by the names of columns: {"answer": "expected_answer"}.
        role: of messages of the environment; None: "tool" where the chat template has it.
        max_iterations: replies of an episode, where no column says it.
        timeout_s: seconds of execution for one code block; None: the sandbox's limit.
        record: a folder for trajectory files of the rollouts, which `repl-env view` shows; None: no
            files. "task_id" or "id", "group_id", "split" and "difficulty" of a row are in them.
        record_every: of how many groups of rollouts of one task the first is recorded.
        arguments: those of `LocalREPLEnv`, for every rollout; `rubric` scores.

    Attributes:
        environment_seconds: time that `__call__` has waited for resets and steps.
        seconds: time that `__call__` has taken, generation included.

    Raises:
        TypeError, ValueError: naming the argument; two rows have one prompt and differ.
    """

    def __init__(
        self,
        dataset: Iterable[Mapping[str, Any]],
        *,
        columns: Mapping[str, str] | None = None,
        role: str | None = None,
        max_iterations: int | None = None,
        timeout_s: float | None = None,
        record: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        **arguments: Any,
    ) -> None:
        RolloutRecorder.of(record, record_every)  # which checks the arguments
        self._requests = _requests_of(dataset, columns_of(columns))
        self._role = role
        self._shared = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._timeout_s = timeout_s
        self._arguments = {"record": record, "record_every": record_every, **arguments}
        self._rows: EpisodeRows | None = None
        self._shares = EpisodeShares()
        self.environment_seconds = 0.0
        self.seconds = 0.0
        self.__name__ = "rollout_func"

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """One rollout for each prompt, as TRL wants it, with the columns for reward functions."""
        start = time.monotonic()
        tokenizer = trainer._tokenizer
        between = BetweenReplies(tokenizer, self._role, dict(trainer.chat_template_kwargs))
        rows = self._rows_for(len(prompts), tokenizer)
        opening = self._open(rows, prompts, between.role)
        rollouts = [Rollout(list(ids)) for ids in trainer._tokenize_prompts(prompts)[0]]
        for rollout in rollouts:
            rollout.max_completion_tokens = _max_completion_tokens(trainer, rollout)
        while any(rollout.active for rollout in rollouts):
            replies = _write(trainer, rollouts)
            results = self._step(rows, opening, replies)
            for rollout, reply, result in zip(rollouts, replies, results, strict=False):
                if result is not None:
                    _append_feedback(rollout, result, between)
                elif reply is not None:
                    rollout.episode, rollout.active = rollout.episode.lost(), False
        for number in range(len(rollouts)):
            rows.leave(number, _CUT)
        self.seconds += time.monotonic() - start
        log_shares(trainer, self._shares, [each.episode for each in rollouts])
        return _outputs(rollouts)

    def close(self) -> None:
        """Close all sessions. A later call opens new ones."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def _rows_for(self, n: int, tokenizer: Any) -> EpisodeRows:
        if self._rows is None or len(self._rows) < n:
            self.close()
            tokens = template_tokens(tokenizer)
            self._rows = EpisodeRows(n, template_tokens=tokens, **self._arguments)
        return self._rows

    def _open(self, rows: EpisodeRows, prompts: Sequence[Any], role: str) -> Future[Any]:
        """Begin the episodes, which open while the model writes."""
        tasks = [self._task(prompt) for prompt in prompts]
        requests = [request for request, _ in tasks]
        notes = [
            RolloutNote(prompt, facts, role)
            for prompt, (_, facts) in zip(prompts, tasks, strict=True)
        ]
        shared = self._shared
        return _batch_reset.submit(
            lambda: rows.reset(requests, only=range(len(requests)), notes=notes, **shared)
        )

    def _task(self, prompt: Any) -> Task:
        try:
            return self._requests[_key(prompt)]
        except KeyError:
            raise ValueError(f"no row of the dataset has the prompt {prompt!r:.200}") from None

    def _step(
        self, rows: EpisodeRows, opening: Future[Any], replies: list[str | None]
    ) -> list[RowResult | None]:
        """Step the replies; None for one that was not, or whose session could not be opened."""
        start = time.monotonic()
        not_opened = _not_opened(rows, opening, len(replies))
        known_replies = [
            None if number in not_opened else reply for number, reply in enumerate(replies)
        ]
        idle = [None] * (len(rows) - len(replies))
        results = rows.step([*known_replies, *idle], timeout_s=self._timeout_s)
        self.environment_seconds += time.monotonic() - start
        return results


def _not_opened(rows: EpisodeRows, opening: Future[Any], n: int) -> set[int]:
    """Wait for the resets; the rollouts whose session could not be opened.

    Raises:
        Exception: of the resets, unless infrastructure failed, for some of them.
    """
    try:
        opening.result()
    except SandboxError:
        not_opened = {number for number in range(n) if rows.last[number] is None}
        if len(not_opened) == n:
            raise
        return not_opened
    return set()


def _max_completion_tokens(trainer: Any, rollout: Rollout) -> int:
    """The tokens that a completion may have: as TRL asked for, and the model can read."""
    window = getattr(trainer.model.config, "max_position_embeddings", None)
    max_tokens: int = trainer.max_completion_length
    return max_tokens if window is None else min(max_tokens, window - len(rollout.prompt))


def _write(trainer: Any, rollouts: Sequence[Rollout]) -> list[str | None]:
    """Have the model go on with each rollout that is going on; the replies, as text."""
    active = [number for number, rollout in enumerate(rollouts) if rollout.active]
    prompts = [rollouts[n].prompt + rollouts[n].completion for n in active]
    ids, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
    replies: list[str | None] = [None] * len(rollouts)
    for index, number in enumerate(active):
        rollout = rollouts[number]
        tokens_left = rollout.max_completion_tokens - len(rollout.completion)
        written = list(ids[index][:tokens_left])
        rollout.add(
            written,
            sampled=True,
            logprobs=() if logprobs is None else logprobs[index][:tokens_left],
        )
        replies[number] = trainer._tokenizer.decode(written, skip_special_tokens=True)
    return replies


def _append_feedback(rollout: Rollout, result: RowResult, between: BetweenReplies) -> None:
    """Add what a reply came to."""
    rollout.episode = result.episode
    rollout.active = not result.done
    if result.done:
        return
    ids = between.ids(rollout.completion, result.message)
    if len(rollout.completion) + len(ids) >= rollout.max_completion_tokens:
        rollout.active = False  # no token would be left for a reply
        rollout.episode = replace(rollout.episode, stop_reason=_CUT)
    else:
        rollout.add(ids, sampled=False)


def _outputs(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    return {
        "prompt_ids": [rollout.prompt for rollout in rollouts],
        "completion_ids": [rollout.completion for rollout in rollouts],
        "logprobs": None,
        # TRL's mask of the policy's tokens, by which it counts the tokens of the loss too.
        "env_mask": [
            [0] * len(rollout.sampled) if rollout.episode.masked else rollout.sampled
            for rollout in rollouts
        ],
        **summary_columns([rollout.episode for rollout in rollouts]),
    }


def _requests_of(
    dataset: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> dict[str, Task]:
    """The arguments of the reset for each prompt, and the facts of its task."""
    requests: dict[str, Task] = {}
    for number, row in enumerate(dataset):
        if "prompt" not in row:
            raise ValueError(f"row {number} of the dataset has no prompt")
        request = request_of(row, columns)
        facts = {name: row[name] for name in FACTS if row.get(name) is not None}
        if requests.setdefault(_key(row["prompt"]), (request, facts))[0] != request:
            raise ValueError(
                f"row {number} of the dataset has the prompt of another row, and differs from it: "
                "give the last message of the prompt a key of its own, as {'task': '17'}"
            )
    return requests


def _key(prompt: Any) -> str:
    """A prompt as a key. Datasets fill messages up with keys whose value is None."""
    if isinstance(prompt, str):
        return prompt
    messages = [{k: v for k, v in each.items() if v is not None} for each in prompt]
    return json.dumps(messages, sort_keys=True, default=str)
