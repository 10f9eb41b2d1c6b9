"""An environment's use of its rubric: a private copy, the expected answer, the parts of a reward.

The rubric may come from another library: features that it lacks are skipped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from repl_env.rewards.repl_rubric import REPLRubric, check_rubric
from repl_env.rewards.rubric import Rubric


def own_rubric(rubric: Rubric | None) -> Rubric:
    """Return a copy of `rubric` for one environment; TypeError if it is no rubric or cannot be
    copied.
    """
    if rubric is None:
        return REPLRubric()
    check_rubric(rubric, "rubric")
    try:
        return copy.deepcopy(rubric)
    except Exception as error:
        # Copying runs code of the rubric, which may raise anything.
        raise TypeError(f"rubric must be copyable, one for each environment: {error}") from error


def takes_expected(rubric: Any) -> bool:
    """Return whether the rubric accepts an expected answer."""
    return getattr(rubric, "set_expected", None) is not None


def state_of(rubric: Any) -> Any:
    """Return the rubric's state besides the expected answer; None if it exposes none."""
    state_dict = getattr(rubric, "state_dict", None)
    return None if state_dict is None else state_dict()


def remind(rubric: Any, expected: Any, state: Any = None) -> None:
    """Give a rubric that was reset the expected answer and its saved state."""
    if takes_expected(rubric):
        rubric.set_expected(expected)
    load = getattr(rubric, "load_state_dict", None)
    if load is not None and state is not None:
        load(state)


def task_reward(rubric: Any, parts: Mapping[str, float]) -> float:
    """Return the sum of the parts of a reward that are the task's own."""
    shaping = getattr(rubric, "shaping", ())
    if isinstance(shaping, str):
        shaping = (shaping,)
    if not isinstance(shaping, (tuple, list, set, frozenset)):
        shaping = ()  # of another library, with another meaning
    task = 0.0
    for name, part in parts.items():
        if name not in shaping:
            task += part
    return task


def components(rubric: Rubric | None, reward: float) -> dict[str, float]:
    """Return the named parts of a reward; their sum is the reward."""
    if rubric is None:
        return {}
    read_components = getattr(rubric, "components", None)
    returned = read_components() if callable(read_components) else {}
    if type(returned) is not dict and not isinstance(returned, Mapping):
        name, kind = type(rubric).__name__, type(returned).__name__
        raise TypeError(f"{name}.components() must return parts by their names, not {kind}")
    # numpy and torch scalars are not JSON
    parts = {name: float(part) for name, part in returned.items()}
    if math.isclose(sum(parts.values()), reward, abs_tol=1e-9):
        return parts
    return {type(rubric).__name__: reward}
