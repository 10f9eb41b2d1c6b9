"""`EnvironmentAdapter`: what a hosted session asks of the environment that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel

from ...protocol.request_error import RequestError
from ...protocol.request_models import FollowUpArguments, ResetArguments


class EnvironmentAdapter(Protocol):
    """One environment, played by one caller at a time.

    Every method raises `RequestError`, errors of `repl_env.errors`, or what the environment raises.
    """

    @property
    def scored(self) -> bool:
        """Whether an answer is expected of the episode that is played."""

    async def reset(self, data: ResetArguments | dict[str, Any]) -> Any:
        """Begin an episode with the arguments in `data`; the first observation."""

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Take an action; its observation."""

    async def state(self) -> BaseModel:
        """The episode so far."""

    async def variables(self) -> list[str]:
        """The names in the session."""

    async def follow_up(self, arguments: FollowUpArguments) -> Any:
        """Begin another episode in the session that is there."""

    async def draft(self) -> Any:
        """The answer so far, as JSON."""

    async def branch(self, seed: int | None) -> EnvironmentAdapter:
        """A copy that goes on apart."""

    async def interrupt(self) -> bool:
        """End the running step early, if that can be done; whether it can."""

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of all processes of the running episode; None if that is not known."""

    async def cut_off(self) -> None:
        """End the running step by ending what it runs on, if that can be done; `close` comes."""

    async def close(self) -> None:
        """Give back what the environment holds. May be called twice."""


def unsupported(name: str) -> RequestError:
    """The refusal of a request that an environment has nothing for."""
    return RequestError("UNKNOWN_TYPE", f"this environment has no {name!r}")
