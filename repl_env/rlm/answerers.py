"""Answerers of sub-calls: their messages, settings and failures, and the one that asks a model."""

from __future__ import annotations

import asyncio
import json
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from repl_env.common.binary_json import BYTES
from repl_env.common.threads import check_size, offload
from repl_env.common.values import replace_surrogates
from repl_env.episode.answers import validator
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import (
    PROBE_RUN,
    ChatModel,
    Completion,
    ModelRequest,
    ModelUsage,
    Origin,
    Purpose,
    RequestGate,
    failure_kind,
    may_concern_everybody,
)
from repl_env.llm.spec import LLM
from repl_env.models import DEFAULT_MAX_CONCURRENT_SUBCALLS
from repl_env.parsing.blocks import without_thoughts
from repl_env.rlm import model_call
from repl_env.rlm.ledger import LedgerAccount
from repl_env.rlm.model_call import CallKind, call_model, errors_of_the_model
from repl_sandbox.types import JSON

if TYPE_CHECKING:
    from repl_env.rlm.children import ChildEnvironments
    from repl_env.rlm.subcalls import EpisodeSubcalls


# Requests of a session's code to models, and the replies.

# A whole answer in a fence: models format JSON so when asked for JSON alone.
_OPENING = re.compile(r"```\w*[ \t]*")


@dataclass(frozen=True, slots=True)
class SubcallRequest:
    """One request of the session's code.

    `context` is the subject of the prompt: text, bytes or JSON; None: all is in the prompt.
    `schema` is a JSON schema for the answer. `timeout` is in seconds; None: no limit of its own.
    """

    prompt: str
    model: str | None = None
    context: Any = None
    schema: Mapping[str, Any] | None = None
    timeout: float | None = None

    @property
    def text(self) -> str:
        """The request as one prompt for a model that has no REPL."""
        text = self.prompt
        if self.context is not None:
            text = f"{text}\n\n{readable(self.context)}"
        if self.schema is not None:
            schema = json.dumps(self.schema, ensure_ascii=False)
            text += f"\n\nReply with JSON and nothing else. It must fit this JSON schema:\n{schema}"
        return replace_surrogates(text)


@dataclass(frozen=True, slots=True)
class SubcallReply:
    """The reply to a request. `error` None: there is an answer.

    `text` is for the code; `full_text` the model's whole text, including reasoning.
    `failure`: the kind of a failure that may be the endpoint's, not the code's; None otherwise.
    `refusal`: the budget did not allow the request. `child`: a child run gave the answer.
    """

    text: str
    error: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    truncated: bool = False
    value: JSON = None
    failure: str | None = None
    refusal: BudgetExceeded | None = None
    child: bool = False
    model: str | None = None
    full_text: str | None = None

    @classmethod
    def of(cls, completion: Completion, value: JSON = None) -> SubcallReply:
        """Return the reply with a model's answer."""
        full_text = replace_surrogates(completion.text)
        return cls(
            without_thoughts(full_text),
            usage=completion.usage,
            truncated=completion.truncated,
            value=value,
            model=completion.model,
            full_text=full_text,
        )

    @classmethod
    def failed(cls, error: Exception) -> SubcallReply:
        """Return a failed reply: its text says so, because code that expects text gets it."""
        of_model = isinstance(error, ModelError)
        name = replace_surrogates(str(error) if of_model else f"{type(error).__name__}: {error}")
        refusal = error if isinstance(error, BudgetExceeded) else None
        failure = None
        if isinstance(error, TimeoutError):  # the code's own limit of the call
            failure = "timeout"
        elif isinstance(error, ModelError) and may_concern_everybody(error):
            failure = failure_kind(error)
        return cls(f"Error: {name}", name, failure=failure, refusal=refusal)

    def to_json(self) -> dict[str, Any]:
        """Return the reply in its form for the session."""
        usage = self.usage
        known = usage.input_tokens is not None or usage.output_tokens is not None
        return {
            "text": self.text,
            "ok": self.error is None,
            "error": self.error,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            if known
            else None,
            "truncated": self.truncated,
            "value": self.value,
        }


# The result of a cancelled call.
CANCELLED = SubcallReply(f"Error: {model_call.CANCELLED}", model_call.CANCELLED)


def readable(context: Any) -> str:
    """Return a context as text that a model can read."""
    if isinstance(context, str):
        return context
    if isinstance(context, (bytes, bytearray)):
        return bytes(context).decode("utf-8", "replace")
    return json.dumps(context, ensure_ascii=False, indent=1)


