"""`ChatEpisodes`, and over them `REPLChatEnv` and `DatasetREPLChatEnv`, as in TorchRL.

Both environments are here because each makes the other (`REPLChatEnv.from_dataloader`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite
from torchrl.envs import EnvBase, TransformedEnv

from repl_env.common.display import set_module
from repl_env.env.rollouts import RolloutNote
from repl_env.env.rows import EpisodeRows, RowResult
from repl_env.integrations.torchrl.chat_tasks import TASK_COLUMNS, ChatRow, DatasetEnv, RowTask
from repl_env.integrations.torchrl.datasets import (
    rows_of,
    with_state_columns,
)
from repl_env.integrations.torchrl.prompts import (
    ChatTemplate,
    InputMode,
    Message,
    PolicyReply,
    Prompt,
    Prompts,
    batch_shape,
    check_input_mode,
    mark_sampled,
    prompt_limit,
    prompts_of,
    queries,
    stacked,
)
from repl_env.integrations.torchrl.results import (
    set_stepped,
    with_endings,
    with_marks,
    with_rewards,
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


# The episodes of a chat environment, each with the prompt that its policy is to answer.


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
        notes = [
            RolloutNote([*before, *task.conversation], task.facts, self._template.user_role)
            for task in tasks.values()
        ]
        self.episodes.reset(requests, only=list(tasks), notes=notes, max_iterations=max_iterations)
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
            if beyond:
                self.episodes.leave(number, "max_prompt_tokens")
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


class _WithTokenizer(type(EnvBase)):  # type: ignore[misc]
    """Adds the argument `with_tokenizer` of TorchRL's `ChatEnv`."""

    def __call__(cls, *args: Any, with_tokenizer: bool = False, **kwargs: Any) -> Any:
        tokenizer = kwargs.get("tokenizer")
        if with_tokenizer and tokenizer is None:
            raise ValueError("with_tokenizer=True needs a tokenizer")
        made = super().__call__(*args, **kwargs)
        if not with_tokenizer:
            return made
        from torchrl.envs.llm.transforms import IncrementalTokenizer

        return TransformedEnv(made, IncrementalTokenizer(tokenizer))


