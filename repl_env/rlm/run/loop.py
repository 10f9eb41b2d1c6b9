"""`RunLoop`: the loop of a recursive language model (arXiv 2512.24601).

Ask the model, run the code in its reply, show it the outcomes; until there is an answer, or turns
or budget are used up. A model is a `ChatModel`, an environment a `RunEnvironment`; this module
depends neither on a provider nor on the isolation of code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from repl_env.common.termination import termination_of
from repl_env.errors import INFRASTRUCTURE_KINDS, BudgetExceeded, EpisodeAborted, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest, Origin
from repl_env.llm.request_gate import REQUESTS, RequestGate
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.budget.usage_totals import UsageTotals
from repl_env.rlm.events import (
    ContextNote,
    EventHandler,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.feedback import LAST, FeedbackWriter
from repl_env.rlm.model_call import call_model
from repl_env.rlm.run.reply_runner import ReplyRunner
from repl_env.rlm.run.run_environment import RunEnvironment
from repl_env.rlm.run.run_reporter import RunReporter
from repl_env.rlm.run_config import RunConfig
from repl_env.rlm.run_result import RLMRunResult
from repl_env.rlm.transcript import Transcript

# Fields of the result in the final event.
_RESULT_FIELDS = (
    "final_answer", "answer_value", "stop_reason", "error_kind", "reward", "iterations", "own",
    "seconds", "ended", "task_reward",
)  # fmt: skip


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
    _reporter: RunReporter = field(init=False)
    _replies: ReplyRunner = field(init=False)
    _turn: int = 0  # number of the present request; it may get no reply
    _reply_count: int = 0
    _start_time: float = field(default_factory=time.time)
    _exceeded: BudgetExceeded | None = None
    _spent_before: tuple[Spent, Spent] = field(default=(Spent(), Spent()))

    async def play(self, timeout_s: float | None = None) -> RLMRunResult:
        """Work until the end, for at most `timeout_s` seconds, and return the result.

        Raises:
            ModelError: the model gave no answer; its `result` holds the partial result.
            EpisodeAborted: the session is gone; likewise.
        """
        self._reporter = RunReporter(self.path, self.on_event)
        run_config = self.run_config
        self._transcript = Transcript(
            self.initial_messages, run_config.max_prompt, run_config.measure
        )
        self._feedback = FeedbackWriter(
            self.question, run_config.max_outcome, run_config.prompts == "short"
        )
        self._replies = ReplyRunner(
            self.environment,
            run_config,
            self._reporter,
            frozenset(note.name for note in self.contexts),
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

    async def _work(self, timeout_s: float | None) -> str:
        """Take turns until the end, collect the answer, and return the stop reason."""
        stop = await self._turns_in_time(timeout_s)
        if not self._replies.done:
            await self._replies.give_up()
        return stop

    async def _turns_in_time(self, timeout_s: float | None) -> str:
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                return await self._turns()
        except TimeoutError:
            # Other code may have raised it, for example a rubric that asks a judge.
            if not deadline.expired():
                raise
            return "timeout"
        except BudgetExceeded as error:
            self._exceeded = error
            return "budget"

    async def _turns(self) -> str:
        for _ in range(self.run_config.max_iterations):
            reply = await self._ask()
            steps, notes = await self._replies.run_blocks(reply.text, self._turn)
            if self._replies.done:
                return str(self._replies.metadata.get("stop_reason") or "answer")
            outcomes = [(code, step.observation) for code, step in steps]
            self._transcript.add(*self._feedback.of(self._turn, reply.text, outcomes, notes))
        self._transcript.append_text(LAST)
        last_reply = await self._ask(last=True)
        await self._replies.take_last_reply(last_reply.text, self._turn)
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
        start_time = time.time()
        reply = _with_prefix(
            await call_model(self.model, request, account, self.gate), request.prefix
        )
        self._transcript.add_reply(prompt, reply.text)
        self._reply_count += 1
        self._reporter.report(
            ModelReplied,
            turn=self._turn,
            kept=prompt.kept,
            added=prompt.added,
            completion=reply,
            seconds=time.time() - start_time,
            last=last,
        )
        return reply

    def _emit_start(self) -> None:
        self._reporter.report(
            RunStarted,
            depth=self.environment.account.depth,
            question=self.question,
            model=self.model_name or self.model.name,
            max_iterations=self.run_config.max_iterations,
            contexts=self.contexts,
            task=self.task,
        )

    def _finish(self, stop: str, kind: str | None) -> RLMRunResult:
        """Make the result of the run and report its end."""
        replies, metadata = self._replies, self._replies.metadata
        if kind is None and replies.infrastructure_failed:
            kind = "llm"  # an answer built on failed calls measures nothing
        elif kind is None and stop in ("budget", "timeout"):
            kind = stop
        account, (own_before, total_before) = self.environment.account, self._spent_before
        done, last = replies.done, replies.last
        rewarded = self.scored and done and kind not in INFRASTRUCTURE_KINDS
        result = RLMRunResult(
            final_answer=metadata.get("final_answer") if done else None,
            messages=self._transcript.seen,
            iterations=self._reply_count,
            depth=account.depth,
            answer_value=metadata.get("answer_value") if done else None,
            stop_reason=stop,
            error_kind=kind,
            usage=UsageTotals.between(total_before, account.total),
            own=UsageTotals.between(own_before, account.own),
            reward=last.reward if last and rewarded else None,
            ended=termination_of(done, metadata) or "truncated",
            task_reward=last.task_reward if last and rewarded else None,
            task=self.task,
            seconds=time.time() - self._start_time,
            reason=None if self._exceeded is None else str(self._exceeded),
            exceeded=self._exceeded,
        )
        self._reporter.report(
            RunEnded, total=result.usage, **{name: getattr(result, name) for name in _RESULT_FIELDS}
        )
        return result


def _with_prefix(reply: Completion, prefix: str | None) -> Completion:
    """Return a reply with its prefix; some endpoints return the prefix too."""
    if prefix is None or reply.text.startswith(prefix):
        return reply
    return replace(reply, text=prefix + reply.text)
