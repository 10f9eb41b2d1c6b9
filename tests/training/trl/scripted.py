"""Scripted replies in place of a model's, and sessions that die."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from repl_env import LocalREPLEnv
from tests.internals import session_links


def fenced(*lines: str) -> str:
    """A reply with one cell."""
    return "\n".join(["```repl", *lines, "```"])


class Script:
    """A replacement of `GRPOTrainer._generate_single_turn`: the replies of each rollout, in order.

    A reply is a text, or a function that is called and returns the text. Rollouts without a
    further reply write an empty one.
    """

    def __init__(self, tokenizer: Any, replies: Sequence[Sequence[str | Callable[[], str]]]):
        self.tokenizer, self.replies = tokenizer, replies
        self.batches: list[int] = []  # the rollouts of each call
        self._turn = [0] * len(replies)
        self._written: list[list[int]] = [[] for _ in replies]

    def __call__(self, prompt_ids, images, fields, num_generations, **_):
        self.batches.append(len(prompt_ids))
        taken: set[int] = set()
        completions = []
        for ids in prompt_ids:
            number = self._number(list(ids), taken)
            taken.add(number)
            turn, said = self._turn[number], self.replies[number]
            reply = said[turn] if turn < len(said) else ""
            text = reply if isinstance(reply, str) else reply()
            written = self.tokenizer(text + self.tokenizer.eos_token)["input_ids"]
            self._turn[number] += 1
            self._written[number] = [*ids, *written]
            completions.append(written)
        return completions, None

    def _number(self, ids: list[int], taken: set[int]) -> int:
        """The rollout of a prompt, identified by its first tokens."""
        for number, before in enumerate(self._written):
            if number not in taken and before and ids[: len(before)] == before:
                return number
        return next(n for n, before in enumerate(self._written) if n not in taken and not before)


def trainer_of(
    model: Any,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    folder: Any,
    *,
    kind: type[GRPOTrainer] = GRPOTrainer,
    replies: Sequence[Sequence[str | Callable[[], str]]] | None = None,
    **arguments: Any,
) -> GRPOTrainer:
    """A trainer whose batch is all rollouts of `rows`, with the replies of a script if given."""
    settings = {
        "per_device_train_batch_size": len(replies) if replies else 4,
        "num_generations": 2,
        "max_completion_length": 800,
        "max_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        **arguments.pop("settings", {}),
    }
    trainer = kind(
        model,
        args=GRPOConfig(str(folder), **settings),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        **arguments,
    )
    if replies is not None:
        trainer._generate_single_turn = Script(tokenizer, replies)
    return trainer


def rewrite(trainer: GRPOTrainer, replies: Sequence[Sequence[str | Callable[[], str]]]) -> None:
    """Give the trainer's script other replies, for its next batch."""
    trainer._generate_single_turn = Script(trainer._tokenizer, replies)


def batch_of(trainer: GRPOTrainer) -> list[dict[str, Any]]:
    """The rows of the trainer's batch, each as often as it has rollouts."""
    return [dict(row) for row in trainer.train_dataset for _ in range(trainer.num_generations)]


def kill(env: LocalREPLEnv) -> None:
    """Kill the session of an episode, and wait until its worker is gone."""
    links = session_links(env.session)
    worker = os.pidfd_open(links.worker_pid)
    os.kill(links.pid, 9)
    assert select.select([worker], [], [], 60)[0]
    os.close(worker)


def rollouts_of(trainer: GRPOTrainer) -> Any:
    """The tensors of one batch of rollouts, with their advantages."""
    return trainer._generate_and_score_completions(batch_of(trainer))


def loss_of(trainer: GRPOTrainer, tensors: Any) -> Any:
    """The loss of one update on a batch."""
    return trainer._compute_loss(trainer.model, tensors)


def logged_rewards(trainer: GRPOTrainer, name: str) -> Any:
    """The rewards that the trainer logs under the name of a reward function."""
    return trainer._logs["rewards"][name]


def metrics_of(trainer: GRPOTrainer) -> Any:
    """The metrics of training that the trainer will log."""
    return trainer._metrics["train"]


def generated_batches(trainer: GRPOTrainer) -> Any:
    """The size of each batch of turns that a script generated."""
    return trainer._generate_single_turn.batches


def episodes_of(env: LocalREPLEnv) -> Any:
    """The episodes of a local environment."""
    return env._env._episodes
