"""`RunConversation`: questions on one live session, and the tree of runs that answers them.

The loop is in `repl_env.rlm.loop`, child runs are in `repl_env.rlm.children`. This
module begins and ends a tree: models, account, environment, listeners.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from repl_env.common.display import AsyncCloseable, set_module
from repl_env.common.threads import RUNS
from repl_env.common.values import one_timeout, replace_surrogates
from repl_env.errors import EpisodeAborted, ModelError, REPLError
from repl_env.llm.base import ChatModel, RequestGate, as_model
from repl_env.llm.factory import NamedModel
from repl_env.llm.spec import LLM
from repl_env.models import StepResult
from repl_env.rlm.answerers import Provider
from repl_env.rlm.budget import Budget, Price
from repl_env.rlm.children import RecursionConfig, RunSubcallProvider
from repl_env.rlm.config import ChildTrace, RLMRunResult, RunConfig
from repl_env.rlm.ledger import Ledger
from repl_env.rlm.loop import RunLoop
from repl_env.rlm.model_call import AnyEvent, CallEnded, ContextNote, EventHandler, TaskNote
from repl_env.rlm.trajectory_events import GivenTask, task_note
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_env.rlm.trajectory_writer import TrajectoryWriter


# `RunTreeConfig`: the common settings of all trees of runs of one `RLM`.

MakeEnvironment: TypeAlias = Callable[[Provider], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTreeConfig:
    """The checked arguments of an `RLM`.

    Args:
        model_argument: the source of `model`, which may name a secret.
        make: makes the environment of a tree's root.
        scores: whether episodes have meaningful rewards even without an expected answer.
    """

    model_argument: object
    model: ChatModel | NamedModel
    sub_model: ChatModel | NamedModel | None
    make: MakeEnvironment
    budget: Budget
    prices: Mapping[str, Price]
    run_config: RunConfig
    max_depth: int
    tools: Mapping[str, Callable[..., Any]]
    trajectory: str | os.PathLike[str] | TrajectoryWriter | None
    on_event: EventHandler | None
    system_prompt: str | None
    gate: RequestGate
    scores: bool

    def ledger(self) -> Ledger:
        """Return the ledger of a tree."""
        return Ledger(self.budget, prices=self.prices)

    def models(self, llm: LLM | None) -> tuple[ChatModel | NamedModel, ChatModel | NamedModel]:
        """Return the model of the runs of a tree, and the model of its plain questions."""
        model = self.model if llm is None else model_given(llm, "llm")
        return model, self.sub_model or model

    def recursion(
        self, model: ChatModel, sub_model: ChatModel, on_event: EventHandler
    ) -> RecursionConfig:
        """Return the configuration of a tree's sub-calls."""
        return RecursionConfig(
            model,
            sub_model,
            max_depth=self.max_depth,
            run_config=self.run_config,
            gate=self.gate,
            on_event=on_event,
            tools=self.tools,
            system_prompt=self.system_prompt,
            limits=self.budget,
        )

    def settings(self, seed: int | None) -> dict[str, Any]:
        """Return the settings that a replay must share with a run, besides its question and
        contexts.
        """
        return {
            "max_iterations": self.run_config.max_iterations,
            "max_depth": self.max_depth,
            "blocks": self.run_config.blocks,
            "prompts": self.run_config.prompts,
            "examples": self.run_config.examples,
            "prefix": self.run_config.prefix,
            "budget": asdict(self.budget),
            "seed": seed,
        }


def model_given(value: object, name: str) -> ChatModel | NamedModel:
    """Return the argument of this name as a model, or as a model that opens on use."""
    return NamedModel(value, name) if isinstance(value, LLM) else as_model(value, name)


