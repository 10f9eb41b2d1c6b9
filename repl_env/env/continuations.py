"""`Continuations`: how an episode is saved, gone on with from a file, and branched."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from repl_env import cells, resuming
from repl_env.answers import validator
from repl_env.arguments import check_path
from repl_env.aside import Aside
from repl_env.current_episode import CurrentEpisode, Mode
from repl_env.env.equipment import Equipment
from repl_env.env.opening import Opening
from repl_env.env.scorer import Scorer
from repl_env.env.slot import EpisodeSlot
from repl_env.llm import LLM
from repl_env.saved import EpisodeFile
from repl_env.subcalls import SubcallSettings
from repl_env.turns import Turn
from repl_sandbox.types import Missing


class Continuations:
    """Takes the episodes in `slot` on to a file, from a file, and into other slots."""

    def __init__(
        self, slot: EpisodeSlot, equipment: Equipment, scorer: Scorer, opening: Opening
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._opening = scorer, opening

    def saving(self, mode: Mode, path: str | os.PathLike[str]) -> Turn[tuple[Missing, ...]]:
        """Write the episode to the file `path`; see `REPLEnvironment.save`."""
        check_path(path, "path")
        current = self._slot.begun_in(mode)
        saved = resuming.snapshot(current, self._equipment.settings.answers, self._scorer.rubric)
        plain = mode == "plain"
        return (yield from resuming.saving(current.session, current.episode, saved, path, plain))

    def loading(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM
    ) -> Turn[tuple[Missing, ...]]:
        """Go on with the episode in the file `path`; see `REPLEnvironment.load`."""
        check_path(path, "path")
        if mode == "plain":
            self._slot.check_mode(mode)
        file = yield from resuming.reading(path, mode == "plain")
        loaded = yield from self._loaded(mode, file, schema, llm)
        answers = self._equipment.settings.answers
        source = file.context.source or self._equipment.source
        start = partial(
            resuming.restoring, source, plain=mode == "plain", answers=answers, file=file
        )
        with self._slot.at_reset:
            yield from self._opening.opening(loaded, start, resuming.spent_in(file.episode))
            missing: tuple[Missing, ...] = loaded.session.missing
            try:
                file.episode.resume(loaded.episode, missing)
                expected, state = file.episode.expected_answer, file.episode.rubric
                yield from self._scorer.reminding(self._slot.current, mode, expected, state)
            except BaseException:
                yield from loaded.ending()
                raise
            yield from self._slot.replacing(loaded)
        return missing

    def _loaded(self, mode: Mode, file: EpisodeFile, schema: Any, llm: LLM) -> Turn[CurrentEpisode]:
        """The episode in `file`, without a session yet."""
        saved, equipment = file.episode, self._equipment
        helpers = equipment.helpers(SubcallSettings(llm))
        answers, rubric = equipment.settings.answers, self._scorer.rubric
        asked = resuming.asked(saved, helpers, answers, rubric, schema, llm)
        check = yield Aside(validator, asked.answer_schema)
        memory = int(equipment.source.limits.memory)
        return resuming.resumed(mode, file, asked, check, memory)

    def branching(self, mode: Mode, seed: int | None, other: EpisodeSlot) -> Turn[None]:
        """Put a branch of the episode into `other`, which holds none."""
        current = self._slot.begun_in(mode)
        branch = current.branch()
        start = partial(cells.branching, current.session, seed=seed)
        yield from self._opening.opening(branch, start, current.spent)
        current.branches += 1
        other.current = branch
