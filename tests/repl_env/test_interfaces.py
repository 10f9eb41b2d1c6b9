"""Other environments can be written on the base; the second one in examples/ is such a one."""

import asyncio
import importlib.util
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from repl_env.errors import EpisodeDone, NotReset, REPLError
from repl_env.interfaces import Environment, ModelTokenizer, Transform
from repl_env.models import Action, Observation, State
from repl_env.rubrics import Rubric
from tests.waiting import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "number_hunt.py"


@pytest.fixture(scope="module")
def example():
    spec: Any = importlib.util.spec_from_file_location("number_hunt", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Echo(Environment[Action, Observation, State]):
    """Returns its arguments."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(metadata={"thread": threading.get_ident(), **kwargs})

    def step(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"thread": threading.get_ident(), "timeout": timeout_s})

    @property
    def state(self):
        return State()

    # The methods that a subclass calls in its own `reset` and `step`.
    def score(self, action, observation):
        return self._apply_rubric(action, observation)

    async def score_async(self, action, observation):
        return await self._apply_rubric_async(action, observation)

    def transformed(self, observation):
        return self._apply_transform(observation)

    def begin_rubric(self):
        self._reset_rubric()

    async def begin_rubric_async(self):
        await self._reset_rubric_async()


class Constant(Rubric):
    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, action, observation):
        return self.score


class Later(Constant):
    async def forward(self, action, observation):
        return self.score


def test_an_environment_must_define_reset_step_and_state():
    incomplete: Any = Environment
    with pytest.raises(TypeError, match="abstract"):
        incomplete()


async def test_asynchronous_twins_run_the_plain_methods_off_the_event_loop():
    observation = await Echo().reset_async(question="q")
    assert observation.metadata["question"] == "q"
    assert observation.metadata["thread"] != threading.get_ident()
    stepped = await Echo().step_async(Action(), timeout_s=3)
    assert stepped.metadata["timeout"] == 3


async def test_stop_iteration_of_an_environment_is_an_error_and_does_not_hang():
    class Ended(Echo):
        def step(self, action, timeout_s=None, **kwargs):
            return next(iter([]))

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await Ended().step_async(Action())


async def test_an_environment_bound_to_its_thread_is_called_there():
    class Bound(Echo):
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

    observation = await Bound().step_async(Action())
    assert observation.metadata["thread"] == threading.get_ident()


def test_metadata_comes_from_the_class():
    metadata = Echo().get_metadata()
    assert (metadata.name, metadata.description) == ("Echo", "Returns its arguments.")


def test_a_class_without_a_description_has_not_that_of_its_base():
    class Silent(Echo):
        pass

    assert Silent().get_metadata().description == "Silent"


def test_without_rubric_and_transform_nothing_is_scored_or_changed():
    observation = Observation()
    assert Echo().score(Action(), observation) == 0.0
    assert Echo().transformed(observation) is observation


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["NoneType", "coroutine"])
def test_a_transform_must_return_an_observation(kind):
    class Nothing(Transform[Observation]):
        def __call__(self, observation: Observation) -> Any:
            observation.done = True

    class Awaited(Transform[Observation]):
        async def __call__(self, observation: Observation) -> Any:
            return observation

    made = Nothing() if kind == "NoneType" else Awaited()
    told = f"{type(made).__name__} returned {kind}; a transform must return an observation"
    with pytest.raises(TypeError, match=told):
        Echo(transform=made).transformed(Observation())


def test_a_transform_is_applied_last_to_observations():
    class Mark(Transform):
        def __call__(self, observation):
            return observation.model_copy(update={"metadata": {"marked": True}})

    assert Echo(transform=Mark()).transformed(Observation()).metadata == {"marked": True}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 10**400])
def test_a_score_that_is_not_finite_is_an_error_that_names_the_rubric(score):
    with pytest.raises(ValueError, match="Constant scored"):
        Echo(rubric=Constant(score)).score(Action(), Observation())


async def test_an_asynchronous_rubric_is_for_asynchronous_steps():
    environment = Echo(rubric=Later(0.5))
    with pytest.raises(TypeError, match="Later is asynchronous"):
        environment.score(Action(), Observation())
    assert await environment.score_async(Action(), Observation()) == 0.5
    assert await Echo(rubric=Constant(1)).score_async(Action(), Observation()) == 1.0


async def test_a_rubric_is_reset_whether_its_reset_is_asynchronous_or_not():
    class Slow(Constant):
        async def reset(self):  # type: ignore[override]
            self.score = 0

    rubric = Slow(1)
    environment = Echo(rubric=rubric)
    with pytest.raises(TypeError, match="asynchronous"):
        environment.begin_rubric()
    await environment.begin_rubric_async()
    assert rubric.score == 0


def test_the_tokenizer_protocol_fits_a_tokenizer():
    class Words:
        def apply_chat_template(self, conversation, tokenize=True, **kwargs):
            text = "".join(f"<{m['role']}>{m['content']}" for m in conversation)
            return text.split() if tokenize else text

        def decode(self, token_ids, skip_special_tokens=False, **kwargs):
            return " ".join(token_ids)

    tokenizer: ModelTokenizer = Words()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<user>hi"


def test_errors_of_the_environment_are_runtime_errors():
    for kind in (NotReset, EpisodeDone, REPLError):
        assert issubclass(kind, RuntimeError)


def test_the_echo_environment_runs_to_its_end(example):
    environment = example.NumberHunt()
    environment.reset(seed=7)
    with pytest.raises(ValueError, match="number"):
        example.Guess(number="ten")
    observation = environment.step(example.Guess(number=100))
    assert observation.hint == "lower"
    assert observation.reward == 0.0
    assert environment.state.highest == 99
    for number in range(1, 100):
        if observation.done:
            break
        observation = environment.step(example.Guess(number=number))
    with pytest.raises(EpisodeDone) as raised:
        environment.step(example.Guess(number=1))
    assert raised.value.result.observation is observation


def test_the_second_environment_is_the_same_for_the_same_seed(example):
    def play(seed):
        environment = example.NumberHunt()
        environment.reset(seed=seed)
        return [environment.step(example.Guess(number=n)).hint for n in (50, 25, 75)]

    assert play(3) == play(3)
    with pytest.raises(NotReset):
        example.NumberHunt().step(example.Guess(number=1))


def test_the_second_environment_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "found" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("reward 0.")


@pytest.mark.parametrize("given", [{"transform": 3}, {"rubric": 3}, {"rubric": Rubric}])
def test_an_invalid_transform_or_rubric_is_refused_at_once(given):
    class Given(Echo):
        def __init__(self, **arguments):
            Environment.__init__(self, **arguments)

    with pytest.raises(TypeError, match=f"{next(iter(given))} must be"):
        Given(**given)
