"""`DatasetREPLChatEnv`: rows of data sets, their order, their groups and what they are paid."""

from __future__ import annotations

import inspect
import json
import pickle

import numpy as np
import pandas
import pytest
import torch
from tensordict import TensorDict, lazy_stack, set_list_to_stack
from torch.utils.data import DataLoader
from torchrl.collectors.llm import LLMCollector
from torchrl.data import LazyStackStorage, ReplayBuffer
from torchrl.envs import StepCounter, check_env_specs
from torchrl.envs.llm import ChatEnv, DatasetChatEnv
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import MCAdvantage

from repl_env.integrations.torchrl import DatasetREPLChatEnv, REPLChatEnv
from tests.torchrl.scripted import Scripted, fenced

pytestmark = [
    pytest.mark.filterwarnings("ignore:size_average and reduce args"),
    pytest.mark.filterwarnings("ignore:(Prompt|Full) history should have one more batch dimension"),
]
MODES = ("history", "text", "tokens")
TASKS = [
    {"text": f"What is it? {'x' * n}", "context": str(n), "expected_answer": n} for n in range(5)
]


@pytest.fixture
def make(tokenizer):
    made = []

    def make(dataset=TASKS, **arguments):
        arguments = {"seed": 0, "tokenizer": tokenizer, **arguments}
        made.append(DatasetREPLChatEnv(dataset=dataset, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close(raise_if_closed=False)


def numbers(env, resets=1):
    """The tasks of a number of resets, by their context."""
    return [[int(each) for each in env.reset()["context"]] for _ in range(resets)]


def jsonl(folder):
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in TASKS) + "\n")
    return {"dataset": str(path)}


def table(folder):
    from datasets import Dataset

    return {"dataset": Dataset.from_list(TASKS)}


def on_disk(folder):
    from datasets import Dataset, DatasetDict

    split = Dataset.from_list(TASKS)
    DatasetDict(test=split.select([0]), train=split).save_to_disk(folder / "saved")
    return {"dataset": folder / "saved"}


def directory(folder):
    (folder / "data").mkdir()
    (folder / "data" / "train.json").write_text("".join(json.dumps(t) + "\n" for t in TASKS))
    return {"dataset": str(folder / "data")}


def one_file(folder):
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    return {"dataset": folder / "tasks.json"}


def loader_of_arrays(folder):
    def collate(batch):
        return {name: np.array([row[name] for row in batch]) for name in batch[0]}

    return {"dataset": DataLoader(TASKS, batch_size=2, collate_fn=collate)}


def loader_of_rows(folder):
    return {"dataset": DataLoader(TASKS, batch_size=2, collate_fn=list)}


def loader_of_columns(folder):
    return {"dataset": DataLoader(TASKS, batch_size=2)}


