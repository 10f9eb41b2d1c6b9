"""`StepOperations`: steps of the current episode.

A step runs code within the remaining budget, or takes an answer; then the end is recorded and the
observation scored. A lost session abandons the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from repl_env.common.argument_checks import of_public_kind
from repl_env.concurrency.offload import Offload
from repl_env.env.lifecycle.block_steps import BlocksAction, joined
from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.scorer import RewardStep
from repl_env.episode import session_effects
from repl_env.episode.effects import Effects
from repl_env.errors import EpisodeAborted
from repl_env.models import REPLAction, REPLObservation
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.session.session_operations import check_answer_handler
from repl_sandbox.session_limits import check_seconds

if TYPE_CHECKING:
    from repl_env.rlm.budget.ledger import LedgerAccount
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls

# Parts of a budget that end an episode when its cells have used them up. Without calls or tokens
# the code can continue, and the policy may have enough for an answer.
_ENDING = {"seconds": "wall time", "cpu_seconds": "CPU time"}


class StepOperations:
    """The steps of the episodes in `slot`, which `scorer` scores."""

    def __init__(self, slot: EpisodeSlot, scorer: RewardStep) -> None:
        self._slot, self._scorer = slot, scorer

    def take_step(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        extra_arguments: Mapping[str, Any],
        on_output: session_effects.OnOutput | None = None,
    ) -> Effects[REPLObservation]:
        """Take an action; see `REPLEnvironment.step`. `extra_arguments` are unknown arguments."""
        current = self._slot.unfinished_in(mode)
        if not isinstance(action, REPLAction):
            of_public_kind(action, REPLAction, "action")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        if on_output is not None:
            check_answer_handler(on_output)
        with current.step_guard:
            self._slot.check_current(current)
            try:
                observation = yield from _take_action(current, action, timeout_s, on_output)
            except SessionBusy:
                raise
            except SandboxError as error:
                self._slot.check_current(current)
                yield from self._slot.abandon(current)
                raise EpisodeAborted("sandbox", str(error)) from error
            if extra_arguments:
                observation.metadata["ignored"] = sorted(extra_arguments)
            return (yield from self._scorer.score(current, action, observation))

    def give_up(self, mode: Mode) -> Effects[REPLObservation]:
        """End the episode as if its iterations were used up."""
        current = self._slot.unfinished_in(mode)
        with current.step_guard:
            self._slot.check_current(current)
            observation = current.episode.unchanged_observation()
            observation = yield from session_effects.give_up(
                current.session, current.episode, observation
            )
            return (yield from self._scorer.score(current, REPLAction(code=""), observation))


def _take_action(
    current: CurrentEpisode,
    action: REPLAction,
    timeout_s: float | None,
    on_output: session_effects.OnOutput | None,
) -> Effects[REPLObservation]:
    """Return the observation of an action, before it is scored."""
    session, episode, subcalls = current.session, current.episode, current.subcalls
    if action.is_final:
        observation = episode.submit((yield Offload(episode.judge_answer, action.final_answer)))
    elif action.format_error is not None:
        observation = episode.format_error_observation(action.format_error)
        if subcalls is not None:
            observation = yield from _charge(current, subcalls, observation)
    elif isinstance(action, BlocksAction):
        observation = yield from _run_blocks(current, action.blocks, timeout_s, on_output)
    elif subcalls is None:
        observation = yield from session_effects.run_cell(
            session, episode, action.code, timeout_s, on_output
        )
    else:
        observation = yield from _run_within_budget(
            current, subcalls, action.code, timeout_s, on_output
        )
    if episode.iterations_used_up:
        observation = yield from session_effects.give_up(session, episode, observation)
    return observation


def _run_blocks(
    current: CurrentEpisode,
    codes: Sequence[str],
    timeout_s: float | None,
    on_output: session_effects.OnOutput | None,
) -> Effects[REPLObservation]:
    """Run the blocks of one step, until one of them ends the episode."""
    session, episode, subcalls = current.session, current.episode, current.subcalls
    whole: REPLObservation | None = None
    for code in codes:
        arguments = (code, timeout_s, on_output, whole is None)
        if subcalls is None:
            running = session_effects.run_cell(session, episode, *arguments)
        else:
            running = _run_within_budget(current, subcalls, *arguments)
        observation = yield from running
        whole = observation if whole is None else joined(whole, observation)
        if observation.done:
            break
    assert whole is not None  # such an action has blocks
    return whole


def _run_within_budget(
    current: CurrentEpisode,
    subcalls: EpisodeSubcalls,
    code: str,
    timeout_s: float | None,
    on_output: session_effects.OnOutput | None,
    counts: bool = True,
) -> Effects[REPLObservation]:
    """Run a cell within the time that the budget leaves."""
    session, episode, account = current.session, current.episode, subcalls.account
    subcalls.cell = episode.cells + 1
    seconds_left = account.seconds_left()
    if seconds_left is not None and seconds_left > 0:
        timeout_s = seconds_left if timeout_s is None else min(timeout_s, seconds_left)
    observation = yield from session_effects.run_cell(
        session, episode, code, timeout_s, on_output, counts
    )
    return (yield from _charge(current, subcalls, observation))


def _charge(
    current: CurrentEpisode, subcalls: EpisodeSubcalls, observation: REPLObservation
) -> Effects[REPLObservation]:
    """Charge a step to the account; the episode ends when its time is used up."""
    session, episode, account = current.session, current.episode, subcalls.account
    account.spend_cpu(observation.metadata["usage"]["cpu_seconds"])
    observation.metadata["spent"] = asdict(account.total)
    used_up = _used_up(account)
    if used_up is not None and not episode.done:
        over = f"Budget used up: {used_up}."
        observation = yield from session_effects.give_up(session, episode, observation, over)
    return observation


def _used_up(account: LedgerAccount) -> str | None:
    """Return the first used-up part of the budget that the episode needs, as text, or None."""
    remaining = account.left()
    for field, name in _ENDING.items():
        if (amount := getattr(remaining, field)) is not None and amount <= 0:
            return name
    return None
