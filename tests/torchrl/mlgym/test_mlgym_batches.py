"""The MLGym pipeline under TorchRL: specs, copies, devices, batches, pools."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torchrl.envs import AsyncEnvPool, SerialEnv, TransformedEnv
from torchrl.envs.utils import check_env_specs

from repl_env.integrations.torchrl.mlgym import TemplateTransform, make_mlgym
from repl_sandbox import Sandbox
from tests.torchrl.mlgym.mlgym_tasks import block, put, reply_with, rewards, steps, told


@pytest.mark.parametrize("with_tokenizer", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_specs(write, sandbox, tokenizer, with_tokenizer, several):
    tasks = {"tasks": [write("a"), write("b")]} if several else {"task": write()}
    given = {"tokenizer": tokenizer} if with_tokenizer else {}
    env = make_mlgym(**tasks, **given, sandbox=sandbox)

    check_env_specs(env)

    assert ("text" in env.reset()) == with_tokenizer
    env.close()


def copies(env):
    yield pickle.loads(pickle.dumps(env))
    yield copy.deepcopy(env)
    yield TransformedEnv(pickle.loads(pickle.dumps(env.base_env)), env.transform.clone())


def test_copies_and_pickles_have_no_session_and_start_again(write, tokenizer):
    env = make_mlgym(tasks=[write("a"), write("b")], tokenizer=tokenizer, reward_wrong_format=-1.0)
    steps(env, block("x = 1"))

    for each in copies(env):
        again, wrong = steps(each, block("print('x' in globals())"), "no code")
        assert told(again).startswith("False") and rewards([wrong]) == [-1.0]
        each.close()
        each.close(raise_if_closed=False)
    env.close()


def test_a_device_move_keeps_the_episode_and_its_device(make):
    env = make(device=None)
    assert env.reset().device is None
    begin = env.to("cpu").reset()
    (step,) = steps(env, block("print(1)"), begin=begin)
    assert step["next"].device == step["next", "history"].device == torch.device("cpu")


def test_a_reset_of_nothing_leaves_the_episode(write, sandbox):
    env = make_mlgym(tasks=[write("a"), write("b")], sandbox=sandbox)
    current = env.step_mdp(steps(env, block("kept = 1"))[0])
    again = env.reset(current.clone().set("_reset", torch.tensor([False])))
    (step,) = steps(env, block("print(kept)"), begin=again)

    assert told(step).startswith("1\n") and step["next", "task"] == current["task"]
    anew = env.reset(current.set("_reset", torch.tensor([True])))
    assert list(anew["history"].role) == ["system", "user"]
    env.close()


def test_a_row_that_is_lost_leaves_the_others(write, sandbox):
    with Sandbox() as own:
        task = write()
        env = SerialEnv(
            2, [partial(make_mlgym, task=task, sandbox=each) for each in (own, sandbox)]
        )
        td = env.reset()
        own.close()
    td["text_response"] = [block("print(1)"), block(f"{put(15)}submit()")]
    step = env.step(td)["next"]
    assert step["mask"].flatten().tolist() == [True, False]
    assert step["truncated"].flatten().tolist() == [True, False]
    assert step["reward"].flatten().tolist() == [0.0, 0.5]
    env.close()


def test_rows_of_a_batch_are_episodes_of_their_own(write, sandbox):
    env = SerialEnv(2, partial(make_mlgym, task=write(), sandbox=sandbox))
    td = env.reset()
    td["text_response"] = [block("a = 1"), block("submit()")]
    stepped, td = env.step_and_maybe_reset(td)

    assert stepped["next", "done"].flatten().tolist() == [False, True]
    assert [len(row.content) for row in td["history"].unbind(0)] == [4, 2]
    td["text_response"] = [block("print(a)"), block("print('a' in globals())")]
    messages = env.step(td)["next", "message"]
    assert messages[0].startswith("1\n") and messages[1].startswith("False\n")
    episodes = env.rollout(
        3, partial(reply_with, ["x", block("submit()")]), break_when_any_done=False
    )
    assert episodes["next", "done"].squeeze(-1).tolist() == [[False] * 3, [True] * 3]
    env.close()


def test_a_pool_of_environments(write, sandbox):
    env = AsyncEnvPool(
        [partial(make_mlgym, task=write(), sandbox=sandbox)] * 2, backend="threading", stack="lazy"
    )
    td = env.reset()
    td["text_response"] = [block("print('one')"), block("print('two')")]
    env.async_step_send(td)
    messages = env.async_step_recv(min_get=2)["next", "message"]
    assert sorted(message[:3] for message in messages) == ["one", "two"]
    env.close()


@pytest.mark.filterwarnings("ignore:size_average")  # TorchRL's call of PyTorch
@pytest.mark.parametrize("mode", ["text", "history"])
def test_a_model_is_the_policy_of_a_rollout(write, sandbox, tokenizer, model, mode):
    from torchrl.collectors.llm import LLMCollector
    from torchrl.modules.llm import TransformersWrapper

    one = partial(
        make_mlgym,
        task=write(),
        sandbox=sandbox,
        tokenizer=tokenizer,
        response_key=("reply", "response"),
    )
    policy = TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode=mode,
        input_key=mode,
        text_key="reply",
        history_key="chat",
        generate=True,
        generate_kwargs={"max_new_tokens": 8},
        pad_output=False,
    )
    env = SerialEnv(2, one)
    episodes = env.rollout(2, policy)
    assert episodes["next", "history"][:, -1].shape[-1] == 6
    assert episodes["next", "retry"].all() and episodes["tokens"].response is not None
    collector = LLMCollector(env, policy=policy, dialog_turns_per_batch=4, total_dialog_turns=8)
    assert [tuple(batch.shape) for batch in collector] == [(2, 2)] * 2
    collector.shutdown()


@pytest.mark.parametrize("key", ["answer", ("reply", "response"), None])
@pytest.mark.parametrize("batched", [False, True])
def test_the_action_is_where_the_policy_writes_its_reply(write, sandbox, key, batched):
    make = partial(make_mlgym, task=write(), sandbox=sandbox, response_key=key)
    env = SerialEnv(2, make) if batched else make()
    assert env.action_keys == [key or "text_response"]
    check_env_specs(env)
    episodes = env.rollout(2)
    assert (key or "text_response") in episodes.keys(include_nested=True)
    assert not episodes["next", "retry"].any()  # the reply was found, with its block
    env.close()


def test_the_arguments_of_the_template_transform(tokenizer):
    with pytest.raises(ValueError, match=r"none of .*chatml_format"):
        TemplateTransform(tokenizer=tokenizer, chat_template_name="no such")
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        TemplateTransform(tokenizer=bare)

    assert TemplateTransform().in_keys_inv == ["text", "text_response"]
    assert TemplateTransform(tokenizer=tokenizer, out_keys=["p"]).in_keys_inv[0] == "p"


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        ({}, "<|im_start|>system\n"),
        ({"chat_template_name": "dialogpt"}, "Task: double"),
        ({"tokenize": True}, [1]),
        ({"out_keys": ["prompt"]}, "<|im_start|>system\n"),
    ],
)
def test_prompts_of_the_template_transform(make, tokenizer, arguments, begin):
    env = make()
    env.append_transform(TemplateTransform(tokenizer=tokenizer, in_keys_inv=["-"], **arguments))
    prompt = env.reset()[arguments.get("out_keys", ["text"])[0]]

    if arguments.get("tokenize"):
        assert prompt.dtype == torch.int64 and prompt[:1].tolist() == begin
    else:
        assert prompt.startswith(begin)
