"""`REPLChatEnv` in its three modes, with policies that are scripted or a tiny model."""

from __future__ import annotations

import inspect
import os
import select

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.data.llm import History
from torchrl.envs import TransformedEnv
from torchrl.envs.llm.transforms import DataLoadingPrimer
from torchrl.modules.llm import TransformersWrapper, vLLMWrapper
from torchrl.modules.llm.policies import ChatHistory

from examples.torchrl_chat import tiny_tokenizer
from repl_env.integrations.torchrl import REPLChatEnv
from repl_env.integrations.torchrl import prompts as prompts_module
from repl_env.integrations.torchrl.prompts import entries_of
from repl_env.rubrics import Rubric
from tests.internals import session_links
from tests.torchrl.chat.chat_batches import ASKED, IGNORED, TWO, batch
from tests.torchrl.scripted import Scripted, fenced, prompts

pytestmark = IGNORED


def test_rows_are_episodes_of_their_own(make, mode, tokenizer):
    env = make(mode, batch_size=2, system_prompt="Write code.")
    count = "n = len(context.split())"
    policy = Scripted(
        tokenizer, mode, [[fenced(count, "n"), fenced("FINAL(n)")], [fenced(count, "FINAL(n + 1)")]]
    )
    start = env.reset(batch(*ASKED, **TWO))
    first = prompts(start, mode, tokenizer)
    assert first[1] == (
        "<|im_start|>system\nWrite code.<|im_end|>\n"
        f"<|im_start|>user\n{ASKED[1]}<|im_end|>\n<|im_start|>assistant\n"
    )
    out = env.step(policy(start))
    assert out["next", "reward"].shape == (2, 1)
    assert out["next", "reward"].dtype == torch.float32
    assert out["next", "reward"].flatten().tolist() == [0.0, 0.0]
    for flag, expected in {"done": [0, 1], "terminated": [0, 1], "truncated": [0, 0]}.items():
        assert out["next", flag].shape == (2, 1)
        assert out["next", flag].dtype == torch.bool
        assert out["next", flag].flatten().tolist() == list(map(bool, expected))
    second = prompts(out["next"], mode, tokenizer)[0]
    assert second.startswith(first[0] + fenced(count, "n") + "<|im_end|>\n<|im_start|>user\n")
    assert second.endswith("3<|im_end|>\n<|im_start|>assistant\n")
    out = env.step(policy(env.step_mdp(out)))
    assert out["next", "reward"].flatten().tolist() == [1.0, 0.0]
    assert out["next", "terminated"].flatten().tolist() == [True, True]
    assert not out["next", "masked"].any()


def test_next_prompt_begins_with_the_sampled_ids(make, tokenizer):
    """Ids that no tokeniser would give come back as they are; the message alone is new."""
    env = make("tokens", batch_size=2)
    out = env.reset(batch(*ASKED))
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "print"]
    assert tokenizer("print")["input_ids"] != letters
    asked, sampled = [row["tokens"].prompt for row in out.unbind(0)], torch.tensor(letters)
    for row in out.unbind(0):
        row["tokens"].response = sampled
    out = env.step(out)
    for row, before in zip(out["next"].unbind(0), asked, strict=True):
        ids, mask = row["tokens"].prompt, row["masks"].all_assistant_mask
        so_far = torch.cat([before, sampled])
        assert torch.equal(ids[: len(so_far)], so_far)
        assert tokenizer.decode(ids[len(so_far) :]).startswith("<|im_end|>\n<|im_start|>user\n")
        assert mask.nonzero().flatten().tolist() == list(range(len(before), len(so_far)))
        assert row["masks"].all_attention_mask.all() and len(mask) == len(ids)


def test_masks_of_a_whole_conversation(make, tokenizer):
    env = make("tokens", batch_size=2)
    say = [["one", fenced("1 + 1"), "é"], [fenced("print(3)"), "two", ""]]
    policy = Scripted(tokenizer, "tokens", say)
    found = env.rollout(3, policy, auto_reset=False, tensordict=env.reset(batch(*ASKED)))
    for number in range(2):
        last = found[number, -1]["next"]
        ids, mask = last["tokens"].prompt, last["masks"].all_assistant_mask
        assert torch.equal(ids[mask], torch.cat(policy.sampled[number]))
        step = found[number, 1]
        full = step["tokens"].full
        assert torch.equal(ids[: len(full)], full)
        assert torch.equal(step["masks"].all_assistant_mask, mask[: len(full)])


