"""Internals of adapters and examples of TorchRL that tests observe or call."""

from __future__ import annotations

from typing import Any


def shared_templates(env: Any) -> Any:
    """The templates that the contexts of an environment's groups lie in."""
    return env.transform.rows.environments._shared._templates


def learn(learner: Any, turns: Any, advantages: Any) -> None:
    """The steps of a learner on one batch."""
    learner._learn(turns, advantages)
