"""Recorded episodes, and replays that compare their outcomes.

With `seed=`, and a sandbox with `hash_seed=`, a session computes the same results each time, except
for clocks, `uuid`, `secrets`, object addresses, threads, and results of host functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from repl_env.common.display import Closeable, set_module
from repl_env.common.files import RESULT, normalized
from repl_env.common.values import finite, one_timeout
from repl_env.errors import EpisodeDone, NotReset
from repl_env.models import REPLAction, REPLObservation, StepResult, action_of, showing

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


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
    the time limit of each action in seconds, None for the sandbox's limit; empty: no action had
    one.

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


# `Recorder`: an environment that records its episode.

# Arguments of a reset that are or hold secrets; the caller of a replay supplies them again.
SECRETS = frozenset({"hf_token", "llm"})

# Attributes of the environment that read the episode without changing it.
_PASSED_ON = frozenset(
    {
        "account", "subcalls", "contexts", "draft", "files", "list_variables", "rubric", "save",
        "session", "state",
    }
)  # fmt: skip
# Methods that begin an episode which a replay of a recording cannot reach.
_OTHER_BEGINNINGS = frozenset({"follow_up", "load"})

Result = StepResult[REPLObservation]


@set_module("repl_env")
class Recorder(Closeable):
    """An environment that records the current episode. A context manager.

    ```python
    with Recorder(LocalREPLEnv()) as recorder:
        recorder.reset(context="apples 3", seed=7)
        recorder.execute("print(context)", timeout_s=5)
        text = recorder.recording.to_json()
    print(Recording.from_json(text).actions[0].code)  # print(context)
    ```
    It has the methods of `LocalREPLEnv` except `follow_up` and `load`, whose episodes do not begin
    with a reset. Code that runs directly in `session`, and files put with `files`, are not
    recorded.
    """

    def __init__(self, environment: Steppable) -> None:
        self._environment: Any = environment
        self._arguments: dict[str, Any] = {}
        self._actions: list[REPLAction] = []
        self._timeouts: list[float | None] = []
        self._observations: list[REPLObservation] = []

    def __repr__(self) -> str:
        return f"<Recorder of {len(self._actions)} steps in {self._environment!r}>"

    def reset(self, **arguments: Any) -> Result:
        """Reset the environment; secrets are passed on and not recorded."""
        result: Result = self._environment.reset(**arguments)
        self._arguments = {k: _as_it_is(v) for k, v in arguments.items() if k not in SECRETS}
        self._actions, self._timeouts, self._observations = [], [], [_copy(result)]
        return result

    def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Result:
        """Step the environment; `timeout_s` is recorded, other options are passed on."""
        timeout_s = one_timeout(timeout_s, timeout)
        if timeout_s is not None:
            options["timeout_s"] = timeout_s
        result: Result = self._environment.step(action, **options)
        self._actions.append(action.model_copy(deep=True))
        self._timeouts.append(None if timeout_s is None else float(timeout_s))
        self._observations.append(_copy(result))
        return result

    def execute(self, code: str, **options: Any) -> Result:
        """Run `code` in one step."""
        return self.step(action_of(code), **options)

    def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step, unless its schema refuses the answer."""
        return self.step(REPLAction(is_final=True, final_answer=answer))

    def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return self.execute(showing(name))

    def branch(self, *, seed: int | None = None) -> Recorder:
        """Branch the environment; both recorders keep the steps so far and continue independently.

        A replay of a branch runs all steps from the reset, without the branch's own `seed`.
        """
        other = Recorder(self._environment.branch(seed=seed))
        other._arguments = self._arguments
        other._actions, other._timeouts = list(self._actions), list(self._timeouts)
        other._observations = list(self._observations)
        return other

    @property
    def recording(self) -> Recording:
        """The episode so far; NotReset if none has begun."""
        if not self._observations:
            raise NotReset
        timeouts = tuple(self._timeouts) if any(self._timeouts) else ()
        steps = tuple(self._actions), tuple(self._observations)
        return Recording(dict(self._arguments), *steps, timeouts)

    def close(self) -> None:
        """Close the environment; the recording stays."""
        self._environment.close()

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED_ON:
            return getattr(self._environment, name)
        explanation = ""
        if name in _OTHER_BEGINNINGS:
            explanation = ": a recording begins with a reset; call it on the environment itself"
        raise AttributeError(f"Recorder has no {name!r}{explanation}", name=name, obj=self)


def _as_it_is(given: Any) -> Any:
    """Return a copy of a container: the caller may change a context later."""
    if isinstance(given, dict):
        return {key: _as_it_is(value) for key, value in given.items()}
    if isinstance(given, list):
        return [_as_it_is(value) for value in given]
    return bytes(given) if isinstance(given, (bytearray, memoryview)) else given


def _copy(result: Result) -> REPLObservation:
    return result.observation.model_copy(deep=True)
