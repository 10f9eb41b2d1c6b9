"""Resets and steps of environments that go together: arguments by number, and what each led to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from operator import index as as_index
from types import TracebackType
from typing import Any, Self, TypeAlias

from repl_env.common.display import Closeable
from repl_env.errors import CLOSED, EpisodeAborted, EpisodeDone, NotReset
from repl_env.models import REPLAction, REPLObservation, StepResult, message_result, result_of

Result: TypeAlias = StepResult[REPLObservation]

# The environments that a reset of a `REPLVectorEnv` is for, and the arguments of each.

Requests: TypeAlias = Sequence[Mapping[str, Any] | None]


def resets_of(
    n: int,
    requests: Requests | None,
    only: Iterable[int] | None,
    shared: Mapping[str, Any],
    accepted: frozenset[str],
) -> dict[int, dict[str, Any]]:
    """Return the arguments of each environment's reset, by its number, out of `n`.

    `accepted` are the argument names that a reset accepts.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    numbers = list(range(n)) if only is None else _numbers(only, n)
    requests_by_number = (
        dict.fromkeys(numbers) if requests is None else _by_number(n, numbers, requests)
    )
    resets = {number: {**shared, **(requests_by_number[number] or {})} for number in numbers}
    for number, each in resets.items():
        if unknown := sorted(each.keys() - accepted):
            allowed = ", ".join(sorted(accepted))
            message = f"environment {number}: reset takes no {', '.join(unknown)}, but {allowed}"
            raise TypeError(message)
    return resets


def _numbers(only: Iterable[int], n: int) -> list[int]:
    """Return the environments in `only`, in its order."""
    if isinstance(only, (str, bytes, Mapping)) or not isinstance(only, Iterable):
        raise TypeError(f"only must be a list of numbers, not {type(only).__name__}")
    numbers = [_number(each) for each in only]
    for number in numbers:
        if not 0 <= number < n:
            raise ValueError(f"only: there is no environment {number}; there are 0 to {n - 1}")
    if len(set(numbers)) < len(numbers):
        raise ValueError("only names an environment twice")
    return numbers


def _number(value: object) -> int:
    # A boolean mask would otherwise reset the environments 0 and 1, because True is 1.
    if isinstance(value, bool):
        raise TypeError("only must hold numbers of environments, not bools as a mask does")
    try:
        return as_index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"only must hold numbers of environments, not {kind}") from None


def _by_number(
    n: int, numbers: Sequence[int], requests: Requests
) -> dict[int, Mapping[str, Any] | None]:
    """Return the requests by the number of their environment."""
    if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Sized):
        raise TypeError(f"requests must be a list, not {type(requests).__name__}")
    for index, each in enumerate(requests):
        if not (each is None or isinstance(each, Mapping)):
            kind = type(each).__name__
            raise TypeError(f"requests[{index}] must be a mapping or None, not {kind}")
    if len(requests) == n:
        if len(numbers) == n and list(numbers) != sorted(numbers):
            raise ValueError("only names all environments: leave it out, or give it in their order")
        return dict(enumerate(requests))
    if len(requests) != len(numbers):
        expected = f"{n} environments" if len(numbers) == n else f"the {len(numbers)} in only"
        raise ValueError(f"requests: {len(requests)} for {expected}")
    return dict(zip(numbers, requests, strict=True))


# The results of the environments of a `REPLVectorEnv`.


def last_of(previous: Result, outcome: REPLObservation | BaseException) -> Result | None:
    """Return the last result of an environment whose step returned `end`; None for an error."""
    match outcome:
        case REPLObservation():
            return result_of(outcome)
        case EpisodeDone():
            return outcome.result  # the episode may not have recorded its end: scoring failed
        case EpisodeAborted():
            return _lost(previous, outcome)
        case NotReset() if previous.done:
            return previous
        case _:
            return None


def masked_share(results: Iterable[Result | None]) -> float:
    """Return the share of the results that are of masked episodes; 0 without results."""
    masks = [bool((each.metadata or {}).get("mask")) for each in results if each is not None]
    return sum(masks) / len(masks) if masks else 0.0


def unrewarded(last: Result) -> Result:
    """Return `last` again without a reward: nothing is scored twice."""
    observation = last.observation.model_copy(update={"reward": 0.0})
    return replace(last, reward=0.0, observation=observation)


def _lost(last: Result, error: EpisodeAborted) -> Result:
    """Return the final result of an episode whose session is gone."""
    previous = last.observation
    metadata = {
        **previous.metadata,
        "error_kind": error.kind,
        "mask": True,
        "reward_components": {},
        "task_reward": 0.0,
        "stop_reason": "aborted",
        "ended": "truncated",
    }
    result = message_result("", f"{error}\nThe session is lost; the next reset begins a new one.")
    update = {"result": result, "done": True, "reward": 0.0, "metadata": metadata}
    return result_of(previous.model_copy(update=update))


