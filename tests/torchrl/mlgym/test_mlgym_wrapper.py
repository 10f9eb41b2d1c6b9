"""The pipeline over an environment in MLGym's shape, which these tests bring."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import check_env_specs

from repl_env.integrations.torchrl.mlgym import (
    ConditionalSkip,
    IsolateCodeBlock,
    MessageToHistory,
    MLGymRewardAssignment,
    MLGymWrapper,
    ReadState,
    ResetModule,
    StateToMessage,
    TaskGym,
    TemplateTransform,
    get_args,
)
from repl_env.integrations.torchrl.mlgym_config import read_command_files


@dataclass
class Arguments:
    id: str = "stub"
    name: str = "A stub"
    description: str = "Do {this}."
    baseline_scores: list[dict[str, float]] = field(default_factory=lambda: [{"Score": -2.0}])


class Stub:
    """MLGym's environment as its own agent sees it; actions are shell commands."""

    def __init__(self, *, pair, five, max_steps=4):
        self.action_space = self.observation_space = spaces.Text(100)
        self.task = SimpleNamespace(args=Arguments())
        self.task_workspace = "/home/agent/work space"
        self.max_steps, self.current_step, self.returncode = max_steps, 0, 0
        self.pair, self.five = pair, five
        self.sent, self.commands, self.resets, self.closed = [], None, 0, False
        self.config = SimpleNamespace(
            system_template="{name} {command_docs}",
            task_template="{description} in {working_dir}",
            strategy_template=None,
            next_step_template="{observation} ({remaining_steps} left)",
            next_step_no_output_template="nothing ({remaining_steps} left)",
            state_command=SimpleNamespace(name="state", code="state() { echo; }"),
            env_variables={"WINDOW": "a b"},
            command_files=[],
            tools_handler=SimpleNamespace(command_docs="docs", env_variables={}),
        )

    @property
    def unwrapped(self):
        return self

    def reset(self, **arguments):
        self.resets, self.current_step = self.resets + 1, 0
        return ("", {}) if self.pair else ""

    def step(self, action):
        self.current_step += 1
        info = {"score": [{"Score": float(action.split()[1])}]} if "validate" in action else {}
        done = "submit" in action
        observation = None if action == "true" else f"ran {action}"
        middle = (done, False) if self.five else (done,)
        return observation, 0.0, *middle, info

    def reset_container(self):
        self.sent.append("<container>")

    def communicate(self, command):
        self.sent.append(command)
        return '{"working_dir": "/home"}' if command == "state" else ""

    def add_commands(self, commands):
        self.commands = commands

    def close(self):
        self.closed = True


def pipeline(env, **template):
    transforms = [
        ConditionalSkip(lambda td: td["retry"]),
        IsolateCodeBlock(reward_wrong_format=-0.5),
        ResetModule(),
        ReadState(),
        StateToMessage(),
        MessageToHistory(),
        TemplateTransform(**template),
        MLGymRewardAssignment(),
    ]
    wrapped = TransformedEnv(env, auto_unwrap=False)
    for each in transforms:
        wrapped.append_transform(each)
    return wrapped


def shell(command):
    return f"So.\n```bash\n{command}\n```"


def steps(env, *replies):
    current, taken = env.reset(), []
    for reply in replies:
        current["text_response"] = reply
        taken.append(env.step(current)["next"])
        current = env.step_mdp(current)
    return taken


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("five", [False, True])
def test_both_shapes_of_resets_and_steps(pair, five):
    stub = Stub(pair=pair, five=five)
    env = pipeline(MLGymWrapper(stub, auto_reset=False, device="cpu"))

    begin = env.reset()
    taken = steps(env, shell("ls"), "no command", shell("true"), shell("submit"))

    assert list(begin["history"].content) == ["A stub docs", "Do {this}. in /home"]
    assert [step["message"] for step in taken] == [
        "ran ls (3 left)",
        taken[1]["observation"] + " (2 left)",
        "nothing (1 left)",
        "ran submit (0 left)",
    ]
    assert "FormatError" in taken[1]["message"] and "```bash" in taken[1]["message"]
    assert [step["reward"].item() for step in taken] == [0.0, -0.5, 0.0, 0.0]
    assert taken[-1]["terminated"].item() and not taken[0]["done"].item()
    assert stub.sent[:2] == ["<container>", "cd /home/agent"]


