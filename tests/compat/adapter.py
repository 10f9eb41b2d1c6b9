"""`repl_env.openenv` in an environment of OpenEnv's, printed as JSON: `python adapter.py URL`.

URL is of a server, for the client; the environment needs none.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from openenv.core import EnvClient
from openenv.core.env_server.interfaces import Environment, Transform
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from openenv.core.rubrics import Rubric

import repl_env
from repl_env.openenv import REPLAction, REPLEnv, REPLEnvironment, REPLObservation, REPLState

QUESTION = {"context": "one two three", "expected_answer": "3", "episode_id": "episode-1"}


class Shouting(Transform[REPLObservation]):
    """A transform of OpenEnv's kind."""

    def __call__(self, observation: Any) -> Any:
        assert isinstance(observation, Observation)
        observation.result.stdout = observation.result.stdout.upper()
        return observation


class ByLength(Rubric):
    """A rubric of OpenEnv's kind."""

    def forward(self, action: Any, observation: Any) -> float:
        assert isinstance(action, Action)
        assert isinstance(observation, Observation)
        return len(observation.result.stdout) / 100


def kinds() -> dict[str, Any]:
    """Everything is OpenEnv's kind and this project's."""
    environment = REPLEnvironment()
    try:
        reset = environment.reset(**QUESTION)
        step = environment.step(REPLAction(code="count = len(context.split())\ncount"))
        state = environment.state
        end = environment.step(REPLAction(code="FINAL(count)"))
        described = environment.get_metadata()
        return {
            "environment": isinstance(environment, Environment),
            "observations": all(isinstance(each, Observation) for each in (reset, step, end)),
            "ours": isinstance(step, repl_env.REPLObservation),
            "state": isinstance(state, State) and isinstance(state, repl_env.REPLState),
            "metadata": isinstance(described, EnvironmentMetadata),
            "named": described.model_dump(),
            "stdout": step.result.stdout,
            "episode_id": state.episode_id,
            "step_count": state.step_count,
            "reward": end.reward,
            "done": end.done,
        }
    finally:
        environment.close()


def own_parts() -> dict[str, Any]:
    """OpenEnv's transforms and rubrics, and the one that is put in later."""
    environment = REPLEnvironment(transform=Shouting(), rubric=ByLength())
    try:
        environment.reset()
        first = environment.step(REPLAction(code="print('abc')"))
        score = environment.rubric.last_score
        environment.rubric = None
        second = environment.step(REPLAction(code="print('abc')"))
        return {
            "stdout": first.result.stdout,
            "reward": first.reward,
            "score": score,
            "without": second.reward,
        }
    finally:
        environment.close()


def attributes() -> dict[str, Any]:
    """Attributes of the wrapped environment, assigned here; a timeout by its other name."""
    environment = REPLEnvironment(max_iterations=5)
    try:
        before = environment.max_iterations
        environment.max_iterations, environment.llm_query_fn = 1, lambda prompt: f"to {prompt}"
        environment.reset()
        end = environment.step(REPLAction(code="print(llm_query('x'))"), timeout=60)
        return {"before": before, "stdout": end.result.stdout, "done": end.done}
    finally:
        environment.close()


def inside() -> dict[str, Any]:
    """The environment behind it, whose branches go on apart."""
    environment = REPLEnvironment()
    try:
        environment.reset()
        environment.step(REPLAction(code="x = 1"))
        branch = environment.environment.branch()
        try:
            observation = branch.step(REPLAction(code="x += 1; x"))
        finally:
            branch.close()
        kept = environment.step(REPLAction(code="x"))
        return {"branch": observation.result.value, "kept": kept.result.value}
    finally:
        environment.close()


def long_context() -> dict[str, Any]:
    """A state holds the context, and does not put a long one on the wire."""
    environment = REPLEnvironment()
    try:
        environment.reset(context="x" * 10_000)
        state = environment.state
        return {
            "held": len(state.context),
            "sent": state.model_dump()["context"],
            "length": state.model_dump()["context_length"],
        }
    finally:
        environment.close()


def asynchronous() -> dict[str, Any]:
    """`reset_async` and `step_async` as OpenEnv has them, and a plain `close` after them."""

    async def play() -> dict[str, Any]:
        environment = REPLEnvironment()
        try:
            await environment.reset_async(**QUESTION)
            step = await environment.step_async(REPLAction(code="len(context)"))
            return {"value": step.result.value}
        finally:
            environment.close()

    return asyncio.run(play())