def test_actions_where_the_end_of_a_turn_is_the_padding(make, model):
    """TorchRL's wrapper drops these ids from the conversation, and not from its reply's prompt."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    generate = {"max_new_tokens": 6, "do_sample": True}
    policy = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="tokens", pad_output=False, generate_kwargs=generate
    )
    env = TransformedEnv(make("tokens", batch_size=2, tokenizer=tokenizer))
    start = env.reset(batch("a", "b c d"))
    for step in env.rollout(2, policy, auto_reset=False, tensordict=start).reshape(-1).unbind(0):
        tokens, masks = step["tokens"], step["masks"]
        assert torch.equal(tokens.full, torch.cat([tokens.prompt, tokens.response]))
        assert masks.all_assistant_mask[len(tokens.prompt) :].all()
        assert masks.all_attention_mask.all()
        assert len(masks.all_assistant_mask) == len(masks.all_attention_mask) == len(tokens.full)


@pytest.mark.parametrize("pad_output", [False, True])
def test_transformers_wrapper_runs_unchanged(make, mode, pad_output, tokenizer, model):
    env = make(mode, batch_size=2, system_prompt="Write code.", max_iterations=3)
    policy = TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode=mode,
        pad_output=pad_output,
        generate_kwargs={"max_new_tokens": 12, "do_sample": True, "temperature": 2.0},
    )
    torch.manual_seed(0)
    found = env.rollout(5, policy, auto_reset=False, tensordict=env.reset(batch(*ASKED)))
    assert found.shape == (2, 3)
    assert found["next", "truncated"][:, :, 0].tolist() == [[False, False, True]] * 2
    assert found["next", "reward"].shape == (2, 3, 1)
    for number in range(2):
        before, after = found[number, 0], found[number, 1]
        assert prompts(after[None], mode, tokenizer)[0].startswith(
            prompts(before[None], mode, tokenizer)[0]
        )


def test_vllm_wrapper_has_the_same_arguments():
    """vLLM does not run here: its wrapper reads and writes the same containers."""
    ours = inspect.signature(TransformersWrapper.__init__).parameters
    theirs = inspect.signature(vLLMWrapper.__init__).parameters
    used = ("tokenizer", "input_mode", "generate", "generate_kwargs", "pad_output", "inplace")
    for name in used:
        assert name in theirs and theirs[name].default == ours[name].default


@pytest.mark.parametrize(
    ("query", "roles"),
    [
        (["one", "two"], [["user"], ["user"]]),
        ("both", [["user"], ["user"]]),
        (
            [
                [{"role": "user", "content": "one"}],
                [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": "y"},
                    {"role": "user", "content": "z"},
                ],
            ],
            [["user"], ["user", "assistant", "user"]],
        ),
        ([{"role": "user", "content": "one"}] * 2, [["user"], ["user"]]),
        (
            [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "one"}],
            [["assistant", "user"]] * 2,
        ),
        (
            History.from_chats([[{"role": "user", "content": text}] for text in "ab"]),
            [["user"], ["user"]],
        ),
        (
            lambda: History.from_chats(
                [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            ),
            [["user", "assistant"]] * 2,
        ),
    ],
)
def test_queries(make, query, roles):
    env = make(batch_size=(2,), system_prompt="s")
    given = query() if callable(query) else query
    start = env.reset(TensorDict({"query": given}, batch_size=(2,)))
    found = [list(row["history"].prompt.role) for row in start.unbind(0)]
    assert found == [["system", *each] for each in roles]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({}, KeyError, "row 0 has no 'query'"),
        ({"query": [3, 4]}, TypeError, "query of row 0 must be text"),
        ({"query": [None, "a"]}, KeyError, "row 0 has no 'query'"),
        ({"query": ["a", b"b"]}, TypeError, "query of row 1 must be text"),
        ({"query": [["a"], ["b"]]}, TypeError, "message 0: must be a dict with role and content"),
        (
            {"query": [[{"role": "user", "content": ["image"]}]] * 2},
            TypeError,
            "message 0: content must be text, not list",
        ),
        (
            {"query": [[{"role": "user", "content": "a", "name": "n"}]] * 2},
            TypeError,
            "a History has no name",
        ),
        ({"query": ["a", "b c " * 200]}, ValueError, "row 1: the prompt is .* longer than"),
        ({"query": ["a", "b"], "context": ["a", object()]}, TypeError, "context"),
    ],
)
def test_bad_rows(make, given, error, told):
    env = make(batch_size=2, max_prompt_tokens=100)
    with pytest.raises(error, match=told):
        env.reset(TensorDict(given, batch_size=(2,)))
    assert env.reset(batch("a", "b"))["done"].any().item() is False


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"input_mode": "audio"}, ValueError, "input_mode"),
        ({"input_mode": "tokens"}, ValueError, "'tokens' needs a tokenizer"),
        ({"input_mode": "text"}, ValueError, "'text' needs a tokenizer"),
        ({"with_tokenizer": True}, ValueError, "needs a tokenizer"),
        ({"batch_size": ()}, ValueError, "at least one dimension"),
        ({"batch_size": []}, ValueError, "at least one dimension"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an int"),
        ({"tokenizer": "a/b", "input_mode": "text"}, TypeError, "not a name"),
        ({"max_prompt_tokens": 10}, ValueError, "max_prompt_tokens needs a tokenizer"),
        ({"systemprompt": "x"}, TypeError, "systemprompt"),
    ],
)
def test_bad_arguments(arguments, error, told):
    with pytest.raises(error, match=told):
        REPLChatEnv(**arguments)


@pytest.mark.parametrize(
    ("given", "shape"),
    [(None, (1,)), (3, (3,)), (np.int64(3), (3,)), ([2], (2,)), (torch.Size([2]), (2,)),
     ((2, 2), (2, 2))],
)  # fmt: skip
def test_batch_sizes(make, given, shape):
    env = make(batch_size=given)
    assert env.batch_size == torch.Size(shape)
    count = env.batch_size.numel()
    query = torch.arange(count).reshape(shape)
    names = lazy_stack([TensorDict({"query": f"q{i}"}) for i in range(count)]).reshape(shape)
    start = env.reset(names)
    assert start.batch_size == query.shape
    assert start["done"].shape == (*shape, 1)
    assert start.reshape(-1)[count - 1]["history"].prompt[0].content == f"q{count - 1}"


def test_reset_needs_a_tensordict(make):
    with pytest.raises(RuntimeError, match="needs a tensordict with 'query'"):
        make().reset()


def test_step_before_a_reset(make):
    env = make()
    start = env.reset(batch("q"))
    with pytest.raises(RuntimeError, match="reset the environment first"):
        make().step(start)
    with pytest.raises((KeyError, ValueError), match="policy must write"):
        env.step(start)


def test_partial_reset(make, mode, tokenizer):
    """One row is reset, and the other keeps its session and its prompt."""
    env = make(mode, batch_size=2)
    policy = Scripted(
        tokenizer, mode, [[fenced("x = 1")], [fenced("x = 41"), fenced("FINAL(x + 1)")]]
    )
    out = env.step_mdp(env.step(policy(env.reset(batch(*ASKED)))))
    before = prompts(out, mode, tokenizer)
    again = batch("new", "ignored", expected_answer=["1", "1"])
    again["_reset"] = torch.tensor([[True], [False]])
    fresh = env.reset(again)
    assert prompts(fresh, mode, tokenizer)[0] == (
        "<|im_start|>user\nnew<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompts(fresh, mode, tokenizer)[1] == before[1]
    out = env.step(policy(fresh))
    assert out["next", "terminated"].flatten().tolist() == [False, True]
    assert env.episodes.last[1].observation.metadata["final_answer"] == "42"


def test_rows_that_are_done_while_others_go_on(make, mode, tokenizer):
    env = make(mode, batch_size=3)
    say = [[fenced("FINAL(1)")], ["?", fenced("FINAL(1)")], ["?", "?", "?", fenced("FINAL(2)")]]
    policy = Scripted(tokenizer, mode, say)
    start = env.reset(batch(*ASKED, "third", expected_answer=["1"] * 3))
    found = env.rollout(
        9,
        policy,
        auto_reset=False,
        tensordict=start,
        break_when_any_done=False,
        break_when_all_done=True,
    )
    assert found.shape == (3, 4)
    assert found["next", "done"][..., 0].sum(1).tolist() == [4, 3, 1]
    paid = found["next", "reward"][..., 0]
    assert paid[0, 0] == 1.0
    assert paid[2, -1] == 0.0
    last = found[:, -1]["next"]
    assert prompts(last, mode, tokenizer)[0].count("```python") == 1
    assert [row.observation.iteration for row in env.episodes.last] == [1, 2, 4]


def test_a_step_of_a_row_that_is_done_pays_nothing(make, tokenizer):
    env = make(batch_size=1)
    policy = Scripted(tokenizer, "history", [[fenced("FINAL(1)")]])
    out = env.step(policy(env.reset(batch("q", expected_answer=["1"]))))
    again = env.step(policy(env.step_mdp(out)))
    assert (out["next", "reward"].item(), again["next", "reward"].item()) == (1.0, 0.0)
    assert again["next", "done"].item()


def test_a_session_that_dies_is_masked(make, mode, tokenizer):
    env = make(mode, batch_size=2)
    policy = Scripted(tokenizer, mode, [[fenced("x = 1")], [fenced("x = 2"), fenced("FINAL(x)")]])
    out = env.step_mdp(env.step(policy(env.reset(batch("q", "r", expected_answer=["2"] * 2)))))
    links = session_links(env.episodes.environments.environments[0].session)
    worker = os.pidfd_open(links.worker_pid)
    os.kill(links.pid, 9)
    assert select.select([worker], [], [], 60)[0]
    os.close(worker)
    out = env.step(policy(out))
    assert out["next", "masked"].flatten().tolist() == [True, False]
    assert out["next", "truncated"].flatten().tolist() == [True, False]
    assert out["next", "reward"].flatten().tolist() == [0.0, 1.0]


def test_torchrl_s_step_by_hand(make, mode, tokenizer):
    """The step of TorchRL's own test of ChatEnv: a response, with or without `full`."""
    env = make(mode, system_prompt="I'm system.")
    start = env.reset(batch("I'm the user."))
    said = "This is the action from the assistant!"
    match mode:
        case "history":
            response = History(role="assistant", content=said).view(1, 1)
            start["history"].response = response
            start["history"].full = start["history"].prompt.extend(response, dim=-1)
        case "text":
            start["text"].response = [said + "<|im_end|>"]
        case _:
            start["tokens"][0].response = tokenizer.encode(said + "<|im_end|>")
    after = env.step(start)["next"]
    [prompt] = prompts(after, mode, tokenizer)
    assert prompt.startswith(
        "<|im_start|>system\nI'm system.<|im_end|>\n<|im_start|>user\nI'm the user.<|im_end|>\n"
        f"<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>user\n"
    )


