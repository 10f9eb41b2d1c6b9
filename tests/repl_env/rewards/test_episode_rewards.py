"""Rewards are scored on the host, once, by this environment's own rubric."""

from typing import Any

import numpy
import pytest

from repl_env.errors import EpisodeDone
from repl_env.llm.spec import LLM
from repl_env.rubrics import CustomMetricRubric, ExactMatchRubric, REPLRubric, Rubric


def test_environments_do_not_share_a_rubric(make):
    rubric = REPLRubric(outcome=ExactMatchRubric())
    a, b = make(rubric=rubric), make(rubric=rubric)
    a.reset(expected_answer="A")
    b.reset(expected_answer="B")
    assert a.execute("FINAL('A')").reward == 1.0
    assert b.execute("FINAL('A')").reward == 0.0


def test_an_expected_answer_is_dropped_with_its_episode(env):
    env.reset(expected_answer="x")
    env.reset()
    assert env.execute("FINAL('x')").reward == 0.0


def test_neither_expected_answer_nor_secrets_are_shown_or_in_the_session(env):
    first = env.reset(
        expected_answer="the-gold-answer", llm=LLM("m", api_key="sk-secret-key"), context="c"
    )
    step = env.execute("import os\nstr(globals()) + str(dict(os.environ))")
    assert step.observation.result.value
    shown = first.observation.model_dump_json() + step.observation.model_dump_json()
    shown += env.state().model_dump_json()
    assert "the-gold-answer" not in shown
    assert "sk-secret-key" not in shown


def test_a_rubric_that_scores_no_finite_number_is_an_error_and_the_end_is_the_end(make):
    env = make(rubric=REPLRubric(CustomMetricRubric(lambda e, p: float("nan"))))
    env.reset(expected_answer="x")
    with pytest.raises(ValueError, match="finite"):
        env.execute("FINAL(1)")
    with pytest.raises(EpisodeDone):
        env.execute("FINAL(1)")


@pytest.mark.parametrize("score", [None, "1"])
def test_a_score_that_is_no_number_is_an_error_that_names_the_rubric(make, score):
    env = make(rubric=REPLRubric(CustomMetricRubric(lambda e, p: score)))
    env.reset(expected_answer="x")
    with pytest.raises(TypeError, match=f"REPLRubric scored {type(score).__name__}"):
        env.execute("FINAL('x')")


def test_a_score_may_be_any_number_type_and_becomes_a_float(make):
    half: Any = numpy.float32(0.5)
    env = make(rubric=REPLRubric(CustomMetricRubric(lambda e, p: half)))
    env.reset(expected_answer="x")
    observation = env.execute("FINAL('x')").observation
    assert observation.reward == 0.5
    assert '"reward_components":{"outcome":0.5}' in observation.model_dump_json()


@pytest.mark.parametrize("rubric", [ExactMatchRubric, lambda e, p: 1.0, "exact"])
def test_an_invalid_rubric_is_refused_by_name(make, rubric):
    with pytest.raises(TypeError, match=r"rubric must be a rubric.*CustomMetricRubric"):
        make(rubric=rubric)


def test_an_asynchronous_rubric_is_refused_in_a_plain_step(make):
    class Later(Rubric):
        async def forward(self, action, observation):
            return 1.0

    env = make(rubric=Later())
    env.reset()
    with pytest.raises(TypeError, match="Later is asynchronous"):
        env.execute("1")


def test_a_rubric_of_another_library_is_accepted(make):
    class Foreign:
        def reset(self):
            self.expected = None

        def set_expected(self, expected):
            self.expected = expected

        def __call__(self, action, observation):
            return 0.5 if observation.done else 0.25

    env = make(rubric=Foreign())
    env.reset(expected_answer="e")
    assert env.execute("1").reward == 0.25
    last = env.execute("FINAL(1)")
    assert (last.reward, last.metadata["reward_components"]) == (0.5, {"Foreign": 0.5})


def test_components_without_names_are_reported_with_the_rubric(make):
    class Nameless(ExactMatchRubric):
        def components(self):
            return [0.5]

    env = make(rubric=Nameless())
    env.reset(expected_answer="e")
    with pytest.raises(TypeError, match=r"Nameless\.components\(\) must return .*, not list"):
        env.execute("1")
