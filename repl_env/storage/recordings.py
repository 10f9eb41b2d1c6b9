"""Recorded episodes, and replays that compare their outcomes.

With `seed=`, and a sandbox with `hash_seed=`, a session computes the same results each time, except
for clocks, `uuid`, `secrets`, object addresses, threads, and results of host functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repl_env.common.argument_checks import finite
from repl_env.common.replay_diff import RESULT, normalized
from repl_env.common.set_module import set_module
from repl_env.errors import EpisodeDone
from repl_env.models import REPLAction, REPLObservation, StepResult

# Further fields of a step that must equal the recorded ones; isolation is not among them.
_OBSERVATION = ("context_preview", "context_length", "available_variables", "iteration", "done")
_METADATA = (
    "final_answer", "answer_value", "error_kind", "mask", "stop_reason", "reward_components",
)  # fmt: skip


@set_module("repl_env")
@dataclass(frozen=True, slots=True)
class Recording:
    """An episode: the arguments of its reset, its actions, and their observations.

    `observations` has one more item than `actions`: the first is that of the reset. `timeouts` has
    the
    time limit of each action in seconds, None for the sandbox's limit; empty: no action had one.

    Raises:
        ValueError: the lengths do not match.
    """

    reset: Mapping[str, Any]
    actions: tuple[REPLAction, ...]
    observations: tuple[REPLObservation, ...]
    timeouts: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        actions, observations = len(self.actions), len(self.observations)
        if observations != actions + 1:
            raise ValueError(
                f"this is no recording: of {actions} actions there are {actions + 1} "
                f"observations, not {observations}"
            )
        if self.timeouts and len(self.timeouts) != actions:
            raise ValueError(
                f"this is no recording: of {actions} actions there are {actions} timeouts, "
                f"not {len(self.timeouts)}"
            )

    def to_json(self) -> str:
        """Return the recording as text.

        Raises:
            TypeError: an argument of the reset is not JSON.
        """
        fields = {
            "reset": dict(self.reset),
            "actions": [action.model_dump(mode="json") for action in self.actions],
            "observations": [each.model_dump(mode="json") for each in self.observations],
            "timeouts": list(self.timeouts),
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Recording:
        """Parse a recording that `to_json` wrote; ValueError if `text` is not one."""
        try:
            fields = json.loads(text.removeprefix("\ufeff"))
            return cls(
                dict(fields["reset"]),
                tuple(REPLAction.model_validate(each) for each in fields["actions"]),
                tuple(REPLObservation.model_validate(each) for each in fields["observations"]),
                tuple(map(_seconds, fields.get("timeouts", ()))),
            )
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"this is no recording: {error!r}") from None


@set_module("repl_env")
@dataclass(frozen=True, slots=True)
class Difference:
    """A difference. `step` counts from 1; 0 is the reset. `field` is a dotted path."""

    step: int
    field: str
    recorded: Any
    replayed: Any


class Steppable(Protocol):
    """An environment that can be recorded and replayed, such as `LocalREPLEnv`."""

    def reset(self, **arguments: Any) -> StepResult[REPLObservation]:
        """Begin an episode."""

    def step(self, action: REPLAction, **options: Any) -> StepResult[REPLObservation]:
        """Take an action; `options` are `timeout_s` and further options of the environment."""


@set_module("repl_env")
def replay(
    recording: Recording, environment: Steppable, **arguments: Any
) -> tuple[Difference, ...]:
    """Run the actions of `recording` in a new episode and return the differences in order.

    `arguments`, such as tokens, go to the reset in addition to the recorded ones. Object addresses
    compare equal. The replay stops when the environment reports the end of the episode.
    """
    result = environment.reset(**{**recording.reset, **arguments})
    found = list(_differences(0, recording.observations[0], result.observation))
    timeouts = recording.timeouts or (None,) * len(recording.actions)
    steps = zip(recording.actions, timeouts, recording.observations[1:], strict=True)
    for number, (action, timeout_s, recorded) in enumerate(steps, 1):
        try:
            options = {} if timeout_s is None else {"timeout_s": timeout_s}
            result = environment.step(action, **options)
        except EpisodeDone:
            found.append(Difference(number, "action", action.model_dump(), None))
            break
        found += _differences(number, recorded, result.observation)
    return tuple(found)


def _seconds(value: Any) -> float | None:
    """Return a recorded time limit; TypeError or ValueError if it is not one."""
    return None if value is None else float(finite(value, "timeouts"))


def _differences(
    step: int, recorded: REPLObservation, replayed: REPLObservation
) -> Iterator[Difference]:
    replayed_values = dict(_compared(replayed))
    for field, value in _compared(recorded):
        if normalized(value) != normalized(replayed_values[field]):
            yield Difference(step, field, value, replayed_values[field])


def _compared(observation: REPLObservation) -> Iterator[tuple[str, Any]]:
    yield "reward", observation.reward
    for name in _OBSERVATION:
        yield name, getattr(observation, name)
    for name in RESULT:
        yield f"result.{name}", getattr(observation.result, name)
    for name in _METADATA:
        yield f"metadata.{name}", observation.metadata.get(name)
