"""The learning script of TorchRL: its gradient, its advantages, and that runs repeat."""

from __future__ import annotations

import pytest
import torch
from tensordict import lazy_stack
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss

from examples.learn import learn_torchrl
from examples.learn.imitation import clumsy_episodes, texts_of
from examples.learn.learn_torchrl import Learner, advantages_of, loss_of
from examples.learn.model import make_deterministic, make_model, train_tokenizer
from examples.learn.play import NothingRuns
from examples.learn.task import TURNS, draw_tasks
from tests.torchrl.torchrl_internals import learn


@pytest.fixture(autouse=True)
def _small_batches_and_free_algorithms(monkeypatch):
    monkeypatch.setattr(learn_torchrl, "GROUP", 2)
    monkeypatch.setattr(learn_torchrl, "GROUPS", 2)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture
def learner():
    make_deterministic(0)
    episodes = clumsy_episodes(draw_tasks(16, 0), NothingRuns(), 0)
    tokenizer = train_tokenizer(texts_of(episodes))
    made = Learner(make_model(tokenizer), tokenizer, seed=0, updates=2)
    yield made
    made.env.close()


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def test_gradient_is_that_of_grpo(learner):
    with torch.no_grad():
        rollout = learner.env.rollout(TURNS, learner.policy, break_when_all_done=True)
    last = [row[-1] for row in rollout.unbind(0)]
    advantages = torch.tensor([1.0, -0.5, 0.0, 2.0])
    ours = gradient(learner.model, loss_of(learner.model, last, advantages))

    scored = TransformersWrapper(
        learner.model,
        tokenizer=learner.env.tokenizer,
        input_mode="tokens",
        generate=False,
        pad_output=False,
    )
    with torch.no_grad():
        batch = scored(lazy_stack(last))
    batch["advantage"] = advantages.view(4, 1, 1)
    grpo = GRPOLoss(scored, masking_strategy="rlhf", entropy_bonus=False)(batch)
    theirs = gradient(learner.model, grpo.loss_objective)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_masked_rollout_does_not_change_the_others(monkeypatch):
    monkeypatch.setattr(learn_torchrl, "GROUP", 3)
    nan = float("nan")
    masked = advantages_of(torch.tensor([1.0, nan, 0.0, nan, nan, nan])).tolist()
    assert masked[1] == 0 and masked[3:] == [0, 0, 0]
    monkeypatch.setattr(learn_torchrl, "GROUP", 2)
    assert advantages_of(torch.tensor([1.0, 0.0])).tolist() == [masked[0], masked[2]]


def test_equal_rewards_give_no_gradient(learner):
    assert loss_of(learner.model, [], advantages_of(torch.tensor([1.0, 1.0]))) is None


def test_a_seeded_run_repeats(learner):
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0])

    def run():
        make_deterministic(1)
        model = make_model(learner.env.tokenizer)
        each = Learner(model, learner.env.tokenizer, seed=3, updates=2)
        with torch.no_grad():
            rollout = each.env.rollout(TURNS, each.policy, break_when_all_done=True)
        learn(each, [row[-1] for row in rollout.unbind(0)], advantages_of(rewards))
        told = each.update()
        each.env.close()
        return told, torch.cat([each.flatten() for each in model.parameters()])

    (first, weights), (second, again) = run(), run()
    assert first == second and torch.equal(weights, again)