def parsed(text: str, schema: Mapping[str, Any]) -> JSON:
    """Return the JSON in `text`, perhaps in one fence; ValueError says why it does not fit."""
    check_size(text)
    try:
        value: JSON = json.loads(_unfenced(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON: {error}") from None
    check = validator(dict(schema))
    assert check is not None
    return check(value)


def _unfenced(text: str) -> str:
    opening, _, rest = text.strip().partition("\n")
    whole = _OPENING.fullmatch(opening) and rest.endswith("```")
    return rest.removesuffix("```") if whole else text


def check_prompt(prompt: object) -> str:
    """Return `prompt` if it is a str; TypeError for the session's code."""
    if not isinstance(prompt, str):
        was_bytes = isinstance(prompt, dict) and list(prompt) == [BYTES]  # its type in the session
        kind = "bytes" if was_bytes else type(prompt).__name__
        raise TypeError(f"a prompt must be a str, not {kind}")
    return prompt


def check_prompts(prompts: object) -> list[str]:
    """Return `prompts` if they are a list of str; TypeError for the session's code."""
    if not isinstance(prompts, list):
        raise TypeError(f"prompts must be a list of str, not {type(prompts).__name__}")
    return [check_prompt(prompt) for prompt in prompts]


def check_schema(schema: object) -> Mapping[str, Any] | None:
    """Return `schema` if it is a JSON schema or None; TypeError or ValueError otherwise."""
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise TypeError(f"schema must be a JSON schema as a dict, not {type(schema).__name__}")
    try:
        validator(schema)
    except ValueError as error:
        raise ValueError(str(error).replace("answer_schema", "schema")) from None
    return schema


def check_timeout(timeout: object) -> float | None:
    """Return `timeout` if it is a number of seconds or None; TypeError or ValueError otherwise."""
    seconds = check_wait(timeout)
    if seconds == 0:
        raise ValueError("timeout must be more than 0 seconds")
    return seconds


def check_wait(timeout: object) -> float | None:
    """Return `timeout` of a wait, which may be 0; TypeError or ValueError otherwise."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError("timeout must be at least 0 seconds")
    return float(timeout)


def check_model(model: object) -> str | None:
    """Return `model` if it is a name or None; TypeError otherwise."""
    if model is not None and not isinstance(model, str):
        raise TypeError(f"model must be a str, not {type(model).__name__}")
    return model


# `FailedCalls`: whether failed sub-calls of an episode are its code's fault or the endpoint's.
#
# Masking is for failures that code in the session cannot cause, so a failed call alone masks
# nothing: code chooses the prompts, their size and their number. A refusal of one request is the
# code's. Any other failure is a suspicion, which the host checks once the cell is over: it sends
# one short request of its own to the same endpoint. Only if that fails as well, the endpoint
# fails for everybody, and the episode is masked.

Probe: TypeAlias = Callable[[CallKind], Coroutine[Any, Any, None]]

# The prompt of the host's own request, and the seconds that its answer may take.
PROBE_PROMPT = "Reply with the word OK."
PROBE_SECONDS = 30.0
PROBE_TOKENS = 16

# Failures that too many calls cause, and the calls within a minute that are too many. The rate
# limit of a process is shared, so a session that calls more often than it may call at once has a
# large part in it.
_FLOOD_SECONDS = 60.0
_FLOOD_CALLS = 60
# Characters of open requests that may keep an endpoint busy for minutes.
_LARGE_REQUESTS = 100_000
_UNRELATED_TO_LOAD = frozenset({"connection", "authentication", "not_found", "sandbox", "memory"})


class FailedCalls:
    """The suspicious failures of the running cell's sub-calls, and their check.

    Args:
        probe: sends the host's own request to the endpoint of a kind of call; raises as it fails.
        concurrent: the sub-calls of the episode that may run at once.
    """

    def __init__(self, probe: Probe, concurrent: int) -> None:
        self._probe = probe
        self._concurrent = concurrent
        self._begun: deque[float] = deque(maxlen=max(concurrent, _FLOOD_CALLS) + 1)
        self._open: dict[int, tuple[CallKind, int]] = {}  # with the characters of the request
        self._suspected: set[CallKind] = set()
        self._replies = 0  # to calls of this cell: the endpoint works

    def begin(self, number: int, kind: CallKind, request: SubcallRequest) -> None:
        """Record the begin of a call."""
        self._begun.append(time.monotonic())
        self._open[number] = kind, len(request.text)

    def end(self, number: int, kind: CallKind, reply: SubcallReply) -> None:
        """Record the end of a call; one that was cancelled with its cell stays open."""
        if reply is CANCELLED:
            return
        self._open.pop(number, None)
        if reply.refusal is not None:
            return  # no endpoint was asked
        if reply.failure is None:
            self._replies += 1
            self._suspected.discard(kind)  # the endpoint works again
        elif not self._caused_by_number(reply.failure):
            self._suspected.add(kind)

    def take_suspected(self, *, out_of_time: bool) -> frozenset[CallKind]:
        """Return the kinds of calls to check after a cell, and begin the next one.

        `out_of_time`: the cell has used up its clock of host calls. If no call of it had a reply,
        the endpoint may hang; else it was the number of the calls. Large requests explain it too:
        an endpoint may go on with them, and answer the host late.
        """
        suspected = set(self._suspected)
        if out_of_time and not self._replies:
            open_calls = self._open.values()
            if sum(size for _, size in open_calls) <= _LARGE_REQUESTS:
                suspected.update(kind for kind, _ in open_calls)
        self._suspected.clear()
        self._open.clear()
        self._replies = 0
        return frozenset(suspected)

    async def confirmed(self, kinds: frozenset[CallKind]) -> bool:
        """Return whether an endpoint of these kinds fails for the host as well."""
        return any([await self._fails(kind) for kind in sorted(kinds)])

    async def _fails(self, kind: CallKind) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probe(kind)
        except TimeoutError:
            return not self._caused_by_number("timeout")
        except ModelError as error:
            return may_concern_everybody(error) and not self._caused_by_number(failure_kind(error))
        return False

    def _caused_by_number(self, failure: str) -> bool:
        """Return whether the number of the session's own calls explains a failure."""
        if failure in _UNRELATED_TO_LOAD:
            return False
        allowed = self._concurrent if failure == "rate_limit" else _FLOOD_CALLS
        since = time.monotonic() - _FLOOD_SECONDS
        return sum(begun >= since for begun in self._begun) > allowed


# Answerers of sub-calls, and the one that asks a model.
#
# `repl_env.rlm.providers` calls functions of users, and `repl_env.rlm.children` starts child runs.

Ended: TypeAlias = Callable[[int, "SubcallReply"], None]


@dataclass(frozen=True, slots=True)
class SubcallOrigin:
    """The origin of a sub-call: its run's path, its number, its account, its cell.

    `gate` limits the requests of the process, `slots` the sub-calls of the run.
    """

    run: str
    number: int
    account: LedgerAccount
    gate: RequestGate
    slots: RequestGate
    cell: int = 0

    @property
    def path(self) -> str:
        """The name of the call, and of the run that it begins."""
        return f"{self.run}.{self.number}"


class Answerer(ABC):
    """Answers requests of a session's code. Safe to use from several tasks."""

    @abstractmethod
    async def probe(self) -> None:
        """Send a short request of the host's own, apart from budgets and events.

        Raises:
            ModelError: it failed as well.
        """

    @abstractmethod
    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Return the answer.

        Raises:
            ModelError, BudgetExceeded: there is none.
        """

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Return an answer to each request, in order; `ended` receives each as it comes.

        A request without an answer yields a failed `SubcallReply`.
        """

        async def one(index: int) -> SubcallReply:
            reply = await answered(self, requests[index], calls[index])
            ended(index, reply)
            return reply

        running = [asyncio.create_task(one(index)) for index in range(len(requests))]
        try:
            return list(await asyncio.gather(*running))
        finally:
            # A listener may raise, as a writer does on a full disk: the rest is cancelled.
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def answered(
    answerer: Answerer, request: SubcallRequest, call: SubcallOrigin
) -> SubcallReply:
    """Return the answer, or a failed `SubcallReply`, once a slot for the call is free.

    The time of the request begins then.
    """
    try:
        async with call.slots, asyncio.timeout(request.timeout):
            return await answerer.answer(request, call)
    except (ModelError, BudgetExceeded) as error:
        return SubcallReply.failed(error)
    except TimeoutError:
        return SubcallReply.failed(TimeoutError(f"no answer within {request.timeout} seconds"))


class ModelAnswerer(Answerer):
    """A model answers, from the prompt alone."""

    def __init__(
        self, model: ChatModel, default: str | None = None, max_output_tokens: int | None = None
    ) -> None:
        self.model = model
        self._default = default
        self._max_output_tokens = max_output_tokens

    async def probe(self) -> None:
        """Ask the model by its default name."""
        await probe_model(self.model, self._default, Origin(PROBE_RUN, "query", 1))

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Ask the model; with a schema, once more if the answer does not fit."""
        messages: list[Message] = [{"role": "user", "content": request.text}]
        completion = await self._ask(request, call, messages, "query")
        if request.schema is None:
            return SubcallReply.of(completion)
        try:
            return SubcallReply.of(completion, await matching_value(completion, request.schema))
        except ValueError as error:
            correction = f"{error}. Reply again, with nothing but JSON that fits the schema."
        messages += [
            {"role": "assistant", "content": completion.text},
            {"role": "user", "content": correction},
        ]
        second = await self._ask(request, call, messages, "repair")
        usage = _sum(completion.usage, second.usage)
        combined = Completion(second.text, usage, second.finish_reason, second.model)
        try:
            return SubcallReply.of(combined, await matching_value(second, request.schema))
        except ValueError as error:
            problem = ModelError("schema", f"twice, {error}")
            return SubcallReply(f"Error: {problem}", str(problem), usage, model=second.model)

    async def _ask(
        self,
        request: SubcallRequest,
        call: SubcallOrigin,
        messages: Sequence[Message],
        purpose: Purpose,
    ) -> Completion:
        model_request = ModelRequest(
            messages=tuple(messages),
            model=request.model or self._default,
            max_output_tokens=self._max_output_tokens,
            schema=request.schema,
            origin=Origin(call.run, purpose, call.number),
        )
        return await call_model(self.model, model_request, call.account, call.gate)


class SplitAnswerer(Answerer):
    """One answerer for single requests, and another for batches."""

    def __init__(self, single: Answerer, batch: Answerer) -> None:
        self._single, self._batch = single, batch

    @classmethod
    def of(cls, single: Answerer | None, batch: Answerer | None) -> Answerer | None:
        """Combine both; one of them alone answers both kinds; None for neither."""
        return cls(single, batch) if single and batch else single or batch

    async def probe(self) -> None:
        """Probe both."""
        await self._single.probe()
        await self._batch.probe()

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Answer with the first."""
        return await self._single.answer(request, call)

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Answer with the second."""
        return await self._batch.answer_all(requests, calls, ended)


async def probe_model(model: ChatModel, name: str | None, origin: Origin) -> None:
    """Send `model` a short request; ModelError if it fails."""
    request = ModelRequest(
        messages=({"role": "user", "content": PROBE_PROMPT},),
        model=name,
        max_output_tokens=PROBE_TOKENS,
        timeout=PROBE_SECONDS,
        origin=origin,
    )
    with errors_of_the_model():
        await model.complete(request)


async def matching_value(completion: Completion, schema: Mapping[str, Any]) -> JSON:
    """Return the JSON of an answer; ValueError says why it does not fit."""
    return await offload(partial(parsed, without_thoughts(completion.text), schema))


def _sum(first: ModelUsage, second: ModelUsage) -> ModelUsage:
    def total(a: Any, b: Any) -> Any:
        return None if a is None or b is None else a + b

    return ModelUsage(
        total(first.input_tokens, second.input_tokens),
        total(first.output_tokens, second.output_tokens),
        total(first.usd, second.usd),
    )


# The interface between environments and providers of sub-calls.

UserFunction: TypeAlias = Callable[..., Any]

NAMES = (
    "llm_query", "llm_query_batched", "llm_batch", "rlm_query", "rlm_query_batched", "rlm_spawn",
)  # fmt: skip
BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class SubcallSettings:
    """The settings of an episode for its sub-calls.

    Attributes:
        llm: the model that answers them.
        max_depth: levels of nested runs.
        max_iterations: turns of each child run; None: as many as the environment's episodes have.
        slots: the sub-calls of the episode that may run concurrently.
    """

    llm: LLM = field(default_factory=LLM)
    max_depth: int = 1
    max_iterations: int | None = None
    slots: int = DEFAULT_MAX_CONCURRENT_SUBCALLS


class Provider(Protocol):
    """Answers the sub-calls of an environment's episodes."""

    def names(self, settings: SubcallSettings) -> frozenset[str]:
        """The functions of the session that this provider can answer."""

    def begin(
        self, settings: SubcallSettings, environments: ChildEnvironments
    ) -> EpisodeSubcalls | None:
        """The sub-calls of one episode, or None if this provider answers none.

        Args:
            environments: makes the environments of child runs.
        """


def session_functions(subcalls: EpisodeSubcalls | None) -> dict[str, Any]:
    """The host functions of a session: those of `subcalls`, or ones that raise without it."""
    if subcalls is None:
        return {name: _unconfigured(name) for name in NAMES}
    return dict(subcalls.functions())


@cache  # most episodes have no model and share these functions
def _unconfigured(name: str) -> UserFunction:
    message = f"{name} is not configured: the episode has no model for sub-calls"

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    refuse.__doc__ = message
    return refuse
