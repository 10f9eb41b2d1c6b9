"""`EpisodeSlot`: the current episode of an environment, and the checks before each call."""

from __future__ import annotations

from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode, new_reset_guard
from repl_env.episode.effects import Effects
from repl_env.errors import CLOSED, EpisodeAborted, EpisodeDone, NotReset
from repl_sandbox.errors import SandboxError


class EpisodeSlot:
    """Holds the current episode, or none.

    Attributes:
        current: the episode; None between episodes.
        closed: whether the environment was closed after its last episode.
        reset_guard: guards the calls that put another episode here.
    """

    __slots__ = ("closed", "current", "reset_guard")

    def __init__(self) -> None:
        self.current: CurrentEpisode | None = None
        self.closed = False
        self.reset_guard = new_reset_guard()

    def require_current(self) -> CurrentEpisode:
        """Return the current episode; NotReset if none has begun."""
        if self.current is None:
            raise NotReset(CLOSED) if self.closed else NotReset
        return self.current

    def check_mode(self, mode: Mode) -> None:
        """Raise RuntimeError if calls of the other kind began the current episode."""
        if self.current is not None:
            self.current.check_mode(mode)

    def current_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a call of this kind.

        NotReset or RuntimeError otherwise.
        """
        current = self.require_current()
        current.check_mode(mode)
        return current

    def unfinished_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a step of this kind.

        EpisodeDone if the episode is over.
        """
        current = self.current_in(mode)
        if current.last is not None:
            raise EpisodeDone(current.last)
        return current

    def check_current(self, current: CurrentEpisode) -> None:
        """Raise if another thread or task has ended or left `current` since it was looked up."""
        if self.current is not current:
            message = "the environment was closed or reset amid the step, by another call"
            raise EpisodeAborted("cancelled", f"{message}; that episode is over")
        if current.last is not None:
            raise EpisodeDone(current.last)

    def replace_current(self, current: CurrentEpisode) -> Effects[None]:
        """Make `current` the current episode, and end the session of the previous one."""
        previous, self.current, self.closed = self.current, current, False
        if previous is not None:
            yield from previous.close()

    def close_current(self) -> Effects[None]:
        """End the session of the current episode, if any, and hold none."""
        current, self.current = self.current, None
        if current is not None:
            yield from current.close()

    def close(self) -> Effects[None]:
        """End the session of the current episode, if any, as the environment is closed."""
        self.closed = True
        yield from self.close_current()

    def abandon(self, current: CurrentEpisode) -> Effects[None]:
        """Drop `current` after an error that the caller receives; another episode is untouched."""
        if self.current is not current:
            return
        try:
            yield from self.close_current()
        except SandboxError:
            # The session is already lost, as the error of the caller says.
            return
