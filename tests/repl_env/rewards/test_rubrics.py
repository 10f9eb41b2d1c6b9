"""Rubrics score what happened, and forget it at a reset."""

from dataclasses import dataclass
from typing import Any

import numpy
import pytest
from pydantic import BaseModel

from repl_env.models import CodeBlockResult, REPLAction, REPLObservation
from repl_env.rubrics import (
    CodeExecutionRubric,
    CustomMetricRubric,
    ExactMatchRubric,
    FuzzyMatchRubric,
    REPLRubric,
    Rubric,
)

ACTION = REPLAction(code="x")


def ended(answer, value=None):
    metadata = {"final_answer": answer, "answer_value": value}
    return REPLObservation(result=CodeBlockResult(), done=True, metadata=metadata)


def going_on(success=True):
    return REPLObservation(result=CodeBlockResult(success=success))


def score(rubric, expected, answer, value=None):
    rubric.set_expected(expected)
    return rubric(ACTION, ended(answer, value))


@dataclass
class Point:
    """An expected answer of two parts."""

    x: int
    y: Any


class Named(BaseModel):
    """A model of pydantic."""

    name: str


@pytest.mark.parametrize(
    ("expected", "answer", "value", "reward"),
    [
        ("Paris", " paris\n", " paris\n", 1.0),
        ("Paris", "London", "London", 0.0),
        (42, "42", 42, 1.0),
        ([1, 2], "(1, 2)", [1, 2], 1.0),
        ([1, 2], "(2, 1)", [2, 1], 0.0),
        ({"a": 1}, "{'a': 1}", {"a": 1}, 1.0),
        (True, "1", 1, 0.0),
        ([True], "[1]", [1], 0.0),
        ({"a": [1.0]}, "{'a': [True]}", {"a": [True]}, 0.0),
        ({"a": [1.0]}, "{'a': [1]}", {"a": [1]}, 1.0),
        ("", "", "", 1.0),
    ],
)
def test_exact_match_compares_text_without_case_and_values_by_value(
    expected, answer, value, reward
):
    assert score(ExactMatchRubric(), expected, answer, value) == reward


@pytest.mark.parametrize(
    ("expected", "value", "reward"),
    [
        ((1, 2), [1, 2], 1.0),
        ((1, 2), [1, 3], 0.0),
        ({"a": (1, (2,))}, {"a": [1, [2]]}, 1.0),
        (numpy.arange(3), [0, 1, 2], 1.0),
        (numpy.arange(3), [0, 1, 3], 0.0),
        ([numpy.int64(7), numpy.bool_(True)], [7, True], 1.0),
        (numpy.bool_(True), 1, 0.0),
        ({"b", "a"}, ["a", "b"], 1.0),
        ({1, "a", (True, None)}, [[True, None], "a", 1.0], 1.0),
        (frozenset({1, 2}), [2, 2], 0.0),
        (Point(1, (2,)), {"x": 1, "y": [2]}, 1.0),
        (Point(1, (2,)), {"x": 1, "y": [3]}, 0.0),
        ([Named(name="a")], [{"name": "a"}], 1.0),
        ([Named(name="a")], [{"name": "b"}], 0.0),
        ({1, 2}, [2], 0.0),
        ({1, 2}, [2, True], 0.0),
        ({1}, [{"a": 1}], 0.0),
        ({1}, 1, 0.0),
        ({"a": {numpy.int64(1)}}, {"a": [1]}, 1.0),
        ({"a": numpy.array([[1.5], [2]])}, {"a": [[1.5], [2]]}, 1.0),
    ],
)
def test_numpy_and_pandas_answers_are_compared_by_their_json(expected, value, reward):
    assert score(ExactMatchRubric(), expected, "another text", value) == reward
    assert score(FuzzyMatchRubric(), expected, "another text", value) == reward


def test_exact_match_can_be_literal():
    assert score(ExactMatchRubric(normalize=False), "Paris", "paris") == 0.0
    assert score(ExactMatchRubric(normalize=False), "Paris", "Paris") == 1.0


@pytest.mark.parametrize(
    ("expected", "answer", "reward"),
    [
        ("Paris", "PARIS", 1.0),
        ("Paris", "It is Paris, I think.", 0.5),
        ("the city of Paris", "city of Paris", 0.5),
        ("東京", "答えは東京です", 0.5),
        ("Paris", "", 0.0),
        ("Paris", "P", 0.0),
        ("Paris", "Par", 0.0),
        ("a long expected answer", "a", 0.0),
        ("42", "1420", 0.0),
        ("cat", "concatenate, category, cat!", 0.5),
    ],
)
def test_fuzzy_match_pays_for_whole_words_only(expected, answer, reward):
    assert score(FuzzyMatchRubric(), expected, answer) == reward


def test_fuzzy_match_of_repetitive_texts_takes_bounded_time():
    """Both texts may be untrusted, and each occurrence of one in the other costs its length."""
    half, whole = "a" * 2_000_000, "a" * 4_000_000
    assert score(FuzzyMatchRubric(), half, whole) == 0.0
    assert score(FuzzyMatchRubric(), whole, half) == 0.0
    assert score(FuzzyMatchRubric(), "a", whole) == 0.0


