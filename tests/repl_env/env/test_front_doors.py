"""The front doors write out the same options: the signatures equal one definition."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import closing
from dataclasses import MISSING, fields
from typing import Any

import pytest

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, NotReset, REPLAction, REPLEnv, REPLVectorEnv
from repl_env.client.sync_client import SyncREPLEnv
from repl_env.env.environment import REPLEnvironment
from repl_env.env.options import ConstructorOptions
from repl_env.episode.call_options import FollowUpOptions, ResetOptions
from repl_env.models import DEFAULT_MAX_ITERATIONS
from tests.server.conftest import serving

Signature = dict[str, tuple[Any, Any]]

# Each episode of a local environment states its task and its length: no default of the server or of
# the environment stands behind the arguments.
LOCAL_DEFAULTS: Signature = {
    "task_prompt": ("str", ""),
    "max_iterations": ("int", DEFAULT_MAX_ITERATIONS),
}
LOCAL_LENGTH: Signature = {"max_iterations": ("int", DEFAULT_MAX_ITERATIONS)}
# Only environments on this machine have a default task, a default length and a transform.
SERVER_SIDE = {"context", "task_prompt", "max_iterations", "transform"}
# OpenEnv's positional arguments, in OpenEnv's order; the others are keyword arguments.
OPENENV_RESET = ["seed", "episode_id", "context", "task_prompt", "hf_token", "llm_model"]

# The options have a dict in any case.
NO_TOOLS: Signature = {"tools": ("Mapping[str, UserFunction] | None", None)}


def defined(options: type[Any]) -> Signature:
    """Return the options by name, with annotation and default."""
    return {
        each.name: (each.type, inspect.Parameter.empty if each.default is MISSING else each.default)
        for each in fields(options)
    }


def written(function: Any) -> Signature:
    """Return the named arguments of a function, with annotation and default."""
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: (parameter.annotation, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind not in collected
    }


@pytest.mark.parametrize(
    ("door", "options", "differences", "absent"),
    [
        (REPLEnvironment.__init__, ConstructorOptions, NO_TOOLS, set()),
        (LocalREPLEnv.__init__, ConstructorOptions, NO_TOOLS, SERVER_SIDE),
        (AsyncLocalREPLEnv.__init__, ConstructorOptions, NO_TOOLS, SERVER_SIDE),
        (LocalREPLEnv.reset, ResetOptions, LOCAL_DEFAULTS, set()),
        (AsyncLocalREPLEnv.reset, ResetOptions, LOCAL_DEFAULTS, set()),
        (REPLEnv.reset, ResetOptions, {}, set()),
        (SyncREPLEnv.reset, ResetOptions, {}, set()),
        (REPLEnvironment.follow_up, FollowUpOptions, {}, set()),
        (REPLEnvironment.follow_up_async, FollowUpOptions, {}, set()),
        (LocalREPLEnv.follow_up, FollowUpOptions, LOCAL_LENGTH, set()),
        (AsyncLocalREPLEnv.follow_up, FollowUpOptions, LOCAL_LENGTH, set()),
        (REPLEnv.follow_up, FollowUpOptions, {}, set()),
        (SyncREPLEnv.follow_up, FollowUpOptions, {}, set()),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_door_writes_out_the_options(
    door: Any, options: type[Any], differences: Signature, absent: set[str]
) -> None:
    expected = {
        name: differences.get(name, each)
        for name, each in defined(options).items()
        if name not in absent
    }

    arguments = written(door)
    arguments.pop("on_upload", None)  # of uploads, which only clients make

    assert arguments == expected  # docs/public_names.toml has their order


@pytest.mark.parametrize("door", [REPLEnvironment.reset, REPLEnvironment.reset_async])
def test_the_environment_has_openenv_s_reset(door: Any) -> None:
    expected = defined(ResetOptions)

    assert list(written(door).items()) == [(name, expected[name]) for name in OPENENV_RESET]


@pytest.mark.parametrize(
    ("one", "other"), [(LocalREPLEnv, AsyncLocalREPLEnv), (REPLEnv, SyncREPLEnv)]
)
def test_twins_have_the_same_methods_and_arguments(one: type[Any], other: type[Any]) -> None:
    def methods(door: type[Any]) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(key, default) for key, (_, default) in written(function).items()]
            for name, function in inspect.getmembers(door, inspect.isfunction)
            if not name.startswith("_")
        }

    common = methods(one).keys() & methods(other).keys()

    assert {"reset", "step", "execute", "follow_up", "draft", "branch", "close"} <= common
    assert {name: methods(one)[name] for name in common} == {
        name: methods(other)[name] for name in common
    }


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as server:
        yield server.url


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda _: LocalREPLEnv(), lambda env: env.execute("1")),
        (lambda _: REPLEnvironment(), lambda env: env.step(REPLAction(code="1"))),
        (lambda _: REPLVectorEnv(2), lambda envs: envs.step(["1", "1"])),
        (lambda url: REPLEnv(url).sync(), lambda env: env.execute("1")),
    ],
)
def test_a_closed_environment_says_so_until_the_next_reset(url: str, make: Any, use: Any) -> None:
    with closing(make(url)) as door:
        with pytest.raises(NotReset, match="not initialized"):
            use(door)
        for _ in range(2):
            door.reset()
            use(door)
            door.close()
            with pytest.raises(NotReset, match=r"^The environment is closed. Call reset\(\)"):
                use(door)


async def test_a_closed_asynchronous_environment_says_so_until_the_next_reset() -> None:
    env = AsyncLocalREPLEnv()
    await env.reset()
    await env.close()
    with pytest.raises(NotReset, match="environment is closed"):
        await env.execute("1")
    await env.reset()
    await env.execute("1")
    await env.close()
