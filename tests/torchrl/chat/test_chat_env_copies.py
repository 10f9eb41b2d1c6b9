"""Copies, devices, specs and constructors of `REPLChatEnv`."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torchrl.envs import StepCounter, TransformedEnv, check_env_specs
from torchrl.envs.llm import ChatEnv
from torchrl.envs.llm.transforms import DataLoadingPrimer

from repl_env.integrations.torchrl import REPLChatEnv
from tests.torchrl.chat.chat_batches import ASKED, IGNORED, TWO, batch
from tests.torchrl.scripted import Scripted, fenced

pytestmark = IGNORED


def test_task_ids(make):
    env = make(batch_size=4)
    given = batch("q", "q", "q", "q", context=["a", "b", "a", "a"])
    given["task_id"] = [None, None, None, "mine"]
    found = list(env.reset(given)["task_id"])
    assert found[0] == found[2] != found[1]
    assert found[3] == "mine"


def test_columns_come_through_transforms(make):
    env = TransformedEnv(make(batch_size=2), StepCounter(max_steps=2))
    start = env.reset(batch("q", "r", **TWO, task_prompt=["p", None]))
    assert list(start["context"]) == TWO["context"]
    tasks = [each.state().task_prompt for each in env.base_env.episodes.environments.environments]
    assert tasks == ["p", "r"]


def test_pickles_and_copies_have_no_session(make, mode, tokenizer):
    env = make(mode, batch_size=2)
    start = env.reset(batch(*ASKED))
    policy = Scripted(tokenizer, mode, [[fenced("FINAL(1)")]] * 2)
    for other in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        with pytest.raises(RuntimeError, match="reset the environment first"):
            other.step(policy(start.clone()))
        out = other.step(policy(other.reset(batch(*ASKED, expected_answer=["1", "2"]))))
        assert out["next", "reward"].flatten().tolist() == [1.0, 0.0]
        other.close()
    assert env.step(policy(start))["next", "done"].all()


def test_close_and_reset(make):
    env = make()
    env.reset(batch("q"))
    env.close()
    assert "without episodes" in repr(env.episodes)
    assert env.reset(batch("q"))["done"].item() is False


def test_device(make, mode, tokenizer):
    env = make(mode, device=torch.device("cpu"))
    given = batch("q").to("cpu")
    start = env.reset(given)
    assert start.device == torch.device("cpu")
    out = env.step(Scripted(tokenizer, mode, [["x"]])(start))
    assert out["next"].device == torch.device("cpu")


def primer_of(shape):
    rows = [{"query": ["a", "b", "c"][: shape[0]]}]
    return DataLoadingPrimer(dataloader=rows, batch_size=shape)


@pytest.mark.parametrize(
    ("mode", "size"), [("history", 1), ("history", 2), ("text", 1), ("text", 2), ("tokens", 1)]
)
def test_specs_with_torchrls_primer(make, mode, size):
    env = TransformedEnv(make(mode, batch_size=size, max_iterations=2), primer_of((size,)))
    check_env_specs(env)


def test_signature():
    ours, theirs = (inspect.signature(each.__init__).parameters for each in (REPLChatEnv, ChatEnv))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert {name: each.default for name, each in ours.items() if name in theirs} == {
        name: each.default for name, each in theirs.items()
    }
    for name in ("text_key", "response_key", "data_key"):
        assert getattr(REPLChatEnv, name) == getattr(ChatEnv, name)


@pytest.mark.parametrize("by_class_method", [False, True])
def test_with_tokenizer(tokenizer, by_class_method):
    if by_class_method:
        env = REPLChatEnv.with_tokenizer(tokenizer, batch_size=(1,))
    else:
        env = REPLChatEnv(tokenizer=tokenizer, batch_size=(1,), with_tokenizer=True)
    start = env.reset(batch("q"))
    assert isinstance(env, TransformedEnv)
    [ids] = start.get(("tokens", "prompt"), as_list=True)
    assert tokenizer.decode(ids) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    env.close()