def test_a_custom_metric_gets_expected_and_predicted_as_text():
    seen = []

    def metric(expected, predicted):
        seen.append((expected, predicted))
        return 3

    rubric = CustomMetricRubric(metric)

    assert score(rubric, 7, "8", 8) == 3
    assert seen == [("7", "8")]


@pytest.mark.parametrize("make", [ExactMatchRubric, FuzzyMatchRubric])
def test_an_outcome_scores_zero_before_the_end_or_without_an_expected_answer(make):
    rubric = make()
    assert rubric(ACTION, ended("x")) == 0.0
    rubric.set_expected("x")
    assert rubric(ACTION, going_on()) == 0.0
    assert rubric(ACTION, ended(None)) == 0.0
    assert rubric(ACTION, ended("x")) == 1.0


def test_reset_discards_the_expected_answer_and_the_score():
    rubric = REPLRubric()
    assert score(rubric, "x", "x") == 1.0
    rubric.reset()
    assert rubric.last_score is None
    assert rubric(ACTION, ended("x")) == 0.0


def test_code_execution_rewards_success_and_penalizes_errors():
    rubric = CodeExecutionRubric(success_reward=0.1)
    assert rubric(ACTION, going_on()) == 0.1
    assert rubric(ACTION, going_on(success=False)) == -0.05


def test_the_default_rubric_scores_steps_outcome_and_failure_apart():
    rubric = REPLRubric()
    rubric.set_expected("x")

    assert (rubric(ACTION, going_on(success=False)), rubric.components()) == (
        -0.05,
        {"process": -0.05},
    )
    assert (rubric(ACTION, ended("x")), rubric.components()) == (1.0, {"outcome": 1.0})
    assert (rubric(ACTION, ended(None)), rubric.components()) == (-0.1, {"failure": -0.1})


def test_children_are_found_by_assignment_with_their_paths():
    class Both(Rubric):
        def __init__(self):
            super().__init__()
            self.repl = REPLRubric()
            self.other = ExactMatchRubric()

        def forward(self, action, observation):
            return self.repl(action, observation) + self.other(action, observation)

    both = Both()
    assert [path for path, _ in both.named_rubrics()] == [
        "repl",
        "repl.outcome",
        "repl.process",
        "other",
    ]
    assert dict(both.named_rubrics())["repl.outcome"] is both.repl.outcome
    assert list(both.children()) == [both.repl, both.other]


def test_hooks_see_each_scoring():
    seen = []
    rubric = ExactMatchRubric()
    rubric.register_forward_pre_hook(lambda r, a, o: seen.append("before"))
    rubric.register_forward_hook(lambda r, a, o, s: seen.append((r is rubric, s)))

    assert score(rubric, "x", "x") == 1.0
    assert seen == ["before", (True, 1.0)]
    assert rubric.last_score == 1.0


def test_a_rubric_need_not_call_the_initializer_of_its_base():
    class Half(Rubric):
        def __init__(self):
            self.whole = ExactMatchRubric()

        def forward(self, action, observation):
            return self.whole(action, observation) / 2

    seen = []
    one, other = Half(), Half()
    one.register_forward_hook(lambda r, a, o, s: seen.append(s))
    assert [each.last_score for each in (one, other)] == [None, None]
    one.whole.set_expected("x")

    assert one(ACTION, ended("x")) == 0.5
    assert other(ACTION, ended("x")) == 0.0
    assert seen == [0.5]


async def test_an_asynchronous_child_makes_its_parents_awaitable():
    class Judge(Rubric):
        async def forward(self, action, observation):
            return 0.25

    rubric = REPLRubric(outcome=Judge())

    assert await rubric(ACTION, ended("x")) == 0.25
    assert rubric.last_score == rubric.outcome.last_score == 0.25
    assert rubric.components() == {"outcome": 0.25}


def test_a_rubric_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="forward"):
        Rubric()(ACTION, going_on())


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        (CustomMetricRubric, {"metric_fn": None}, TypeError),
        (CodeExecutionRubric, {"success_reward": "1"}, TypeError),
        (CodeExecutionRubric, {"error_penalty": float("nan")}, ValueError),
        (CodeExecutionRubric, {"error_penalty": True}, TypeError),
        (REPLRubric, {"outcome": ExactMatchRubric}, TypeError),
        (REPLRubric, {"outcome": lambda action, observation: 1.0}, TypeError),
        (REPLRubric, {"process": 3}, TypeError),
        (REPLRubric, {"failure_reward": float("inf")}, ValueError),
    ],
)
def test_a_rubric_that_could_not_score_is_refused_when_it_is_assigned(kind, given, error):
    with pytest.raises(error, match=f"{next(iter(given))} must be"):
        kind(**given)


def test_a_hook_that_cannot_be_called_is_refused():
    for register in (Rubric().register_forward_hook, Rubric().register_forward_pre_hook):
        with pytest.raises(TypeError, match="hook must be callable"):
            register(3)