def schema() -> dict[str, Any]:
    """Compare OpenEnv's models with ours: an action's required fields, and all field names."""
    required = REPLAction.model_json_schema()["required"]
    same = {
        ours.__name__: set(theirs.model_fields) == set(ours.model_fields)
        for ours, theirs in (
            (repl_env.REPLAction, REPLAction),
            (repl_env.REPLObservation, REPLObservation),
            (repl_env.REPLState, REPLState),
        )
    }
    return {"required": required, "same": same}


def client(url: str) -> dict[str, Any]:
    """The client, in its three ways."""

    async def awaited() -> dict[str, Any]:
        async with REPLEnv(base_url=url) as env:
            await env.reset(**QUESTION)
            step = await env.execute("count = len(context.split())\ncount")
            shown = await env.get_variable("count")
            names = await env.list_variables()
            state = await env.state()
            end = await env.submit_final_answer("3")
            return {
                "kind": isinstance(env, EnvClient),
                "observation": isinstance(step.observation, REPLObservation),
                "state": isinstance(state, REPLState),
                "stdout": step.observation.result.stdout,
                "shown": shown.observation.result.stdout,
                "named": "count" in names,
                "step_count": state.step_count,
                "reward": end.reward,
                "done": end.done,
                "final_answer": end.metadata["final_answer"],
            }

    def blocking(env: Any) -> list[Any]:
        env.reset(**QUESTION)
        step = env.execute("count = len(context.split())\ncount")
        names = env.list_variables()
        end = env.step(REPLAction(code="FINAL(count)"))
        return [step.observation.result.stdout, "count" in names, end.reward, end.done]

    with REPLEnv(base_url=url).sync() as env:
        waiting = [*blocking(env), isinstance(env.async_client, REPLEnv)]
    with REPLEnv(base_url=url) as env:
        plain = blocking(env)
    return {"awaited": asyncio.run(awaited()), "waiting": waiting, "plain": plain}


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Put AutoEnv's discovery cache, which the next process would trust, outside the user's."""
    os.environ["XDG_CACHE_HOME"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = None


def discovery(url: str) -> dict[str, Any]:
    """Return the result of OpenEnv's AutoEnv for a distribution called `repl-env`."""
    from openenv import AutoEnv

    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        try:
            found = type(AutoEnv.from_env("repl-env", base_url=url)).__name__
        except ValueError as error:
            found = str(error).splitlines()[0]
    generic = AutoEnv.from_env("repl-env", base_url=url, skip_install=True)
    with generic.sync() as env:
        env.reset()
        value = env.step({"code": "6 * 7"}).observation["result"]["value"]
    return {"found": found, "generic": type(generic).__name__, "value": value}


def discovery_of_a_space(url: str) -> dict[str, Any]:
    """Return AutoEnv's result for `openenv-repl-env`, a name that a Space may give its own."""
    from openenv import AutoAction, AutoEnv
    from openenv.auto._discovery import reset_discovery

    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        described = Path(folder) / "openenv_repl_env-0.1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: openenv-repl-env\nVersion: 0.1.0\n"
        )
        sys.path.insert(0, folder)
        reset_discovery()
        try:
            client = AutoEnv.from_env("repl-env", base_url=url)
            action = AutoAction.from_env("repl-env")
        finally:
            sys.path.remove(folder)
    with client.sync() as env:
        env.reset()
        value = env.step(action(code="6 * 7")).observation.result.value
    kind = f"{type(client).__module__}.{type(client).__name__}"
    return {"client": kind, "value": value}


STORIES = (
    kinds,
    own_parts,
    attributes,
    inside,
    long_context,
    asynchronous,
    schema,
    client,
    discovery,
    discovery_of_a_space,
)


def main() -> None:
    """See the module."""
    (url,) = sys.argv[1:]
    for story in STORIES:
        result = story(url) if inspect.signature(story).parameters else story()  # type: ignore[call-arg]
        print(json.dumps({"story": story.__name__, "told": result}), flush=True)
    version = metadata.version("repl-env")
    print(json.dumps({"story": "version", "told": version}))


if __name__ == "__main__":
    main()
