"""`REPLVectorEnv.reset(only=...)`: some environments are reset, the episodes of others go on."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from repl_env import NotReset, REPLVectorEnv
from repl_env.rubrics import REPLRubric
from repl_sandbox import Sandbox
from tests.repl_env.env.vector.vector_results import LARGE, shown


def asks(results: Any) -> list[str | None]:
    return [each and each.observation.metadata["task_prompt"] for each in results]


@pytest.mark.parametrize(
    ("arguments", "prompts"),
    [
        ({"only": [1, 3], "task_prompt": "new"}, [None, "new", None, "new"]),
        ({"only": range(2), "task_prompt": "new"}, ["new", "new", None, None]),
        ({"only": numpy.array([2]), "task_prompt": "new"}, [None, None, "new", None]),
        ({"only": [], "task_prompt": "new"}, [None] * 4),
        (
            {"only": [3, 1], "requests": [{"task_prompt": "c"}, None], "task_prompt": "d"},
            [None, "d", None, "c"],
        ),
        (
            {"only": [3, 1], "requests": [None, {"task_prompt": "b"}, None, {"task_prompt": "c"}]},
            [None, "b", None, "c"],
        ),
        (
            {"only": range(4), "requests": [{"task_prompt": str(n)} for n in range(4)]},
            ["0", "1", "2", "3"],
        ),
    ],
)
def test_the_named_environments_are_reset_and_the_others_go_on(
    envs: REPLVectorEnv, arguments: dict[str, Any], prompts: list[str | None]
) -> None:
    envs.reset(task_prompt="old")
    envs.step(["kept = 1"] * 4)
    begun = envs.reset(**arguments)
    assert asks(begun) == prompts
    assert (envs.results, envs.errors) == (begun, {})
    there = shown(envs.step(["print('kept' in globals())"] * 4))
    assert there == ["True" if prompt is None else "False" for prompt in prompts]
    iterations = [env.state().iteration for env in envs.environments]
    assert iterations == [2 if prompt is None else 1 for prompt in prompts]


async def test_the_named_environments_are_reset_on_an_event_loop(sandbox: Sandbox) -> None:
    async with REPLVectorEnv(3, sandbox=sandbox) as envs:
        await envs.areset(context=LARGE, task_prompt="old")
        await envs.astep(["FINAL(1)", "kept = 1", None])
        begun = await envs.areset([{"task_prompt": "new"}], only=[0], context=LARGE)
        assert asks(begun) == ["new", None, None]
        stepped = await envs.astep(["print(len(context))", "print(kept)", "print(1)"])
        assert shown(stepped) == ["1400000", "1", "1"]
        with pytest.raises(RuntimeError, match="begun by areset"):
            envs.reset(only=[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"only": 1}, TypeError, "only must be a list of numbers, not int"),
        ({"only": "12"}, TypeError, "only must be a list of numbers, not str"),
        ({"only": ["1"]}, TypeError, "only must hold numbers of environments, not str"),
        ({"only": [1.0]}, TypeError, "only must hold numbers of environments, not float"),
        ({"only": [True, False, True, False]}, TypeError, "not bools as a mask does"),
        ({"only": numpy.array([True, False])}, TypeError, "only must hold numbers"),
        ({"only": [4]}, ValueError, "there is no environment 4; there are 0 to 3"),
        ({"only": [-1]}, ValueError, "there is no environment -1"),
        ({"only": [1, 1]}, ValueError, "only names an environment twice"),
        ({"only": [1, 2], "requests": [{}] * 3}, ValueError, "requests: 3 for the 2 in only"),
        ({"only": [1], "requests": {}}, TypeError, "requests must be a list, not dict"),
        ({"only": [3, 2, 1, 0], "requests": [{}] * 4}, ValueError, "give it in their order"),
        ({"only": [2], "colour": 1}, TypeError, "environment 2: reset takes no colour"),
        ({"only": [2], "max_iterations": 0}, ValueError, "max_iterations"),
        ({"only": [2], "context": 7}, TypeError, "context must be"),
        ({"only": [2], "context": numpy.arange(2)}, TypeError, "context must be .* not ndarray"),
    ],
)
def test_a_bad_argument_is_named_and_no_episode_ends(
    envs: REPLVectorEnv, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    envs.reset(context=LARGE)
    envs.step(["kept = 1"] * 4)
    with pytest.raises(error, match=message):
        envs.reset(**arguments)
    numbers = [0, 1, 3]
    results = envs.step([None if n == 2 else "print(kept)" for n in range(4)])
    assert shown(results) == ["1" if n in numbers else None for n in range(4)]


def test_environments_that_were_never_reset_have_no_episode(envs: REPLVectorEnv) -> None:
    envs.reset(only=[1])
    assert shown(envs.step([None, "print(1)", None, None])) == [None, "1", None, None]
    with pytest.raises(NotReset):
        envs.step(["print(1)"] * 4)
    envs.reset(only=[0, 2, 3])
    assert shown(envs.step(["print(1)"] * 4)) == ["1"] * 4


def test_a_shared_context_is_not_loaded_again(
    envs: REPLVectorEnv, templates: list[Sandbox]
) -> None:
    envs.reset(context=LARGE)
    envs.reset(only=[2], context="a line\n" * 200_000)
    envs.reset([{"context": LARGE}], only=[0])
    assert len(templates) == 1
    envs.reset(only=[0, 1, 2], context="small")
    envs.reset([{"context": LARGE}], only=[0])  # environment 3 has it still
    assert len(templates) == 1
    assert shown(envs.step(["print(len(context))"] * 4)) == ["1400000", "5", "5", "1400000"]
    envs.reset(only=[0, 3], context=LARGE + "!")
    assert len(templates) == 2
    assert "closed" in repr(templates[0])  # no other environment uses it any more
    assert shown(envs.step(["print(len(context))"] * 4)) == ["1400001", "5", "5", "1400001"]


def test_a_reset_that_fails_ends_no_other_episode(sandbox: Sandbox) -> None:
    class TakesNone(REPLRubric):
        set_expected = None  # type: ignore[assignment]

    with REPLVectorEnv(2, sandbox=sandbox, rubric=TakesNone()) as envs:
        envs.reset(context=LARGE)
        envs.step(["kept = 1"] * 2)
        with pytest.raises(TypeError, match="takes none"):
            envs.reset(only=[0], expected_answer="1")
        assert (envs.results, list(envs.errors)) == ([None, None], [0])
        assert shown(envs.step([None, "print(kept)"])) == [None, "1"]


def test_an_episode_that_is_over_stays_over_while_others_begin(envs: REPLVectorEnv) -> None:
    envs.reset(expected_answer="1")
    envs.step(["FINAL(1)", "FINAL(1)", "x = 1", "x = 1"])
    envs.reset(only=[1], expected_answer="2")
    results = envs.step(["FINAL(1)", "FINAL(2)", "print(x)", "print(x)"])
    assert [each and (each.reward, each.done) for each in results] == [
        (0.0, True),
        (1.0, True),
        (0.0, False),
        (0.0, False),
    ]
