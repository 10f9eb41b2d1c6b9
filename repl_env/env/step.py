"""Steps of the current episode (`StepOperations`), and their rewards (`RewardStep`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from repl_env import rubrics
from repl_env.common.threads import BlockingCall, Offload, capture_error, capture_error_async
from repl_env.common.values import of_public_kind
from repl_env.env.current_episode import CurrentEpisode, EpisodeSlot, Mode
from repl_env.env.options import EpisodeEquipment
from repl_env.episode import effects
from repl_env.episode.effects import Effects
from repl_env.episode.observations import on_new_line
from repl_env.errors import INFRASTRUCTURE_KINDS, EpisodeAborted
from repl_env.interfaces import Environment, finite
from repl_env.models import CodeBlockResult, REPLAction, REPLObservation, REPLState, give, trusted
from repl_env.prompts import shown_result
from repl_env.rubrics import is_pending, returns_at_once
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.session.core import check_answer_handler
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_env.rlm.ledger import LedgerAccount
    from repl_env.rlm.subcalls import EpisodeSubcalls


# One step of an episode that runs several code blocks, each in its own cell.

# Entries of a step's metadata and usage that are summed over its cells.
_SUMS = ("execution_time", "waiting_time")
_USAGE = ("execution_seconds", "waiting_seconds", "cpu_seconds")


class BlocksAction(REPLAction):
    """An action of several blocks, which run in order until one ends the episode.

    `code` is their joined text, for records; `blocks` are the blocks to run. It has no wire form.
    """

    blocks: tuple[str, ...] = Field(default=(), exclude=True)


def blocks_action(codes: Sequence[str]) -> REPLAction:
    """Return the action that runs these blocks: a plain one for a single block."""
    if len(codes) == 1:
        return REPLAction(code=codes[0])
    return BlocksAction(code="\n\n".join(codes), blocks=tuple(codes))


def joined(previous: REPLObservation, last: REPLObservation) -> REPLObservation:
    """Add the output, changes and cost of the earlier cells of this step to `last`.

    `metadata["blocks"]` has each cell's outcome as text, in order.
    """
    metadata = _joined_metadata(previous.metadata, last.metadata)
    metadata["blocks"] = [*outcome_texts(previous), *outcome_texts(last)]
    give(last, result=_joined_results(previous.result, last.result), metadata=metadata)
    return last


def outcome_texts(observation: REPLObservation) -> list[str]:
    """Return the outcomes of a step's cells as text."""
    blocks: list[str] | None = observation.metadata.get("blocks")
    return [shown_result(observation.result)] if blocks is None else blocks