class RunRecorder:
    """The events of a conversation: kept, written to its trajectory, passed to listeners.

    The session holds this for its sub-calls. It has no reference to the conversation, which it
    would keep alive.
    """

    def __init__(self, on_event: EventHandler | None) -> None:
        self.events: list[AnyEvent] = []
        self.writer: EventHandler | None = None
        self._on_event = on_event

    def __call__(self, event: AnyEvent) -> None:
        self.events.append(event)
        if self.writer is not None:
            self.writer(event)
        if self._on_event is not None:
            self._on_event(event)


@set_module("repl_env.rlm")
class RunConversation(AsyncCloseable):
    """Questions on one live session, one after the other. `async with`, or plain `with`.

    ```python
    with rlm.conversation(context=text) as talk:
        print(talk.ask_plain("Who is named here?").final_answer)
        print(talk.ask_plain("And who of them twice?").final_answer)
    ```
    Variables of one question stay for the next; the model sees the earlier questions and answers,
    and has them in the variable `history`.
    """

    def __init__(
        self, tree_config: RunTreeConfig, initial_arguments: Mapping[str, Any], llm: LLM | None
    ) -> None:
        self._tree_config = tree_config
        self._initial_arguments = initial_arguments
        self._recorder = RunRecorder(tree_config.on_event)
        self._exit_stack = AsyncExitStack()
        self._models = tree_config.models(llm)
        self._recursion: RecursionConfig | None = None
        self._llm = llm
        self._account = tree_config.ledger().root
        self._environment: Any = None
        self._contexts: tuple[ContextNote, ...] = ()
        self._preview: str | None = None
        self._answered: list[tuple[str, str]] = []
        self._runs = 0  # includes failed questions: each has its own name
        self._busy = False
        self._closed = False

    async def ask(
        self,
        question: str,
        *,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        timeout: float | None = None,
        task: GivenTask | None = None,
        group_id: str | None = None,
    ) -> RLMRunResult:
        """Answer a question; as `RLM.run`.

        Raises:
            REPLError: the conversation is closed, or busy with another question.
            TypeError, ValueError: naming the argument; no request was made.
        """
        if not isinstance(question, str):
            raise TypeError(f"question must be a str, not {type(question).__name__}")
        timeout_s = one_timeout(timeout_s, timeout)
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        note = task_note(task, group_id)
        if self._busy:
            raise REPLError("the conversation is at another question; ask one after the other")
        self._busy = True
        try:
            run = await self._run(
                replace_surrogates(question), expected_answer, answer_schema, note
            )
            return await self._play(run, timeout_s)
        finally:
            self._busy = False

    async def _run(
        self, question: str, expected_answer: Any, answer_schema: Any, task: TaskNote | None
    ) -> RunLoop:
        """Return the run that answers a question, in an episode that has begun for it."""
        recursion = self._open_recursion()
        episode_arguments = {
            "task_prompt": question,
            "max_iterations": recursion.steps,
            "expected_answer": expected_answer,
            "answer_schema": answer_schema,
        }
        path = str(self._runs)
        if self._environment is None:
            await self._begin(recursion, episode_arguments)
        else:
            history = [
                {"question": earlier, "answer": answer} for earlier, answer in self._answered
            ]
            await self._environment.follow_up(variables={"history": history}, **episode_arguments)
            self._environment.subcalls.begin_run(path)
        self._runs += 1
        return recursion.run(
            self._environment,
            question,
            self._contexts,
            path=path,
            preview=self._preview,
            model_name=None if self._llm is None else self._llm.model,
            history=self._answered,
            scored=expected_answer is not None or self._tree_config.scores,
            task=task,
        )

    async def _play(self, run: RunLoop, timeout_s: float | None) -> RLMRunResult:
        events = self._recorder.events
        first = len(events)
        try:
            result = await run.play(timeout_s)
        except (ModelError, EpisodeAborted) as error:
            error.result = _whole(error.result, events[first:])  # type: ignore[union-attr]
            raise
        self._answered.append((run.question, result.final_answer or "(no answer)"))
        return _whole(result, events[first:])

    def ask_plain(
        self,
        question: str,
        *,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        timeout: float | None = None,
        task: GivenTask | None = None,
        group_id: str | None = None,
    ) -> RLMRunResult:
        """`ask` for blocking callers."""
        return RUNS.wait_for(
            self.ask(
                question,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
                timeout=timeout,
                task=task,
                group_id=group_id,
            )
        )

    async def close(self) -> None:
        """End the session and everything that still runs below it. Safe to call twice."""
        self._closed = True
        environment, self._environment = self._environment, None
        try:
            if environment is not None:
                await environment.close()
        finally:
            self._account.close()
            await self._exit_stack.aclose()

    def _open_recursion(self) -> RecursionConfig:
        """Return the recursion of this tree, with its models open."""
        if self._closed:
            raise REPLError("the conversation is closed")
        if self._recursion is None:
            model, sub_model = map(self._open_model, self._models)
            self._recursion = self._tree_config.recursion(model, sub_model, self._recorder)
        return self._recursion

    def _open_model(self, model: ChatModel | NamedModel) -> ChatModel:
        if not isinstance(model, NamedModel):
            return model
        self._exit_stack.push_async_callback(model.leave)
        return model.take()

    async def _begin(
        self, recursion: RecursionConfig, episode_arguments: Mapping[str, Any]
    ) -> None:
        self._open_trajectory()
        environment = self._tree_config.make(RunSubcallProvider(recursion, self._account, "0"))
        try:
            first: StepResult[Any] = await environment.reset(
                **self._initial_arguments, **episode_arguments
            )
        except BaseException:
            await environment.close()
            raise
        self._environment = environment
        self._contexts = _notes(environment, first)
        self._preview = first.observation.context_preview

    def _open_trajectory(self) -> None:
        destination = self._tree_config.trajectory
        if destination is None:
            return
        from repl_env.rlm.trajectory_writer import TrajectoryWriter

        if isinstance(destination, TrajectoryWriter):
            self._recorder.writer = destination
            return
        named = dict(self._initial_arguments["contexts"] or {})
        if self._initial_arguments["context"] is not None:
            named["context"] = self._initial_arguments["context"]
        writer = TrajectoryWriter(
            destination,
            contexts=named,
            settings=self._tree_config.settings(self._initial_arguments["seed"]),
            secrets=_secrets(self._tree_config.model_argument, self._llm),
        )
        self._recorder.writer = self._exit_stack.enter_context(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        RUNS.wait_for(self.close())


def _secrets(*values: object) -> list[str]:
    """Return the secrets that no file may hold, in any text."""
    known = [each for each in values if isinstance(each, LLM)]
    from repl_env.rlm.trajectory_writer import SHORTEST_SECRET

    texts = [text for llm in known for text in (llm.api_key or "", *llm.headers.values())]
    return [text for text in texts if len(text) >= SHORTEST_SECRET]


def _notes(environment: Any, first: StepResult[Any]) -> tuple[ContextNote, ...]:
    """Return the contexts of the current episode, without their content."""
    parts = getattr(environment, "contexts", None)
    if parts is None:
        return (ContextNote("context", "str", first.observation.context_length),)
    return tuple(ContextNote(part.name, part.type, part.length) for part in parts)


_TRACE_PREVIEW = 80  # characters of a question and of an answer in a `ChildTrace`


def _whole(result: RLMRunResult, events: Sequence[AnyEvent]) -> RLMRunResult:
    """Return the result of a root with the events of its tree and the traces of its child runs."""
    root = next((event.run for event in events), None)
    traces = [
        ChildTrace(
            depth=result.depth + 1,
            duration_s=event.seconds,
            prompt_preview=event.prompt[:_TRACE_PREVIEW],
            result_preview=None if event.error else event.text[:_TRACE_PREVIEW],
            error=event.error,
        )
        for event in events
        if isinstance(event, CallEnded) and event.child and event.run == root
    ]
    return replace(result, _events=tuple(events), child_traces=traces)