@set_module("repl_env.integrations.torchrl")
class REPLChatEnv(EnvBase, metaclass=_WithTokenizer):
    """A chat over episodes: the policy's replies run in sessions, whose output comes back.

    Keys, containers and arguments are those of `torchrl.envs.llm.ChatEnv`, so that a policy as
    `TransformersWrapper` works with each `input_mode`. Each row of the batch has an episode of its
    own: the code blocks of a reply run in its session, and one message of `user_role` says what
    they came to. `FINAL(...)` in code ends the episode.

    ```python
    env = REPLChatEnv(batch_size=2, system_prompt="Write Python in fences; end with FINAL(...).")
    start = env.reset(TensorDict({
        "query": ["How many words has context?"] * 2,
        "context": ["a b c", "d e"],
        "expected_answer": ["3", "2"],
    }, batch_size=(2,)))
    ```
    A reset reads, of each row, `data_key` (a text, a `History` or a list of messages), the columns
    that are arguments of an episode's reset, as `context`, `expected_answer` and `task_prompt`
    (default: the last message of the query), and `task_id` (default: a hash of the row). A step
    adds to the next prompt: `reward`, `task_reward`, `done`, `terminated` (answered), `truncated`
    (ended by a limit) and `masked`: float32 and bool of shape (*batch, 1); and `episode`, the facts
    of each row's episode by the names of `repl_env.EpisodeSummary.to_dict`.

    Args:
        input_mode: "history", "text" or "tokens". The latter two need a `tokenizer`.
        batch_size: a tuple, list or int, not empty; default (1,).
        system_prompt: a message of `system_role` before each query.
        tokenizer: of Hugging Face.
        template_kwargs: for `History.apply_chat_template`.
        data_key: the key of queries; default "query".
        device: of what the environment returns.
        with_tokenizer: wrap the environment with TorchRL's `IncrementalTokenizer`.
        max_prompt_tokens: the window. A longer prompt of a reset is a ValueError; a row whose next
            prompt is longer is truncated. Default: the tokenizer's `model_max_length`, if it has
            one.
        max_iterations: steps of an episode, after which it is truncated.
        record: a folder for trajectory files of the rollouts, which `repl-env view` shows; None: no
            files.
        record_every: of how many groups of rollouts of one task the first is recorded.
        arguments: those of `LocalREPLEnv`, for every row.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    text_key = ("text", "prompt")
    response_key = ("text", "response")
    data_key = "query"

    def __init__(
        self,
        *,
        input_mode: InputMode = "history",
        batch_size: Sequence[int] | int | None = None,
        system_prompt: str | None = None,
        tokenizer: Any = None,
        template_kwargs: dict[str, Any] | None = None,
        system_role: str = "system",
        user_role: str = "user",
        policy_role: str | None = "assistant",
        data_key: str | None = None,
        device: torch.device | None = None,
        max_prompt_tokens: int | None = None,
        max_iterations: int | None = None,
        record: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        **arguments: Any,
    ) -> None:
        check_input_mode(input_mode, tokenizer)
        shape = batch_shape(batch_size)
        policy_role = policy_role or "assistant"
        if data_key is not None:
            self.data_key = data_key
        super().__init__(batch_size=shape, device=device)
        self.input_mode = input_mode
        self.system_prompt = system_prompt
        self.tokenizer = tokenizer
        self.template_kwargs = template_kwargs or {}
        self.system_role, self.user_role, self.policy_role = system_role, user_role, policy_role
        self.max_prompt_tokens = prompt_limit(max_prompt_tokens, tokenizer)
        self.max_iterations = max_iterations
        template = ChatTemplate(tokenizer, self.template_kwargs, user_role, policy_role)
        self._chat = ChatEpisodes(
            EpisodeRows(
                shape.numel(),
                template_tokens=template.tokens,
                record=record,
                record_every=record_every,
                **arguments,
            ),
            template,
            prompts_of(input_mode, template, user_role, policy_role),
            self.max_prompt_tokens,
        )
        self._make_specs()

    @classmethod
    def with_tokenizer(cls, tokenizer: Any, **kwargs: Any) -> TransformedEnv:
        """The environment with `IncrementalTokenizer`, as `with_tokenizer=True` makes it."""
        return cls(tokenizer=tokenizer, with_tokenizer=True, **kwargs)

    @classmethod
    def from_dataloader(
        cls,
        dataloader: DataLoader[Any],
        *,
        repeats: int | None = None,
        device: torch.device | None = None,
        group_repeats: bool = False,
        batch_size: Sequence[int] | int | None = None,
        primers: Composite | None = None,
        tokenizer: Any = None,
        template_kwargs: dict[str, Any] | None = None,
        input_mode: InputMode = "history",
        data_key: str | None = None,
        system_prompt: str | None = None,
        **arguments: Any,
    ) -> TransformedEnv:
        """A `DatasetREPLChatEnv` that takes its rows from a loader.

        The arguments are those of `DatasetREPLChatEnv.from_dataloader`.
        """
        return DatasetREPLChatEnv.from_dataloader(
            dataloader=dataloader,
            repeats=repeats,
            device=device,
            group_repeats=group_repeats,
            batch_size=batch_size,
            primers=primers,
            tokenizer=tokenizer,
            template_kwargs=template_kwargs,
            input_mode=input_mode,
            data_key=data_key,
            system_prompt=system_prompt,
            **arguments,
        )

    @property
    def episodes(self) -> EpisodeRows:
        """The episodes of the rows."""
        return self._chat.episodes

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close all sessions. A later reset opens new ones."""
        self._chat.close()
        super().close(raise_if_closed=raise_if_closed)

    def _make_specs(self) -> None:
        shape, device = self.batch_size, self.device
        prompts, actions = (spec.to(device) for spec in self._chat.prompts.specs(shape))
        empty = Composite(shape=shape, device=device)
        self.full_observation_spec = with_marks(prompts)
        self.full_action_spec = actions
        self.full_state_spec = with_state_columns(empty, (self.data_key, *TASK_COLUMNS))
        self.full_reward_spec = with_rewards(empty.clone())
        self.full_done_spec = with_endings(empty.clone())

    def _set_seed(self, seed: int | None) -> None:
        """Nothing here is drawn: a `DatasetREPLChatEnv` has a seed for its order."""

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        name = type(self).__name__
        if tensordict is None:
            raise RuntimeError(
                f"{name}.reset needs a tensordict with {self.data_key!r}, or a primer that loads "
                f"one, as {name}.from_dataloader has it"
            )
        masked = tensordict.get("_reset", None) is not None
        tasks = self._tasks(tensordict, self._named_rows(tensordict, "_reset"))
        system = {"role": self.system_role, "content": self.system_prompt}
        self._chat.reset(
            tasks,
            whole=not masked,
            before=[] if self.system_prompt is None else [system],
            max_iterations=self.max_iterations,
        )
        batch = self._batch(self._chat.shown(with_tasks=True))
        return self._with_signals(batch, [None] * len(self._chat)).exclude("reward")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = self._split(tensordict)
        named_rows = self._named_rows(tensordict, "_step")
        results = self._chat.step({number: rows[number] for number in named_rows})
        return self._with_signals(self._batch(self._chat.shown()), results)

    def _with_signals(
        self, batch: TensorDictBase, results: Sequence[RowResult | None]
    ) -> TensorDictBase:
        """A batch with the rewards and ends of its rows."""
        cut_off = torch.tensor(self._chat.cut_off(), device=self.device)
        batch.set("truncated", cut_off.reshape(*self.batch_size, 1))
        batch.set("done", batch["truncated"].clone())
        set_stepped(batch, results, self.episodes.last)
        return batch

    def _split(self, tensordict: TensorDictBase) -> list[TensorDictBase]:
        rows: list[TensorDictBase] = rows_of(tensordict, tensordict.batch_dims)
        return rows

    def _batch(self, rows: Sequence[TensorDictBase]) -> TensorDictBase:
        batch = stacked(rows, self.batch_size)
        return batch if self.device is None else batch.to(self.device)

    def _reset_proc_data(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if tensordict is None or mask is None or bool(mask.all()):
            return super()._reset_proc_data(tensordict, tensordict_reset)
        # TorchRL cannot merge rows whose prompts differ in length into every kind of tensordict.
        self._complete_done(self.full_done_spec, tensordict_reset)
        self._reset_check_done(tensordict, tensordict_reset)
        new, old = self._split(tensordict_reset), self._split(tensordict.exclude("_reset"))
        named_rows = self._named_rows(tensordict, "_reset")
        return self._batch(
            [row if i in named_rows else row.copy().update(old[i]) for i, row in enumerate(new)]
        )

    def _post_step_mdp_hooks(
        self, tensordict: TensorDictBase, next_tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """In a rollout, put the ids and the mask of sampled ids of the action right."""
        if self.input_mode == "tokens":
            for row in self._split(tensordict):
                mark_sampled(row)
        return tensordict, next_tensordict

    def _named_rows(self, tensordict: TensorDictBase, key: str) -> list[int]:
        """The rows that a mask names; all without one."""
        mask = tensordict.get(key, None)
        if mask is None:
            return list(range(len(self._chat)))
        return [number for number, is_named in enumerate(mask.reshape(-1).tolist()) if is_named]

    def _tasks(self, tensordict: TensorDictBase, numbers: Sequence[int]) -> dict[int, RowTask]:
        """The tasks that the rows `numbers` of a reset bring."""
        try:
            found = queries(tensordict, self.data_key, numbers, self.user_role)
        except KeyError as error:
            keys = sorted(map(str, tensordict.keys()))
            raise KeyError(
                f"{type(self).__name__}.reset: {error.args[0]}; the keys are {keys}. After an "
                "episode, a primer has to load the next: see from_dataloader"
            ) from None
        rows = self._split(tensordict)
        return {number: RowTask.of(each, rows[number]) for number, each in found.items()}


@set_module("repl_env.integrations.torchrl")
class DatasetREPLChatEnv(DatasetEnv):
    """A `REPLChatEnv` whose resets take their rows from a data set.

    Arguments are those of `torchrl.envs.llm.DatasetChatEnv`. A row's columns those of
    `REPLChatEnv`: `query` (or `text`), `context`, `expected_answer`, `task_prompt`, `task_id`.

    ```python
    tasks = [{"text": "How many words?", "context": "a b c", "expected_answer": 3}]
    env = DatasetREPLChatEnv(dataset=tasks, num_envs=1, repeats=8, group_repeats=True, seed=0)
    ```
    Args:
        dataset: a name of the Hub or a path, for `datasets`; a JSONL file; a list of dicts or
            texts, or another table with rows by number; or a DataLoader, whose own order, batches
            and `collate_fn` stay.
        shuffle: shuffle the rows anew in each pass.
        name: a configuration of the data set.
        split: default "train" where there is one.
        num_envs: the rows of the batch.
        repeats: how many times each row is given, one after another.
        batch_size_dl: rows that are read at once.
        seed: of the order.
        group_repeats: the batch is `num_envs * repeats` rows: the repeats of a row are beside each
            other, and share its context in memory.
        apply_template: accepted as TorchRL does; the modes "text" and "tokens" apply the template.
        collate_fn: makes a batch of a list of rows. The default renames "text" to "query", or to
            `data_key`, and gives each row of a list the columns of all, None where it has none.
        primers: specs of the columns; default: from the first row.
        ray_backend, dataloader_actor_name: load in an actor, by TorchRL's `RayDataLoadingPrimer`.
        arguments: further ones of `REPLChatEnv`.

    Raises:
        TypeError, ValueError: naming the argument or the row.
    """

    _environment_class: ClassVar[type[REPLChatEnv]] = REPLChatEnv