def _joined_metadata(previous: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    kinds = [last["error_kind"], previous["error_kind"]]
    infrastructure = [kind for kind in kinds if kind in INFRASTRUCTURE_KINDS]
    usage = {name: previous["usage"][name] + last["usage"][name] for name in _USAGE}
    usage["peak_memory"] = max(previous["usage"]["peak_memory"], last["usage"]["peak_memory"])
    return {
        **last,
        **{name: previous[name] + last[name] for name in _SUMS},
        "error_kind": next((kind for kind in (*infrastructure, *kinds) if kind is not None), None),
        "truncated": previous["truncated"] or last["truncated"],
        "usage": usage,
    }


def _joined_results(previous: CodeBlockResult, last: CodeBlockResult) -> CodeBlockResult:
    return trusted(
        CodeBlockResult,
        stdout=on_new_line(previous.stdout) + last.stdout,
        stderr=on_new_line(previous.stderr) + last.stderr,
        locals_snapshot={**previous.locals_snapshot, **last.locals_snapshot},
        execution_time=previous.execution_time + last.execution_time,
        success=previous.success and last.success,
        exception=previous.exception if last.exception is None else last.exception,
        value=last.value,
        changes=[*previous.changes, *last.changes],
        figures=[*previous.figures, *last.figures],
        displays=[*previous.displays, *last.displays],
        truncated=previous.truncated or last.truncated,
    )


# `RewardStep`: applies an environment's transform and rubric to steps and resets.
#
# Calls go through the methods that OpenEnv names (`_apply_transform`, `_apply_rubric`,
# `_reset_rubric` and their asynchronous twins), because subclasses of users override these.

Scored: TypeAlias = Environment[REPLAction, REPLObservation, REPLState]
# Effects that run with the observation of a step before the step is scored.
Before: TypeAlias = Callable[[CurrentEpisode, REPLObservation], Effects[None]]


class RewardStep:
    """Scores the steps of one environment.

    Args:
        environment: a weak reference to the environment, which has the transform and the rubric; a
            dropped environment ends at once.
        before_scoring: effects for each observation first; None: none.
    """

    def __init__(
        self, environment: Callable[[], Scored | None], before_scoring: Before | None = None
    ) -> None:
        self._environment, self.before_scoring = environment, before_scoring

    @property
    def environment(self) -> Scored:
        """The environment; a call on it keeps it alive."""
        found = self._environment()
        assert found is not None
        return found

    @property
    def rubric(self) -> Any:
        """The rubric of the environment."""
        return self.environment.rubric

    def transform(self, observation: REPLObservation) -> Effects[REPLObservation]:
        """Return the observation that the transform returns."""
        environment = self.environment
        if environment.transform is None:
            return observation
        changed: REPLObservation = yield BlockingCall(environment._apply_transform, observation)
        return changed

    def score(
        self, current: CurrentEpisode, action: REPLAction, observation: REPLObservation
    ) -> Effects[REPLObservation]:
        """Return the observation of a step with its reward; record the end of the episode."""
        if self.before_scoring is not None:
            yield from self.before_scoring(current, observation)
        # Recorded first: even if a transform or rubric raises, nothing more is run or scored.
        if observation.done:
            current.record_end(observation)
        environment = self.environment
        if environment.transform is not None:
            observation = yield BlockingCall(environment._apply_transform, observation)
        reward, parts = 0.0, dict[str, float]()
        if observation.error_kind not in INFRASTRUCTURE_KINDS:
            if current.mode == "plain":
                reward = yield partial(environment._apply_rubric, action, observation)
            else:
                reward = yield from _reward_async(environment, action, observation)
            parts = rubrics.components(environment.rubric, reward)
        if type(observation) is REPLObservation:
            give(observation, reward=reward)
        else:  # set by a transform
            observation.reward = reward
        observation.metadata["reward_components"] = parts
        observation.metadata["task_reward"] = rubrics.task_reward(environment.rubric, parts)
        if observation.done:
            current.record_end(observation)
        return observation

    def check_expected(self, expected: Any) -> None:
        """Raise TypeError if the rubric accepts no expected answer."""
        if expected is not None and not rubrics.takes_expected(self.rubric):
            raise TypeError(f"expected_answer: {type(self.rubric).__name__} takes none")

    def reset_rubric(
        self, current: CurrentEpisode | None, mode: Mode, expected: Any, state: Any = None
    ) -> Effects[None]:
        """Reset the rubric and give it the expected answer of the next episode.

        If the rubric fails, it gets the expected answer of `current` back, if there is an episode.
        """
        previous_state = None if current is None else rubrics.state_of(self.rubric)
        try:
            yield self._reset(mode)
            rubrics.remind(self.rubric, expected, state)
        except BaseException:
            # The caller gets the first error, not an error of this repair.
            with suppress(Exception):
                if current is not None:
                    yield self._reset(mode)
                    rubrics.remind(self.rubric, current.hidden_task.expected_answer, previous_state)
            raise

    def _reset(self, mode: Mode) -> Callable[[], Any]:
        environment = self.environment
        plain = mode == "plain"
        return environment._reset_rubric if plain else environment._reset_rubric_async


def _reward_async(
    environment: Scored, action: REPLAction, observation: REPLObservation
) -> Effects[float]:
    rubric: Any = environment.rubric
    reward: float
    if (
        rubric is not None
        and returns_at_once(rubric)
        and type(environment)._apply_rubric_async is Environment._apply_rubric_async
    ):
        # The subclass decides; it returns a coroutine for rubrics that usually return at once.
        score = capture_error(partial(rubric, action, observation))
        if is_pending(score):
            score = yield partial(capture_error_async, score)
        reward = finite(score, rubric)
    else:
        reward = yield partial(environment._apply_rubric_async, action, observation)
    return reward


# `StepOperations`: steps of the current episode.
#
# A step runs code within the remaining budget, or takes an answer; then the end is recorded and
# the observation scored. A lost session ends the episode: with a score if its own code is to
# blame, and else without.

# Parts of a budget that end an episode when its cells have used them up. Without calls or tokens
# the code can continue, and the policy may have enough for an answer.
_ENDING = {"seconds": "wall time", "cpu_seconds": "CPU time"}


class StepOperations:
    """The steps of the episodes in `slot`, which `scorer` scores."""

    def __init__(self, slot: EpisodeSlot, scorer: RewardStep, equipment: EpisodeEquipment) -> None:
        self._slot, self._scorer, self._equipment = slot, scorer, equipment

    def take_step(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        extra_arguments: Mapping[str, Any],
        on_output: effects.OnOutput | None = None,
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
                observation = yield from self._without_session(current, error)
            if extra_arguments:
                observation.metadata["ignored"] = sorted(extra_arguments)
            return (yield from self._scorer.score(current, action, observation))

    def _without_session(
        self, current: CurrentEpisode, error: SandboxError
    ) -> Effects[REPLObservation]:
        """Return the end of an episode whose code made its session unusable.

        Raises:
            EpisodeAborted: code of the session is not to blame.
        """
        self._slot.check_current(current)
        provider = (
            current.episode.config.context.sandbox_provider or self._equipment.sandbox_provider
        )
        plain = current.mode == "plain"
        if not (yield from effects.lost_by_code(provider, error, plain=plain)):
            yield from self._slot.abandon(current)
            raise EpisodeAborted("sandbox", str(error)) from error
        with suppress(SandboxError):  # it is lost already
            yield from current.close()
        return current.episode.session_lost(str(error))

    def give_up(self, mode: Mode) -> Effects[REPLObservation]:
        """End the episode as if its iterations were used up."""
        current = self._slot.unfinished_in(mode)
        with current.step_guard:
            self._slot.check_current(current)
            yield from current.judge_subcalls()
            observation = current.episode.unchanged_observation()
            observation = yield from effects.give_up(current.session, current.episode, observation)
            return (yield from self._scorer.score(current, REPLAction(code=""), observation))


def _take_action(
    current: CurrentEpisode,
    action: REPLAction,
    timeout_s: float | None,
    on_output: effects.OnOutput | None,
) -> Effects[REPLObservation]:
    """Return the observation of an action, before it is scored."""
    session, episode, subcalls = current.session, current.episode, current.subcalls
    if action.is_final:
        yield from current.judge_subcalls()
        observation = episode.submit((yield Offload(episode.judge_answer, action.final_answer)))
    elif action.format_error is not None:
        yield from current.judge_subcalls()
        observation = episode.format_error_observation(action.format_error)
        if subcalls is not None:
            observation = yield from _charge(current, subcalls, observation)
    elif isinstance(action, BlocksAction):
        observation = yield from _run_blocks(current, action.blocks, timeout_s, on_output)
    elif subcalls is None:
        observation = yield from effects.run_cell(
            session, episode, action.code, timeout_s, on_output
        )
    else:
        observation = yield from _run_within_budget(
            current, subcalls, action.code, timeout_s, on_output
        )
    if episode.iterations_used_up:
        observation = yield from effects.give_up(session, episode, observation)
    return observation


def _run_blocks(
    current: CurrentEpisode,
    codes: Sequence[str],
    timeout_s: float | None,
    on_output: effects.OnOutput | None,
) -> Effects[REPLObservation]:
    """Run the blocks of one step, until one of them ends the episode."""
    session, episode, subcalls = current.session, current.episode, current.subcalls
    whole: REPLObservation | None = None
    for code in codes:
        arguments = (code, timeout_s, on_output, whole is None)
        if subcalls is None:
            running = effects.run_cell(session, episode, *arguments)
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
    on_output: effects.OnOutput | None,
    counts: bool = True,
) -> Effects[REPLObservation]:
    """Run a cell within the time that the budget leaves."""
    session, episode, account = current.session, current.episode, subcalls.account
    subcalls.cell = episode.cells + 1
    seconds_left = account.seconds_left()
    if seconds_left is not None and seconds_left > 0:
        timeout_s = seconds_left if timeout_s is None else min(timeout_s, seconds_left)
    observation = yield from effects.run_cell(
        session, episode, code, timeout_s, on_output, counts, current.judge_subcalls
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
        observation = yield from effects.give_up(session, episode, observation, over)
    return observation


def _used_up(account: LedgerAccount) -> str | None:
    """Return the first used-up part of the budget that the episode needs, as text, or None."""
    remaining = account.left()
    for field, name in _ENDING.items():
        if (amount := getattr(remaining, field)) is not None and amount <= 0:
            return name
    return None
