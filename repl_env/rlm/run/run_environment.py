"""`RunEnvironment`: what the loop of a run needs of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from repl_env.models import REPLObservation, StepResult
from repl_env.rlm.budget.ledger import LedgerAccount

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

Step: TypeAlias = StepResult[REPLObservation]


class RunEnvironment(Protocol):
    """The environment of a run, such as `AsyncLocalREPLEnv`. Its episode has begun."""

    @property
    def account(self) -> LedgerAccount:
        """The account that pays for the run and its sub-calls."""

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Step:
        """Run code."""

    async def submit_final_answer(self, answer: JSON) -> Step:
        """End the episode with an answer."""

    async def give_up(self) -> Step:
        """End the episode with the draft answer of the code, or without any."""

    async def run_after(self, code: str) -> None:
        """Run code in the session of an episode that is over, for its effects on variables."""

    async def end_calls(self) -> None:
        """End the sub-calls that run concurrently with the code that began them."""
