"""Internals of adapters of trainers that tests observe: episodes, sessions and environments."""

from __future__ import annotations

from typing import Any


def environments_of(adapter: Any) -> Any:
    """The environments behind an adapter of a trainer, row by row."""
    adapter = getattr(adapter, "unwrapped", adapter)
    return getattr(adapter, "_episodes", adapter)._rows.environments.environments


def inspect_session(env: Any) -> Any:
    """The session of a sandbox environment of Inspect."""
    return env._session


def toolset_session(tools: Any) -> Any:
    """The session of a toolset of verifiers."""
    return tools._env.session


def exit_stack(tools: Any) -> Any:
    """The context manager that verifiers closes a toolset with."""
    return tools._exit_stack


def trajectory_session(tool: Any, data: Any) -> Any:
    """The session of a trajectory of verl."""
    return tool._of_trajectories[data].env.session


def open_trajectories(tool: Any) -> int:
    """The number of trajectories of verl with an open episode."""
    return len(tool._of_trajectories)
