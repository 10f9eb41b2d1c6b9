"""Internals of environments and clients that tests observe or set.

Tests reach them by these functions alone, so that a change of an internal name changes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_env import REPLEnv
    from repl_env.client.connection.timeouts import Timeouts
    from repl_env.env.environment import REPLEnvironment


def wrapped_environment(env: Any) -> Any:
    """The `REPLEnvironment` that a local environment, blocking or asynchronous, runs on."""
    return env._env


def current_task(env: REPLEnvironment) -> Any:
    """The hidden side of the current episode: rubric, expected answer and sub-calls."""
    return env._episodes.slot.require_current().hidden_task


def client_session(env: REPLEnv) -> Any:
    """The session of a remote client, with its connection."""
    return env._session_client


def set_timeouts(env: REPLEnv, timeouts: Timeouts) -> None:
    """Change the timeouts of a client whose session is open."""
    client_session(env).require_pipeline()._timeouts = timeouts


def stop_loop(work: Any) -> None:
    """End the thread of a `BackgroundLoop`, which otherwise ends with the process."""
    work._end()
