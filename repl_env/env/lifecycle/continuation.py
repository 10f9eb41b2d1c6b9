"""`EpisodeContinuation`: saves an episode, loads one from a file, undoes cells, makes branches."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from repl_env.common.argument_checks import check_path
from repl_env.concurrency.offload import Offload
from repl_env.env.lifecycle import episode_snapshot
from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.env.lifecycle.scorer import RewardStep
from repl_env.env.lifecycle.session_opening import SessionOpening
from repl_env.episode import session_effects
from repl_env.episode.answers import validator
from repl_env.episode.effects import Effects
from repl_env.llm.model_spec import LLM
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings
from repl_env.storage.episode_file import EpisodeFile
from repl_sandbox.types import Missing


class EpisodeContinuation:
    """Saves the episode of `slot`, loads one into it, and branches it into other slots."""

    def __init__(
        self,
        slot: EpisodeSlot,
        equipment: EpisodeEquipment,
        scorer: RewardStep,
        session_opening: SessionOpening,
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._session_opening = scorer, session_opening

    def save(self, mode: Mode, path: str | os.PathLike[str]) -> Effects[tuple[Missing, ...]]:
        """Write the episode to the file `path`; see `REPLEnvironment.save`."""
        check_path(path, "path")
        current = self._slot.current_in(mode)
        saved = episode_snapshot.snapshot(
            current, self._equipment.settings.answers, self._scorer.rubric
        )
        plain = mode == "plain"
        return (
            yield from episode_snapshot.save_effects(
                current.session, current.episode, saved, path, plain
            )
        )

    def load(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM
    ) -> Effects[tuple[Missing, ...]]:
        """Continue the episode in the file `path`; see `REPLEnvironment.load`."""
        check_path(path, "path")
        if mode == "plain":
            self._slot.check_mode(mode)
        file = yield from episode_snapshot.read_effects(path, mode == "plain")
        loaded = yield from self._unopened_episode(mode, file, schema, llm)
        answers = self._equipment.settings.answers
        sandbox_provider = file.context.sandbox_provider or self._equipment.sandbox_provider
        start = partial(
            episode_snapshot.restore_effects,
            sandbox_provider,
            plain=mode == "plain",
            answers=answers,
            file=file,
        )
        with self._slot.reset_guard:
            yield from self._session_opening.open(
                loaded, start, episode_snapshot.usage_of(file.episode)
            )
            missing: tuple[Missing, ...] = loaded.session.missing
            try:
                file.episode.resume(loaded.episode, missing)
                expected, state = file.episode.expected_answer, file.episode.rubric
                yield from self._scorer.reset_rubric(self._slot.current, mode, expected, state)
            except BaseException:
                yield from loaded.close()
                raise
            yield from self._slot.replace_current(loaded)
        return missing

    def _unopened_episode(
        self, mode: Mode, file: EpisodeFile, schema: Any, llm: LLM
    ) -> Effects[CurrentEpisode]:
        """Return the episode of `file`, without a session yet."""
        saved, equipment = file.episode, self._equipment
        helpers = equipment.helpers(SubcallSettings(llm))
        answers, rubric = equipment.settings.answers, self._scorer.rubric
        hidden_task = episode_snapshot.hidden_task_of(saved, helpers, answers, rubric, schema, llm)
        check = yield Offload(validator, hidden_task.answer_schema)
        memory = int(equipment.sandbox_provider.limits.memory)
        return episode_snapshot.restored_episode(mode, file, hidden_task, check, memory)

    def rollback(self, mode: Mode, cells: int) -> Effects[tuple[str, ...]]:
        """Undo the last `cells` cells; see `REPLEnvironment.rollback`."""
        current = self._slot.current_in(mode)
        with current.step_guard:
            return (yield from session_effects.roll_back(current.session, current.episode, cells))

    def branch(self, mode: Mode, seed: int | None, other: EpisodeSlot) -> Effects[None]:
        """Put a branch of the episode into `other`, which holds none."""
        current = self._slot.current_in(mode)
        branch = current.branch()
        start = partial(session_effects.branch_session, current.session, seed=seed)
        yield from self._session_opening.open(branch, start, current.spent)
        current.branches += 1
        other.current = branch
