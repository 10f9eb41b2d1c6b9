"""A policy may not take itself out of the loss: its attempts have the gradient of wrong answers."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Any

import pytest
import torch
from tensordict import lazy_stack
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss

from repl_env import ExactMatchRubric
from repl_env.errors import ModelError
from repl_env.integrations.torchrl import LogEpisodes
from repl_sandbox import Limits
from tests.internals import session_links
from tests.torchrl.chat.chat_batches import IGNORED, batch
from tests.torchrl.scripted import Scripted, fenced

pytestmark = IGNORED

WRONG, RIGHT = fenced("FINAL(0)"), fenced("FINAL(len(context.split()))")
ATTEMPTS = [
    [RIGHT],
    [fenced("try: llm_query('x' * 5000)", "except Exception: pass"), WRONG],
    [fenced("while True:", "    try: llm_query('x')", "    except BaseException: pass"), WRONG],
    [
        fenced("import threading, os", "threading.Timer(0.1, os._exit, (1,)).start()"),
        fenced("1 / 0"),
        WRONG,
    ],
    [fenced("x = 1"), fenced("import os", "os._exit(1)")],
    [WRONG],
]
DIES, DAMAGED = 3, 4


def refuse_long_prompts(prompt: str) -> str:
    if len(prompt) > 1000:
        raise ModelError("request", "status 400: maximum context length")
    return prompt


def last_steps(env: Any, replies: Any) -> list[Any]:
    """Play all episodes to their end; the last step of each row, with the row's whole reward."""
    turns = iter(range(3))

    def policy(tensordict: Any) -> Any:
        if next(turns) == 1:
            interfere(env)
        return replies(tensordict)

    n = len(ATTEMPTS)
    start = env.reset(
        batch(*["How many words?"] * n, context=["a b"] * n, expected_answer=["2"] * n)
    )
    rollout = env.rollout(3, policy, auto_reset=False, tensordict=start, break_when_all_done=True)
    episodes = [row[: int(row["next", "done"].int().argmax()) + 1] for row in rollout.unbind(0)]
    last = [episode[-1].copy() for episode in episodes]
    for row, episode in zip(last, episodes, strict=True):
        row["next", "reward"] = episode["next", "reward"].sum(0)
    return last


def interfere(env: Any) -> None:
    """Wait for the worker that its thread ends; stop the helper that would recover a session."""
    sessions = [each.session for each in env.episodes.environments.environments]
    with suppress(ProcessLookupError):  # it has ended already
        worker = os.pidfd_open(session_links(sessions[DIES]).worker_pid)
        assert select.select([worker], [], [], 60)[0]
        os.close(worker)
    os.kill(session_links(sessions[DAMAGED]).pid, signal.SIGSTOP)


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def loss_of(model: Any, tokenizer: Any, steps: list[Any], advantages: torch.Tensor) -> torch.Tensor:
    scored = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="tokens", generate=False, pad_output=False
    )
    with torch.no_grad():
        found = scored(lazy_stack([step.copy() for step in steps]))
    found["advantage"] = advantages.view(-1, 1, 1)
    loss: torch.Tensor = GRPOLoss(scored, masking_strategy="rlhf", entropy_bonus=False)(
        found
    ).loss_objective
    return loss


def test_attempts_to_be_masked_have_the_gradient_of_wrong_answers(make, tokenizer, model):
    env = make(
        "tokens",
        batch_size=len(ATTEMPTS),
        llm_query_fn=refuse_long_prompts,
        limits=Limits(host_timeout=1.0),
        rubric=ExactMatchRubric(),
    )
    steps = last_steps(env, Scripted(tokenizer, "tokens", ATTEMPTS))
    whole = lazy_stack(steps)
    assert whole["next", "done"].all() and not whole["next", "masked"].any()
    logged = LogEpisodes()(whole)
    assert logged["masked_share"] == 0.0 and logged["log_pbar"] is True
    assert logged["failed_share/crash"] > 0

    kept = ~whole["next", "masked"].flatten()
    rewards = whole["next", "reward"].flatten()
    found = torch.where(kept, (rewards - rewards.mean()) / rewards.std(), 0.0)
    wrong = torch.tensor([1.0, *[0.0] * (len(ATTEMPTS) - 1)])
    expected = gradient(
        model, loss_of(model, tokenizer, steps, (wrong - wrong.mean()) / wrong.std())
    )
    assert expected.norm() > 1e-4
    torch.testing.assert_close(
        gradient(model, loss_of(model, tokenizer, steps, found)), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("done", "share"), [([True, True, False], 0.5), ([False] * 3, 1 / 3)])
def test_the_masked_share_for_the_logs(done, share):
    step = batch("a", "b", "c")
    step["next"] = batch("a", "b", "c")
    step["next", "masked"] = torch.tensor([[True], [False], [False]])
    step["next", "done"] = torch.tensor(done).unsqueeze(-1)
    assert LogEpisodes()(step)["masked_share"] == pytest.approx(share)
