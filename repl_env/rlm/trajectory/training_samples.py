"""Training samples: one answer of a model as token ids with a loss mask.

This module is independent of runs and files: the caller supplies run, turn and reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.common.termination import Ending
from repl_env.interfaces import Message
from repl_env.llm.base import Completion, TokenTrace
from repl_env.llm.local_models.chat_tokenizer import ChatTokenizer, prompt_ids
from repl_env.rlm.trajectory.loss_masks import TemplatedReply


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingSample(Displayed):
    """A prompt, the model's reply, and its reward.

    Attributes:
        messages, reply: the same as text; `messages` without the reply.
        input_ids: the tokens of both.
        loss_mask: 1 for each token that the model sampled, including the one that ended its turn; 0
            for
            tokens of the prompt and the chat template.
        reward, weight: as the caller gave them.
        run, turn, depth, parent: its place in a tree of runs.
        logprobs: natural logarithms, one for each 1 of `loss_mask`; None if not recorded.
        masked: the episode failed through no fault of the model; do not train on it.
        task, group_id, split, difficulty: of the task, as in `TaskNote`.
        ended: "terminated", by an answer, or "truncated", by a limit or a loss; None: unknown.
        task_reward: the task's part of `reward`, without penalties.
    """

    messages: tuple[Message, ...]
    reply: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    reward: float | None = None
    weight: float = 1.0
    run: str = "0"
    turn: int = 0
    depth: int = 0
    parent: str | None = None
    logprobs: tuple[float, ...] | None = None
    masked: bool = False
    task: str | None = None
    group_id: str | None = None
    split: str | None = None
    difficulty: str | None = None
    ended: Ending | None = None
    task_reward: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as JSON carries it."""
        as_lists = {"messages", "input_ids", "loss_mask", "logprobs"}
        fields = asdict(self)
        for name in as_lists:
            fields[name] = None if fields[name] is None else list(fields[name])
        return fields


@set_module("repl_env.rlm")
def sample(
    messages: Sequence[Message],
    completion: Completion | str,
    tokenizer: ChatTokenizer | None,
    *,
    template: Mapping[str, Any] | None = None,
    reward: float | None = None,
    weight: float = 1.0,
    run: str = "0",
    turn: int = 0,
    depth: int = 0,
    parent: str | None = None,
    masked: bool = False,
    task: str | None = None,
    group_id: str | None = None,
    split: str | None = None,
    difficulty: str | None = None,
    ended: Ending | None = None,
    task_reward: float | None = None,
) -> TrainingSample:
    """Return the sample of `completion` as an answer to `messages`.

    Recorded token ids are used as they are, because text does not determine its tokens. Otherwise
    the
    tokenizer's chat template does: the tokens of the whole conversation have to begin with those of
    the
    prompt, and continue with the reply; if they do not, the template's own marks (`{% generation
    %}`)
    delimit the reply. A cut answer has no end of turn among its sampled tokens.

    Args:
        tokenizer: may be None if the completion has the ids of its prompt and its output.
        template: arguments of the chat template, the same as for sampling.

    Other arguments are stored in the sample.

    Raises:
        ValueError: the tokens of the reply cannot be separated from those of the template, and why.
    """
    answer = Completion(completion) if isinstance(completion, str) else completion
    ids, mask, logprobs = _masked_tokens(messages, answer, tokenizer, template)
    return TrainingSample(
        messages=tuple(messages),
        reply=answer.text,
        input_ids=tuple(ids),
        loss_mask=tuple(mask),
        reward=reward,
        weight=weight,
        run=run,
        turn=turn,
        depth=depth,
        parent=parent,
        logprobs=logprobs,
        masked=masked,
        task=task,
        group_id=group_id,
        split=split,
        difficulty=difficulty,
        ended=ended,
        task_reward=task_reward,
    )


def _masked_tokens(
    messages: Sequence[Message],
    answer: Completion,
    tokenizer: ChatTokenizer | None,
    template: Mapping[str, Any] | None,
) -> tuple[Sequence[int], Sequence[int], tuple[float, ...] | None]:
    """Return token ids, loss mask and log-probabilities of a conversation that ends with `answer`.

    Raises:
        ValueError: as `sample`.
    """
    trace = answer.tokens or TokenTrace()
    # A reply may consist of the prompt's end alone: then no ids of output are the right ones.
    if trace.output_ids or (trace.prompt_ids and not answer.text):
        prompt = trace.prompt_ids or _prompt(messages, tokenizer, template)
        mask = [0] * len(prompt) + [1] * len(trace.output_ids)
        return [*prompt, *trace.output_ids], mask, _logprobs(trace)
    ids, mask = TemplatedReply(messages, answer, _needed(tokenizer), template or {}).masked()
    return ids, mask, None


def _needed(tokenizer: ChatTokenizer | None) -> ChatTokenizer:
    if tokenizer is None:
        raise ValueError("tokenizer must be given: the completion has no recorded token ids")
    return tokenizer


def _prompt(
    messages: Sequence[Message],
    tokenizer: ChatTokenizer | None,
    template: Mapping[str, Any] | None,
) -> Sequence[int]:
    return prompt_ids(_needed(tokenizer), messages, template or {})


def _logprobs(trace: TokenTrace) -> tuple[float, ...] | None:
    if not trace.logprobs:
        return None
    if len(trace.logprobs) != len(trace.output_ids):
        message = f"{len(trace.logprobs)} log-probabilities for {len(trace.output_ids)} tokens"
        raise ValueError(f"completion.tokens has {message}")
    return trace.logprobs
