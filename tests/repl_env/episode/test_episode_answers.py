"""Every dialect of answer ends an episode; text that passes through never does."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest
from pydantic import AfterValidator, BaseModel

from repl_env import REPLAction
from tests.limits import GROWING

ANSWERS = {
    "FINAL(42)": ("42", 42),
    "FINAL((1, 2))": ("(1, 2)", [1, 2]),
    'FINAL("a) b)")': ("a) b)", "a) b)"),
    "FINAL('smile :( now')": ("smile :( now", "smile :( now"),
    "FINAL('x' * 100_000)": ("x" * 100_000, "x" * 100_000),
    "FINAL(None)": ("None", None),
    "FINAL({1, 2} - {2})": ("{1}", [1]),
    "x = [1, 'a']\nFINAL_VAR('x')": ("[1, 'a']", [1, "a"]),
    "x = None\nFINAL_VAR('x')": ("None", None),
    "answer['content'] = 'c'\nanswer['ready'] = True": ("c", "c"),
    "answer = {'content': {'k': 1}, 'ready': True}": ("{'k': 1}", {"k": 1}),
    "answer.update(content=3, ready=True)": ("3", 3),
    "SUBMIT(7)": ("7", 7),
    "SUBMIT(a=1, b='x')": ("{'a': 1, 'b': 'x'}", {"a": 1, "b": "x"}),
    "final_answer('done')": ("done", "done"),
    "final_answer(answer=3)": ("3", 3),
    "x = 4\nFINAL_VAR(var_name='x')": ("4", 4),
    "print(FINAL(5))": ("5", 5),
    "print('y' * 20_000)\nFINAL('late')": ("late", "late"),
    "FINAL('first')\nFINAL('second')": ("first", "first"),
    "FINAL('stands')\n1/0": ("stands", "stands"),
    "def f():\n    FINAL('inside')\nf()": ("inside", "inside"),
}


@pytest.mark.parametrize("code", ANSWERS)
def test_every_form_of_answer_ends_the_episode_with_its_text_and_value(env, code):
    text, value = ANSWERS[code]
    env.reset(expected_answer=text)
    step = env.execute(code)
    assert step.done
    assert (step.metadata["final_answer"], step.metadata["answer_value"]) == (text, value)
    assert step.reward == 1.0
    assert env.state().final_answer == text


PRINTED = {
    "print('FINAL(42)')": "42",
    "n = 42\nprint(f'FINAL({n})')": "42",
    "print('FINAL(%s)' % 'x')": "x",
    "print('FINAL({})'.format(1))": "1",
    "print('FINAL((1, 2))')": "(1, 2)",
    "v = 'the value'\nprint('FINAL_VAR(v)')": "the value",
    "'FINAL(last)'": "last",
    "print('   FINAL(42)')": "42",
    "print('a')\nprint('\\n\\tFINAL(42)')": "42",
    "print('  %s  FINAL(1)' % '')\nprint('  FINAL(%s)' % 'x')": "x",
}


@pytest.mark.parametrize("code", PRINTED)
def test_compatible_episodes_take_answers_that_the_code_itself_writes(env, code):
    env.reset()
    step = env.execute(code)
    assert step.done
    assert step.metadata["final_answer"] == PRINTED[code]


@pytest.mark.parametrize("code", PRINTED)
def test_strict_episodes_do_not(make, code):
    env = make(answers="strict")
    env.reset()
    assert not env.execute(code).done
    assert env.execute("FINAL(1)").done


@pytest.mark.parametrize(
    "code",
    [
        "print(context)",
        "# FINAL step\nprint(context)",
        "# FINAL(42)\nprint(context)",
        "for line in context.splitlines(): print(line)",
        "note = 'FINAL(42)'\nprint(note)",
        "print('so', 'FINAL(42)')",
        "context",
        "print(repr(context))",
        "import sys\nsys.stdout.write(context)",
        "raise ValueError(context)",
    ],
)
def test_text_that_passes_through_the_output_never_ends_an_episode(env, code):
    env.reset(context="FINAL(42)\nthen FINAL_VAR(x)\n```FINAL(1)```", expected_answer="42")
    step = env.execute(code)
    assert not step.done
    assert step.metadata["final_answer"] is None
    assert step.reward <= 0


def test_an_answer_stands_when_the_cell_then_times_out(env):
    for limit in GROWING:
        env.reset(expected_answer="a")
        step = env.execute("FINAL('a')\nwhile True: pass", timeout_s=limit)
        if step.done:
            break
    assert (step.done, step.reward) == (True, 1.0)
    assert step.observation.error_kind == "timeout"


def test_submitting_ends_the_episode_without_code(env):
    env.reset(expected_answer="x")
    step = env.step(REPLAction(is_final=True, final_answer="x"))
    assert (step.reward, step.done) == (1.0, True)
    assert step.observation.result.stdout == "Final answer submitted."
    env.reset()
    assert env.submit_final_answer([1, 2]).metadata["answer_value"] == [1, 2]


def test_an_answer_that_violates_its_schema_is_returned_to_the_policy(env):
    env.reset(answer_schema={"type": "integer"})
    refused = env.execute("FINAL('many')")
    assert not refused.done
    assert refused.observation.error_kind == "answer"
    assert "'many' is not of type 'integer'" in refused.observation.result.stderr
    in_dict = env.execute("answer['content'] = 'x'; answer['ready'] = True")
    assert (in_dict.done, in_dict.observation.error_kind) == (False, "answer")
    submitted = env.submit_final_answer("still wrong")
    assert (submitted.done, submitted.observation.error_kind) == (False, "answer")
    caught = env.execute("try:\n    FINAL('y')\nexcept ValueError:\n    FINAL(3)")
    assert (caught.done, caught.metadata["answer_value"]) == (True, 3)
    assert caught.observation.error_kind is None


def test_an_exception_of_a_validator_is_raised_to_the_caller_once(make):
    def broken(value):
        raise TypeError("no such luck")

    env = make()
    env.reset(answer_schema=Annotated[str, AfterValidator(broken)])
    with pytest.raises(TypeError, match="no such luck"):
        env.execute("x = 5\nanswer['content'] = 'a'\nanswer['ready'] = True")
    assert env.execute("x").observation.result.value == "5"


def test_an_answer_of_more_digits_than_become_text_is_refused(env):
    """The episode goes on."""
    env.reset()
    refused = env.submit_final_answer(10**5000)
    assert refused.observation.error_kind == "answer"
    assert "4300 digits" in refused.observation.result.stderr
    assert env.submit_final_answer("many").done


class Person(BaseModel):
    name: str
    age: int = 0


class Node(BaseModel):
    name: str
    below: list["Node"] = []


@dataclass
class Named:
    name: str
    age: int


class Pair(NamedTuple):
    name: str
    age: int


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
BOB = {"name": "bob", "age": 10}


@pytest.mark.parametrize(
    ("schema", "code", "value"),
    [
        (PERSON, "SUBMIT('bob', 10)", BOB),
        (PERSON, "SUBMIT('bob', age=10)", BOB),
        (Person, "SUBMIT('bob', 10)", BOB),
        (Named, "SUBMIT('bob', 10)", BOB),
        (Node, "SUBMIT('bob', [])", {"name": "bob", "below": []}),
        (Pair, "SUBMIT('bob', 10)", ["bob", 10]),
        (tuple[str, int], "SUBMIT('bob', 10)", ["bob", 10]),
        (list[int], "SUBMIT(3)", None),
        (list[int], "SUBMIT(3, 1)", [3, 1]),
    ],
)
def test_values_in_the_order_of_the_schema_are_an_answer(env, schema, code, value):
    env.reset(answer_schema=schema)
    step = env.execute(code)
    assert (step.done, step.metadata["answer_value"]) == (value is not None, value)
    if value is not None:
        assert step.metadata["final_answer"] == str(value)


@pytest.mark.parametrize(
    ("schema", "code", "problem"),
    [
        (None, "SUBMIT('bob', 10)", "SUBMIT takes one value, or fields by name"),
        (int, "SUBMIT(1, 2)", "SUBMIT takes one value, or fields by name"),
        (PERSON, "SUBMIT('bob', 10, 3)", "takes at most 2 values here: name, age"),
        (PERSON, "SUBMIT('bob', 10, name='al')", "SUBMIT got 'name' twice"),
        (PERSON, "SUBMIT('bob', 'ten')", "does not fit"),
        (PERSON, "SUBMIT('bob', object())", "an argument of SUBMIT is not JSON"),
    ],
)
def test_values_that_no_schema_orders_are_refused_in_the_cell(env, schema, code, problem):
    env.reset(answer_schema=schema)
    step = env.execute(code)
    assert not step.done
    assert problem in step.observation.result.stderr
