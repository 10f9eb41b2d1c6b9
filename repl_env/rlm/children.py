"""Child runs, which answer `rlm_query`, and the system prompt of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from repl_env.errors import INFRASTRUCTURE_KINDS, BudgetExceeded, EpisodeAborted, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import PROBE_RUN, REQUESTS, ChatModel, Origin, RequestGate
from repl_env.llm.spec import LLM
from repl_env.prompts import (
    RLM_SYSTEM_PROMPT,
    RLM_SYSTEM_PROMPT_SHORT,
    QueryMetadata,
    build_rlm_system_prompt,
    build_user_prompt,
)
from repl_env.rlm.answerers import (
    BUDGET,
    NAMES,
    Answerer,
    ModelAnswerer,
    SubcallOrigin,
    SubcallReply,
    SubcallRequest,
    SubcallSettings,
    probe_model,
)
from repl_env.rlm.budget import Budget
from repl_env.rlm.config import RunConfig
from repl_env.rlm.ledger import Ledger, LedgerAccount
from repl_env.rlm.loop import RunLoop
from repl_env.rlm.model_call import ContextNote, EventHandler, TaskNote
from repl_env.rlm.subcalls import EpisodeSubcalls
from repl_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from repl_env.rlm.config import RLMRunResult


# The first messages of a run.

# Of a tool's docstring; the code can read the rest with help().
_MAX_DOC = 600

_CHILDREN = (
    "`rlm_query`, `rlm_query_batched` and `rlm_spawn` give the question to a model with a session "
    "of its own, whose variable `context` is what you pass as `context=`."
)
_NO_CHILDREN = "No further sessions may be begun below yours: `rlm_query` asks as `llm_query` does."

_LIMITS = {
    "calls": "{} calls of models, your own turns among them",
    "input_tokens": "{:,} tokens of prompts",
    "output_tokens": "{:,} tokens of answers",
    "usd": "{} US dollars",
    "seconds": "{} seconds",
    "cpu_seconds": "{} seconds of CPU time",
    "children": "{} further sessions",
}


def system_messages(
    question: str,
    contexts: Sequence[ContextNote],
    *,
    prompt: str | None = None,
    preview: str | None = None,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    budget: Budget | None = None,
    children: bool = False,
    history: Sequence[tuple[str, str]] = (),
    examples: Sequence[Sequence[Message]] = (),
    short: bool = False,
) -> list[Message]:
    """Return the first messages of a run: the system message, the history, and the question.

    `prompt` replaces `RLM_SYSTEM_PROMPT`; `children`: whether calls may begin child runs;
    `history`:
    earlier questions of the conversation with their answers; `examples`: conversations of other
    tasks;
    `short`: for small models, only the instructions, the question and the variables.
    """
    before: list[Message] = [message for messages in examples for message in messages]
    for earlier, answer in history:
        before += [{"role": "user", "content": earlier}, {"role": "assistant", "content": answer}]
    offered = _tools(tools or {})
    if short:
        system = "\n\n".join([prompt or RLM_SYSTEM_PROMPT_SHORT, *offered])
        variables = "\n".join(_variable(note) for note in contexts if note.length)
        user_text = f"{question}\n\n{variables}" if variables else question
        return [
            {"role": "system", "content": system},
            *before,
            {"role": "user", "content": user_text},
        ]
    parts = [prompt or RLM_SYSTEM_PROMPT, _CHILDREN if children else _NO_CHILDREN]
    if budget is not None and (limits := _limits(budget)):
        parts.append(f"For all of this together you have {limits}. `budget()` says what is left.")
    instructions = build_rlm_system_prompt("\n\n".join([*parts, *offered]), _metadata(contexts))
    first = build_user_prompt(question, 0, history_count=1 if history else 0)
    if named := [note for note in contexts if note.name != "context"]:
        first = _adding(first, "The variables are:\n" + "\n".join(map(_variable, named)))
    if preview:
        first = _adding(first, f"What you are asked about begins:\n{preview}")
    return [*instructions, *before, first]


def _tools(tools: Mapping[str, Callable[..., Any]]) -> list[str]:
    if not tools:
        return []
    listed = "\n".join(_tool(name, function) for name, function in tools.items())
    return [f"Functions of this task, in the session:\n{listed}"]


def _limits(budget: Budget) -> str:
    known = {name: getattr(budget, name) for name in _LIMITS}
    return ", ".join(_LIMITS[name].format(value) for name, value in known.items() if value)


def _metadata(contexts: Sequence[ContextNote]) -> QueryMetadata:
    lengths = [note.length for note in contexts]
    kinds = {note.type for note in contexts} or {"str"}
    return QueryMetadata(lengths, sum(lengths), " and ".join(sorted(kinds)))


def _variable(note: ContextNote) -> str:
    return f"- `{note.name}`: {note.type}, length {note.length:,}"


def _tool(name: str, function: Callable[..., Any]) -> str:
    try:
        signature = str(inspect.signature(function))
    except (TypeError, ValueError):
        signature = "(...)"
    doc = inspect.getdoc(function) or "no description"
    doc = doc if len(doc) <= _MAX_DOC else f"{doc[:_MAX_DOC]}... (help({name}) has the rest)"
    return f"- `{name}{signature}`: " + doc.replace("\n", "\n  ")


def _adding(message: Message, text: str) -> Message:
    return {**message, "content": f"{message['content']}\n\n{text}"}


# Child runs, which answer `rlm_query`.
#
# A child has a session forked from the same sandbox as its parent's, an account of its own in the
# tree's ledger, and the parent's question. It is allowed while `depth + 1 < max_depth`; deeper
# down, recursive questions are plain ones. All decisions are made here, on the host.

# Steps of a run's episode for each turn: turns limit the run, and a turn may have as many steps as
# a reply has code blocks.
STEPS_PER_TURN = 64
# A longer question is the context of the session, and is read there.
_LONG_QUESTION = 4_000


class ChildEnvironments(Protocol):
    """Makes the environments and models of child runs."""

    def child(self, provider: Any) -> Any:
        """Return a new environment on the same sandbox, whose sub-calls `provider` answers."""

    def model(self, llm: LLM) -> ChatModel:
        """Return the model that `llm`, an argument of the episode, names."""


@dataclass(frozen=True, slots=True)
class RecursionConfig:
    """Answers the sub-calls of a tree of runs: `sub_model` the plain ones, runs the recursive ones.

    Args:
        model: works in the runs.
        max_depth: levels of runs; 1 is the root alone.
        run_config: the settings of the runs.
        tools: host functions of the runs, for their prompts.
        limits: the budget, for their prompts.
    """

    model: ChatModel
    sub_model: ChatModel
    max_depth: int = 2
    run_config: RunConfig = field(default_factory=RunConfig)
    gate: RequestGate = REQUESTS
    on_event: EventHandler | None = None
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    system_prompt: str | None = None
    limits: Budget | None = None

    def begin_subcalls(
        self,
        account: LedgerAccount,
        settings: SubcallSettings,
        environments: ChildEnvironments,
        run: str = "0",
    ) -> EpisodeSubcalls:
        """Return the sub-calls of the run of this name, which `account` pays for."""
        default = settings.llm.model
        deep = None
        if self.has_children(account):
            deep = ChildRuns(self, environments, default)
        return EpisodeSubcalls(
            ModelAnswerer(self.sub_model, default, self.run_config.max_output_tokens),
            deep,
            account=account,
            gate=self.gate,
            slots=settings.slots,
            run=run,
            on_event=self.on_event,
        )

    def has_children(self, account: LedgerAccount) -> bool:
        """Return whether a run of `account` may have runs below it."""
        return account.depth + 1 < self.max_depth

    def run(
        self,
        environment: Any,
        question: str,
        contexts: tuple[ContextNote, ...],
        *,
        path: str = "0",
        preview: str | None = None,
        model_name: str | None = None,
        history: Sequence[tuple[str, str]] = (),
        scored: bool = False,
        task: TaskNote | None = None,
    ) -> RunLoop:
        """Return the run of an episode that was reset for it."""
        initial_messages = system_messages(
            question,
            contexts,
            prompt=self.system_prompt,
            preview=preview,
            tools=self.tools,
            budget=self.limits,
            children=self.has_children(environment.account),
            history=history,
            examples=self.run_config.examples,
            short=self.run_config.prompts == "short",
        )
        return RunLoop(
            question=question,
            initial_messages=initial_messages,
            model=self.model,
            environment=environment,
            run_config=self.run_config,
            model_name=model_name,
            path=path,
            contexts=contexts,
            gate=self.gate,
            on_event=self.on_event,
            scored=scored,
            task=task,
        )

    @property
    def steps(self) -> int:
        """The steps of a run's episode."""
        return (self.run_config.max_iterations + 1) * STEPS_PER_TURN