# `VectorOutcomes`: what the last resets and steps of a group of environments led to.


class VectorOutcomes:
    """The outcomes of `n` environments, by number.

    Attributes:
        last: the last result of each episode; None without an episode.
        results: of the last reset or step; None for no action, and after a failure.
        errors: of the last reset or step.
    """

    def __init__(self, n: int, *, closed: bool = False) -> None:
        self._n = n
        self._closed = closed  # the environments, after earlier outcomes
        self.last: list[Result | None] = [None] * n
        self.results: list[Result | None] = [None] * n
        self.errors: dict[int, BaseException] = {}
        # Numbers of the environments without an episode after a failed reset, with the reasons.
        self._reset_failures: dict[int, str] = {}

    def clear(self) -> None:
        """Forget the results and errors of the last reset or step."""
        self.results, self.errors = [None] * self._n, {}

    def begin_resets(self, numbers: Iterable[int]) -> None:
        """Forget the results and errors, and earlier failures of these resets."""
        self.clear()
        self._closed = False
        for number in numbers:
            self._reset_failures.pop(number, None)

    def interrupt(self, number: int) -> None:
        """Record that an interrupted reset left this environment without an episode."""
        self.last[number], self._reset_failures[number] = None, "it was interrupted"

    def record_resets(
        self, numbers: Iterable[int], outcomes: Sequence[REPLObservation | BaseException]
    ) -> list[Result | None]:
        """Return the results of all environments; raise the first error of a reset."""
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self.last[number], self.errors[number] = None, outcome
                self._reset_failures[number] = f"{type(outcome).__name__}: {outcome}"
            else:
                self.last[number] = self.results[number] = result_of(outcome)
        self._raise(f" of {self._n}")
        return list(self.results)

    def actions_by_number(
        self, actions: Sequence[str | REPLAction | None]
    ) -> dict[int, REPLAction]:
        """Return the actions to take.

        Raises:
            TypeError, ValueError: naming the action.
            NotReset: an environment with an action has no episode.
        """
        # A container without an order, or with keys for items, would run code in arbitrary
        # environments.
        unordered = isinstance(actions, (str, Mapping, set, frozenset))
        if unordered or not isinstance(actions, Sized) or len(actions) != self._n:
            raise ValueError(f"actions must be a list of {self._n}, one for each environment")
        actions_to_take = {}
        for number, action in enumerate(actions):
            if action is None:
                continue
            if not isinstance(action, (str, REPLAction)):
                raise TypeError(f"actions[{number}] must be str, REPLAction or None")
            if self.last[number] is None:
                raise self._not_reset(number)
            actions_to_take[number] = REPLAction(code=action) if isinstance(action, str) else action
        return actions_to_take

    def record_steps(
        self, numbers: Iterable[int], outcomes: Sequence[REPLObservation | BaseException]
    ) -> list[Result | None]:
        """Return the results of all environments; raise the first error of a step."""
        for number, outcome in zip(numbers, outcomes, strict=True):
            previous = self.last[number]
            assert previous is not None
            last = last_of(previous, outcome)
            if last is None:  # not of the environment: a bug of a rubric, for example
                assert isinstance(outcome, BaseException)
                self.errors[number] = outcome
                continue
            is_repeated = isinstance(outcome, (EpisodeDone, NotReset))
            self.last[number] = last
            self.results[number] = unrewarded(last) if is_repeated else last
        self._raise(f" of {self._n}; the others have taken their steps")
        return list(self.results)

    def _not_reset(self, number: int) -> NotReset:
        """Return the error of an environment without an episode."""
        if number not in self._reset_failures:
            return NotReset(CLOSED) if self._closed else NotReset()
        reason = self._reset_failures[number]
        return NotReset(f"environment {number}: its reset failed, so it has no episode: {reason}")

    def _raise(self, suffix: str) -> None:
        """Raise the first error, if there is one."""
        if not self.errors:
            return
        (number, first), *more = self.errors.items()
        first.add_note(f"environment {number}{suffix}")
        for other, error in more:
            first.add_note(f"environment {other} failed too: {type(error).__name__}: {error}")
        raise first


class EpisodeGroup(Closeable):
    """Environments that are reset and stepped together, as far as their outcomes go."""

    _outcomes: VectorOutcomes

    @property
    def results(self) -> list[Result | None]:
        """The results of the last reset or step; None for no action, and after a failure."""
        return self._outcomes.results

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors of the last reset or step, by the number of the environment."""
        return self._outcomes.errors

    @property
    def masked_share(self) -> float:
        """The share of the rows' episodes that are masked so far, from 0 to 1."""
        return masked_share(self._outcomes.last)

    @abstractmethod
    async def aclose(self) -> None:
        """`close` for an event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
