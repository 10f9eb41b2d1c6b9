"""The facts of a task, from a caller's argument to a `TaskNote`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from repl_env.common.json_values import replace_surrogates
from repl_env.rlm.events import TaskNote


class HasTaskFacts(Protocol):
    """A task with facts, such as those of `repl_env.tasks`."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the facts by name."""


GivenTask: TypeAlias = "str | Mapping[str, Any] | HasTaskFacts"

# Each fact, and its accepted names; other names are the caller's own.
_NAMES = {
    "name": ("name", "id"),
    "group_id": ("group_id",),
    "split": ("split",),
    "difficulty": ("difficulty",),
    "group": ("group",),
}


def task_note(task: GivenTask | None, group_id: str | None = None) -> TaskNote | None:
    """Return the note of `task`: a name, facts by name, or a task of `repl_env.tasks`.

    Raises:
        TypeError: naming the argument, or the fact.
    """
    facts = _facts(task)
    found = {fact: _first(facts, names) for fact, names in _NAMES.items()}
    if group_id is not None:
        found["group_id"] = _text(group_id, "group_id")
    return TaskNote(**found) if task is not None or group_id is not None else None


def _facts(task: object) -> Mapping[str, Any]:
    if task is None:
        return {}
    facts = {"name": task} if isinstance(task, str) else getattr(task, "facts", task)
    if not isinstance(facts, Mapping):
        raise TypeError(f"task must be a name, a dict of facts, or a task, not {_kind(task)}")
    return facts


def _first(facts: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        if facts.get(name) is not None:
            return _text(facts[name], f"task: {name}")
    return None


def _text(value: object, name: str) -> str:
    # Datasets number their tasks, groups and levels.
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f"{name} must be a text or a number, not {_kind(value)}")
    return replace_surrogates(str(value))


def _kind(value: object) -> str:
    return type(value).__name__
