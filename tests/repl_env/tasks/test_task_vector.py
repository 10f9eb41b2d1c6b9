"""Episodes of tasks side by side."""

from __future__ import annotations

import os
import signal

import pytest

from repl_env.errors import NotReset, REPLError
from repl_env.tasks import EvaluatorError, TaskVectorEnv, load
from repl_sandbox.errors import SandboxError
from tests.internals import session_links
from tests.repl_env.environment_internals import row_evaluator

from .conftest import GOOD, TOML

WRITE_GOOD = f"open('double.py', 'w').write({GOOD!r})"


def evaluator_class(group):
    """The class of the evaluators of a group."""
    return type(row_evaluator(group))


@pytest.fixture
def group(write, sandbox):
    with TaskVectorEnv([load(write())] * 3, sandbox=sandbox) as envs:
        yield envs


def test_a_group_is_stepped_and_scored_row_by_row(group):
    assert group.evaluations == (None, None, None)
    begun = group.reset()
    told = group.step(["print(validate())", WRITE_GOOD, None])
    last = group.step(["submit()", "submit()", "FINAL('')"])

    assert "'score': 0.5" in told[0].observation.result.stdout
    assert [row and row.reward for row in told] == [0.0, 0.0, None]
    assert [(row.reward, row.terminated) for row in last] == [(0.5, True), (1.0, True), (0.5, True)]
    assert [found.score for found in group.evaluations] == [0.5, 1.0, 0.5]
    assert len({row.metadata["group_id"] for row in (*begun, *last)}) == 1
    assert last[0].metadata["reward_components"] == {"task": 0.5}
    assert last[0].task_reward == 0.5


def test_a_step_after_the_end_pays_nothing(group):
    group.reset(max_iterations=1)

    first, again = group.step(["x = 1"] * 3), group.step(["submit()"] * 3)

    assert [(row.reward, row.truncated) for row in first] == [(0.5, True)] * 3
    assert [row.reward for row in again] == [0.0] * 3


def test_rows_validate_at_the_same_time(group):
    group.reset()
    results = group.step(["import json\nprint(json.dumps(validate()))"] * 3)

    assert all('"score": 0.5' in row.observation.result.stdout for row in results)
    assert [row.metadata["evaluation"]["validations"] for row in results] == [1, 1, 1]


def test_selected_rows_are_reset_and_the_others_go_on(group):
    (one, *_) = group.reset()
    none, two, three = group.reset(only=[1, 2])
    named = group.reset([{"group_id": "a"}, {"group_id": "b"}, None])

    assert none is None
    assert two.metadata["group_id"] == three.metadata["group_id"] != one.metadata["group_id"]
    assert [row.metadata["group_id"] for row in named[:2]] == ["a", "b"]


def test_tasks_of_several_kinds_stand_beside_each_other(write, sandbox):
    with TaskVectorEnv([load(write()), load("blotto"), load("blotto")]) as envs:
        rows = envs.reset()
        results = envs.step(["submit()"] * 3)

    assert [row.metadata["task"]["name"] for row in results] == ["double", "blotto", "blotto"]
    assert [row.reward for row in results] == [0.5, 0.0, 0.0]
    assert len({row.metadata["group_id"] for row in rows}) == 2


def test_a_row_that_damages_its_own_recovery_is_a_submission_without_files(group, monkeypatch):
    for bound in ("REVIVE_TIMEOUT", "INIT_TIMEOUT"):
        monkeypatch.setattr(f"repl_sandbox.session.recovery.{bound}", 1.0)
    group.reset()
    os.kill(session_links(group.environments[1].session).pid, signal.SIGSTOP)
    results = group.step(["submit()", "import os\nos._exit(1)", "submit()"])

    assert [(row.reward, row.done) for row in results] == [(0.5, True), (-1.0, True), (0.5, True)]
    assert [row.metadata["mask"] for row in results] == [False] * 3
    assert group.evaluations[1].failure == "missing"
    assert results[1].metadata["error_kind"] == "crash" and group.masked_share == 0.0


def test_a_row_whose_session_dies_is_masked(group):
    group.reset()
    group.environments[1].session.close()
    results = group.step(["submit()"] * 3)

    assert [(row.reward, row.done) for row in results] == [(0.5, True), (0.0, True), (0.5, True)]
    assert [row.metadata["mask"] for row in results] == [False, True, False]
    assert group.masked_share == 1 / 3
    assert results[1].metadata["group_id"] == results[0].metadata["group_id"]


def test_a_row_whose_evaluation_is_lost_is_masked(group, monkeypatch):
    group.reset()
    evaluator = evaluator_class(group)
    evaluate = evaluator.evaluate

    def lose(self, files):
        if files["double.py"] == GOOD.encode():
            raise SandboxError("the session is gone")
        return evaluate(self, files)

    monkeypatch.setattr(evaluator, "evaluate", lose)
    results = group.step([f"{WRITE_GOOD}\nsubmit()", "submit()", "submit()"])

    assert [row.metadata["mask"] for row in results] == [True, False, False]
    assert [row.reward for row in results] == [0.0, 0.5, 0.5]


def test_an_evaluator_that_fails_is_raised_when_the_others_are_scored(write, sandbox):
    # Only the file that an episode begins with returns 0; the baseline, as the first row, does not.
    picky = "if call('double', [3]) != 0: 1 / 0\nscore(0.25)"
    task = load(write(**{"evaluator/evaluate.py": picky}))
    with TaskVectorEnv([task] * 2, sandbox=sandbox) as envs:
        envs.reset()
        with pytest.raises(EvaluatorError, match="ZeroDivisionError"):
            envs.step([f"{WRITE_GOOD}\nsubmit()", "submit()"])

        assert envs.results[0] is None
        assert envs.results[1].reward == 0.25
        assert list(envs.errors) == [0]


async def test_a_group_runs_on_an_event_loop(write, sandbox):
    async with TaskVectorEnv([load(write())] * 2, sandbox=sandbox) as envs:
        begun = await envs.areset()
        results = await envs.astep(["validate()\nsubmit()", f"{WRITE_GOOD}\nFINAL('')"])

    assert [(row.reward, row.terminated) for row in results] == [(0.5, True), (1.0, True)]
    assert len({row.metadata["group_id"] for row in (*begun, *results)}) == 1


@pytest.mark.parametrize(
    ("tasks", "error"), [([], ValueError), ("blotto", TypeError), (["blotto"], TypeError)]
)
def test_invalid_tasks_are_named(tasks, error):
    with pytest.raises(error, match="tasks"):
        TaskVectorEnv(tasks)


def test_a_reset_cannot_override_fields_of_the_task(group):
    with pytest.raises(TypeError, match="reset takes no files"):
        group.reset(files={"double.py": GOOD})
    with pytest.raises(TypeError, match="group_id must be a str"):
        group.reset(group_id=3)
    with pytest.raises(NotReset):
        group.step(["submit()"] * 3)


def test_evaluations_of_an_episode_are_not_made_twice(group, tmp_path):
    group.reset()
    env = group.environments[0]
    for again in (
        env.branch,
        lambda: env.follow_up(task_prompt="more"),
        lambda: env.save(tmp_path / "saved"),
    ):
        with pytest.raises(REPLError, match="no episode of a task"):
            again()


def test_a_limit_of_the_task_ends_cells(write, sandbox):
    task = load(write(TOML.replace("call = 20", "call = 20\ncell = 1")))
    with TaskVectorEnv([task] * 2, sandbox=sandbox) as envs:
        envs.reset()
        results = envs.step(["while True: pass"] * 2)

    assert [row.observation.error_kind for row in results] == ["timeout"] * 2
