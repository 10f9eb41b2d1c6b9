"""`RunTreeConfig`: the common settings of all trees of runs of one `RLM`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from repl_env.llm.base import ChatModel, as_model
from repl_env.llm.model_spec import LLM
from repl_env.llm.named_model import NamedModel
from repl_env.llm.request_gate import RequestGate
from repl_env.rlm.budget.budget_limits import Budget, Price
from repl_env.rlm.budget.ledger import Ledger
from repl_env.rlm.events import EventHandler
from repl_env.rlm.run_config import RunConfig
from repl_env.rlm.subcalls.child_runs import RecursionConfig
from repl_env.rlm.subcalls.subcall_settings import Provider

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.trajectory_writer import TrajectoryWriter

MakeEnvironment: TypeAlias = Callable[[Provider], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTreeConfig:
    """The checked arguments of an `RLM`.

    Args:
        model_argument: the source of `model`, which may name a secret.
        make: makes the environment of a tree's root.
        scores: whether episodes have meaningful rewards even without an expected answer.
    """

    model_argument: object
    model: ChatModel | NamedModel
    sub_model: ChatModel | NamedModel | None
    make: MakeEnvironment
    budget: Budget
    prices: Mapping[str, Price]
    run_config: RunConfig
    max_depth: int
    tools: Mapping[str, Callable[..., Any]]
    trajectory: str | os.PathLike[str] | TrajectoryWriter | None
    on_event: EventHandler | None
    system_prompt: str | None
    gate: RequestGate
    scores: bool

    def ledger(self) -> Ledger:
        """Return the ledger of a tree."""
        return Ledger(self.budget, prices=self.prices)

    def models(self, llm: LLM | None) -> tuple[ChatModel | NamedModel, ChatModel | NamedModel]:
        """Return the model of the runs of a tree, and the model of its plain questions."""
        model = self.model if llm is None else model_given(llm, "llm")
        return model, self.sub_model or model

    def recursion(
        self, model: ChatModel, sub_model: ChatModel, on_event: EventHandler
    ) -> RecursionConfig:
        """Return the configuration of a tree's sub-calls."""
        return RecursionConfig(
            model,
            sub_model,
            max_depth=self.max_depth,
            run_config=self.run_config,
            gate=self.gate,
            on_event=on_event,
            tools=self.tools,
            system_prompt=self.system_prompt,
            limits=self.budget,
        )

    def settings(self, seed: int | None) -> dict[str, Any]:
        """Return the settings that a replay must share with a run, besides its question and
        contexts.
        """
        return {
            "max_iterations": self.run_config.max_iterations,
            "max_depth": self.max_depth,
            "blocks": self.run_config.blocks,
            "prompts": self.run_config.prompts,
            "examples": self.run_config.examples,
            "prefix": self.run_config.prefix,
            "budget": asdict(self.budget),
            "seed": seed,
        }


def model_given(value: object, name: str) -> ChatModel | NamedModel:
    """Return the argument of this name as a model, or as a model that opens on use."""
    return NamedModel(value, name) if isinstance(value, LLM) else as_model(value, name)
