"""A tiny model learns with TorchRL: a policy gradient on sessions, in a chat of three turns.

    make learn-torchrl LEARN_ARGS="--seed 1"

First the model imitates a clumsy player (`imitation.py`), which wins one episode in ten. Then comes
a fixed number of updates. The exit status is 1 if the reward on held-out tasks is below 0.9 at the
end, above 0.12 before the updates, or above 0.1 with an executor that runs nothing.

An update is the gradient of `torchrl.objectives.llm.GRPOLoss` at the policy that sampled: there the
ratio of probabilities is 1, so that one pass of the model is enough and nothing is clipped.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from tensordict import set_list_to_stack
from torch.nn.utils.rnn import pad_sequence
from torchrl.modules.llm import TransformersWrapper

from examples.learn.curve import Curve
from examples.learn.play import MAX_NEW_TOKENS
from examples.learn.task import TURNS, draw_tasks
from examples.learn.whole_run import whole_run
from repl_env.integrations.torchrl import DatasetREPLChatEnv
from repl_env.rubrics import ExactMatchRubric

GROUP, GROUPS = 8, 8  # rollouts of a task, tasks of an update
LEARNING_RATE = 1e-3
WARM_UP = 5  # updates with a lower learning rate, which falls to 0 from there to the end


class Clock:
    """The seconds that each part of the updates takes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def of(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time counts for `part`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.monotonic() - begun

        return timed


class Learner:
    """A policy in a `DatasetREPLChatEnv`, and its updates."""

    def __init__(self, model: Any, tokenizer: Any, seed: int, updates: int) -> None:
        tasks = draw_tasks(GROUPS * updates, seed)
        self.model, self.updates, self.clock = model, updates, Clock()
        self.env = DatasetREPLChatEnv(
            dataset=[{"query": task.prompt, **task.request} for task in tasks],
            shuffle=False,
            num_envs=GROUPS,
            repeats=GROUP,
            group_repeats=True,  # the rollouts of a task are beside each other
            input_mode="tokens",
            tokenizer=tokenizer,
            template_kwargs={"chat_template": tokenizer.chat_template},
            user_role="tool",  # of the messages that say what a cell printed
            rubric=ExactMatchRubric(),
        )
        episodes = self.env.base_env.episodes
        episodes.reset = self.clock.of("sessions", episodes.reset)
        episodes.step = self.clock.of("sessions", episodes.step)
        self._sample = TransformersWrapper(
            model,
            tokenizer=tokenizer,
            input_mode="tokens",
            pad_output=False,
            generate_kwargs={
                "max_new_tokens": MAX_NEW_TOKENS,
                "do_sample": True,
                "top_k": len(tokenizer),  # all tokens: what is sampled is the policy itself
            },
        )
        self.optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
        self._taken = 0

    def policy(self, tensordict: Any) -> Any:
        """The replies to the prompts of a batch."""
        return self.clock.of("generation", self._sample)(tensordict)

    def update(self) -> float:
        """One batch of rollouts and one step of the optimizer; the mean reward of the batch."""
        with torch.no_grad():
            rollout = self.env.rollout(TURNS, self.policy, break_when_all_done=True)
        ends = rollout["next", "done"].flatten(1).int().argmax(1).tolist()
        rewards = torch.tensor(
            [
                # A failure of the infrastructure is no measure of the policy.
                float("nan") if row[end]["next", "masked"].any()
                else float(row[: end + 1]["next", "reward"].sum())
                for row, end in zip(rollout.unbind(0), ends, strict=True)
            ]
        )  # fmt: skip
        whole = [row[end] for row, end in zip(rollout.unbind(0), ends, strict=True)]
        self.clock.of("optimisation", self._learn)(whole, advantages_of(rewards))
        return float(rewards.nanmean())

    def _learn(self, episodes: list[Any], advantages: torch.Tensor) -> None:
        """One step of the optimizer, on the ids that the policy sampled."""
        self._taken += 1
        left = 1 - (self._taken - 1) / self.updates
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * left * min(1.0, self._taken / WARM_UP)
        loss = loss_of(self.model, episodes, advantages)
        if loss is not None:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


def loss_of(model: Any, episodes: list[Any], advantages: torch.Tensor) -> torch.Tensor | None:
    """The loss of the ids that the policy sampled in episodes; None if there is nothing to learn.

    Each of `episodes` is the last step of a row, which has the whole conversation.
    """
    # An episode without advantage adds nothing to the gradient.
    used = advantages.nonzero().flatten().tolist()
    if not used:
        return None
    ids = pad_sequence([episodes[row]["tokens"].full for row in used], batch_first=True)
    masks = [each["masks"].all_assistant_mask for each in episodes]
    sampled = pad_sequence([masks[row] for row in used], batch_first=True)
    scores = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
    chosen = scores.gather(-1, ids[:, 1:, None]).squeeze(-1) * sampled[:, 1:]
    count = sum(int(mask.sum()) for mask in masks)
    return -(chosen * advantages[used, None]).sum() / count


def advantages_of(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each rollout is than those of its task; 0 where its reward is not known."""
    groups = rewards.view(-1, GROUP)
    apart = groups - groups.nanmean(1, keepdim=True)
    spread = apart.square().nanmean(1, keepdim=True).sqrt()
    return (apart / (spread + 1e-4)).nan_to_num(0.0).flatten()


def train(model: Any, tokenizer: Any, curve: Curve, seed: int, updates: int) -> dict[str, float]:
    """The updates; returns the seconds that each part of them took."""
    set_list_to_stack(True).set()
    learner = Learner(model, tokenizer, seed, updates)
    for _ in range(updates):
        curve.add(learner.update())
    learner.env.close()
    return dict(learner.clock.seconds)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="torch|tensordict")
    sys.exit(whole_run("TorchRL", train, updates=70))
