"""`RLM`: recursive language models, begun and ended.

The loop is in `repl_env.rlm.loop`, what happens below the root in `repl_env.rlm.recursion`. Here a
tree is put together: models, a ledger, an environment, and who watches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from repl_env.background import RUNS
from repl_env.contexts import Given
from repl_env.errors import EpisodeAborted, ModelError, REPLError
from repl_env.files import Files
from repl_env.llm import LLM
from repl_env.models import StepResult
from repl_env.rlm.budget import Budget, Price
from repl_env.rlm.events import AnyEvent, ContextNote, Watcher
from repl_env.rlm.gate import REQUESTS, Gate
from repl_env.rlm.ledger import Ledger
from repl_env.rlm.loop import Blocks, Manner, Run
from repl_env.rlm.model import ChatModel, ModelFunction, as_model
from repl_env.rlm.named_model import NamedModel
from repl_env.rlm.recursion import OfRun, Recursion
from repl_env.rlm.result import RLMRunResult
from repl_env.settings import at_least, checked_tools
from repl_env.subcalls import Provider
from repl_env.values import clean

if TYPE_CHECKING:
    from repl_env.rlm.trajectory_writer import TrajectoryWriter
    from repl_sandbox import Limits

Model: TypeAlias = "ChatModel | ModelFunction | LLM"
MakeEnvironment: TypeAlias = Callable[[Provider], Any]

# A call of the session may be a run of its own: minutes to hours, which the budget limits.
HOST_TIMEOUT = 24 * 3600.0


class RLM:
    """A model that works on questions in a REPL, and calls models on parts of them.

    ```python
    with OpenAIModel("gpt-5-mini", base_url=url, api_key=key) as model:
        result = RLM(model).run("Which chapters mention the sea?", context=pathlib.Path("book.txt"))
        print(result.final_answer)
    ```
    The source of the method is arXiv 2512.24601. Safe to use from several threads and tasks: each
    run has its own session, ledger and conversation.

    Args:
        model: works in the runs: a `ChatModel`, a function of `(messages)` or `(messages, model)`,
            or an `LLM` that says where one is. A `ChatModel` is its maker's to close; what an `LLM`
            names is there while runs need it.
        sub_model: answers plain questions of the code; None: `model`.
        environment: makes the environment of a run, given the provider of its sub-calls; None:
            `AsyncLocalREPLEnv` with `arguments`.
        budget: what each run may spend with all runs below it.
        prices: of models, by name.
        max_iterations: turns of each run.
        max_depth: levels of runs; 1 is the root alone.
        blocks: which blocks of a reply are run, see `repl_env.rlm.loop.Manner`.
        tools: functions for the sessions of all runs, by name, plain or async; their docstrings are
            shown to the model.
        trajectory: a file to write, or a `TrajectoryWriter`.
        watch: told of everything that happens, see `repl_env.rlm.events`.
        system_prompt: in place of `RLM_SYSTEM_PROMPT`.
        manner: more on how runs work; `max_iterations` and `blocks` go before its own.
        gate: how many requests may be in flight; None: that of the process, 64.
        arguments: of `AsyncLocalREPLEnv`: isolation, require, limits, preload, rubric...

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        model: Model,
        *,
        sub_model: Model | None = None,
        environment: MakeEnvironment | None = None,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        max_iterations: int = 30,
        max_depth: int = 2,
        blocks: Blocks = "all",
        tools: Mapping[str, Callable[..., Any]] | None = None,
        trajectory: str | os.PathLike[str] | TrajectoryWriter | None = None,
        watch: Watcher | None = None,
        system_prompt: str | None = None,
        manner: Manner | None = None,
        gate: Gate | None = None,
        **arguments: Any,
    ) -> None:
        self._given = model
        self._model = _model(model, "model")
        self._sub_model = None if sub_model is None else _model(sub_model, "sub_model")
        if environment is not None and not callable(environment):
            raise TypeError("environment must be a function that makes one")
        if watch is not None and not callable(watch):
            raise TypeError(f"watch must be a function of events, not {type(watch).__name__}")
        _check("system_prompt", system_prompt, str)
        _check("manner", manner, Manner)
        _check("gate", gate, Gate)
        _check_trajectory(trajectory)
        self._max_depth = at_least(max_depth, 1, "max_depth")
        self._budget = Budget() if budget is None else budget
        Ledger(self._budget, prices=prices)  # what is wrong is told now, not at the first run
        given = replace(manner or Manner(), max_iterations=max_iterations, blocks=blocks)
        self._manner = given.within(self._budget)
        self._prices = dict(prices or {})
        self._tools = checked_tools(tools)
        self._trajectory, self._watch = trajectory, watch
        self._system_prompt = system_prompt
        self._gate = gate or REQUESTS
        self._scores = arguments.get("rubric") is not None
        self._make = environment or _Local({**arguments, "tools": self._tools})
        if environment is not None and arguments:
            raise TypeError(f"environment goes without {', '.join(sorted(arguments))}")

    def __repr__(self) -> str:
        depth, turns = self._max_depth, self._manner.max_iterations
        return f"<RLM model {self._model.name!r}, max_depth {depth}, max_iterations {turns}>"

    def run(
        self,
        question: str,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
    ) -> RLMRunResult:
        """Answer a question; works wherever it is called, in notebooks too.

        Args:
            question: what is asked.
            context, contexts, files, expected_answer, answer_schema, seed: as in
                `LocalREPLEnv.reset`.
            timeout_s: seconds of wall time; then the answer is what there is.
            llm: the model for this run alone.

        Raises:
            ModelError: the root's model gave no answer; `.result` is what there is.
            EpisodeAborted: the root's session was lost; likewise.
            TypeError, ValueError, OSError: naming the argument.
        """
        return RUNS.wait_for(
            self.arun(
                question,
                context,
                contexts=contexts,
                files=files,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
                llm=llm,
                seed=seed,
            )
        )

    async def arun(
        self,
        question: str,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
    ) -> RLMRunResult:
        """`run` for an event loop. Cancelling it ends every run and request below it."""
        talk = self.conversation(context, contexts=contexts, files=files, llm=llm, seed=seed)
        async with talk:
            return await talk.ask(
                question,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
            )

    def conversation(
        self,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
    ) -> Conversation:
        """Several questions on one context, in one session that goes on, within one budget."""
        about = {"context": context, "contexts": contexts, "files": files, "seed": seed}
        return Conversation(self, about, llm)

    def _settings(self, seed: int | None) -> dict[str, Any]:
        """What a replay must have in common with a run, besides its question and contexts."""
        return {
            "max_iterations": self._manner.max_iterations,
            "max_depth": self._max_depth,
            "blocks": self._manner.blocks,
            "budget": asdict(self._budget),
            "seed": seed,
        }

    def _models(self, llm: LLM | None) -> tuple[ChatModel | NamedModel, ChatModel | NamedModel]:
        """What works in the runs of a tree, and what answers its plain questions."""
        model = self._model if llm is None else _model(llm, "llm")
        return model, self._sub_model or model

    def _recursion(self, model: ChatModel, sub_model: ChatModel, watch: Watcher) -> Recursion:
        return Recursion(
            model,
            sub_model,
            max_depth=self._max_depth,
            manner=self._manner,
            gate=self._gate,
            watch=watch,
            tools=self._tools,
            system_prompt=self._system_prompt,
            limits=self._budget,
        )


