"""A second environment on the base of `repl_env.interfaces`: find a hidden number.

It has actions, observations and a state of its own, a rubric that scores them, and a transform that
adds to observations. Nothing of it runs code, and no engine is loaded. Run it to see a policy play:

    python examples/number_hunt.py
"""

from __future__ import annotations

import random
from typing import Any

from repl_env.errors import EpisodeDone, NotReset
from repl_env.interfaces import Environment, EnvironmentMetadata, Transform
from repl_env.models import Action, Observation, State, StepResult
from repl_env.rubrics import Rubric

HIGHEST = 100
MOST_GUESSES = 8  # one more than bisection of 1 to 100 needs


class Guess(Action):
    """A number that may be the hidden one."""

    number: int


class Hint(Observation):
    """How the last guess was: "higher" or "lower" says where the hidden number is."""

    hint: str = ""
    guesses_left: int = MOST_GUESSES


class Hunt(State):
    """An episode so far. The hidden number is not part of it."""

    lowest: int = 1
    highest: int = HIGHEST


class QuickHunt(Rubric):
    """At the end 1.0 for a find, less a tenth for each guess beyond the first; 0.0 for none."""

    def forward(self, action: Any, observation: Hint) -> float:
        """The reward of one guess."""
        if observation.hint != "found":
            return 0.0
        return 1.0 - 0.1 * (MOST_GUESSES - 1 - observation.guesses_left)


class Countdown(Transform[Hint]):
    """Writes into the metadata what a policy that reads text wants to see."""

    def __call__(self, observation: Hint) -> Hint:
        """The same observation with a text."""
        left = observation.guesses_left
        observation.metadata["text"] = f"{observation.hint} ({left} guesses left)"
        return observation


class NumberHunt(Environment[Guess, Hint, Hunt]):
    """Find the number between 1 and 100 within eight guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(transform=Countdown(), rubric=QuickHunt())
        self._hidden: int | None = None
        self._state = Hunt()
        self._last: Hint | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        """Hide a number; the same seed hides the same one."""
        self._reset_rubric()
        self._hidden = random.Random(seed).randint(1, HIGHEST)
        self._state = Hunt(episode_id=episode_id)
        self._last = None
        return self._apply_transform(Hint(hint=f"between 1 and {HIGHEST}"))

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        """Compare a guess with the hidden number."""
        if self._hidden is None:
            raise NotReset
        if self._last is not None:
            raise EpisodeDone(StepResult(self._last, self._last.reward, True))
        self._state.step_count += 1
        observation = self._apply_transform(self._compare(action.number, self._hidden))
        observation.reward = self._apply_rubric(action, observation)
        if observation.done:
            self._last = observation
        return observation

    @property
    def state(self) -> Hunt:
        """Return the observation: all that a policy can know by now."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and description."""
        return EnvironmentMetadata(name="number_hunt", description="Find a hidden number.")

    def _compare(self, number: int, hidden: int) -> Hint:
        left = MOST_GUESSES - self._state.step_count
        if number == hidden:
            return Hint(hint="found", guesses_left=left, done=True)
        if number < hidden:
            self._state.lowest = max(self._state.lowest, number + 1)
        else:
            self._state.highest = min(self._state.highest, number - 1)
        hint = "higher" if number < hidden else "lower"
        return Hint(hint=hint, guesses_left=left, done=left == 0)


def main() -> None:
    """Play one episode by bisection and print it."""
    environment = NumberHunt()
    observation = environment.reset(seed=7)
    print(observation.metadata["text"])
    while not observation.done:
        state = environment.state
        guess = Guess(number=(state.lowest + state.highest) // 2)
        observation = environment.step(guess)
        print(f"{guess.number}: {observation.metadata['text']}")
    print(f"reward {observation.reward:.1f}")


if __name__ == "__main__":
    main()
