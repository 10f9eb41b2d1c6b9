"""The episodes of a chat environment, each with the prompt that its policy is to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDict, TensorDictBase

from repl_env.env.rows import EpisodeRows, RowResult
from repl_env.integrations.torchrl.chat.chat_history import Message
from repl_env.integrations.torchrl.chat.chat_prompts import PolicyReply, Prompt, Prompts
from repl_env.integrations.torchrl.chat.chat_rows import ChatRow, RowTask
from repl_env.integrations.torchrl.chat.tokenizer_template import ChatTemplate


class ChatEpisodes:
    """The rows of a chat: tasks and actions in, prompts and results out.

    Args:
        window: the most tokens of a prompt.
    """

    def __init__(
        self,
        episodes: EpisodeRows,
        template: ChatTemplate,
        prompts: Prompts,
        window: int | None,
    ) -> None:
        self.episodes, self.prompts = episodes, prompts
        self._template, self._window = template, window
        self._rows: list[ChatRow | None] = [None] * len(episodes)

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the episodes: a copy begins with a reset."""
        return {**self.__dict__, "_rows": [None] * len(self)}

    def reset(
        self,
        tasks: Mapping[int, RowTask],
        *,
        whole: bool,
        before: Sequence[Message] = (),
        max_iterations: int | None = None,
    ) -> None:
        """Begin an episode for each task, by the number of its row.

        `whole`: no mask said which rows are to be reset. `before`: messages before each query.

        Raises:
            ValueError: a prompt is longer than the window; nothing was reset.
        """
        rows_by_number = {
            number: self._first_row(number, task, before) for number, task in tasks.items()
        }
        if whole:
            rows_by_number = {
                n: replace(row, replaced=self._unfinished(n)) for n, row in rows_by_number.items()
            }
        self._forget(rows_by_number)  # until all are reset, because a row that fails has no episode
        requests = [task.request() for task in tasks.values()]
        self.episodes.reset(requests, only=list(tasks), max_iterations=max_iterations)
        for number, row in rows_by_number.items():
            self._rows[number] = row

    def step(self, actions: Mapping[int, TensorDictBase]) -> list[RowResult | None]:
        """Take the step of each action, by the number of its row; a row that is done takes none."""
        replies = {
            number: self._reply(number, action)
            for number, action in actions.items()
            if not self._is_done(number)
        }
        rows = {number: self._row(number) for number in replies}
        replies_by_row = [
            replies[number].text if number in replies else None for number in range(len(self))
        ]
        self._forget(rows)  # until all are stepped: a row whose step failed cannot go on
        results = self.episodes.step(replies_by_row)
        for number, reply in replies.items():
            result = results[number]
            assert result is not None
            prompt = self.prompts.following(reply, result.message)
            beyond = self._excess(prompt) > 0
            row = replace(rows[number], prompt=prompt, beyond_window=beyond, replaced=None)
            self._rows[number] = row
        return results

    def shown(self, *, with_tasks: bool = False) -> list[TensorDictBase]:
        """The prompt of each row as a tensordict, and its task."""
        rows = [self._row(number) for number in range(len(self))]
        prompts = [TensorDict(self.prompts.entries(row.prompt)) for row in rows]
        if not with_tasks:
            return prompts
        shown = zip(rows, prompts, strict=True)
        return [row.task.entries().update(prompt) for row, prompt in shown]

    def cut_off(self) -> list[bool]:
        """Which rows ended because their prompt is beyond the window."""
        return [
            row is not None and row.beyond_window and not (last is not None and last.terminated)
            for row, last in zip(self._rows, self.episodes.last, strict=True)
        ]

    def close(self) -> None:
        """Close all sessions. A later reset opens new ones."""
        self._forget(range(len(self)))
        self.episodes.close()

    def _first_row(self, number: int, task: RowTask, before: Sequence[Message]) -> ChatRow:
        """A row before its reset."""
        requests = [
            message | {"content": self._template.unforged(message["content"])}
            for message in task.conversation
        ]
        prompt = self.prompts.first([*before, *requests])
        if (excess := self._excess(prompt)) > 0:
            raise ValueError(
                f"row {number}: the prompt is {excess} tokens longer than the window of "
                f"{self._window} (max_prompt_tokens)"
            )
        return ChatRow(prompt, task)

    def _reply(self, number: int, action: TensorDictBase) -> PolicyReply:
        """The reply in a row's action.

        Raises:
            RuntimeError: it goes on with an episode that was ended by a reset.
        """
        row = self._row(number)
        ended = row.replaced is not None and self.prompts.answered(action, row.replaced)
        if ended and not self.prompts.answered(action, row.prompt):
            raise RuntimeError(
                f"row {number} goes on with an episode that a reset without a mask ended. "
                "TorchRL's DataLoadingPrimer drops the mask of a partial reset: use TaskPrimer, "
                "as from_dataloader does, or batch_size=1"
            )
        return self.prompts.reply(action, row.prompt)

    def _excess(self, prompt: Prompt) -> int:
        """How many tokens a prompt is longer than the window; not above 0 if it fits."""
        return 0 if self._window is None else self.prompts.length(prompt) - self._window

    def _unfinished(self, number: int) -> Prompt | None:
        row = self._rows[number]
        return None if row is None or self._is_done(number) else row.prompt

    def _is_done(self, number: int) -> bool:
        last = self.episodes.last[number]
        return self._row(number).beyond_window or (last is not None and last.done)

    def _forget(self, numbers: Any) -> None:
        for number in numbers:
            self._rows[number] = None

    def _row(self, number: int) -> ChatRow:
        row = self._rows[number]
        if row is None:
            raise RuntimeError(f"row {number} has no episode: reset the environment first")
        return row
