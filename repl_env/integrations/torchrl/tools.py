"""`REPLToolTransform`: a persistent session for each row of a `ChatEnv` in history mode."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Self

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs.llm.transforms.tools import ToolTransformBase

from repl_env.common.display import set_module
from repl_env.env.rollouts import RolloutNote, RolloutRecorder
from repl_env.env.rows import EpisodeRows, RowResult, template_tokens
from repl_env.integrations.torchrl.chat import REPLChatEnv
from repl_env.integrations.torchrl.datasets import (
    LABELS,
    PADDING,
    columns_of,
    conversation_of,
    last_reply,
    plain,
    request_of,
    rows_of,
    with_messages,
    with_state_columns,
)
from repl_env.integrations.torchrl.results import (
    set_begun,
    set_stepped,
    with_endings,
    with_marks,
    with_rewards,
)
from repl_env.local import LocalREPLEnv


@set_module("repl_env.integrations.torchrl")
class REPLToolTransform(ToolTransformBase):
    """Runs the code blocks of each row's reply in a session of that row; a row is an episode.

    ```python
    env = TransformedEnv(ChatEnv(batch_size=(2,)), REPLToolTransform(max_iterations=4))
    data = {"query": ["How many words?"] * 2, "context": ["a b", "c"], "expected_answer": [2, 1]}
    td = env.reset(TensorDict(data, batch_size=(2,)))
    ```
    All blocks of a reply run in order and are one step, which adds exactly one message of role
    `tool_name` to its row. `FINAL(...)`, in code or in prose, ends the episode; a reply with
    neither is told so, and counts. A row that is done gets messages of role "<none>". No text that
    code printed can begin or end a turn: tokens of chat templates in it are broken by a backslash.

    Entries of a step: `reward`, `task_reward`, `done`, `terminated`, `truncated`, `masked`,
    float32 and bool of shape (*batch, 1); and `episode`, the facts of each row's episode by the
    names of `repl_env.EpisodeSummary.to_dict`.

    Args:
        tool_name: the role of the messages.
        tokenizer: the policy's, whose own tokens are then broken too; None: the environment's.
        columns: the columns of a dataset that are arguments of a row's reset, as names of columns,
            or as names of arguments by those of columns: {"answer": "expected_answer"}. None: all
            that are named as an argument.
        max_iterations: replies of an episode, where no column says it.
        timeout_s: seconds of execution for one block; None: the sandbox's limit.
        record: a folder for trajectory files of the rollouts, which `repl-env view` shows; None: no
            files.
        record_every: of how many groups of rollouts of one task the first is recorded.
        arguments: those of `LocalREPLEnv`, for every row; `rubric` scores.

    Clones and pickles hold the arguments and no session: they begin with a reset.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        *,
        tool_name: str = "tool",
        tokenizer: Any = None,
        columns: Mapping[str, str] | Collection[str] | None = None,
        max_iterations: int | None = None,
        timeout_s: float | None = None,
        record: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        **arguments: Any,
    ) -> None:
        super().__init__()
        RolloutRecorder.of(record, record_every)  # which checks the arguments
        LocalREPLEnv(**arguments)  # which checks them; a session begins with a reset
        self.tool_role = tool_name
        self.tokenizer = tokenizer
        self.timeout_s = timeout_s
        self._columns = columns_of(columns)
        self._shared = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._arguments = {"record": record, "record_every": record_every, **arguments}
        self._rows: EpisodeRows | None = None
        self._mask: Tensor | None = None  # of the reset under way

    @property
    def rows(self) -> EpisodeRows | None:
        """The episodes of the rows; None before the first reset."""
        return self._rows

    # ── specs ────────────────────────────────────────────────────────────────────────────────────

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with the columns, which a reset would drop otherwise."""
        return with_state_columns(state_spec, (*self._columns, *LABELS))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what a step tells of its rows."""
        return with_marks(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec with `reward`."""
        return with_rewards(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec with all three endings."""
        return with_endings(done_spec)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        # Before other transforms: a primer that loads data for some rows drops the mask.
        self._mask = None if tensordict is None else tensordict.get("_reset", None)
        return super()._reset_env_preprocess(tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        base = self._chat_env()
        rows = self._rows_for(tensordict_reset.batch_size.numel())
        mask, self._mask = self._mask, None
        if mask is None:
            mask = tensordict.get("_reset", None)
        only = None if mask is None else [row for row, at in enumerate(_flags(mask, rows)) if at]
        given = rows_of(tensordict_reset, tensordict_reset.batch_dims)
        requests = [request_of(row, self._columns, base.data_key) for row in given]
        notes = [self._note(given[row]) for row in (range(len(given)) if only is None else only)]
        rows.reset(requests, only=only, notes=notes, **self._shared)
        set_begun(tensordict_reset)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        base = self._chat_env()
        rows = self._rows_for(next_tensordict.batch_size.numel())
        dims = next_tensordict.batch_dims
        history = next_tensordict["history"].prompt
        if history is None:
            raise ValueError("the policy must write ('history', 'full')")
        step_mask = tensordict.get("_step", None)
        active = [True] * len(rows) if step_mask is None else _flags(step_mask, rows)
        replies = [
            last_reply(conversation, base.policy_role) if goes and not _is_done(last) else None
            for conversation, goes, last in zip(
                rows_of(history, dims), active, rows.last, strict=True
            )
        ]
        results = rows.step(replies, timeout_s=self.timeout_s)
        messages = [
            (PADDING, "") if result is None else (self.tool_role, result.message)
            for result in results
        ]
        next_tensordict["history"].prompt = with_messages(history, dims, messages)
        set_stepped(next_tensordict, results, rows.last)
        # A stack of rows: of a plain tensordict TorchRL could not reset only some, whose
        # conversations are then of another length.
        return next_tensordict.to_lazystack(0)

    def _note(self, row: TensorDictBase) -> RolloutNote:
        facts = {name: plain(row.get(name, None)) for name in LABELS}
        history = row.get("history", None)
        prompt = None if history is None else conversation_of(history.prompt)
        return RolloutNote(prompt, facts, self.tool_role)

    def _chat_env(self) -> Any:
        """The environment below; RuntimeError if it is no chat of TorchRL's in history mode."""
        name = type(self).__name__
        parent = self.parent
        if parent is None:
            raise RuntimeError(f"{name} must be used with a ChatEnv")
        if isinstance(parent.base_env, REPLChatEnv):
            raise RuntimeError(f"{name} is for TorchRL's ChatEnv: a REPLChatEnv runs code itself")
        if getattr(parent.base_env, "input_mode", None) != "history":
            raise RuntimeError(f"{name} must be used with a ChatEnv in history mode")
        return parent.base_env

    def _rows_for(self, n: int) -> EpisodeRows:
        if self._rows is None or len(self._rows) != n:
            self.close()
            tokenizer = self.tokenizer or getattr(self._chat_env(), "tokenizer", None)
            tokens = () if tokenizer is None else template_tokens(tokenizer)
            self._rows = EpisodeRows(n, template_tokens=tokens, **self._arguments)
        return self._rows

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close all sessions. A later reset opens new ones."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def clone(self) -> Self:
        """The same transform without sessions."""
        copy: Self = super().clone()
        copy._rows = None
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": None}


def _flags(mask: Tensor, rows: EpisodeRows) -> list[bool]:
    """A mask of the batch as one flag for each row."""
    flags: list[bool] = mask.reshape(len(rows), -1).any(-1).tolist()
    return flags


def _is_done(result: RowResult | None) -> bool:
    return result is not None and result.done
