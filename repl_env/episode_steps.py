"""`EpisodeSteps`: what a step of the current episode comes to, as turns (`repl_env.turns`).

Its code is run within what is left of the budget, or its answer is taken; an end is latched, and
the observation scored. Where the session is lost, the episode is abandoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from repl_env import cells, scoring
from repl_env.arguments import of_public_kind
from repl_env.aside import Aside, Blocking
from repl_env.block_steps import BlocksAction, joined
from repl_env.current_episode import CurrentEpisode, Mode
from repl_env.errors import OURS, EpisodeAborted, EpisodeDone, NotReset
from repl_env.interfaces import Environment, finite
from repl_env.models import REPLAction, REPLObservation, REPLState, give, result_of
from repl_env.pools import carried, carried_async
from repl_env.rubrics import is_pending, is_prompt
from repl_env.turns import Turn
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.session.requests import check_hearer
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_env.rlm.calling import Calling
    from repl_env.rlm.ledger import Account

# Parts of a budget that end an episode when they are used up, as its cells spend them. Without
# calls or tokens the code can go on, and the policy may have enough for an answer.
_ENDING = {"seconds": "wall time", "cpu_seconds": "CPU time"}


class EpisodeSteps(Environment[REPLAction, REPLObservation, REPLState]):
    """The current episode of an environment, and the turns that play and leave it."""

    _current: CurrentEpisode | None

    def _begun(self) -> CurrentEpisode:
        """The current episode; NotReset if none has begun."""
        if self._current is None:
            raise NotReset
        return self._current

    def _check_mode(self, mode: Mode) -> None:
        if self._current is not None:
            self._current.check_mode(mode)

    def _begun_in(self, mode: Mode) -> CurrentEpisode:
        current = self._begun()
        current.check_mode(mode)
        return current

    def _going_on_in(self, mode: Mode) -> CurrentEpisode:
        """The current episode; EpisodeDone if it is over."""
        current = self._begun_in(mode)
        if current.last is not None:
            raise EpisodeDone(current.last)
        return current

    def _check_current(self, current: CurrentEpisode) -> None:
        """Raise if another thread or task has ended or left the episode since it was looked up."""
        if self._current is not current:
            told = "the environment was closed or reset amid the step, by another call"
            raise EpisodeAborted("cancelled", f"{told}; that episode is over")
        if current.last is not None:
            raise EpisodeDone(current.last)

    def _stepping(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        more: Mapping[str, Any],
        on_output: cells.OnOutput | None = None,
    ) -> Turn[REPLObservation]:
        current = self._going_on_in(mode)
        if not isinstance(action, REPLAction):
            of_public_kind(action, REPLAction, "action")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        if on_output is not None:
            check_hearer(on_output)
        with current.at_step:
            self._check_current(current)
            try:
                observation = yield from _taking(current, action, timeout_s, on_output)
            except SessionBusy:
                raise
            except SandboxError as error:
                self._check_current(current)
                yield from self._abandoning(current)
                raise EpisodeAborted("sandbox", str(error)) from error
            if more:
                observation.metadata["ignored"] = sorted(more)
            return (yield from self._scoring(current, action, observation))

    def _giving_up(self, mode: Mode) -> Turn[REPLObservation]:
        """The end of the episode, as when the iterations are used up."""
        current = self._going_on_in(mode)
        with current.at_step:
            self._check_current(current)
            observation = current.episode.going_no_further()
            observation = yield from cells.giving_up(current.session, current.episode, observation)
            return (yield from self._scoring(current, REPLAction(code=""), observation))

    def _scoring(
        self, current: CurrentEpisode, action: REPLAction, observation: REPLObservation
    ) -> Turn[REPLObservation]:
        # Latched first: whatever a transform or rubric raises, nothing is run or scored any more.
        if observation.done:
            latch(current, observation)
        if self.transform is not None:
            observation = yield from self._transforming(observation)
        if observation.error_kind in OURS:
            reward, parts = 0.0, {}
        else:
            rubric = self.rubric
            if current.mode == "plain":
                reward = yield partial(self._apply_rubric, action, observation)
            elif (
                rubric is not None
                and is_prompt(rubric)
                and type(self)._apply_rubric_async is Environment._apply_rubric_async
            ):
                # As that has it, which is a coroutine for what is over at once as a rule.
                score = carried(partial(rubric, action, observation))
                if is_pending(score):
                    score = yield partial(carried_async, score)
                reward = finite(score, rubric)
            else:
                reward = yield partial(self._apply_rubric_async, action, observation)
            parts = scoring.components(rubric, reward)
        if type(observation) is REPLObservation:
            give(observation, reward=reward)
        else:  # a transform's own
            observation.reward = reward
        observation.metadata["reward_components"] = parts
        observation.metadata["task_reward"] = scoring.task_reward(self.rubric, parts)
        if observation.done:
            latch(current, observation)
        return observation

    def _transforming(self, observation: REPLObservation) -> Turn[REPLObservation]:
        if self.transform is None:
            return observation
        changed: REPLObservation = yield Blocking(self._apply_transform, observation)
        return changed

    def _leaving(self) -> Turn[None]:
        current, self._current = self._current, None
        if current is not None:
            yield from current.ending()

    def _abandoning(self, current: CurrentEpisode) -> Turn[None]:
        if self._current is not current:
            return  # it was left meanwhile, for another or for none
        try:
            yield from self._leaving()
        except SandboxError:
            # The session is lost already; that is what the caller is told, by the error above.
            return


def latch(current: CurrentEpisode, observation: REPLObservation) -> None:
    """Note the end of an episode: nothing is run or scored in it any more."""
    current.last = result_of(observation)


def _taking(
    current: CurrentEpisode,
    action: REPLAction,
    timeout_s: float | None,
    on_output: cells.OnOutput | None,
) -> Turn[REPLObservation]:
    """What an action comes to, before it is scored."""
    session, episode, calling = current.session, current.episode, current.calling
    if action.is_final:
        observation = episode.submit((yield Aside(episode.weighed, action.final_answer)))
    elif action.format_error is not None:
        observation = episode.misformatted(action.format_error)
        if calling is not None:
            observation = yield from _charging(current, calling, observation)
    elif isinstance(action, BlocksAction):
        observation = yield from _running_blocks(current, action.blocks, timeout_s, on_output)
    elif calling is None:
        observation = yield from cells.running(session, episode, action.code, timeout_s, on_output)
    else:
        observation = yield from _paying(current, calling, action.code, timeout_s, on_output)
    if episode.last_iteration:
        observation = yield from cells.giving_up(session, episode, observation)
    return observation


def _running_blocks(
    current: CurrentEpisode,
    codes: Sequence[str],
    timeout_s: float | None,
    on_output: cells.OnOutput | None,
) -> Turn[REPLObservation]:
    """Run the blocks of one step, until one of them ends the episode."""
    session, episode, calling = current.session, current.episode, current.calling
    before: REPLObservation | None = None
    for code in codes:
        arguments = (code, timeout_s, on_output, before is None)
        if calling is None:
            running = cells.running(session, episode, *arguments)
        else:
            running = _paying(current, calling, *arguments)
        observation = yield from running
        before = observation if before is None else joined(before, observation)
        if observation.done:
            break
    assert before is not None  # such an action has blocks
    return before


def _paying(
    current: CurrentEpisode,
    calling: Calling,
    code: str,
    timeout_s: float | None,
    on_output: cells.OnOutput | None,
    counts: bool = True,
) -> Turn[REPLObservation]:
    """Run a cell within the time that the budget leaves."""
    session, episode, account = current.session, current.episode, calling.account
    calling.cell = episode.cells + 1
    left = account.seconds_left()
    if left is not None and left > 0:
        timeout_s = left if timeout_s is None else min(timeout_s, left)
    observation = yield from cells.running(session, episode, code, timeout_s, on_output, counts)
    return (yield from _charging(current, calling, observation))


def _charging(
    current: CurrentEpisode, calling: Calling, observation: REPLObservation
) -> Turn[REPLObservation]:
    """Charge a step to the account; the episode ends when its time is used up."""
    session, episode, account = current.session, current.episode, calling.account
    account.spend_cpu(observation.metadata["usage"]["cpu_seconds"])
    observation.metadata["spent"] = asdict(account.total)
    used_up = _used_up(account)
    if used_up is not None and not episode.done:
        over = f"Budget used up: {used_up}."
        observation = yield from cells.giving_up(session, episode, observation, over)
    return observation


def _used_up(account: Account) -> str | None:
    """What an episode cannot go on without and has no more of."""
    left = account.left()
    for field, name in _ENDING.items():
        if (amount := getattr(left, field)) is not None and amount <= 0:
            return name
    return None
