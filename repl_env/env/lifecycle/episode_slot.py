"""`EpisodeSlot`: the current episode of an environment, and the checks before each call."""

from __future__ import annotations

from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode, at_one_reset
from repl_env.episode.effects import Effects
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_sandbox.errors import SandboxError


class EpisodeSlot:
    """Holds the current episode, or none.

    Attributes:
        current: the episode; None between episodes.
        at_reset: guards the calls that put another episode here.
    """

    __slots__ = ("at_reset", "current")

    def __init__(self) -> None:
        self.current: CurrentEpisode | None = None
        self.at_reset = at_one_reset()

    def begun(self) -> CurrentEpisode:
        """Return the current episode; NotReset if none has begun."""
        if self.current is None:
            raise NotReset
        return self.current

    def check_mode(self, mode: Mode) -> None:
        """Raise RuntimeError if calls of the other kind began the current episode."""
        if self.current is not None:
            self.current.check_mode(mode)

    def begun_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a call of this kind.

        NotReset or RuntimeError otherwise.
        """
        current = self.begun()
        current.check_mode(mode)
        return current

    def going_on_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a step of this kind.

        EpisodeDone if the episode is over.
        """
        current = self.begun_in(mode)
        if current.last is not None:
            raise EpisodeDone(current.last)
        return current

    def check_current(self, current: CurrentEpisode) -> None:
        """Raise if another thread or task has ended or left `current` since it was looked up."""
        if self.current is not current:
            told = "the environment was closed or reset amid the step, by another call"
            raise EpisodeAborted("cancelled", f"{told}; that episode is over")
        if current.last is not None:
            raise EpisodeDone(current.last)

    def replacing(self, current: CurrentEpisode) -> Effects[None]:
        """Make `current` the current episode, and end the session of the previous one."""
        before, self.current = self.current, current
        if before is not None:
            yield from before.ending()

    def leaving(self) -> Effects[None]:
        """End the session of the current episode, if any, and hold none."""
        current, self.current = self.current, None
        if current is not None:
            yield from current.ending()

    def abandoning(self, current: CurrentEpisode) -> Effects[None]:
        """Drop `current` after an error that the caller receives; another episode is untouched."""
        if self.current is not current:
            return
        try:
            yield from self.leaving()
        except SandboxError:
            # The session is already lost, as the error of the caller says.
            return
