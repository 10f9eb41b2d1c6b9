"""Models have OpenEnv's fields and defaults, and a wire form that is finite JSON."""

import json
import math
import pickle

import pytest
from pydantic import ValidationError

from repl_env.models import (
    WIRE_CONTEXT_LENGTH,
    CodeBlockResult,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    trusted,
)


def test_an_action_has_openenvs_defaults():
    action = REPLAction(code="x = 1")

    assert action.model_dump() == {
        "metadata": {},
        "code": "x = 1",
        "is_final": False,
        "final_answer": None,
    }
    assert REPLAction().code == ""


@pytest.mark.parametrize(("given", "code"), [(42, "42"), (1.5, "1.5"), (True, "True")])
def test_a_scalar_in_place_of_code_becomes_text(given, code):
    assert REPLAction(code=given).code == code


def test_one_markdown_fence_around_the_code_is_stripped():
    assert REPLAction(code="```python\nprint(1)\n```").code == "print(1)"


@pytest.mark.parametrize("code", [None, ["x"], {"a": 1}, object()])
def test_code_that_is_no_text_is_refused(code):
    with pytest.raises(ValidationError, match="code"):
        REPLAction(code=code)


def test_an_unknown_field_of_an_action_is_refused():
    with pytest.raises(ValidationError, match="cod"):
        REPLAction.model_validate({"code": "x", "cod": "y"})


def test_code_is_the_only_required_field_of_the_schema():
    assert REPLAction.model_json_schema()["required"] == ["code"]


def test_a_final_answer_may_be_any_json():
    assert REPLAction(is_final=True, final_answer={"a": [1, None]}).final_answer == {"a": [1, None]}
    with pytest.raises(ValidationError):
        REPLAction(is_final=True, final_answer=object())


def test_an_observation_needs_a_result_and_has_openenvs_defaults():
    observation = REPLObservation(result=CodeBlockResult())

    assert (observation.done, observation.reward, observation.metadata) == (False, None, {})
    assert (observation.context_preview, observation.context_length) == (None, 0)
    assert (observation.iteration, observation.max_iterations) == (0, 30)
    with pytest.raises(ValidationError, match="result"):
        REPLObservation()  # type: ignore[call-arg]


def test_error_kind_is_read_from_the_metadata():
    observation = REPLObservation(result=CodeBlockResult(), metadata={"error_kind": "syntax"})
    assert observation.error_kind == "syntax"
    assert REPLObservation(result=CodeBlockResult()).error_kind is None


def test_fields_in_the_repr_of_an_observation_are_attributes():
    seen = {"error_kind": "syntax", "final_answer": "42"}
    observation = REPLObservation(result=CodeBlockResult(), metadata=seen)
    for name, value in seen.items():
        assert f"{name}={value!r}" in repr(observation)
        assert getattr(observation, name) == value
    assert REPLObservation(result=CodeBlockResult()).final_answer is None
    assert not {"final_answer", "error_kind"} & observation.model_dump().keys()


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(ValidationError):
        REPLObservation(result=CodeBlockResult(), reward=reward)


def test_a_state_keeps_its_context_here_and_sends_a_short_one():
    state = REPLState(context="short")
    assert state.context == "short"
    assert json.loads(state.model_dump_json())["context"] == "short"


def test_a_long_context_stays_off_the_wire():
    text = "x" * (WIRE_CONTEXT_LENGTH + 1)
    state = REPLState(context=text, context_length=len(text))

    assert state.context == text
    assert state.model_dump()["context"] == text
    assert json.loads(state.model_dump_json())["context"] is None
    assert state.model_dump(mode="json")["context_length"] == len(text)


def test_a_state_takes_more_fields_than_it_names():
    assert REPLState.model_validate({"depth": 2}).model_dump()["depth"] == 2


def test_a_step_result_has_openenvs_fields_in_order():
    assert StepResult("o", 1.0, True) == StepResult(observation="o", reward=1.0, done=True)
    assert StepResult("o").metadata is None


def test_a_model_built_without_validation_equals_a_validated_one():
    fields = {
        "stdout": "1\n",
        "stderr": "",
        "locals_snapshot": {"x": "1"},
        "execution_time": 0.5,
        "success": True,
        "exception": None,
        "value": "1",
        "changes": [],
        "figures": [],
        "displays": [],
        "truncated": False,
    }
    made, checked = trusted(CodeBlockResult, **fields), CodeBlockResult(**fields)

    assert made == checked
    assert made.model_fields_set == checked.model_fields_set
    assert made.model_dump_json() == checked.model_dump_json()
    assert made.model_copy(update={"stdout": "2"}).stdout == "2"
    assert pickle.loads(pickle.dumps(made)) == checked
