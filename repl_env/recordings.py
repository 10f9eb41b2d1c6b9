"""Recording an episode, and running its actions again to see whether the same comes out.

With `seed=`, and a sandbox with `hash_seed=`, what a session computes is the same each time, but
for clocks, `uuid`, `secrets`, addresses of objects, threads, and what functions of the host return.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repl_env.comparing import RESULT, comparable
from repl_env.errors import EpisodeDone, NotReset
from repl_env.models import REPLAction, REPLObservation, StepResult

# Of the arguments of a reset, those that are or hold secrets; who replays gives them again.
SECRETS = frozenset({"hf_token", "llm"})

# What else a step must have in common with the recorded one. Not here: how the session was held.
_OBSERVATION = ("context_preview", "context_length", "available_variables", "iteration", "done")
_METADATA = (
    "final_answer", "answer_value", "error_kind", "mask", "stop_reason", "reward_components",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode: the arguments of its reset, its actions, and what each came to.

    `observations` has one more than `actions`: the first is that of the reset.

    Raises:
        ValueError: it has not.
    """

    reset: Mapping[str, Any]
    actions: tuple[REPLAction, ...]
    observations: tuple[REPLObservation, ...]

    def __post_init__(self) -> None:
        actions, observations = len(self.actions), len(self.observations)
        if observations != actions + 1:
            raise ValueError(
                f"this is no recording: of {actions} actions there are {actions + 1} "
                f"observations, not {observations}"
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
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Recording:
        """The recording that `to_json` wrote; ValueError if `text` is none."""
        try:
            fields = json.loads(text)
            return cls(
                dict(fields["reset"]),
                tuple(REPLAction.model_validate(each) for each in fields["actions"]),
                tuple(REPLObservation.model_validate(each) for each in fields["observations"]),
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

    def step(self, action: REPLAction) -> StepResult[REPLObservation]:
        """Go on with it."""


class Recorder:
    """An environment that remembers the current episode.

    ```python
    recorder = Recorder(env)
    recorder.reset(context="apples 3", seed=7)
    recorder.step(REPLAction(code="print(context)"))
    text = recorder.recording.to_json()
    ```
    """

    def __init__(self, environment: Steppable) -> None:
        self._environment = environment
        self._arguments: dict[str, Any] = {}
        self._actions: list[REPLAction] = []
        self._observations: list[REPLObservation] = []

    def reset(self, **arguments: Any) -> StepResult[REPLObservation]:
        """As the environment's; secrets are passed on and not remembered."""
        result = self._environment.reset(**arguments)
        self._arguments = {k: _as_it_is(v) for k, v in arguments.items() if k not in SECRETS}
        self._actions, self._observations = [], [_copy(result)]
        return result

    def step(self, action: REPLAction) -> StepResult[REPLObservation]:
        """As the environment's."""
        result = self._environment.step(action)
        self._actions.append(action.model_copy(deep=True))
        self._observations.append(_copy(result))
        return result

    @property
    def recording(self) -> Recording:
        """The episode so far; NotReset if none has begun."""
        if not self._observations:
            raise NotReset
        return Recording(self._arguments, tuple(self._actions), tuple(self._observations))


def replay(
    recording: Recording, environment: Steppable, **arguments: Any
) -> tuple[Difference, ...]:
    """Run the actions of `recording` in a new episode; what came out otherwise, in order.

    `arguments` go to the reset besides the recorded ones, as tokens do. Addresses of objects are
    taken for equal. A replay ends where the environment says that the episode is over.
    """
    result = environment.reset(**{**recording.reset, **arguments})
    found = list(_differences(0, recording.observations[0], result.observation))
    steps = zip(recording.actions, recording.observations[1:], strict=True)
    for number, (action, recorded) in enumerate(steps, 1):
        try:
            result = environment.step(action)
        except EpisodeDone:
            found.append(Difference(number, "action", action.model_dump(), None))
            break
        found += _differences(number, recorded, result.observation)
    return tuple(found)


def _as_it_is(given: Any) -> Any:
    """A copy of what holds others: a context is its owner's, who may go on to change it."""
    if isinstance(given, dict):
        return {key: _as_it_is(value) for key, value in given.items()}
    if isinstance(given, list):
        return [_as_it_is(value) for value in given]
    return bytes(given) if isinstance(given, (bytearray, memoryview)) else given


def _copy(result: StepResult[REPLObservation]) -> REPLObservation:
    return result.observation.model_copy(deep=True)


def _differences(
    step: int, recorded: REPLObservation, replayed: REPLObservation
) -> Iterator[Difference]:
    told = dict(_compared(replayed))
    for field, value in _compared(recorded):
        if comparable(value) != comparable(told[field]):
            yield Difference(step, field, value, told[field])


def _compared(observation: REPLObservation) -> Iterator[tuple[str, Any]]:
    yield "reward", observation.reward
    for name in _OBSERVATION:
        yield name, getattr(observation, name)
    for name in RESULT:
        yield f"result.{name}", getattr(observation.result, name)
    for name in _METADATA:
        yield f"metadata.{name}", observation.metadata.get(name)