@dataclass(frozen=True, slots=True)
class RunSubcallProvider:
    """The provider of one run's environment: the tree's recursion, at this run's place in it."""

    recursion: RecursionConfig
    account: LedgerAccount
    path: str

    def names(self, settings: SubcallSettings) -> frozenset[str]:
        """Return all names."""
        return frozenset((*NAMES, BUDGET))

    def begin(self, settings: SubcallSettings, environments: ChildEnvironments) -> EpisodeSubcalls:
        """Return the sub-calls of the run's episode."""
        return self.recursion.begin_subcalls(self.account, settings, environments, self.path)


@dataclass(frozen=True, slots=True)
class ChildRuns(Answerer):
    """Answers requests with child runs."""

    recursion: RecursionConfig
    environments: ChildEnvironments
    default: str | None = None

    async def probe(self) -> None:
        """Ask the model of the runs, and run a cell in a session of the host's own."""
        origin = Origin(f"{PROBE_RUN}.1", "turn", 1)
        await probe_model(self.recursion.model, self.default, origin)
        provider = RunSubcallProvider(self.recursion, Ledger(Budget()).root, PROBE_RUN)
        environment = self.environments.child(provider)
        try:
            await environment.reset()
            await environment.execute("None")
        except (EpisodeAborted, SandboxError) as error:
            raise ModelError("sandbox", str(error)) from error
        finally:
            await environment.close()

    async def answer(self, question: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Return the result of a run on the request."""
        account = call.account.open_child()
        try:
            environment = self.environments.child(
                RunSubcallProvider(self.recursion, account, call.path)
            )
            try:
                result = await self._play(environment, question, call)
            finally:
                await environment.close()
        except (EpisodeAborted, SandboxError) as error:
            raise ModelError("sandbox", str(error)) from error
        except (ModelError, BudgetExceeded):
            raise
        # Boundary: a fault in a child run costs its call, and not the tree.
        except Exception as error:
            raise ModelError("child", f"{type(error).__name__}: {error}") from error
        finally:
            account.close()
        return _reply(result, question)

    async def _play(
        self, environment: Any, question: SubcallRequest, call: SubcallOrigin
    ) -> RLMRunResult:
        task_prompt, context = _task(question)
        first = await environment.reset(
            context=context,
            task_prompt=task_prompt,
            max_iterations=self.recursion.steps,
            answer_schema=None if question.schema is None else dict(question.schema),
            llm_model=question.model or self.default,
        )
        note = ContextNote("context", type(context).__name__, first.observation.context_length)
        run = self.recursion.run(
            environment,
            task_prompt,
            (note,),
            path=call.path,
            preview=first.observation.context_preview,
            model_name=question.model or self.default,
        )
        return await run.play()


def _task(question: SubcallRequest) -> tuple[str, Any]:
    """Return the question of a child, and its context."""
    context = question.context
    if context is not None and not isinstance(context, (str, bytes, list, dict)):
        context = str(context)
    if len(question.prompt) <= _LONG_QUESTION:
        return question.prompt, question.prompt if context is None else context
    if context is not None:
        return question.prompt, context
    head = question.prompt[:_LONG_QUESTION]
    return f"{head} ... (the whole of this task is the variable `context`)", question.prompt


def _reply(result: RLMRunResult, question: SubcallRequest) -> SubcallReply:
    """Return the answer of a child for its parent's code."""
    failure = result.error_kind if result.error_kind in INFRASTRUCTURE_KINDS else None
    if result.final_answer is None:
        reason = f"no answer: the sub-model stopped by {result.stop_reason}"
        return SubcallReply(f"Error: {reason}", reason, failure=failure, child=True)
    value = result.answer_value if question.schema is not None else None
    return SubcallReply(result.final_answer, value=value, child=True, failure=failure)
