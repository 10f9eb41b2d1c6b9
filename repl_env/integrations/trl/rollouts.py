"""`rollout_func`: all rollouts of a batch of TRL, stepped side by side.

TRL's own loop runs the tool calls of a batch one after another, and so its resets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.threads import ThreadPool
from repl_env.env.rows import EpisodeRows, RowResult, template_tokens
from repl_env.integrations.trl.conversation_text import BetweenReplies
from repl_env.integrations.trl.dataset_rows import columns_of, request_of
from repl_env.integrations.trl.reward_functions import (
    MASKED_COLUMN,
    REWARD_COLUMN,
    log_masked_share,
)
from repl_sandbox.errors import SandboxError

_opener = ThreadPool(1, "repl-trl-reset")


@set_module("repl_env.integrations.trl")
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
    reward: float = 0.0
    masked: bool = False
    active: bool = True

    def add(self, ids: Sequence[int], *, sampled: bool, logprobs: Sequence[float] = ()) -> None:
        """Add tokens of the policy, or of the environment."""
        self.completion += ids
        self.sampled += [int(sampled)] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)


@set_module("repl_env.integrations.trl")
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
        **arguments: Any,
    ) -> None:
        self._requests = _requests_of(dataset, columns_of(columns))
        self._role = role
        self._shared = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._timeout_s = timeout_s
        self._arguments = arguments
        self._rows: EpisodeRows | None = None
        self.environment_seconds = 0.0
        self.seconds = 0.0
        self.__name__ = "rollout_func"

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """One rollout for each prompt, as TRL wants it, with two columns for reward functions."""
        start = time.monotonic()
        tokenizer = trainer._tokenizer
        rows = self._rows_for(len(prompts), tokenizer)
        opening = self._open(rows, prompts)
        between = BetweenReplies(tokenizer, self._role, dict(trainer.chat_template_kwargs))
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
                    rollout.masked, rollout.active = True, False
        self.seconds += time.monotonic() - start
        log_masked_share(trainer, sum(each.masked for each in rollouts) / len(rollouts))
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

    def _open(self, rows: EpisodeRows, prompts: Sequence[Any]) -> Future[Any]:
        """Begin the episodes, which open while the model writes."""
        requests = [self._request(prompt) for prompt in prompts]
        shared = self._shared
        return _opener.submit(lambda: rows.reset(requests, only=range(len(requests)), **shared))

    def _request(self, prompt: Any) -> dict[str, Any]:
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
    rollout.reward += result.reward
    rollout.masked = result.mask
    rollout.active = not result.done
    if result.done:
        return
    ids = between.ids(rollout.completion, result.message)
    if len(rollout.completion) + len(ids) >= rollout.max_completion_tokens:
        rollout.active = False  # no token would be left for a reply
    else:
        rollout.add(ids, sampled=False)


def _outputs(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    return {
        "prompt_ids": [rollout.prompt for rollout in rollouts],
        "completion_ids": [rollout.completion for rollout in rollouts],
        "logprobs": None,
        # TRL's mask of the policy's tokens, by which it counts the tokens of the loss too.
        "env_mask": [
            [0] * len(rollout.sampled) if rollout.masked else rollout.sampled
            for rollout in rollouts
        ],
        REWARD_COLUMN: [None if rollout.masked else rollout.reward for rollout in rollouts],
        MASKED_COLUMN: [rollout.masked for rollout in rollouts],
    }


def _requests_of(
    dataset: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The arguments of the reset for each prompt."""
    requests: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(dataset):
        if "prompt" not in row:
            raise ValueError(f"row {number} of the dataset has no prompt")
        request = request_of(row, columns)
        if requests.setdefault(_key(row["prompt"]), request) != request:
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
