"""TorchRL's wrappers of Gymnasium on `repl_env/REPL-v0`, single, side by side and batched."""

from __future__ import annotations

import gymnasium
import pytest
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, check_env_specs

from repl_env.integrations.gymnasium import ENV_ID
from tests.training.gymnasium.words import COUNTED, TASKS


def single():
    return GymWrapper(gymnasium.make(ENV_ID, tasks=TASKS, max_iterations=3))


WAYS = {
    "wrapper": single,
    "by name": lambda: GymEnv(ENV_ID, tasks=TASKS, max_iterations=3),
    "serial": lambda: SerialEnv(2, single),
    "vector": lambda: GymWrapper(
        gymnasium.make_vec(
            ENV_ID, num_envs=2, tasks=TASKS, max_iterations=3, autoreset_mode="Disabled"
        )
    ),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_rollout_counts_the_words_of_consecutive_tasks(make):
    env = make()

    def policy(td):
        td["action"] = [COUNTED] * env.batch_size.numel() if env.batch_size else COUNTED
        return td

    env.set_seed(0)
    rollout = env.rollout(4, policy, break_when_any_done=False)
    assert rollout["next", "reward"].sum() == rollout.numel() == 4 * env.batch_size.numel()
    assert rollout["next", "terminated"].all() and not rollout["next", "truncated"].any()
    env.close()


def test_texts_of_any_kind_pass():
    env = single()
    step = env.reset()
    assert "How many words?" in step["observation"]
    step["action"] = "print('é😀', 'שלום')"
    step = env.step(step)["next"]
    assert step["observation"].strip() == "é😀 שלום" and not step["done"]
    env.close()


def test_the_specs_pass_torchrl_s_check():
    env = single()
    check_env_specs(env)
    env.close()
