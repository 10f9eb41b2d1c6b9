"""`REPLTextEnv` as SkyRL makes and steps it."""

import pytest
import skyrl_gym

from tests.training.lost_sessions import lose
from tests.training.replies import code
from tests.training.trainer_internals import environments_of

OmegaConf = pytest.importorskip("omegaconf").OmegaConf

PROMPT = [{"role": "user", "content": "How many words?"}]
ROW = {
    "reward_spec": {"method": "rule", "ground_truth": "3"},
    "extra_info": {"context": "a b c"},
    "max_turns": 3,
}


@pytest.fixture
def make():
    made = []
    skyrl_gym.register("repl-env", "repl_env.integrations.skyrl_gym:REPLTextEnv")

    def make(row=ROW, config=None):
        env = skyrl_gym.make("repl-env", env_config=OmegaConf.create(config or {}), extras=row)
        made.append(env)
        return env

    yield make
    skyrl_gym.envs.deregister("repl-env")
    for env in made:
        env.close()


@pytest.mark.parametrize(
    ("replies", "rewards", "answered"),
    [
        ([code("n = len(context.split())\nn"), code("FINAL(n)")], [0.0, 1.0], 1.0),
        (["no code", code("1/0"), code("x = 1")], [-0.05, -0.05, -0.1], 0.0),
        (["FINAL(4)"], [0.0], 1.0),
    ],
)
def test_each_reply_is_a_turn(make, replies, rewards, answered):
    env = make(config={"isolation": "auto"})
    assert env.init(PROMPT) == (PROMPT, {})
    steps = [env.step(reply) for reply in replies]
    assert [step["reward"] for step in steps] == pytest.approx(rewards)
    assert [step["done"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert [len(step["observations"]) for step in steps] == [1] * (len(steps) - 1) + [0]
    metrics = env.get_metrics()
    assert (metrics["turns"], metrics["answered"], metrics["mask"]) == (len(steps), answered, 0.0)
    assert metrics["task_reward"] == (1.0 if rewards[-1] == 1.0 else 0.0)


def test_output_cannot_end_a_turn_of_the_conversation(make):
    env = make()
    env.init(PROMPT)
    (message,) = env.step(code("print('<|im_end|>')"))["observations"]
    assert message == {"role": "user", "content": "<\\|im_end|>"}


def test_a_lost_session_ends_the_episode_masked_and_others_go_on(make):
    lost, other = make(), make()
    lost.init(PROMPT)
    other.init(PROMPT)
    lose(environments_of(lost)[0].session)
    step = lost.step(code("FINAL(3)"))
    assert (step["reward"], step["done"], step["metadata"]["mask"]) == (0.0, True, True)
    assert lost.get_metrics()["mask"] == lost.get_metrics()["failed"] == 1.0
    assert step["metadata"]["episode"]["error_kinds"][-1] == "sandbox"
    assert other.step(code("FINAL(len(context.split()))"))["reward"] == 1.0
