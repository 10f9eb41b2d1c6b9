"""A session that dies changes an update of TRL exactly as if its rollout were not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from repl_env.integrations.trl import (
    REPLGRPOTrainer,
    REPLToolEnv,
    episode_reward,
    masked_rewards,
    rollout_func,
    use_fences,
)
from tests.training.trainer_internals import environments_of
from tests.training.trl.scripted import (
    fenced,
    kill,
    logged_rewards,
    loss_of,
    rollouts_of,
    trainer_of,
)

LOOK, RIGHT = fenced("print(context)"), fenced("FINAL(len(context.split()))")
WRONG = fenced("FINAL(0)")
ROW = {
    "prompt": [{"role": "user", "content": "How many words?"}],
    "context": "a b",
    "expected_answer": "2",
}
VICTIM = 1
GROUP = 4


def replies(env_of):
    """Four rollouts of one task, of which the second loses its session."""

    def dies():
        kill(env_of(VICTIM))
        return fenced("print('not any more')")

    return [[LOOK, RIGHT], [LOOK, dies, RIGHT], [LOOK, LOOK, WRONG], [RIGHT]]


@pytest.fixture
def batch(model, tokenizer, tmp_path):
    """A function that plays the batch by `way` and gives the trainer and TRL's tensors."""

    def play(way, kind, **settings):
        holder = []
        if way == "factory":
            script = replies(lambda number: holder[0].environments[number].env)
            arguments: dict[str, Any] = {"environment_factory": REPLToolEnv}
            use_fences(tokenizer)
        else:
            rollouts = rollout_func([ROW])
            script = replies(lambda number: environments_of(rollouts)[number])
            arguments = {"rollout_func": rollouts, "reward_funcs": episode_reward}
        settings = {"num_generations": GROUP, "beta": 0.0, **settings}
        if settings["beta"]:  # TRL loads the first model again
            model.save_pretrained(tmp_path / "first")
            model.config._name_or_path = str(tmp_path / "first")
        trainer = trainer_of(
            model, tokenizer, [ROW], tmp_path, kind=kind, replies=script, settings=settings,
            **arguments,
        )  # fmt: skip
        holder.append(trainer)
        return trainer, rollouts_of(trainer)

    return play


def gradient(trainer, tensors):
    """The gradient of the loss of one update."""
    trainer.model.zero_grad()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    loss_of(trainer, tensors).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def without(tensors, row):
    """The tensors of the batch without `row`, with recomputed advantages."""
    kept = [number for number in range(GROUP) if number != row]
    left = {
        name: value[kept] if value.ndim and len(value) == GROUP else value
        for name, value in tensors.items()
    }
    rewards = torch.tensor([1.0, 0.0, 1.0])
    left["advantages"] = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    left["num_items_in_batch"] = (left["completion_mask"] * left["tool_mask"]).sum()
    return left


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_the_gradient_ignores_masked_rows(batch, way, loss):
    trainer, tensors = batch(way, REPLGRPOTrainer, loss_type=loss)
    assert tensors["advantages"][VICTIM] == 0 and not tensors["tool_mask"][VICTIM].any()
    whole, expected = gradient(trainer, tensors), gradient(trainer, without(tensors, VICTIM))
    assert expected.norm() > 1e-3
    assert (whole - expected).abs().max() < 1e-6


def test_a_rollout_func_masks_the_tokens_under_any_trainer(batch):
    trainer, tensors = batch("rollouts", GRPOTrainer)
    whole, expected = gradient(trainer, tensors), gradient(trainer, without(tensors, VICTIM))
    assert (whole - expected).abs().max() < 1e-6


def test_masked_rows_with_a_kl_penalty(batch):
    trainer, tensors = batch("factory", REPLGRPOTrainer, beta=0.1)
    whole, expected = gradient(trainer, tensors), gradient(trainer, without(tensors, VICTIM))
    assert (whole - expected).abs().max() < 1e-6


def test_reward_functions_that_are_wrapped_do_not_bring_the_row_back(model, tokenizer, tmp_path):
    def length(completions, **_):
        return [float(len(each)) for each in completions]

    holder = []
    script = replies(lambda number: holder[0].environments[number].env)
    trainer = trainer_of(
        model, use_fences(tokenizer), [ROW], tmp_path, replies=script,
        settings={"num_generations": GROUP}, environment_factory=REPLToolEnv,
        reward_funcs=masked_rewards(length),
    )  # fmt: skip
    holder.append(trainer)
    rollouts_of(trainer)
    for name in ("length", "REPLToolEnv"):
        lost = [value != value for value in logged_rewards(trainer, name)]
        assert lost == [number == VICTIM for number in range(GROUP)]