def test_a_step_copies_only_its_own_messages(make, tokenizer, monkeypatch):
    """The prompts of the earlier conversation are kept, however long it is."""
    made = []

    def counted(messages):
        made.append(len(messages))
        return entries_of(messages)

    env = make(max_iterations=9)
    policy = Scripted(tokenizer, "history", [[fenced("1")]])
    start = env.reset(batch("q"))
    monkeypatch.setattr(prompts_module, "entries_of", counted)
    out = env.rollout(4, policy, auto_reset=False, tensordict=start)
    assert made == [3, *[1] * 8]  # the template is looked at once, with three
    assert len(out[0, -1]["next", "history"].prompt) == 9


def test_history_of_full_alone(make):
    env = make(system_prompt="s")
    env.reset(batch("q"))
    chat = [("system", "s"), ("user", "q"), ("assistant", fenced("print(6 * 7)"))]
    full = History.from_chats([[{"role": role, "content": text} for role, text in chat]])
    action = TensorDict({"history": ChatHistory(full=full, batch_size=(1,))}, batch_size=(1,))
    after = env.step(action)["next"]
    assert list(after[0]["history"].prompt.role) == ["system", "user", "assistant", "user"]
    assert "42" in after[0]["history"].prompt[-1].content


def test_a_primer_that_drops_the_mask_of_a_reset(make, mode, tokenizer):
    """A reset that ends the sessions of running rows is an error, and pays no reward for a part of
    an episode.
    """
    rows = [{"query": [f"q{number}"], "context": [str(number)]} for number in range(6)]
    primer = DataLoadingPrimer(dataloader=rows, batch_size=(2,))
    env = TransformedEnv(make(mode, batch_size=2), primer)
    say = [[fenced("FINAL(1)")], [fenced("x = 1"), fenced("FINAL(x)")]]
    with pytest.raises(RuntimeError, match=r"row 1 goes on with an episode .* use TaskPrimer"):
        env.rollout(4, Scripted(tokenizer, mode, say), break_when_any_done=False)
    out = env.step(Scripted(tokenizer, mode, say)(env.reset()))
    assert out["next", "done"].flatten().tolist() == [True, False]


def test_rows_whose_reset_failed_have_no_episode(make, mode, tokenizer):
    env = make(mode, batch_size=2)
    policy = Scripted(tokenizer, mode, [["x"], ["y"]])
    action = policy(env.reset(batch("a", "b")))
    with pytest.raises(TypeError, match="context"):
        env.reset(batch("c", "d", context=["e", object()]))
    with pytest.raises(RuntimeError, match="row 0 has no episode"):
        env.step(action)


class _Broken(Rubric):
    def forward(self, action, observation):
        raise ZeroDivisionError("a bug")


def test_rows_whose_step_failed_have_no_episode(make, mode, tokenizer):
    env = make(mode, batch_size=2, rubric=_Broken())
    action = Scripted(tokenizer, mode, [["x"], ["y"]])(env.reset(batch("a", "b")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        env.step(action)
    with pytest.raises(RuntimeError, match="row 0 has no episode"):
        env.step(action)
