"""`ReplyRunner`: the code and the answers of a model's replies, carried out in its episode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repl_env.common.json_values import replace_surrogates
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.parsing.prose_answer import ProseAnswer
from repl_env.parsing.reasoning import without_reasoning
from repl_env.parsing.reply_reader import read_reply
from repl_env.rlm.events import CellRan, CellStarted
from repl_env.rlm.feedback import NO_CODE, TOO_MANY
from repl_env.rlm.run.run_environment import RunEnvironment, Step
from repl_env.rlm.run.run_reporter import RunReporter
from repl_env.rlm.run_config import RunConfig

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

# Blocks of one reply that are run. A model that writes more has lost its way, and gets a note.
MAX_BLOCKS = 32


@dataclass(slots=True)
class ReplyRunner:
    """Runs the blocks of replies, submits answers, and has the last step of the episode.

    Args:
        context_names: the variables of the session before its first cell.

    Attributes:
        last: the last step; None before the first.
        infrastructure_failed: whether a step says nothing about the model, by no fault of it.
    """

    environment: RunEnvironment
    run_config: RunConfig
    reporter: RunReporter
    context_names: frozenset[str]
    last: Step | None = None
    infrastructure_failed: bool = False
    _cells: int = 0

    @property
    def done(self) -> bool:
        """True if the episode is over."""
        return self.last is not None and self.last.done

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the last step."""
        return (self.last.metadata if self.last is not None else None) or {}

    async def run_blocks(self, reply: str, turn: int) -> tuple[list[tuple[str, Step]], list[str]]:
        """Run the code of a reply.

        Return the blocks with their results, and notes for the model.
        """
        parsed, notes = read_reply(replace_surrogates(reply), self._names), []
        if parsed.answer is not None:
            return [await self._answer(parsed.answer, turn)], []
        if not (found := parsed.codes):
            return [], [NO_CODE]
        blocks = found[:1] if self.run_config.blocks == "first" else found[:MAX_BLOCKS]
        if len(blocks) < len(found):
            notes.append(TOO_MANY.format(len(blocks), len(found)))
        steps: list[tuple[str, Step]] = []
        for index, code in enumerate(blocks):
            step = await self._execute(code, turn)
            steps.append((code, step))
            if self.done:
                await self._run_after_answer(blocks[index + 1 :])
                break
            if self.run_config.blocks == "until_error" and not step.observation.result.success:
                break
        return steps, notes

    async def take_last_reply(self, reply: str, turn: int) -> None:
        """Take the answer that the model gives when its turns are used up."""
        parsed = read_reply(replace_surrogates(reply), self._names, last=True)
        for code in parsed.codes[:MAX_BLOCKS]:
            if not self.done:
                await self._execute(code, turn)
        if self.done or parsed.codes:
            return
        if parsed.answer is not None:
            await self._answer(parsed.answer, turn)
        elif text := without_reasoning(replace_surrogates(reply)).strip():
            await self._submit(text)

    async def give_up(self) -> None:
        """End the episode at its present position."""
        self.last = await self.environment.give_up()
        # Not by its mask, which is also set if the run's own time limit has cut a cell.
        self.infrastructure_failed |= self.last.observation.error_kind in INFRASTRUCTURE_KINDS

    @property
    def _names(self) -> frozenset[str]:
        """The variables of the session, as far as they are known."""
        known = self.last.observation.available_variables if self.last else ()
        return self.context_names.union(known)

    async def _run_after_answer(self, blocks: Sequence[str]) -> None:
        if self.run_config.blocks == "all":
            for code in blocks:
                await self.environment.run_after(code)

    async def _execute(self, code: str, turn: int) -> Step:
        self._cells += 1
        start_time = time.time()
        self.reporter.report(CellStarted, turn=turn, cell=self._cells, code=code)
        self.last = await self.environment.execute(code, timeout_s=self.run_config.timeout_s)
        self.infrastructure_failed |= bool(self.metadata.get("mask"))
        self.reporter.report(
            CellRan,
            turn=turn,
            cell=self._cells,
            code=code,
            observation=self.last.observation,
            seconds=time.time() - start_time,
        )
        return self.last

    async def _answer(self, answer: ProseAnswer, turn: int) -> tuple[str, Step]:
        if answer.is_variable or answer.is_code:
            code = f'FINAL_VAR("{answer.text}")' if answer.is_variable else answer.text
            return code, await self._execute(code, turn)
        return "", await self._submit(replace_surrogates(answer.text))

    async def _submit(self, answer: JSON) -> Step:
        self.last = await self.environment.submit_final_answer(answer)
        return self.last
