"""The contract of `AsyncGRPOTrainer` by signature, because the trainer needs a server of vLLM."""

from __future__ import annotations

import inspect
import pickle
import threading
from functools import partial

import pytest

from repl_env.integrations.trl import REPLToolEnv, masked_rewards

async_grpo = pytest.importorskip("trl.experimental.async_grpo")


def reward(completions, **_):
    return [0.0 for _ in completions]


def test_the_trainer_takes_a_factory_of_this_kind():
    names = inspect.signature(async_grpo.AsyncGRPOTrainer.__init__).parameters
    assert {"environment_factory", "reward_funcs", "tools"} <= set(names)


def test_all_that_goes_to_the_process_of_the_rollouts_can_be_pickled():
    sent = (REPLToolEnv, partial(REPLToolEnv, max_iterations=2), masked_rewards(reward))
    kind, factory, function = pickle.loads(pickle.dumps(sent))
    assert kind is REPLToolEnv and isinstance(factory(), REPLToolEnv)
    assert function(completions=["a"], environments=[kind()]) == [0.0]


def test_an_episode_goes_on_from_thread_to_thread():
    env = REPLToolEnv()
    shown = []

    def in_thread(act):
        thread = threading.Thread(target=lambda: shown.append(act()))
        thread.start()
        thread.join()

    in_thread(lambda: env.reset(context="a b", expected_answer="2"))
    in_thread(lambda: env.python("n = len(context.split())"))
    in_thread(lambda: env.python("FINAL(n)"))
    in_thread(env.get_reward)
    assert shown[-1] == 1.0
