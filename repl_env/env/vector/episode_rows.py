"""`EpisodeRows`: episodes as rows of a batch, stepped by the replies of a policy.

The common part of trainer integrations: replies become actions, each row produces one message, and
no row disturbs another by its failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repl_env.common.argument_checks import at_least
from repl_env.common.closeable import Closeable
from repl_env.env.lifecycle.block_steps import outcome_texts
from repl_env.env.local_env import Result
from repl_env.env.vector.chat_escaping import escaped
from repl_env.env.vector.reply_actions import action_of_reply
from repl_env.env.vector.vector_env import REPLVectorEnv
from repl_env.env.vector.vector_resets import Requests
from repl_env.models import REPLAction, REPLObservation


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row's reset or step.

    `message` is the text for the policy, free of chat template tokens. `mask`: an infrastructure
    failure touched the episode, which then says nothing about the policy.
    """

    message: str
    reward: float
    terminated: bool
    truncated: bool
    mask: bool
    observation: REPLObservation = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class EpisodeRows(Closeable):
    """n concurrent episodes, each stepped by the text of a policy's reply.

    ```python
    with EpisodeRows(2) as rows:
        rows.reset([{"context": "a b c", "expected_answer": 3}, {"context": "d e"}])
        first, second = rows.step(["```python\nFINAL(len(context.split()))\n```", "I am lost."])
        print(first.reward, first.terminated, second.message)
    ```
    Args:
        n: the number of rows.
        template_tokens: texts that must not occur in a message, besides those of published chat
            templates; `repl_env.env.vector.chat_escaping.template_tokens(tokenizer)` finds those of
            a tokenizer.
        arguments: those of `LocalREPLEnv`, for every row.

    A pickle holds the arguments and no session: episodes start again with a reset.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(self, n: int, *, template_tokens: Iterable[str] = (), **arguments: Any) -> None:
        self._n = at_least(n, 1, "n")
        self._tokens = frozenset(template_tokens)
        self._arguments = arguments
        self._envs = REPLVectorEnv(n, **arguments)
        self._last: list[RowResult | None] = [None] * n

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<EpisodeRows {self._envs!r}>"

    @property
    def environments(self) -> REPLVectorEnv:
        """The environments of the rows."""
        return self._envs

    @property
    def last(self) -> tuple[RowResult | None, ...]:
        """The last result of each row; None before its first reset."""
        return tuple(self._last)

    def reset(
        self, requests: Requests | None = None, *, only: Iterable[int] | None = None, **shared: Any
    ) -> list[RowResult | None]:
        """Begin an episode in every row, or in the rows of `only`; None for the others.

        The arguments are those of `REPLVectorEnv.reset`, with the same errors.
        """
        only = None if only is None else list(only)
        try:
            self._envs.reset(requests, only=only, **shared)
        finally:
            results = [self._begun(result) for result in self._envs.results]
            for row, result in enumerate(results):
                if result is not None or row in self._envs.errors:
                    self._last[row] = result
        return results

    def step(
        self, replies: Sequence[str | REPLAction | None], *, timeout_s: float | None = None
    ) -> list[RowResult | None]:
        """Take the step of each reply concurrently; None is no reply, and no result.

        A `REPLAction` stands for a parsed reply. A row whose session dies is truncated and masked,
        and the others go on. A finished row that gets a reply returns its last result again, with
        reward 0.0. `timeout_s` limits each block's execution.

        Raises:
            TypeError: naming the row whose reply is not text; nothing was run.
            NotReset, Exception: as `REPLVectorEnv.step`.
        """
        if isinstance(replies, str) or len(replies) != self._n:
            raise ValueError(f"replies must be a list of {self._n}, one for each row")
        actions = [self._action(row, reply) for row, reply in enumerate(replies)]
        try:
            self._envs.step(actions, timeout_s=timeout_s)
        finally:
            results = [
                None if result is None else self._stepped(row, action, result)
                for row, (action, result) in enumerate(
                    zip(actions, self._envs.results, strict=True)
                )
            ]
            self._last = [new or last for new, last in zip(results, self._last, strict=True)]
        return results

    def close(self) -> None:
        """Close all sessions. A later reset opens new ones."""
        self._last = [None] * self._n
        self._envs.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows_of, (self._n, self._tokens, self._arguments)

    def _action(self, row: int, reply: str | REPLAction | None) -> REPLAction | None:
        if reply is None:
            return None
        last = self._last[row]
        if last is not None and last.done:
            return REPLAction()  # nothing runs, so the reply need not be parsed
        if isinstance(reply, REPLAction):
            return reply
        try:
            return action_of_reply(reply, last.observation.available_variables if last else ())
        except TypeError as error:
            raise TypeError(f"replies[{row}]: {error}") from None

    def _begun(self, result: Result | None) -> RowResult | None:
        return None if result is None else self._row(result, result.observation.result.stdout)

    def _stepped(self, row: int, action: REPLAction | None, result: Result) -> RowResult:
        last = self._last[row]
        if last is not None and last.done:
            return self._row(result, last.message)
        note = None if action is None else action.metadata.get("note")
        return self._row(result, message_of(result.observation, note))

    def _row(self, result: Result, message: str) -> RowResult:
        return RowResult(
            message=escaped(message, self._tokens),
            reward=result.reward or 0.0,
            terminated=result.terminated,
            truncated=result.truncated,
            mask=bool((result.metadata or {}).get("mask")),
            observation=result.observation,
        )


def message_of(observation: REPLObservation, note: str | None = None) -> str:
    """Return the text of a step for the policy: each block's outcome, and the end of the
    episode.
    """
    parts = outcome_texts(observation)
    if len(parts) > 1:
        parts = [f"Code block {number} output:\n{part}" for number, part in enumerate(parts, 1)]
        end = observation.result.stdout.rpartition("\n")[2]
        if observation.truncated and end not in parts[-1]:  # the iteration limit, reported last
            parts.append(end)
    return "\n\n".join(parts if note is None else [*parts, note])


def _rows_of(n: int, tokens: frozenset[str], arguments: Mapping[str, Any]) -> EpisodeRows:
    return EpisodeRows(n, template_tokens=tokens, **arguments)