class Conversation:
    """Questions on one live session, one after the other. `async with`, or plain `with`.

    ```python
    with rlm.conversation(context=text) as talk:
        print(talk.ask_plain("Who is named here?").final_answer)
        print(talk.ask_plain("And who of them twice?").final_answer)
    ```
    What the code made for one question is there for the next; the model is told the questions and
    answers so far, and has them in the variable `history`.
    """

    def __init__(self, rlm: RLM, about: Mapping[str, Any], llm: LLM | None) -> None:
        self._rlm = rlm
        self._about = about
        self._events: list[AnyEvent] = []
        self._held = AsyncExitStack()
        self._writer: Watcher | None = None
        self._models = rlm._models(llm)
        self._recursion: Recursion | None = None
        self._llm = llm
        self._account = Ledger(rlm._budget, prices=rlm._prices).root
        self._environment: Any = None
        self._contexts: tuple[ContextNote, ...] = ()
        self._preview: str | None = None
        self._asked: list[tuple[str, str]] = []
        self._runs = 0  # of questions that failed, too: each has a name of its own
        self._asking = False
        self._closed = False

    async def ask(
        self,
        question: str,
        *,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
    ) -> RLMRunResult:
        """Answer a question; as `RLM.run`.

        Raises:
            REPLError: the conversation is closed, or at another question.
        """
        if not isinstance(question, str):
            raise TypeError(f"question must be a str, not {type(question).__name__}")
        if self._asking:
            raise REPLError("the conversation is at another question; ask one after the other")
        self._asking = True
        try:
            run = await self._run(clean(question), expected_answer, answer_schema)
            return await self._played(run, timeout_s)
        finally:
            self._asking = False

    async def _run(self, question: str, expected_answer: Any, answer_schema: Any) -> Run:
        """The run that answers a question, in an episode that has begun for it."""
        recursion = self._began()
        terms = {
            "task_prompt": question,
            "max_iterations": recursion.steps,
            "expected_answer": expected_answer,
            "answer_schema": answer_schema,
        }
        path = str(self._runs)
        if self._environment is None:
            await self._begin(recursion, terms)
        else:
            history = [{"question": asked, "answer": answer} for asked, answer in self._asked]
            await self._environment.follow_up(variables={"history": history}, **terms)
            self._environment.calling.begin_run(path)
        self._runs += 1
        return recursion.run(
            self._environment,
            question,
            self._contexts,
            path=path,
            preview=self._preview,
            model_name=None if self._llm is None else self._llm.model,
            history=self._asked,
            scored=expected_answer is not None or self._rlm._scores,
        )

    async def _played(self, run: Run, timeout_s: float | None) -> RLMRunResult:
        first = len(self._events)
        try:
            result = await run.play(timeout_s)
        except (ModelError, EpisodeAborted) as error:
            whole = tuple(self._events[first:])
            error.result = replace(error.result, _events=whole)  # type: ignore[union-attr]
            raise
        self._asked.append((run.question, result.final_answer or "(no answer)"))
        return replace(result, _events=tuple(self._events[first:]))

    def ask_plain(
        self,
        question: str,
        *,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
    ) -> RLMRunResult:
        """`ask` for plain callers."""
        return RUNS.wait_for(
            self.ask(
                question,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
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
            await self._held.aclose()

    def _began(self) -> Recursion:
        """The recursion of this tree, with its models at hand."""
        if self._closed:
            raise REPLError("the conversation is closed")
        if self._recursion is None:
            model, sub_model = map(self._taken, self._models)
            self._recursion = self._rlm._recursion(model, sub_model, self._told)
        return self._recursion

    def _taken(self, model: ChatModel | NamedModel) -> ChatModel:
        if not isinstance(model, NamedModel):
            return model
        self._held.push_async_callback(model.leave)
        return model.take()

    async def _begin(self, recursion: Recursion, terms: Mapping[str, Any]) -> None:
        self._open_trajectory()
        environment = self._rlm._make(OfRun(recursion, self._account, "0"))
        try:
            first: StepResult[Any] = await environment.reset(**self._about, **terms)
        except BaseException:
            await environment.close()
            raise
        self._environment = environment
        self._contexts = _notes(environment, first)
        self._preview = first.observation.context_preview

    def _open_trajectory(self) -> None:
        given = self._rlm._trajectory
        if given is None:
            return
        from repl_env.rlm.trajectory_writer import TrajectoryWriter

        if isinstance(given, TrajectoryWriter):
            self._writer = given
            return
        named = dict(self._about["contexts"] or {})
        if self._about["context"] is not None:
            named["context"] = self._about["context"]
        writer = TrajectoryWriter(
            given,
            contexts=named,
            settings=self._rlm._settings(self._about["seed"]),
            secrets=_secrets(self._rlm._given, self._llm),
        )
        self._writer = self._held.enter_context(writer)

    def _told(self, event: AnyEvent) -> None:
        self._events.append(event)
        if self._writer is not None:
            self._writer(event)
        if self._rlm._watch is not None:
            self._rlm._watch(event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        RUNS.wait_for(self.close())


class _Local:
    """Makes environments on this machine."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from repl_env.local import AsyncLocalREPLEnv

        self._arguments = dict(arguments)
        if self._arguments.get("sandbox") is None and self._arguments.get("limits") is None:
            self._arguments["limits"] = _limits()
        AsyncLocalREPLEnv(**self._arguments)  # wrong arguments are told now, not at the first run

    def __call__(self, provider: Provider) -> Any:
        from repl_env.local import AsyncLocalREPLEnv

        return AsyncLocalREPLEnv.with_provider(provider, **self._arguments)


def _check(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(given).__name__}")


def _check_trajectory(given: object) -> None:
    if given is None or isinstance(given, (str, os.PathLike)):
        return
    from repl_env.rlm.trajectory_writer import TrajectoryWriter

    if not isinstance(given, TrajectoryWriter):
        kind = type(given).__name__
        raise TypeError(f"trajectory must be a path or a TrajectoryWriter, not {kind}")


def _limits() -> Limits:
    from repl_sandbox import Limits

    return Limits(host_timeout=HOST_TIMEOUT)


def _model(given: object, name: str) -> ChatModel | NamedModel:
    return NamedModel(given, name) if isinstance(given, LLM) else as_model(given, name)


def _secrets(*given: object) -> list[str]:
    """What no file may have of these, wherever a text repeats it."""
    known = [each for each in given if isinstance(each, LLM)]
    from repl_env.rlm.trajectory_writer import SHORTEST_SECRET

    texts = [text for llm in known for text in (llm.api_key or "", *llm.headers.values())]
    return [text for text in texts if len(text) >= SHORTEST_SECRET]


def _notes(environment: Any, first: StepResult[Any]) -> tuple[ContextNote, ...]:
    """The contexts of the episode that has begun, without their content."""
    parts = getattr(environment, "contexts", None)
    if parts is None:
        return (ContextNote("context", "str", first.observation.context_length),)
    return tuple(ContextNote(part.name, part.type, part.length) for part in parts)
