"""OpenEnv's task interface: routes that list the tasks of a served environment."""

from __future__ import annotations

import pytest

from repl_env.models import REPLAction
from repl_env.tasks import TaskSetEnvironment, shipped
from tests.server.conftest import ask, serving
from tests.server.toy_environments import Adder

NAME = "TaskSetEnvironment"
TRAIN = sorted(name for name, task in shipped().items() if task.split == "train")


class AsyncTasks(Adder):
    """Lists its tasks from the event loop, and knows one split."""

    async def list_splits(self):
        return ["eval", {"name": "train", "type": "train"}]

    async def get_task(self, split, index):
        return {"id": f"{split}-{index}"}

    def num_tasks(self, split):
        raise RuntimeError(f"/etc/{split} is gone")


@pytest.fixture(scope="module")
def tasks_server():
    with serving(environment=lambda: TaskSetEnvironment(shipped())) as server:
        yield server


def test_the_tasks_of_a_set_are_listed(tasks_server):
    assert ask(tasks_server, "GET", "/list_environments")[2] == [NAME]
    splits = ask(tasks_server, "GET", f"/{NAME}/splits")[2]
    assert {"name": "train", "type": "train"} in splits
    count = ask(tasks_server, "POST", f"/{NAME}/num_tasks", {"split": "train"})[2]
    assert count == {"num_tasks": len(TRAIN)}
    listed = ask(tasks_server, "POST", f"/{NAME.lower()}/tasks", {"split": "train"})[2]
    assert [task["id"] for task in listed["tasks"]] == TRAIN
    first = ask(tasks_server, "POST", f"/{NAME}/task", {"split": "train", "index": 0})[2]["task"]
    assert first == listed["tasks"][0] and first["index"] == 0 and first["instruction"]
    bounds = {"split": "train", "start": 1, "stop": 3}
    some = ask(tasks_server, "POST", f"/{NAME}/task_range", bounds)[2]
    assert some["tasks"] == listed["tasks"][1:3]


def test_descriptions_have_nothing_of_the_evaluator(tasks_server):
    listed = ask(tasks_server, "POST", f"/{NAME}/tasks", {"split": "train"})[2]["tasks"]
    facts = {"name", "metric", "direction", "group", "split", "difficulty"}
    assert all(
        task.keys() == facts | {"id", "index", "instruction", "max_iterations"} for task in listed
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (f"/{NAME}/task", {"split": "train", "index": 99}, 400, "UNKNOWN_TASK"),
        (f"/{NAME}/task", {"split": "train", "index": -1}, 400, "UNKNOWN_TASK"),
        (f"/{NAME}/tasks", {"split": "nothing"}, 400, "UNKNOWN_TASK"),
        (f"/{NAME}/tasks", {}, 422, "VALIDATION_ERROR"),
        (f"/{NAME}/task", {"split": "train", "index": "x"}, 422, "VALIDATION_ERROR"),
        ("/Other/tasks", {"split": "train"}, 404, "UNKNOWN_PATH"),
    ],
)
def test_requests_for_no_task_are_refused(tasks_server, path, body, status, code):
    answered, _, reply = ask(tasks_server, "POST", path, body)
    assert (answered, reply["code"]) == (status, code)


def test_an_episode_of_a_listed_task(tasks_server):
    index = TRAIN.index("blotto")
    choice = {"split": "train", "index": index}
    status, headers, body = ask(tasks_server, "POST", "/reset", choice, X_Session_Id="new")
    assert status == 200, body
    assert body["observation"]["metadata"]["task"]["name"] == "blotto"
    session = {"X_Session_Id": headers["X-Session-Id"]}
    step = {"action": {"code": "submit()"}}
    done = ask(tasks_server, "POST", "/step", step, **session)[2]
    assert done["done"]


def test_an_environment_without_tasks_says_so(server, adders):
    [name] = ask(adders, "GET", "/list_environments")[2]
    for serves, path in ((adders, f"/{name}/tasks"), (server, "/repl_env/tasks")):
        status, _, reply = ask(serves, "POST", path, {"split": "train"})
        assert (status, reply["code"]) == (501, "NOT_SUPPORTED"), reply


def test_asynchronous_methods_and_errors_of_an_environment():
    with serving(environment=AsyncTasks) as server:
        splits = ask(server, "GET", "/AsyncTasks/splits")[2]
        assert splits == [
            {"name": "eval", "type": "validation"},
            {"name": "train", "type": "train"},
        ]
        found = ask(server, "POST", "/AsyncTasks/task", {"split": "eval", "index": 3})[2]
        assert found == {"task": {"id": "eval-3"}}
        status, _, reply = ask(server, "POST", "/AsyncTasks/num_tasks", {"split": "eval"})
        assert (status, reply["code"]) == (409, "EXECUTION_ERROR")
        assert Adder.closed[-1].total is None  # each question has an environment, closed after it


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "split and index"),
        ({"split": "train"}, "split and index"),
        ({"split": "train", "index": 99}, "index must be from 0 to"),
        ({"split": "nothing", "index": 0}, "no split 'nothing'"),
        ({"task": "nothing"}, "task must be a name"),
        ({"task": "blotto", "split": "train"}, "split and index"),
    ],
)
def test_a_reset_that_names_no_task(arguments, says):
    environment = TaskSetEnvironment(shipped())
    with pytest.raises(ValueError, match=says):
        environment.reset(**arguments)


def test_a_set_s_episodes_one_after_the_other():
    environment = TaskSetEnvironment(shipped())
    try:
        for name in ("blotto", "prisoners-dilemma"):
            first = environment.reset(task=name)
            assert first.metadata["task"]["name"] == name
            assert environment.step(REPLAction(code="submit()")).done
            assert environment.state.step_count == 1
    finally:
        environment.close()
