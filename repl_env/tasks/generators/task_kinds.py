"""The kinds of tasks, and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from repl_env.common.set_module import set_module
from repl_env.tasks.generators.aggregation_tasks import aggregation
from repl_env.tasks.generators.generated_task import MAX_SIZE, MIN_SIZE, GeneratedTask
from repl_env.tasks.generators.needle_tasks import multi_needle, single_needle
from repl_env.tasks.generators.pair_tasks import pairs

KINDS: Mapping[str, Callable[[int, int], GeneratedTask]] = MappingProxyType(
    {
        "single_needle": single_needle,
        "multi_needle": multi_needle,
        "aggregation": aggregation,
        "pairs": pairs,
    }
)


def kind_named(text: str) -> str:
    """Return the name of a kind that is written with "_" or with "-".

    Raises:
        TypeError: `text` is not text.
        ValueError: there is no such kind.
    """
    if not isinstance(text, str):
        raise TypeError(f"kind must be a str, not {type(text).__name__}")
    name = text.replace("-", "_")
    if name not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {text!r}")
    return name


@set_module("repl_env.tasks")
def make_task(kind: str, size: int, seed: int) -> GeneratedTask:
    """Return the task of this `kind`, with a context of at most `size` characters.

    The same three arguments always make the same task. A kind may be written with "-" for "_".

    Raises:
        TypeError, ValueError: naming the argument.
    """
    name_of_kind = kind_named(kind)
    for name, value in (("size", size), ("seed", seed)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(f"size must be from {MIN_SIZE} to {MAX_SIZE} characters, not {size}")
    return KINDS[name_of_kind](size, seed)
