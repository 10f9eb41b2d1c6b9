"""`REPLToolTransform` under TorchRL's policies, collectors and pools of environments."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, set_list_to_stack
from torch.utils.data import DataLoader
from torchrl.collectors.llm import LLMCollector
from torchrl.data.llm import History
from torchrl.envs import AsyncEnvPool, SerialEnv
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import MCAdvantage

from repl_env.integrations.torchrl import REPLToolTransform
from repl_env.rubrics import REPLRubric
from tests.torchrl.policies import Scripted, block, roles, texts

set_list_to_stack(True).set()

DATA = [
    {"query": f"question {n}", "context": "word " * n, "expected_answer": n, "task_id": f"t{n}"}
    for n in range(1, 5)
]


def collated(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def of_loader(n=1, tokenizer=None, max_iterations=3):
    loader = DataLoader(DATA, batch_size=n, collate_fn=collated)
    env = ChatEnv.from_dataloader(loader, batch_size=(n,), tokenizer=tokenizer)
    return env.append_transform(
        REPLToolTransform(rubric=REPLRubric(), max_iterations=max_iterations)
    )


def counting(conversation):
    """Two steps: one counts the words, the next submits the number."""
    return block("n = len(context.split())") if len(conversation) == 1 else block("FINAL(n)")


@pytest.fixture(scope="module")
def policy(tokenizer, model):
    torch.manual_seed(0)
    return TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode="history",
        generate=True,
        generate_kwargs={"max_new_tokens": 8, "do_sample": True},
        pad_output=False,
    )


@pytest.mark.parametrize("n", [1, 2])
def test_rollout_of_a_model(tokenizer, policy, n):
    env = of_loader(n, tokenizer)
    rollout = env.rollout(10, policy)
    assert rollout.shape == (n, 3)  # the limit of replies ends the episode
    assert rollout["next", "truncated"][:, -1].all() and not rollout["next", "terminated"].any()
    assert rollout["next", "reward"].shape == (n, 3, 1)
    last = rollout[:, -1]["next"]
    assert roles(last) == [["user", *["assistant", "tool"] * 3]] * n
    assert rollout["task_id"][0][0] == "t1"
    env.close()


@pytest.mark.parametrize("n", [1, 2])
def test_collector_of_a_model(tokenizer, policy, n):
    collector = LLMCollector(
        lambda: of_loader(n, tokenizer), policy=policy, dialog_turns_per_batch=6 * n,
        total_dialog_turns=12 * n,
    )  # fmt: skip
    batches = list(collector)
    collector.shutdown()
    assert [batch.numel() for batch in batches] == [6 * n] * 2
    for batch in batches:
        assert batch["next", "done"].sum() == 2 * n
        assert ("next", "reward") in batch.keys(True) and batch["context"]


def test_collector_of_whole_episodes(tokenizer, policy):
    collector = LLMCollector(
        lambda: of_loader(1, tokenizer), policy=policy, dialog_turns_per_batch=3,
        total_dialog_turns=6, yield_completed_trajectories=True,
    )  # fmt: skip
    batches = list(collector)
    collector.shutdown()
    assert batches and all(batch["next", "truncated"].flatten()[-1] for batch in batches)


def test_advantages_are_of_the_task_and_not_of_the_query():
    contexts = {"t0": "a", "t1": "a b"}  # of one question; the answer is right for the second
    data = [
        {"query": "how many?", "context": contexts[task], "expected_answer": 2, "task_id": task}
        for task in ("t0", "t1", "t0", "t1")
    ]
    loader = DataLoader(data, batch_size=4, collate_fn=collated)
    env = ChatEnv.from_dataloader(loader, batch_size=(4,))
    env = env.append_transform(REPLToolTransform(rubric=REPLRubric()))
    rollout = env.rollout(3, Scripted(counting))
    env.close()
    advantage = MCAdvantage(grpo_size=2, prompt_key="task_id", rewards_key=("next", "reward"))
    groups = [group for row in rollout.unbind(0) if (group := advantage.inv(row)) is not None]
    assert [set(group["task_id"]) for group in groups] == [{"t0"}, {"t1"}]


def in_pool():
    return of_loader(1)


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_pool_of_environments(backend):
    pool = AsyncEnvPool([in_pool, in_pool], backend=backend)
    try:
        td = pool.reset(TensorDict(batch_size=(2, 1)))
        assert td["query"] == [["question 1"]] * 2
        answer = History(role="assistant", content=block("FINAL(len(context.split()))"))
        prompts = [td[row]["history"].prompt for row in range(2)]
        td["history"].full = torch.stack(
            [prompt.extend(answer.view(1, 1), dim=-1, inplace=False) for prompt in prompts]
        )
        pool.async_step_send(td)
        came = pool.async_step_recv(min_get=2)
        assert came["next", "reward"].flatten().tolist() == [1.0, 1.0]
        assert came["next", "terminated"].all()
    finally:
        pool.close()


def test_environments_one_after_the_other():
    env = SerialEnv(2, in_pool)
    td = env.reset(TensorDict(batch_size=(2, 1)))
    assert td["query"] == [["question 1"]] * 2
    env.close()


def test_rollouts_can_be_stored(tmp_path):
    env = of_loader(2)
    rollout = env.rollout(2, Scripted(counting))
    assert rollout["next", "reward"][:, -1].flatten().tolist() == [1.0, 1.0]
    copy = rollout.clone()
    assert texts(copy[:, -1]["next"]) == texts(rollout[:, -1]["next"])
    env.close()
