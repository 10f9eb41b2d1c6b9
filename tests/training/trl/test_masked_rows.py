"""Masked rollouts leave an update of TRL as if they were not there; no policy can mask its own."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from repl_env import ExactMatchRubric
from repl_env.errors import ModelError
from repl_env.integrations.trl import (
    REPLGRPOTrainer,
    REPLToolEnv,
    episode_reward,
    masked_rewards,
    rollout_func,
    use_fences,
)
from repl_sandbox import Limits
from tests.internals import session_links
from tests.training.trainer_internals import environments_of
from tests.training.trl.scripted import (
    fenced,
    kill,
    logged_rewards,
    loss_of,
    metrics_of,
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
def batch(model, tokenizer, tmp_path, request):
    """A function that plays the batch by `way` and gives the trainer and TRL's tensors."""

    def play(way, kind, **settings):
        holder = []
        if way == "factory":
            script = replies(lambda number: holder[0].environments[number].env)
            arguments: dict[str, Any] = {"environment_factory": REPLToolEnv}
            use_fences(tokenizer)
        else:
            rollouts = rollout_func([ROW])
            request.addfinalizer(rollouts.close)
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


# ── a policy may not take itself out of the loss ─────────────────────────────────────────────────


def refuse_long_prompts(prompt):
    if len(prompt) > 1000:
        raise ModelError("request", "status 400: maximum context length")
    return prompt


OF_SESSIONS: dict[str, Any] = {
    "llm_query_fn": refuse_long_prompts,
    "limits": Limits(host_timeout=1.0),
    "rubric": ExactMatchRubric(),
}
REFUSED = fenced("try: llm_query('x' * 5000)", "except Exception: pass")
CLOCK = fenced("while True:", "    try: llm_query('x')", "    except BaseException: pass")
TIMER = fenced("import threading, os", "threading.Timer(0.1, os._exit, (1,)).start()")


def attempts(env_of):
    """Rollouts of one task: a right answer, four attempts to be masked, a wrong answer."""

    def after_its_death():
        with suppress(ProcessLookupError):  # it has ended already
            worker = os.pidfd_open(session_links(env_of(3).session).worker_pid)
            assert select.select([worker], [], [], 60)[0]
            os.close(worker)
        return fenced("1 / 0")

    def without_recovery():
        os.kill(session_links(env_of(4).session).pid, signal.SIGSTOP)
        return fenced("import os", "os._exit(1)")

    return [
        [RIGHT],
        [REFUSED, WRONG],
        [CLOCK, WRONG],
        [TIMER, after_its_death, WRONG],
        [LOOK, without_recovery],
        [WRONG],
    ]


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_attempts_to_be_masked_have_the_gradient_of_wrong_answers(
    model, tokenizer, tmp_path, request, way
):
    holder: list[Any] = []
    if way == "factory":
        script = attempts(lambda number: holder[0].environments[number].env)
        arguments: dict[str, Any] = {"environment_factory": partial(REPLToolEnv, **OF_SESSIONS)}
        use_fences(tokenizer)
    else:
        rollouts = rollout_func([ROW], **OF_SESSIONS)
        request.addfinalizer(rollouts.close)
        script = attempts(lambda number: environments_of(rollouts)[number])
        arguments = {"rollout_func": rollouts, "reward_funcs": episode_reward}
    trainer = trainer_of(
        model, tokenizer, [ROW], tmp_path, kind=REPLGRPOTrainer, replies=script,
        settings={"num_generations": len(script), "beta": 0.0}, **arguments,
    )  # fmt: skip
    holder.append(trainer)
    tensors = rollouts_of(trainer)

    rewards = torch.tensor([1.0, *[0.0] * (len(script) - 1)])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert torch.allclose(tensors["advantages"].flatten(), advantages)
    counted = tensors["completion_mask"] * tensors["tool_mask"]
    assert counted.any(dim=1).all() and tensors["num_items_in_batch"] == counted.sum()
    expected = gradient(trainer, {**tensors, "advantages": advantages})
    assert expected.norm() > 1e-3
    assert (gradient(trainer, tensors) - expected).abs().max() < 1e-6
    assert metrics_of(trainer)["masked_share"] == [0.0]


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_the_masked_share_of_a_batch_is_logged(batch, way):
    trainer, _ = batch(way, REPLGRPOTrainer)
    assert metrics_of(trainer)["masked_share"] == [1 / GROUP]
