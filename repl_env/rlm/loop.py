"""`RunLoop`: the loop of a recursive language model (arXiv 2512.24601).

Ask the model, run the code in its reply, show it the outcomes; until there is an answer, or turns
or budget are used up. A model is a `ChatModel`, an environment a `RunEnvironment`; this module
depends neither on a provider nor on the isolation of code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from repl_env.common.values import replace_surrogates
from repl_env.errors import INFRASTRUCTURE_KINDS, BudgetExceeded, EpisodeAborted, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import REQUESTS, ChatModel, Completion, ModelRequest, Origin, RequestGate
from repl_env.models import REPLObservation, StepResult, termination_of
from repl_env.parsing.blocks import without_reasoning, without_thoughts
from repl_env.parsing.replies import ProseAnswer, answer_beside, read_reply
from repl_env.prompts import build_user_prompt, format_observations, shown_result
from repl_env.rlm.budget import Spent
from repl_env.rlm.config import RLMRunResult, RunConfig, Transcript
from repl_env.rlm.ledger import LedgerAccount
from repl_env.rlm.model_call import (
    AnyEvent,
    CellRan,
    CellStarted,
    ContextNote,
    EventHandler,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
    call_model,
)
from repl_env.rlm.usage import UsageTotals

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# `FeedbackWriter`: feedback for the model on the outcomes of its replies.

# Characters of one reply that stay in the conversation. All of its code is run. In a longer one the
# reasoning is cut first: chat templates omit the reasoning of earlier turns, and recognise it by
# both tags.
MAX_REPLY = 100_000
# This many turns with the same code and the same error are a loop, which the model is told.
_SAME_FAILURES = 3

NO_CODE = (
    "Your reply had no code block, so nothing was run. Write code in a block that begins with "
    "```repl; give the final answer with FINAL(...) in such a block."
)
TOO_MANY = "Only the first {} of the {} code blocks were run."
BESIDE = (
    "The answer beside your code did not count. Call FINAL(...) or FINAL_VAR(...) inside of a "
    "```repl block, or reply with the answer alone, without a block."
)
_STUCK = (
    "The same code has failed in the same way {} times now. Do something else: look at the values "
    "that it works on, or take another way to the answer."
)
# Begins with OpenEnv's words: models are trained on them, and test scripts expect them.
LAST = (
    "You have run out of REPL iterations: there are no turns left. Reply with the final answer "
    "now: only the answer itself, as plain text, without code and without explanation."
)
_SHORT = "(What this printed, {:,} characters, is not shown any more; `_out` has it, by cell.)"


class TurnFeedback(NamedTuple):
    """The feedback on a reply: in full, and in short for later turns."""

    reply: str
    text: str
    short_text: str


@dataclass(slots=True)
class FeedbackWriter:
    """Feedback of one run on `question`; `limit` characters are shown of one block's outcome.

    `outcomes_only`: the outcomes alone, without the code and the question.
    """

    question: str
    limit: int
    outcomes_only: bool = False
    _failures: list[tuple[str, str]] = field(default_factory=list)

    def of(
        self,
        turn: int,
        reply: str,
        outcomes: Sequence[tuple[str, REPLObservation]],
        notes: Sequence[str],
    ) -> TurnFeedback:
        """Return the feedback on a turn, whose code and outcomes are `outcomes`."""
        observations = [observation for _, observation in outcomes]
        if (times := self._note_failure(outcomes)) >= _SAME_FAILURES:
            notes = [*notes, _STUCK.format(times)]
        text = "\n\n".join(part for part in self._parts(turn, outcomes, notes) if part)
        printed = sum(len(observation.result.stdout) for observation in observations)
        short = "\n\n".join([_SHORT.format(printed), *notes])
        return TurnFeedback(_shortened_reply(reply), text, short)

    def _parts(
        self, turn: int, outcomes: Sequence[tuple[str, REPLObservation]], notes: Sequence[str]
    ) -> list[str]:
        if self.outcomes_only:
            return [*(shown_result(step.result, self.limit) for _, step in outcomes), *notes]
        outcome_text = format_observations(
            [step for _, step in outcomes], [code for code, _ in outcomes], self.limit
        )
        return [outcome_text, *notes, str(build_user_prompt(self.question, turn)["content"])]

    def _note_failure(self, outcomes: Sequence[tuple[str, REPLObservation]]) -> int:
        """Return how many times in a row the same code has failed in the same way."""
        failed = [
            (code, observation.result.stderr.rsplit("\n", 2)[-1])
            for code, observation in outcomes
            if not observation.result.success
        ]
        if not failed or (self._failures and failed[0] != self._failures[0]):
            self._failures = []
        self._failures += failed[:1]
        return len(self._failures)


def _shortened_reply(reply: str) -> str:
    """Return the part of a reply that stays in the conversation."""
    text = replace_surrogates(reply)
    return text if len(text) <= MAX_REPLY else _within(without_thoughts(text), MAX_REPLY)


def _within(text: str, limit: int) -> str:
    """Return `text` without its middle, if it is longer."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... [{len(text) - limit:,} characters left out] ...\n{text[-half:]}"


# `RunEnvironment`: what the loop of a run needs of an environment.

Step: TypeAlias = StepResult[REPLObservation]


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


# `RunReporter`: the events of one run, with its path and the time.


@dataclass(frozen=True, slots=True)
class RunReporter:
    """Makes the events of the run `path` and gives them to `on_event`, if there is a handler."""

    path: str
    on_event: EventHandler | None

    def report(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        """Report an event of the class `kind` that happens now."""
        if self.on_event is not None:
            self.on_event(kind(run=self.path, time=time.time(), **fields))


# `ReplyRunner`: the code and the answers of a model's replies, carried out in its episode.

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
        if not self.done and answer_beside(replace_surrogates(reply), self._names) is not None:
            notes.append(BESIDE)
        return steps, notes

    async def take_last_reply(self, reply: str, turn: int) -> None:
        """Take the answer that the model gives when its turns are used up."""
        parsed = read_reply(replace_surrogates(reply), self._names, last=True)
        for code in parsed.codes[:MAX_BLOCKS]:
            if not self.done:
                await self._execute(code, turn)
        if self.done:
            return
        answer = parsed.answer
        if parsed.codes:
            answer = answer_beside(replace_surrogates(reply), self._names, last=True)
        if answer is not None:
            await self._answer(answer, turn)
        elif parsed.codes:
            return
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


# Kinds of errors of a model by which an endpoint refuses the conversation itself.
_REFUSED = frozenset({"request", "refused"})
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
            error.result = self._finish("error", self._kind_of(error))  # type: ignore[union-attr]
            raise
        except BaseException:
            self._finish("cancelled", "cancelled")
            raise
        return self._finish(stop, None)

    def _kind_of(self, error: ModelError | EpisodeAborted) -> str:
        """Return the `error_kind` of a run that this error ended."""
        if isinstance(error, EpisodeAborted):
            return error.kind
        # The first request is the caller's; later ones have grown by what the model did.
        refused = error.kind in _REFUSED and self._reply_count
        return "request" if refused else "llm"

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
