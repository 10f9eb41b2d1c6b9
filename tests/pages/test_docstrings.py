"""Examples in docstrings run, and print what their comments say."""

from __future__ import annotations

import ast
import asyncio
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import gymnasium
import pytest

import repl_env.integrations.gymnasium  # noqa: F401  # registers the environment
from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, REPLEnv, REPLEnvironment, REPLVectorEnv
from repl_env.rlm import RLM, ScriptedModel
from repl_sandbox import Sandbox
from tests.pages.conftest import ANSWER
from tests.pages.docstring_examples import Example, examples
from tests.surface.exports import names_of

# Classes that people make first: each shows its use.
FRONT_DOORS = {
    "AsyncLocalREPLEnv", "AsyncSandbox", "AsyncSession", "LocalREPLEnv", "REPLEnv",
    "REPLEnvironment", "REPLVectorEnv", "RLM", "Sandbox", "Session", "SyncREPLEnv",
}  # fmt: skip
# Examples that need what is not here.
NOT_RUN = {"TransformersModel": "a model of a hub"}
EXAMPLES = [example for example in examples() if example.name not in NOT_RUN]
TASK = {"context": "one two three", "task_prompt": "How many words?", "expected_answer": "3"}


@asynccontextmanager
async def opened(owner: str, server: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the names that an example of a method of `owner` finds, with an episode begun."""
    if owner == "LocalREPLEnv":
        with LocalREPLEnv() as env:
            env.reset(**TASK)
            yield {"env": env}
    elif owner == "SyncREPLEnv":
        with REPLEnv(server).sync() as env:
            env.reset(**TASK)
            yield {"env": env}
    elif owner in ("AsyncLocalREPLEnv", "REPLEnv"):
        async with AsyncLocalREPLEnv() if owner == "AsyncLocalREPLEnv" else REPLEnv(server) as env:
            await env.reset(**TASK)
            yield {"env": env}
    elif owner == "REPLEnvironment":
        environment = REPLEnvironment()
        environment.reset(**TASK)
        yield {"environment": environment}
        environment.close()
    elif owner == "REPLVectorEnv":
        with REPLVectorEnv(2) as envs:
            envs.reset(**TASK)
            yield {"envs": envs}
    elif owner == "Sandbox":
        with Sandbox() as sandbox:
            yield {"sandbox": sandbox}
    elif owner == "Session":
        with Sandbox() as sandbox, sandbox.session() as session:
            yield {"session": session}
    else:
        yield {}


async def play(example: Example, server: str, names: dict[str, Any]) -> None:
    """Run the example in an event loop, whether it awaits or not."""
    code = compile(example.code, example.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with opened(example.owner, server) as found:
        awaited = eval(code, names | found)
        if awaited is not None:
            await awaited


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_example_of_a_docstring_prints_what_it_says(
    example, addresses, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("book.txt").write_text("Chapter 1. A road.\n")
    model = ScriptedModel(lambda request: ANSWER)
    module = import_module(example.module)
    names = {name: getattr(module, name) for name in names_of(example.module)} | {
        "asyncio": asyncio,
        "gymnasium": gymnasium,
        "key": "stand-in",
        "model": model,
        "pathlib": pathlib,
        "question": "Is the sea named?",
        "rlm": RLM(model),
        "tasks": [TASK],
        "text": "A road. The sea.",
        "url": addresses["OPENAI_BASE_URL"],
    }
    if "Trajectory.load" in example.code:
        RLM(model, trajectory="run.jsonl").run("Is the sea named?")
    for address, here in addresses.items():
        example = Example(example.module, example.name, example.code.replace(address, here))
    asyncio.run(play(example, addresses["http://127.0.0.1:8000"], names))
    printed = capsys.readouterr().out
    if example.output:
        assert printed.splitlines() == example.output


def test_each_front_door_has_an_example() -> None:
    assert {example.name for example in EXAMPLES} >= FRONT_DOORS