def test_the_session_is_prepared_as_mlgym_does_it(tmp_path):
    for name, text in {
        "run.py": "#!/usr/bin/env python\n",
        "_lib.py": "x = 1",
        "all.sh": "",
    }.items():
        (tmp_path / name).write_text(text)
    stub = Stub(pair=True, five=True)
    stub.config.command_files = sorted(tmp_path.iterdir())

    pipeline(MLGymWrapper(stub)).reset()

    assert stub.sent[1] == "cd /home/agent"
    assert stub.sent[2:4] == ["state() { echo; }", "export WINDOW='a b'"]
    kinds = {command["name"]: command["type"] for command in stub.commands}
    assert kinds == {"_lib.py": "utility", "all.sh": "source_file", "run": "script"}
    (tmp_path / "plain.txt").write_text("x")
    with pytest.raises(ValueError, match=r"plain\.txt"):
        read_command_files([Path(tmp_path / "plain.txt")])


@pytest.mark.parametrize(
    ("direction", "scores", "rewards"),
    [
        ("maximize", (-1.0, -1.5, -1.0, 0.0), [0.5, 0.0, 0.0, 0.5]),
        ("minimize", (-3.0, -2.0, -1000.0, -4.0), [0.5, 0.0, 1.5, 0.0]),
        ("maximize", (-1000.0, "nan", "inf", -1.0), [0.0, 0.0, 0.0, 0.5]),
    ],
)
def test_rewards_follow_the_scores_that_mlgym_reports(direction, scores, rewards):
    env = pipeline(MLGymWrapper(Stub(pair=True, five=False), direction=direction))

    taken = steps(env, *(shell(f"validate {score}") for score in scores))

    assert [round(step["reward"].item(), 4) for step in taken] == rewards
    facts = taken[0]["evaluation"]
    assert (facts["metric"], facts["baseline"], facts["direction"]) == ("Score", -2.0, direction)


def test_wrong_formats_use_up_the_steps_of_mlgym():
    taken = steps(pipeline(MLGymWrapper(Stub(pair=True, five=True, max_steps=2))), "a", "b")
    assert [step["truncated"].item() for step in taken] == [False, True]


def test_set_env_changes_nothing_of_the_environment():
    stub = Stub(pair=False, five=False)
    before = dict(stub.__dict__)
    wrapper = MLGymWrapper(stub)
    for _ in range(3):
        wrapper.set_env()
        wrapper.set_env(stub)
    assert stub.__dict__ == before
    env = pipeline(wrapper)
    assert steps(env, shell("ls"))[0]["observation"] == "ran ls"
    other = Stub(pair=True, five=True)
    wrapper.set_env(other)
    assert steps(env, shell("pwd"))[0]["observation"] == "ran pwd" and other.resets == 1


def test_a_reset_may_name_the_task():
    first, second = Stub(pair=True, five=True), Stub(pair=True, five=True)
    second.task.args.id = "other"
    known = {"stub": first, "other": second}
    env = pipeline(MLGymWrapper(first, make_env=known.__getitem__))

    assert env.reset(TensorDict({"task": "other"}))["task"] == "other"
    assert (first.closed, second.resets, second.closed) == (True, 1, False)
    assert env.reset(TensorDict({"task": "other"}))["task"] == "other" and not second.closed
    with pytest.raises(ValueError, match=r"no task 'x'.*'stub' alone"):
        pipeline(MLGymWrapper(first)).reset(TensorDict({"task": "x"}))


def test_specs_of_mlgyms_environment():
    check_env_specs(pipeline(MLGymWrapper(Stub(pair=True, five=True, max_steps=100))))


def test_replies_may_be_tokens(tokenizer):
    env = pipeline(MLGymWrapper(Stub(pair=True, five=True)), tokenizer=tokenizer, tokenize=True)
    begin = env.reset()
    reply = tokenizer(f"{shell('ls')}<|im_end|>", return_tensors="pt")["input_ids"][0]
    begin["text_response"] = reply
    step = env.step(begin)["next"]
    assert begin["text"].dtype == torch.int64
    assert step["message"] == "ran ls (3 left)"
    assert step["history"][-2].content == shell("ls")
    silent = env.reset()
    with pytest.raises(KeyError, match="wrote no reply"):
        env.step(silent)


def test_a_task_in_gymnasiums_shape():
    with TaskGym(*get_args("blotto", max_steps=2)) as env:
        assert env.action_space.contains("any \U0001f600\ud800 text" * 1000)
        assert env.observation_space.contains(env.observation_space.sample())
        observation, info = env.reset(seed=1, options={"group_id": "g"})
        assert "Colonel Blotto" in observation and info["evaluation"]["group_id"] == "g"
        observation, reward, terminated, truncated, info = env.step("print(1 + 1)")
        assert (observation, reward, terminated, truncated) == ("2", 0.0, False, False)
        *_, terminated, truncated, info = env.step("x")
        assert (terminated, truncated, info["evaluation"]["gain"]) == (False, True, 0.0)
        assert env.communicate("print(1)") == "" and env.returncode == 1
