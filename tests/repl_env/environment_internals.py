"""Internals of environments, clients and models that tests observe or set.

Tests reach them by these functions alone, so that a change of an internal name changes this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from repl_env import REPLEnv
    from repl_env.client.address import Timeouts
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


def row_evaluator(group: Any) -> Any:
    """The evaluator of the first task of a `TaskVectorEnv`."""
    return group._rows[0]._evaluator


def set_close_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that a server has to answer the close of a socket."""
    patch.setattr("repl_env.client.connection._CLOSE_S", seconds)


def set_completion_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that the completion of a name may take in the shell."""
    patch.setattr("repl_env.cli.cells._PATIENCE", seconds)


def set_replay_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that a replayed call waits for an earlier one."""
    patch.setattr("repl_env.rlm.replay._PATIENCE", seconds)


def set_longest_text(patch: pytest.MonkeyPatch, characters: int) -> None:
    """Set the length of the longest text of a completion."""
    patch.setattr("repl_env.llm.completions._LONGEST_TEXT", characters)


def set_process_sandbox(patch: pytest.MonkeyPatch, sandbox: Callable[[], Any]) -> None:
    """Replace the function that gives the sandbox of this process."""
    patch.setattr("repl_env.episode.sandboxes._of_process", sandbox)


def tokenizer_of(model: Any) -> Any:
    """The tokenizer that a model uses."""
    return model._tokenizer


def weights_of(model: Any) -> Any:
    """The transformers model behind a model."""
    return model._model


def context_of(data: bytes, kind: str) -> Any:
    """The contents of a file as a context of that type, for a replay."""
    from repl_env.cli import replay

    return replay._value(data, kind)


def renamed_metadata(metadata: bytes) -> bytes:
    """The metadata of this distribution as the wheel of a Space has it."""
    from repl_env.integrations import space

    return space._renamed(metadata)
