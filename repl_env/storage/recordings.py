"""Recorded episodes, and running their actions again to see whether the same comes out.

With `seed=`, and a sandbox with `hash_seed=`, what a session computes is the same each time, but
for clocks, `uuid`, `secrets`, addresses of objects, threads, and what functions of the host return.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repl_env.common.argument_checks import finite
from repl_env.common.replay_diff import RESULT, normalized
from repl_env.errors import EpisodeDone
from repl_env.models import REPLAction, REPLObservation, StepResult

# What else a step must have in common with the recorded one. Not here: how the session was held.
_OBSERVATION = ("context_preview", "context_length", "available_variables", "iteration", "done")
_METADATA = (
    "final_answer", "answer_value", "error_kind", "mask", "stop_reason", "reward_components",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode: the arguments of its reset, its actions, and what each came to.

    `observations` has one more than `actions`: the first is that of the reset. `timeouts` has the
    seconds that each action was given, None for the sandbox's limit; empty: none was given any.

    Raises:
        ValueError: it has not.
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
        """The recording as text.

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
        """The recording that `to_json` wrote; ValueError if `text` is none."""
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


@dataclass(frozen=True, slots=True)
class Difference:
    """What came out otherwise. `step` counts from 1; 0 is the reset. `field` is a dotted path."""

    step: int
    field: str
    recorded: Any
    replayed: Any


class Steppable(Protocol):
    """What can be recorded and replayed: `LocalREPLEnv`, or another with its methods."""

    def reset(self, **arguments: Any) -> StepResult[REPLObservation]:
        """Begin an episode."""

    def step(self, action: REPLAction, **options: Any) -> StepResult[REPLObservation]:
        """Go on with it; `options` are `timeout_s`, and what the environment takes besides."""


def replay(
    recording: Recording, environment: Steppable, **arguments: Any
) -> tuple[Difference, ...]:
    """Run the actions of `recording` in a new episode; what came out otherwise, in order.

    `arguments` go to the reset besides the recorded ones, as tokens do. Addresses of objects are
    taken for equal. A replay ends where the environment says that the episode is over.
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


def _seconds(given: Any) -> float | None:
    """What a file has for a time; TypeError, ValueError if it is none."""
    return None if given is None else float(finite(given, "timeouts"))


def _differences(
    step: int, recorded: REPLObservation, replayed: REPLObservation
) -> Iterator[Difference]:
    told = dict(_compared(replayed))
    for field, value in _compared(recorded):
        if normalized(value) != normalized(told[field]):
            yield Difference(step, field, value, told[field])


def _compared(observation: REPLObservation) -> Iterator[tuple[str, Any]]:
    yield "reward", observation.reward
    for name in _OBSERVATION:
        yield name, getattr(observation, name)
    for name in RESULT:
        yield f"result.{name}", getattr(observation.result, name)
    for name in _METADATA:
        yield f"metadata.{name}", observation.metadata.get(name)
