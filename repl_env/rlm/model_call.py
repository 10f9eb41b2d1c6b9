"""The events of a tree of runs; `call_model`: one request to one model, within its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from repl_env.common.display import Displayed, set_module
from repl_env.common.values import replace_surrogates, visible
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import (
    REQUESTS,
    ChatModel,
    Completion,
    ModelRequest,
    ModelUsage,
    RequestGate,
    as_completion,
)
from repl_env.models import Ending, REPLObservation
from repl_env.rlm.budget import Spent
from repl_env.rlm.ledger import LedgerAccount, Reservation
from repl_env.rlm.usage import is_count

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# Events of a tree of runs, reported as they happen.
#
# Trajectories, progress displays and training samples are all made from events, so there is one
# record of a run. Events of one run are in order; those of concurrent runs are mixed.
#
# The name of a run is its path: the root is "0", and the child that the third call of "0" made is
# "0.3". A call has the name of the child that it makes or would make.

CallKind: TypeAlias = Literal["llm", "rlm"]

# The error of a call that was cancelled before its answer.
CANCELLED = "the call was cancelled"


@dataclass(frozen=True, slots=True, repr=False)
class ContextNote(Displayed):
    """A context without its content: the variable, its type, its length as in `context_length`."""

    name: str
    type: str
    length: int


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TaskNote(Displayed):
    """The facts of a task by which trainers group samples.

    `name` is the task's name or id, `group_id` that of the group of samples of one task that
    contains the run; `group` is the task's own, as its set sorts tasks.
    """

    name: str | None = None
    group_id: str | None = None
    split: str | None = None
    difficulty: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Event(Displayed):
    """An event of run `run` at `time`, in seconds since the epoch."""

    run: str
    time: float


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunStarted(Event):
    """A run begins. `depth` 0 is the root."""

    depth: int
    question: str
    model: str | None
    max_iterations: int
    contexts: tuple[ContextNote, ...]
    task: TaskNote | None = None


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelReplied(Event):
    """The model of the run took turn number `turn`, from 1.

    Its prompt was the first `kept` messages of the conversation so far (the messages of the turn
    before, and its reply), then `added`. Only the reply was sampled. `last` marks the turn that
    only asks for an answer.
    """

    turn: int
    kept: int
    added: tuple[Message, ...]
    completion: Completion
    seconds: float
    last: bool = False


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CellStarted(Event):
    """A block of code of turn `turn` begins to run, the run's cell number `cell`, from 1."""

    turn: int
    cell: int
    code: str


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CellRan(Event):
    """The cell has run. `observation` has its reward."""

    turn: int
    cell: int
    code: str
    observation: REPLObservation
    seconds: float


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallStarted(Event):
    """Code of cell `cell` calls a model ("llm") or a child run ("rlm")."""

    call: str
    kind: CallKind
    cell: int
    model: str | None
    prompt: str


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallEnded(Event):
    """The result of the call, as the code received it. `child`: a run answered the call.

    `usage` is of a model's answer; that of a child is in its `RunEnded`.
    """

    call: str
    kind: CallKind
    cell: int
    model: str | None
    prompt: str
    text: str
    error: str | None
    truncated: bool
    usage: ModelUsage
    seconds: float
    child: bool = False


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunEnded(Event):
    """A run is over. `own` is its own spending, `total` includes all runs below it.

    `stop_reason`, `error_kind`, `ended` and `task_reward` are those of `RLMRunResult`.
    """

    final_answer: str | None
    answer_value: JSON
    stop_reason: str
    error_kind: str | None
    reward: float | None
    iterations: int
    own: Spent
    total: Spent
    seconds: float
    ended: Ending | None = None
    task_reward: float | None = None


AnyEvent: TypeAlias = (
    RunStarted | ModelReplied | CellStarted | CellRan | CallStarted | CallEnded | RunEnded
)
# Called from the event loop of the run, one event at a time; it must not block.
EventHandler: TypeAlias = Callable[[AnyEvent], None]


