"""The loop of a recursive language model (arXiv 2512.24601), on one page.

Ask the model, run the code in its reply, show it the outcomes; until there is an answer, or turns
or budget are used up. A model is a `ChatModel`, an environment a `RunEnvironment`; this module
depends neither on a provider nor on the isolation of code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from repl_env.common.json_values import replace_surrogates
from repl_env.common.termination import termination_of
from repl_env.errors import OURS, BudgetExceeded, EpisodeAborted, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest, Origin
from repl_env.llm.request_gate import REQUESTS, RequestGate
from repl_env.models import REPLObservation, StepResult
from repl_env.parsing.prose_answer import ProseAnswer
from repl_env.parsing.reasoning import spoken
from repl_env.parsing.reply_reader import read_reply
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.budget.ledger import LedgerAccount
from repl_env.rlm.budget.usage_totals import UsageTotals
from repl_env.rlm.events import (
    AnyEvent,
    CellRan,
    CellStarted,
    ContextNote,
    EventHandler,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.feedback import LAST, NO_CODE, TOO_MANY, FeedbackWriter
from repl_env.rlm.model_call import call_model
from repl_env.rlm.run_config import RunConfig
from repl_env.rlm.run_result import RLMRunResult
from repl_env.rlm.transcript import Transcript

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

Step: TypeAlias = StepResult[REPLObservation]

# Blocks of one reply that are run. A model that writes more has lost its way, and gets a note.
MAX_BLOCKS = 32

# Fields of the result in the final event.
_RESULT_FIELDS = (
    "final_answer", "answer_value", "stop_reason", "error_kind", "reward", "iterations", "own",
    "seconds", "ended", "task_reward",
)  # fmt: skip


class RunEnvironment(Protocol):
    """The environment of a run, such as `AsyncLocalREPLEnv`. Its episode has begun."""

    @property
    def account(self) -> LedgerAccount:
        """The account that pays for the run and its sub-calls."""

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Step:
        """Run code."""

    async def submit_final_answer(self, answer: JSON) -> Step:
        """End the episode with an answer."""

    async def give_up(self) -> Step:
        """End the episode with the draft answer of the code, or without any."""

    async def run_after(self, code: str) -> None:
        """Run code in the session of an episode that is over, for its effects on variables."""

    async def end_calls(self) -> None:
        """End the sub-calls that run concurrently with the code that began them."""


@dataclass(slots=True)
class RunLoop:
    """One run: a question, the model that works on it, and the episode that it works in.

    `path` is its place in the tree; `initial_messages` the first messages to the model; `scored`:
    whether the rewards of the episode are meaningful; `task`: the facts of the task.
    """

    question: str
    initial_messages: Sequence[Message]
    model: ChatModel
    environment: RunEnvironment
    run_config: RunConfig
    model_name: str | None = None
    path: str = "0"
    contexts: tuple[ContextNote, ...] = ()
    gate: RequestGate = REQUESTS
    on_event: EventHandler | None = None
    scored: bool = False
    task: TaskNote | None = None
    _transcript: Transcript = field(init=False)
    _feedback: FeedbackWriter = field(init=False)
    _last: Step | None = None
    _turn: int = 0  # number of the present request; it may get no reply
    _replies: int = 0
    _cells: int = 0
    _start_time: float = field(default_factory=time.time)
    _exceeded: BudgetExceeded | None = None
    _infrastructure_failed: bool = False
    _spent_before: tuple[Spent, Spent] = field(default=(Spent(), Spent()))

    async def play(self, timeout_s: float | None = None) -> RLMRunResult:
        """Work until the end, for at most `timeout_s` seconds, and return the result.

        Raises:
            ModelError: the model gave no answer; its `result` holds the partial result.
            EpisodeAborted: the session is gone; likewise.
        """
        run_config = self.run_config
        self._transcript = Transcript(
            self.initial_messages, run_config.max_prompt, run_config.measure
        )
        self._feedback = FeedbackWriter(
            self.question, run_config.max_outcome, run_config.prompts == "short"
        )
        # The account may include earlier questions.
        account = self.environment.account
        self._spent_before = account.own, account.total
        self._emit_start()
        try:
            try:
                stop = await self._work(timeout_s)
            finally:
                # Before the final event: their spending is a part of the run.
                await self.environment.end_calls()
        except (ModelError, EpisodeAborted) as error:
            kind = error.kind if isinstance(error, EpisodeAborted) else "llm"
            error.result = self._finish("error", kind)  # type: ignore[union-attr]
            raise
        except BaseException:
            self._finish("cancelled", "cancelled")
            raise
        return self._finish(stop, None)

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    async def _work(self, timeout_s: float | None) -> str:
        """Take turns until the end, collect the answer, and return the stop reason."""
        stop = await self._turns_in_time(timeout_s)
        if not self._done:
            await self._give_up()
        return stop

    async def _turns_in_time(self, timeout_s: float | None) -> str:
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                return await self._turns()
        except TimeoutError:
            if (
                not deadline.expired()
            ):  # raised by other code, for example a rubric that asks a judge
                raise
            return "timeout"
        except BudgetExceeded as error:
            self._exceeded = error
            return "budget"

    async def _turns(self) -> str:
        for _ in range(self.run_config.max_iterations):
            reply = await self._ask()
            steps, notes = await self._run_blocks(reply.text)
            if self._done:
                return self._stop_reason
            outcomes = [(code, step.observation) for code, step in steps]
            self._transcript.add(*self._feedback.of(self._turn, reply.text, outcomes, notes))
        self._transcript.append_text(LAST)
        await self._take_last_reply(await self._ask(last=True))
        return "max_iterations"

    async def _ask(self, *, last: bool = False) -> Completion:
        self._turn += 1
        account = self.environment.account
        if (warning := account.warning()) is not None:
            self._transcript.append_text(warning)
        prompt = self._transcript.prompt()
        request = ModelRequest(
            messages=prompt.messages,
            model=self.model_name,
            max_output_tokens=self.run_config.max_output_tokens,
            prefix=None if last else self.run_config.prefix,
            origin=Origin(self.path, "last" if last else "turn", self._turn),
        )
        began = time.time()
        reply = _with_prefix(
            await call_model(self.model, request, account, self.gate), request.prefix
        )
        self._transcript.add_reply(prompt, reply.text)
        self._replies += 1
        self._emit(
            ModelReplied,
            turn=self._turn,
            kept=prompt.kept,
            added=prompt.added,
            completion=reply,
            seconds=time.time() - began,
            last=last,
        )
        return reply

    async def _run_blocks(self, reply: str) -> tuple[list[tuple[str, Step]], list[str]]:
        """Run the code of a reply.

        Return the blocks with their results, and notes for the model.
        """
        parsed, notes = read_reply(replace_surrogates(reply), self._names), []
        if parsed.answer is not None:
            return [await self._answer(parsed.answer)], []
        if not (found := parsed.codes):
            return [], [NO_CODE]
        blocks = found[:1] if self.run_config.blocks == "first" else found[:MAX_BLOCKS]
        if len(blocks) < len(found):
            notes.append(TOO_MANY.format(len(blocks), len(found)))
        steps: list[tuple[str, Step]] = []
        for index, code in enumerate(blocks):
            step = await self._execute(code)
            steps.append((code, step))
            if self._done:
                await self._run_after_answer(blocks[index + 1 :])
                break
            if self.run_config.blocks == "until_error" and not step.observation.result.success:
                break
        return steps, notes

    async def _run_after_answer(self, blocks: Sequence[str]) -> None:
        if self.run_config.blocks == "all":
            for code in blocks:
                await self.environment.run_after(code)

    async def _execute(self, code: str) -> Step:
        self._cells += 1
        began = time.time()
        self._emit(CellStarted, turn=self._turn, cell=self._cells, code=code)
        step = await self.environment.execute(code, timeout_s=self.run_config.timeout_s)
        self._record_cell(code, step, began)
        return step

    async def _answer(self, answer: ProseAnswer) -> tuple[str, Step]:
        if answer.is_variable or answer.is_code:
            code = f'FINAL_VAR("{answer.text}")' if answer.is_variable else answer.text
            return code, await self._execute(code)
        return "", await self._submit(replace_surrogates(answer.text))

    async def _submit(self, answer: JSON) -> Step:
        self._last = await self.environment.submit_final_answer(answer)
        return self._last

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def _take_last_reply(self, reply: Completion) -> None:
        """Take the answer that the model gives when its turns are used up."""
        parsed = read_reply(replace_surrogates(reply.text), self._names, last=True)
        for code in parsed.codes[:MAX_BLOCKS]:
            if not self._done:
                await self._execute(code)
        if self._done or parsed.codes:
            return
        if parsed.answer is not None:
            await self._answer(parsed.answer)
        elif text := spoken(replace_surrogates(reply.text)).strip():
            await self._submit(text)

    async def _give_up(self) -> None:
        self._last = await self.environment.give_up()
        # Not by its mask, which is also set if the run's own time limit has cut a cell.
        self._infrastructure_failed |= self._last.observation.error_kind in OURS

    # ── what is known ────────────────────────────────────────────────────────────────────────────

    @property
    def _done(self) -> bool:
        return self._last is not None and self._last.done

    @property
    def _stop_reason(self) -> str:
        return str(self._metadata.get("stop_reason") or "answer")

    @property
    def _metadata(self) -> dict[str, Any]:
        """The metadata of the last step."""
        return (self._last.metadata if self._last is not None else None) or {}

    @property
    def _names(self) -> frozenset[str]:
        """The variables of the session, as far as they are known."""
        known = self._last.observation.available_variables if self._last else ()
        return frozenset((*known, *(note.name for note in self.contexts)))

    def _emit(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        if self.on_event is not None:
            self.on_event(kind(run=self.path, time=time.time(), **fields))

    def _emit_start(self) -> None:
        self._emit(
            RunStarted,
            depth=self.environment.account.depth,
            question=self.question,
            model=self.model_name or self.model.name,
            max_iterations=self.run_config.max_iterations,
            contexts=self.contexts,
            task=self.task,
        )

    def _record_cell(self, code: str, step: Step, began: float) -> None:
        self._last = step
        self._infrastructure_failed |= bool(self._metadata.get("mask"))
        self._emit(
            CellRan,
            turn=self._turn,
            cell=self._cells,
            code=code,
            observation=step.observation,
            seconds=time.time() - began,
        )

    def _finish(self, stop: str, kind: str | None) -> RLMRunResult:
        """Make the result of the run and report its end."""
        metadata = self._metadata
        if kind is None and self._infrastructure_failed:
            kind = "llm"  # an answer built on failed calls measures nothing
        elif kind is None and stop in ("budget", "timeout"):
            kind = stop
        account, (own_before, total_before) = self.environment.account, self._spent_before
        done = self._done
        rewarded = self.scored and done and kind not in OURS
        result = RLMRunResult(
            final_answer=metadata.get("final_answer") if done else None,
            messages=self._transcript.seen,
            iterations=self._replies,
            depth=account.depth,
            answer_value=metadata.get("answer_value") if done else None,
            stop_reason=stop,
            error_kind=kind,
            usage=UsageTotals.between(total_before, account.total),
            own=UsageTotals.between(own_before, account.own),
            reward=self._last.reward if self._last and rewarded else None,
            ended=termination_of(done, metadata) or "truncated",
            task_reward=self._last.task_reward if self._last and rewarded else None,
            task=self.task,
            seconds=time.time() - self._start_time,
            reason=None if self._exceeded is None else str(self._exceeded),
            exceeded=self._exceeded,
        )
        self._emit(
            RunEnded, total=result.usage, **{name: getattr(result, name) for name in _RESULT_FIELDS}
        )
        return result


def _with_prefix(reply: Completion, prefix: str | None) -> Completion:
    """Return a reply with its prefix; some endpoints return the prefix too."""
    if prefix is None or reply.text.startswith(prefix):
        return reply
    return replace(reply, text=prefix + reply.text)