@pytest.mark.parametrize(
    "source",
    [lambda _: {"dataset": TASKS}, jsonl, table, on_disk, directory, one_file, loader_of_rows,
     loader_of_columns, loader_of_arrays],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of `datasets`
def test_sources(make, source, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    env = make(**source(tmp_path), num_envs=2, shuffle=False)
    assert numbers(env, 2) == [[0, 1], [2, 3]]
    start = env.reset()
    assert list(start["expected_answer"]) == [4, 0]
    assert start["history"][0].prompt[0].content == "What is it? xxxx"
    out = env.step(Scripted(tokenizer, "history", [[fenced("FINAL(context)")]] * 2)(start))
    assert out["next", "reward"].flatten().tolist() == [1.0, 1.0]


def test_texts_and_splits(make):
    env = make(["one", "two"], num_envs=2, shuffle=False, system_prompt="s")
    assert list(env.reset()["query"]) == ["one", "two"]
    from datasets import Dataset, DatasetDict

    parts = DatasetDict(test=Dataset.from_list(TASKS[3:]), train=Dataset.from_list(TASKS))
    assert numbers(make(parts, split="test", shuffle=False)) == [[3]]
    assert numbers(make(parts, shuffle=False)) == [[0]]


def test_lines_of_a_file(make, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes('\ufeff{"query": "a\u2028b"}\r\n\r\n"c\x85d"'.encode())
    assert list(make(path, num_envs=2, shuffle=False).reset()["query"]) == ["a\u2028b", "c\x85d"]


def test_the_seed_is_the_order(make):
    orders = [numbers(make(seed=seed), 12) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    for first in (0, 5):  # each pass has each row once
        assert sorted(orders[0][first : first + 5]) == [[0], [1], [2], [3], [4]]
    assert numbers(make(seed=1, batch_size_dl=3, num_envs=2), 6) == [
        [*a, *b] for a, b in zip(orders[0][::2], orders[0][1::2], strict=True)
    ]


def test_reset_dataloader(make):
    env = make(seed=3)
    first = numbers(env, 3)
    assert env.reset_dataloader() is env
    assert numbers(env, 3) == first


def test_a_data_set_that_ends_in_mid_batch(make):
    env = make(num_envs=3, shuffle=False)
    assert numbers(env, 4) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_envs": 2, "repeats": 2}, [[0, 0], [1, 1], [2, 2]]),
        ({"num_envs": 3, "repeats": 2}, [[0, 0, 1], [1, 2, 2], [3, 3, 4]]),
        ({"num_envs": 1, "repeats": 3, "group_repeats": True}, [[0, 0, 0], [1, 1, 1]]),
        ({"num_envs": 2, "repeats": 2, "group_repeats": True}, [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ({"num_envs": 2, "group_repeats": True}, [[0, 1], [2, 3]]),
    ],
)
def test_repeats(make, arguments, expected):
    env = make(shuffle=False, **arguments)
    assert env.batch_size == torch.Size([len(expected[0])])
    assert numbers(env, len(expected)) == expected
    names = [row["task_id"] for row in env.reset_dataloader().reset()]
    assert len(set(names)) == len(set(expected[0]))
    assert len(set(zip(names, expected[0], strict=True))) == len(set(names))


def test_a_group_shares_one_context(make):
    tasks = [{"query": "How long?", "context": "long " * 100_000, "expected_answer": 500_000}]
    env = make(tasks, repeats=4, group_repeats=True)
    start = env.reset()
    assert {id(row["context"]) for row in start} == {id(tasks[0]["context"])}
    assert len({row["task_id"] for row in start}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_end_apart_are_paid_for_their_own_task(make, mode, tokenizer):
    """Rows of three turns, two and one, reset one by one: none is paid for another's answer."""
    env = make(num_envs=3, input_mode=mode)
    say = [
        [fenced("FINAL(context)")],
        [fenced("x = 1"), fenced("FINAL(context)")] * 3,
        [fenced("x = 1"), "?", fenced("FINAL(context)")] * 2,
    ]
    found = env.rollout(6, Scripted(tokenizer, mode, say), break_when_any_done=False)
    done, paid = found["next", "done"][..., 0], found["next", "task_reward"][..., 0]
    assert done.sum(1).tolist() == [6, 3, 2]
    assert torch.equal(paid, done.float())
    assert len({row["task_id"] for row in found[:, 0]}) == 3
    for row in found.reshape(-1):
        assert row["query"].count("x") == int(row["context"])


@pytest.mark.parametrize("stop", [{}, {"break_when_all_done": True}])
@pytest.mark.parametrize("mode", MODES)
def test_transformers_wrapper_takes_rows_of_different_length(make, mode, stop, tokenizer, model):
    """Episodes of one, two and three turns side by side, reset one by one or left to wait."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    queries = [turns[:1], turns[:1], [*turns, turns[0]]]
    tasks = [{"query": query, "max_iterations": n} for n, query in enumerate(queries, 1)]
    env = make(tasks, num_envs=3, shuffle=False, input_mode=mode)
    policy = TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode=mode,
        pad_output=False,
        generate_kwargs={"max_new_tokens": 6, "do_sample": False},  # drawn, it may write an answer
    )
    found = env.rollout(3, policy, break_when_any_done=False, **stop)
    ends = [[1, 1, 0], [0, 1, 0], [0, 0, 1]] if not stop else [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert found["next", "done"][..., 0].tolist() == [list(map(bool, row)) for row in ends]


def test_columns_are_there_at_each_step(make, tokenizer):
    tasks = [{**task, "difficulty": "hard", "weight": torch.tensor(2.0)} for task in TASKS]
    env = make(tasks, num_envs=2)
    policy = Scripted(tokenizer, "history", [["?"], ["?", fenced("FINAL(0)")]])
    found = env.rollout(3, policy)
    assert found["weight"].shape == (2, 2)
    assert [row["difficulty"] for row in found.reshape(-1)] == ["hard"] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"dataset": []}, ValueError, "no rows"),
        ({"dataset": 3}, TypeError, "dataset must be"),
        ({"dataset": [3]}, TypeError, "a row must be a dict or text"),
        ({"split": "train"}, ValueError, "split='train': the data set has no such parts"),
        ({"name": "main"}, ValueError, "name='main'"),
        ({"num_envs": 0}, ValueError, "num_envs"),
        ({"batch_size_dl": 0}, ValueError, "batch_size_dl"),
        ({"seed": "1"}, TypeError, "seed must be an int, not str"),
        ({"dataset": {"test": TASKS}}, ValueError, "split must be one of .*'test'.*, not None"),
        ({"dataset": pandas.DataFrame({"query": ["a"]})}, TypeError, "dataset must be"),
        ({"repeats": 0}, ValueError, "repeats"),
        ({"dataloader_actor_name": "a"}, ValueError, "ray_backend=True"),
        ({"input_mode": "audio"}, ValueError, "input_mode"),
        ({"unknown": 1}, TypeError, "unknown"),
        ({"dataset": DataLoader(TASKS, batch_size=0 or None, collate_fn=lambda _: {
            "a": [1], "b": [1, 2]})}, ValueError, "differ in length"),
    ],
)  # fmt: skip
def test_bad_arguments(make, arguments, error, told):
    with pytest.raises(error, match=told):
        make(**arguments)


@pytest.mark.parametrize(
    ("rows", "error", "told"),
    [
        ([{"context": "a"}], KeyError, "row 0 has no 'query'.*the keys are"),
        ([{"query": 3}], TypeError, "query of row 0 must be text"),
        ([{"query": "a", "context": {1, 2}}], TypeError, "context"),
        ([{"query": "a"}, {"question": "b"}], KeyError, "row 0 has no 'query'"),
        ([{"query": "a", "context": np.arange(2.0)}, {"query": 3}], TypeError, "query of row"),
        ([{"query": "a " * 500}], ValueError, "tokens longer than the window"),
    ],
)
def test_bad_rows(make, rows, error, told):
    env = make(rows, shuffle=False, max_prompt_tokens=200)
    with pytest.raises(error, match=told):
        [env.reset() for _ in range(2)]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"question": "b"}, "has no 'query', as the first one has"),
        ({"query": "b", "source": "c"}, "has 'source', which the first one has not"),
    ],
)
def test_columns_that_a_loader_changes(second, told):
    env = DatasetREPLChatEnv.from_dataloader([[{"query": "a"}], [second]])
    env.reset()
    with pytest.raises(KeyError, match=told):
        env.reset()
    env.close()


def test_columns_that_some_rows_have(make):
    tasks = ["a", {"text": "b", "context": "c", "source": "d"}, {"query": "e", "seed": 1}]
    for env in (
        make(tasks, num_envs=3, shuffle=False),
        DatasetREPLChatEnv.from_dataloader(
            [["a", {"text": "b", "context": "c"}, "e"]], batch_size=3
        ),
    ):
        start = env.reset()
        assert list(start["query"]) == ["a", "b", "e"]
        assert list(start["context"]) == [None, "c", None]
        env.close()
    assert list(make(tasks, num_envs=3, shuffle=False).reset()["source"]) == [None, "d", None]


def test_bad_files(make, tmp_path):
    path = tmp_path / "tasks.jsonl"
    for text, told in (
        (b'{"query": "a"}\n{', "line 2: no JSON"),
        (b"[1]\n", "line 1: must be"),
        (b'"a"\n"\xe9"', "line 2: no JSON: 'utf-8'"),
        (b"[" * 10**6, "line 1: no JSON"),
    ):
        path.write_bytes(text)
        with pytest.raises(ValueError, match=told):
            make(path)
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "none.jsonl")


def test_a_loader_that_runs_out(make):
    env = DatasetREPLChatEnv.from_dataloader(iter([[{"query": "a"}]]))
    env.reset()
    with pytest.raises(ValueError, match="a pass over its loader gave none"):
        env.reset()
    env.close()


def test_list_to_stack_must_be_on(make):
    with set_list_to_stack(False), pytest.raises(RuntimeError, match="list_to_stack"):
        make()


class Solver(DatasetREPLChatEnv):
    SYSTEM_PROMPT = "Solve it."


def test_the_system_prompt_of_a_class(tokenizer):
    for arguments, expected in (({}, "Solve it."), ({"system_prompt": "Other."}, "Other.")):
        env = Solver.from_dataloader([TASKS], **arguments)
        assert env.reset()[0]["history"].prompt[0].content == expected
        assert isinstance(env, Solver)
        env.close()


@pytest.mark.parametrize("size", [None, 2, (2,), [2]])
def test_from_dataloader(size, tokenizer):
    loader = DataLoader(TASKS, batch_size=2, collate_fn=list)
    env = REPLChatEnv.from_dataloader(loader, batch_size=size, repeats=2, tokenizer=tokenizer)
    assert isinstance(env, DatasetREPLChatEnv)
    assert numbers(env, 2) == ([[0], [0]] if size is None else [[0, 0], [1, 1]])
    env.close()


def test_collate_fn_and_data_key(make):
    def collate(batch):
        return {
            "question": [[{"role": "user", "content": row["text"]}] for row in batch],
            "context": [row["context"] for row in batch],
        }

    env = make(collate_fn=collate, data_key="question", shuffle=False, batch_size_dl=3)
    assert numbers(env, 4) == [[0], [1], [2], [3]]
    assert env.reset()[0]["history"].prompt[0].content == "What is it? xxxx"
    td = TensorDict({"query": ["a", "b"], "context": ["c", "d"]}, batch_size=(2,))
    assert make(data_key="question", shuffle=False).reset()["question"][0] == "What is it? "
    other = make(collate_fn=lambda batch: td, num_envs=2)
    assert list(other.reset()["query"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("mode", "size"), [("history", 1), ("history", 2), ("text", 1), ("text", 2), ("tokens", 1)]
)
def test_specs(make, mode, size):
    """With token ids, `check_env_specs` stacks the prompts of a batch, which differ in length."""
    env = make(num_envs=size, input_mode=mode)
    env.check_env_specs(break_when_any_done="both")
    check_env_specs(env)


def test_pickles_begin_with_the_first_row(make):
    env = make(seed=4, num_envs=2)
    first = numbers(env, 2)
    other = pickle.loads(pickle.dumps(env))
    assert numbers(other, 2) == first
    other.close()


def collected(env, policy, **arguments):
    collector = LLMCollector(env, policy=policy, yield_completed_trajectories=False, **arguments)
    try:
        return list(collector)
    finally:
        collector.shutdown()


@pytest.mark.parametrize("mode", MODES)
def test_collector(make, mode, tokenizer, model):
    env = make(num_envs=3, input_mode=mode, max_iterations=2, system_prompt="Write code.")
    policy = TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode=mode,
        pad_output=False,
        generate_kwargs={"max_new_tokens": 8, "do_sample": False},
    )
    batches = collected(env, policy, dialog_turns_per_batch=6, total_dialog_turns=18)
    assert len(batches) == 3
    for each in batches:
        assert each["next", "reward"].shape == (3, 2, 1)
        assert each["next", "done"][..., 0].tolist() == [[False, True]] * 3


def test_advantages_are_grouped_by_task(make, tokenizer):
    """Two tasks with one question: grouped by query they would mix."""
    tasks = [{"query": "What?", "context": each, "expected_answer": each} for each in ("a", "b")]
    env = make(tasks, shuffle=False, num_envs=2, repeats=2, group_repeats=True)
    right, wrong = [fenced("FINAL(context)")], [fenced("FINAL(0)")]
    policy = Scripted(tokenizer, "history", [right, wrong, right, right])
    buffer = ReplayBuffer(
        storage=LazyStackStorage(8), transform=MCAdvantage(grpo_size=2, prompt_key="task_id")
    )
    found = env.rollout(1, policy)
    buffer.extend(found.reshape(-1))
    assert len(buffer) == 4
    gained = {}
    for row in (buffer[number] for number in range(4)):
        gained.setdefault(row["context"], []).append(row["advantage"].item())
    assert sorted(gained) == ["a", "b"]
    assert gained["b"] == [0.0, 0.0]
    assert sorted(value > 0 for value in gained["a"]) == [False, True]


@pytest.mark.parametrize("name", ["__init__", "from_dataloader"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(DatasetREPLChatEnv, DatasetChatEnv), (REPLChatEnv, ChatEnv)]
)
def test_signatures(ours, theirs, name):
    mine, upstream = (inspect.signature(getattr(each, name)).parameters for each in (ours, theirs))
    assert list(mine)[: len(upstream)] == list(upstream)
    for parameter in upstream:
        assert mine[parameter].default == upstream[parameter].default
        assert mine[parameter].kind == upstream[parameter].kind


def test_other_transforms_go_on_top(make, tokenizer):
    env = make(num_envs=2).append_transform(StepCounter(max_steps=2))
    found = env.rollout(4, Scripted(tokenizer, "history", [["?"]] * 2), break_when_any_done=False)
    assert found["next", "truncated"][..., 0].tolist() == [[False, True] * 2] * 2
    assert lazy_stack(list(found.unbind(0))).shape == (2, 4)
