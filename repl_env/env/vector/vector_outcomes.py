"""`VectorOutcomes`: what the last resets and steps of a group of environments led to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized

from repl_env.env.local_env import Result
from repl_env.env.vector.vector_results import last_of, unrewarded
from repl_env.errors import CLOSED, EpisodeDone, NotReset
from repl_env.models import REPLAction, REPLObservation, result_of


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
