"""Each part of an environment by its own interface, without an environment around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from repl_env.env.current_episode import CurrentEpisode, EpisodeSlot, HiddenTask, SessionOpening
from repl_env.env.options import EnvironmentOptions, EpisodeEquipment, episode_config
from repl_env.env.step import RewardStep, StepOperations
from repl_env.episode.call_options import ResetOptions
from repl_env.episode.effects import run_blocking
from repl_env.episode.rules import Episode
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.interfaces import Environment
from repl_env.models import CodeBlockResult, REPLAction, REPLObservation
from repl_env.rlm.answerers import SubcallSettings
from repl_env.rlm.providers import GivenProvider
from repl_env.rubrics import Rubric
from repl_sandbox.errors import SandboxError, SessionClosed


class Session:
    """A session that fails on request, and records that it was closed."""

    isolation = SimpleNamespace(tier="process", layers=())

    def __init__(self, error: Exception | None = None) -> None:
        self.closed, self._error = 0, error

    def close(self) -> None:
        self.closed += 1
        if self._error is not None:
            raise self._error


def equipment(**settings: Any) -> EpisodeEquipment:
    return EpisodeEquipment(
        EnvironmentOptions(max_iterations=2, **settings),
        GivenProvider(None, None, None, None),
        SandboxProvider(None, SandboxSettings()),
    )


def episode(mode: Any = "plain") -> CurrentEpisode:
    made = equipment()
    terms = episode_config(
        ResetOptions(task_prompt="t"), made.settings, (), made.sandbox_provider, None
    )
    asked = HiddenTask(None, None, SubcallSettings())
    current = CurrentEpisode(mode, Episode(terms), asked)
    current.session = Session()
    return current


class Scored(Environment[Any, Any, Any]):
    """An environment of a rubric alone."""

    def reset(self, *_: Any, **__: Any) -> Any: ...
    def step(self, *_: Any, **__: Any) -> Any: ...
    @property
    def state(self) -> Any: ...


class Half(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return 0.5


class Forgetful(Rubric):
    """Fails at its first reset, and records its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def forward(self, action: Any, observation: Any) -> float:
        return 0.0

    def set_expected(self, expected: Any) -> None:
        if expected == "new":
            raise ValueError("not this one")
        self.told.append(expected)


def observed(*, done: bool = False, **metadata: Any) -> REPLObservation:
    return REPLObservation(result=CodeBlockResult(), done=done, metadata=metadata)


def test_an_empty_slot_has_no_episode() -> None:
    slot = EpisodeSlot()

    with pytest.raises(NotReset):
        slot.require_current()
    run_blocking(slot.close_current())  # there is nothing to end


def test_a_slot_refuses_calls_of_the_other_kind() -> None:
    slot = EpisodeSlot()
    slot.current = episode("async")

    with pytest.raises(RuntimeError, match="reset_async"):
        slot.unfinished_in("plain")
    assert slot.unfinished_in("async") is slot.current


def test_a_slot_has_no_next_step_of_an_episode_that_is_over() -> None:
    slot = EpisodeSlot()
    slot.current = current = episode()
    current.record_end(observed(done=True))

    with pytest.raises(EpisodeDone):
        slot.unfinished_in("plain")


def test_a_slot_ends_a_step_whose_episode_was_left() -> None:
    slot = EpisodeSlot()
    slot.current = episode()

    with pytest.raises(EpisodeAborted, match="another call"):
        slot.check_current(episode())


def test_replacing_and_leaving_end_the_session() -> None:
    slot, first, second = EpisodeSlot(), episode(), episode()
    slot.current = first

    run_blocking(slot.replace_current(second))
    assert (first.session.closed, second.session.closed) == (1, 0)
    run_blocking(slot.close_current())
    assert second.session.closed == 1
    with pytest.raises(NotReset):
        slot.require_current()


def test_abandoning_swallows_the_end_of_a_lost_session_and_no_other_error() -> None:
    slot = EpisodeSlot()
    for error in (SessionClosed("gone"), OSError("disk")):
        slot.current = current = episode()
        current.session = Session(error)
        if isinstance(error, SandboxError):
            run_blocking(slot.abandon(current))
        else:
            with pytest.raises(OSError, match="disk"):
                run_blocking(slot.abandon(current))
        assert slot.current is None


def test_an_opening_that_fails_leaves_nothing_open() -> None:
    opening, current = SessionOpening(equipment(), lambda: pytest.fail("no sub-calls")), episode()
    session = current.session

    def start(**_: Any) -> Any:
        raise SessionClosed("no session")
        yield

    with pytest.raises(SessionClosed):
        run_blocking(opening.open(current, start))
    assert session.closed == 1


def test_a_scorer_adds_the_reward_and_latches_the_end() -> None:
    scored, current = Scored(rubric=Half()), episode()
    scorer = RewardStep(lambda: scored)

    observation = run_blocking(scorer.score(current, REPLAction(code=""), observed(done=True)))

    assert observation.reward == 0.5
    assert current.last is not None
    assert current.last.reward == 0.5


def test_a_rubric_does_not_score_an_infrastructure_error() -> None:
    scored, current = Scored(rubric=Half()), episode()
    lost = observed(error_kind="sandbox")

    observation = run_blocking(RewardStep(lambda: scored).score(current, REPLAction(code=""), lost))

    assert (observation.reward, observation.metadata["reward_components"]) == (0.0, {})


def test_a_rubric_that_refuses_a_reset_keeps_its_last_episode() -> None:
    rubric, current = Forgetful(), episode()
    scored = Scored(rubric=rubric)

    with pytest.raises(ValueError, match="not this one"):
        run_blocking(RewardStep(lambda: scored).reset_rubric(current, "plain", "new"))
    assert rubric.told == [None]


def test_a_step_whose_session_is_lost_abandons_the_episode() -> None:
    slot, scored = EpisodeSlot(), Scored(rubric=Half())
    slot.current = current = episode()

    def run(*_: Any, **__: Any) -> Any:
        raise SessionClosed("gone")

    current.session.run = run
    with pytest.raises(EpisodeAborted, match="gone"):
        run_blocking(
            StepOperations(
                slot, RewardStep(lambda: scored), SimpleNamespace(sandbox_provider=None)
            ).take_step("plain", REPLAction(code="1"), None, {})
        )
    assert current.session.closed == 1
    with pytest.raises(NotReset):
        slot.require_current()