# The last steps of a run without an answer: cells that failed, or turns without code.

_MAX_MESSAGE = 200


class FailureStreak:
    """The cells of the root run that failed in a row, up to now, and its turns without code."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._failed: list[str] = []  # the kinds of the exceptions
        self._failed_replies: list[Completion] = []  # whose cells these were
        self._running: Completion | None = None  # the reply whose cells run
        self._last = ""
        self._without_code: list[Completion] = []  # replies without code, the last ones
        self._reply: Completion | None = None  # of a turn that has not run code so far

    def feed(self, event: AnyEvent) -> None:
        """Take in an event; those of child runs are ignored."""
        if "." in event.run:
            return
        match event:
            case RunStarted():
                self._begin()
            case ModelReplied():
                if self._reply is not None:
                    self._without_code.append(self._reply)
                self._reply = event.completion
            case CellRan():
                self._running, self._reply = self._reply or self._running, None
                self._without_code.clear()
                self._cell_ran(event)

    def _cell_ran(self, event: CellRan) -> None:
        result = event.observation.result
        if result.success:
            self._failed.clear()
            self._failed_replies.clear()
            return
        error = result.exception or event.observation.error_kind or "an error"
        self._last = visible(error.splitlines()[0])[:_MAX_MESSAGE]  # the traceback follows
        self._failed.append(self._last.partition(":")[0])
        if self._running is not None:
            self._failed_replies.append(self._running)

    def __str__(self) -> str:
        """A phrase, such as "the last 3 cells raised NameError: …"; "" if the last cell worked."""
        if self._reply is not None:
            return _about_replies([*self._without_code, self._reply])
        if not self._failed:
            return ""
        cells = _several(len(self._failed), "cell")
        cut = _cut(self._failed_replies)
        if len(set(self._failed)) == 1:
            return f"the last {cells} raised {self._last}{cut}"
        return f"the last {cells} failed, the last of them with {self._last}{cut}"


def _about_replies(replies: Sequence[Completion]) -> str:
    """Return a phrase about the last replies, none of which had code that ran."""
    return f"the last {_several(len(replies), 'turn')} ran no code{_cut(replies)}"


def _cut(replies: Sequence[Completion]) -> str:
    """Return a phrase that says that all of `replies` were cut, "" if they were not."""
    if not replies or not all(reply.truncated for reply in replies):
        return ""
    most = max(reply.usage.output_tokens or 0 for reply in replies)
    at = f" at {most:,} tokens" if most else ""
    which = "its reply was" if len(replies) == 1 else "all of their replies were"
    return f": {which} cut{at}, the limit of a reply (max_tokens, --max-tokens)"


def _several(count: int, noun: str) -> str:
    return noun if count == 1 else f"{count:,} {noun}s"


# `call_model`: one request to one model, within the tree's budget and the process's gate.

T = TypeVar("T")

# A model that was given the tree's last seconds may give up this much before the tree's clock.
_EARLY = 0.05

# Seconds for a cancelled call to close its resources. A user's model that continues anyway must not
# delay the end of a run.
_LETTING_GO = 1.0

# Kept here, because a loop keeps only weak references to its tasks.
_open: Final[set[asyncio.Task[Any]]] = set()


@set_module("repl_env.rlm")
async def call_model(
    model: ChatModel, request: ModelRequest, account: LedgerAccount, gate: RequestGate = REQUESTS
) -> Completion:
    """Call `model`, at the expense of `account`.

    First the most that the call may take is reserved, then the call waits for the gate, then the
    model gets the request with the granted amounts. A call that fails or is cancelled with a
    reservation counts as a failed call, with the tokens that the endpoint reports.

    The answer's text may be empty, and is valid Unicode.

    Raises:
        BudgetExceeded: it does not fit into the budget, or the time of the tree ran out.
        ModelError: there is no answer. Other exceptions of a model are converted, with the name of
            their type as the kind.
    """
    with errors_of_the_model():
        bound = model.count_tokens(request.messages_with_prefix)
        if not is_count(bound):
            raise ModelError("type", f"count_tokens gave {bound!r}, which is no count")
    reservation = await account.reserve_async(
        model=request.model or model.name,
        input_tokens=bound,
        # A limit that the model ignores bounds nothing.
        output_tokens=request.max_output_tokens if model.bounded else None,
    )
    with reservation:
        try:
            completion = await _in_time(model, _limited(request, reservation), account, gate)
        except ModelError as error:
            # a refusal, or an answer without text, costs as much as others
            reservation.fail(error.usage)
            raise
        usage = completion.usage if isinstance(completion.usage, ModelUsage) else ModelUsage()
        reservation.settle(
            usage,
            input_estimate=bound,
            output_estimate=_estimate(model, completion, usage, reservation),
            price_model=completion.model,
        )
    return completion


async def _in_time(
    model: ChatModel, request: ModelRequest, account: LedgerAccount, gate: RequestGate
) -> Completion:
    """Return the model's answer, after the gate, unless the tree's time ends before."""
    try:
        async with asyncio.timeout(account.seconds_left()) as clock, gate:
            try:
                return await _answer(model, request, account)
            except ModelError as error:
                # The model may have noticed the end of the tree's time before the tree's clock did,
                # or have taken the clock's cancellation for a failure of its own.
                budget_ended = error.kind == "timeout" and _nearly_over(account)
                if budget_ended or clock.expired():
                    raise _out_of_time() from error
                raise
    except TimeoutError as error:
        raise _out_of_time() from error


async def _answer(model: ChatModel, request: ModelRequest, account: LedgerAccount) -> Completion:
    limits = [limit for limit in (request.timeout, account.seconds_left()) if limit is not None]
    with errors_of_the_model():
        asking = model.complete(replace(request, timeout=min(limits, default=None)))
        answer = await _until_left(asking)
        completion = as_completion(answer)
        if not isinstance(completion.text, str):
            kind = type(completion.text).__name__
            raise ModelError("type", f"the text of the answer is {kind}, not str")
        text = replace_surrogates(completion.text)
    return completion if text == completion.text else replace(completion, text=text)


async def _until_left(asking: Coroutine[Any, Any, T]) -> T:
    """Await `asking`. A cancelled caller waits briefly for its end, and then leaves."""
    task = asyncio.create_task(asking)
    _open.add(task)
    task.add_done_callback(_ended)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=_LETTING_GO)
        raise
    return task.result()


def _ended(task: asyncio.Task[Any]) -> None:
    _open.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, even if no caller waits for it any more


def _limited(request: ModelRequest, reservation: Reservation) -> ModelRequest:
    limits = [
        limit
        for limit in (request.max_output_tokens, reservation.output_tokens)
        if limit is not None
    ]
    return replace(request, max_output_tokens=min(limits, default=None))


def _estimate(
    model: ChatModel, completion: Completion, usage: ModelUsage, reservation: Reservation
) -> int:
    """Return an upper bound of the answer's tokens, if the endpoint did not count them."""
    if is_count(usage.output_tokens):
        return 0
    with errors_of_the_model():
        # The cost of a message beyond its text occurs in prompts only.
        whole, frame = (
            model.count_tokens([{"role": "assistant", "content": text}])
            for text in (completion.text, "")
        )
        estimate = max(whole - frame, 0)
    if model.bounded and reservation.output_tokens is not None:
        return min(estimate, reservation.output_tokens)
    return estimate


def _nearly_over(account: LedgerAccount) -> bool:
    left = account.seconds_left()
    return left is not None and left <= _EARLY


def _out_of_time() -> BudgetExceeded:
    return BudgetExceeded("seconds", "budget: time ran out during the call")


@contextmanager
def errors_of_the_model() -> Iterator[None]:
    """Convert exceptions of a model into ModelError."""
    try:
        yield
    except ModelError:
        raise
    # Boundary: a model may be any class, and raise anything.
    except Exception as error:
        kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
        raise ModelError(kind, str(error)) from error
