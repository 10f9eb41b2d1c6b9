"""An update of GRPO from end to end, with a tiny model that writes by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from repl_env.integrations.trl import (
    REPLGRPOTrainer,
    REPLToolEnv,
    episode_reward,
    rollout_func,
    use_fences,
)
from tests.training.trl.scripted import fenced, rollouts_of, trainer_of

LOOK, RIGHT = fenced("print(context)"), fenced("FINAL(len(context.split()))")
WRONG = fenced("FINAL(0)")
ROWS = [
    {
        "prompt": [{"role": "user", "content": "How many words?", "task": str(number)}],
        "context": "a " * number,
        "expected_answer": str(number),
    }
    for number in (1, 2)
]


@pytest.fixture
def trainer(model, tokenizer, tmp_path):
    """A function that makes a trainer of one update, by `way`."""

    def make(way, replies=None):
        if way == "factory":
            arguments: dict[str, Any] = {"environment_factory": REPLToolEnv}
            use_fences(tokenizer)
        else:
            arguments = {"rollout_func": rollout_func(ROWS), "reward_funcs": episode_reward}
        return trainer_of(
            model, tokenizer, ROWS, tmp_path, kind=REPLGRPOTrainer, replies=replies,
            settings={"max_completion_length": 96, "learning_rate": 1e-3}, **arguments,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_a_grpo_step_with_a_generating_model(trainer, way):
    made = trainer(way)
    made.train()
    logs = made.state.log_history[0]
    assert math.isfinite(logs["reward"]) and math.isfinite(made.state.log_history[-1]["train_loss"])


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_the_update_makes_the_reply_that_was_rewarded_likelier(trainer, tokenizer, way):
    made = trainer(way, [[LOOK, RIGHT], [LOOK, WRONG], [RIGHT], [WRONG]])

    def likelihoods():
        ids = [tokenizer(reply, return_tensors="pt")["input_ids"] for reply in (RIGHT, WRONG)]
        with torch.no_grad():
            return [-float(made.model(input_ids=each, labels=each).loss) for each in ids]

    before = likelihoods()
    made.train()
    assert made.state.log_history[0]["reward"] == 0.5
    right, wrong = (after - then for after, then in zip(likelihoods(), before, strict=True))
    assert right > wrong


def test_both_ways_give_the_same_rewards_and_tokens_that_are_trained_on(trainer, tokenizer):
    replies = [[LOOK, RIGHT], [LOOK, WRONG], [RIGHT], [WRONG]]
    said = []
    for way in ("rollouts", "factory"):
        made = trainer(way, replies)
        output = rollouts_of(made)
        mask = (output["completion_mask"] * output["tool_mask"]).bool()
        # TRL has one more turn written behind the last call, which is empty here.
        texts = [
            tokenizer.decode(ids[there], skip_special_tokens=True)
            for ids, there in zip(output["completion_ids"], mask, strict=True)
        ]
        said.append((texts, output["advantages"].tolist()))
    assert said[0] == said[1]
