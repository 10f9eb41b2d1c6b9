"""`EnvironmentAdapter`: the interface of a session to its environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from repl_sandbox.session.files.async_session_files import AsyncSessionFiles

from ...protocol.request_error import RequestError
from ...protocol.request_models import FollowUpArguments, ResetArguments


class EnvironmentAdapter(Protocol):
    """One environment, called by one caller at a time.

    Methods raise `RequestError`, errors of `repl_env.errors`, and errors of the environment.
    """

    @property
    def scored(self) -> bool:
        """True if the current episode has an expected answer."""

    async def reset(self, data: ResetArguments | dict[str, Any]) -> Any:
        """Start an episode with the arguments in `data`; returns the first observation."""

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Perform an action; returns its observation."""

    async def state(self) -> BaseModel:
        """The state of the current episode."""

    async def variables(self) -> list[str]:
        """Names of the variables in the session."""

    async def follow_up(self, arguments: FollowUpArguments) -> Any:
        """Start another episode in the same session."""

    async def draft(self) -> Any:
        """The current draft of the answer, as JSON."""

    async def rollback(self, cells: int) -> Sequence[str]:
        """Undo the last cells; returns what could not be restored."""

    async def branch(self, seed: int | None) -> EnvironmentAdapter:
        """Copy the environment; both go on independently."""

    @property
    def files(self) -> AsyncSessionFiles:
        """The files of the current episode's session."""

    async def interrupt(self) -> bool:
        """Interrupt the running step; False if the environment does not support that."""

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of all processes of the current episode; None if unknown."""

    async def cut_off(self) -> None:
        """Kill the session under the running step, if supported; `close` follows."""

    async def close(self) -> None:
        """Release the environment's resources. Idempotent."""


def unsupported(name: str) -> RequestError:
    """The error for a request that the environment does not support."""
    return RequestError("UNKNOWN_TYPE", f"this environment does not support {name!r}")
