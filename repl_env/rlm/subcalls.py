"""`EpisodeSubcalls`: the sub-calls of one episode, from call to answer, spawned ones included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial, wraps
from typing import Any

from repl_env.common.threads import RUNS, offload
from repl_env.llm.base import ChatModel, RequestGate
from repl_env.models import DEFAULT_MAX_CONCURRENT_SUBCALLS
from repl_env.rlm.answerers import (
    CANCELLED,
    Answerer,
    FailedCalls,
    SubcallOrigin,
    SubcallReply,
    SubcallRequest,
    answered,
    check_model,
    check_prompt,
    check_prompts,
    check_schema,
    check_timeout,
    check_wait,
)
from repl_env.rlm.ledger import LedgerAccount
from repl_env.rlm.model_call import CallEnded, CallKind, CallStarted, EventHandler
from repl_sandbox import HostFunction

# Sub-calls that run concurrently with the code that began them, and their handles.
#
# A handle in the session has a number; the task is here. A number from the session may be any
# JSON: unknown numbers have no task.

# Open spawned calls of one episode: as many as a session may have calls of other kinds.
MAX_SPAWNED = 256


@dataclass(frozen=True, slots=True)
class _Spawned:
    """A running call. `finished` is done when no part of it runs any more."""

    task: asyncio.Task[SubcallReply]
    loop: asyncio.AbstractEventLoop
    finished: Future[None]


class SpawnedCalls:
    """The spawned calls of one episode. They end with it."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Spawned] = {}

    def check_limit(self) -> None:
        """Raise ValueError, for the session's code, if the limit on open calls is reached."""
        if sum(not each.task.done() for each in self._by_number.values()) >= MAX_SPAWNED:
            raise ValueError(f"{MAX_SPAWNED} spawned calls are open; wait for one first")

    def begin(self, call: Coroutine[Any, Any, SubcallReply]) -> int:
        """Start `call` on the running loop and return its number."""
        task = asyncio.create_task(call)
        spawned = _Spawned(task, asyncio.get_running_loop(), Future())
        task.add_done_callback(lambda _: spawned.finished.set_result(None))
        number = len(self._by_number) + 1
        self._by_number[number] = spawned
        return number

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods of the handles in the session, with the number as first argument."""
        return {
            "result": self._result,
            "done": self._done,
            "cancel": self._cancel,
            "wait": self._wait,
        }

    def cancel_all(self) -> list[Future[None]]:
        """Cancel open calls, from any thread; done when all resources are released."""
        running = [each for each in self._by_number.values() if not each.finished.done()]
        for each in running:
            # A closed loop has ended its tasks.
            with suppress(RuntimeError):
                each.loop.call_soon_threadsafe(each.task.cancel)
        return [each.finished for each in running if not each.loop.is_closed()]

    async def _result(self, number: Any, timeout: Any = None) -> dict[str, Any] | None:
        task = self._of(number).task
        await asyncio.wait({task}, timeout=check_wait(timeout))
        if not task.done():
            return None
        if task.cancelled():
            return CANCELLED.to_json()
        reply = task.result()
        if reply.refusal is not None:
            raise reply.refusal
        return reply.to_json()

    async def _done(self, number: Any) -> bool:
        return self._of(number).task.done()

    async def _cancel(self, number: Any) -> bool:
        return self._of(number).task.cancel()

    async def _wait(self, numbers: Any, timeout: Any = None) -> list[int]:
        """Return the ended ones of these calls, once there is one or the time is over."""
        if not isinstance(numbers, list) or not numbers:
            raise TypeError("numbers must be a list of calls")
        tasks = {number: self._of(number).task for number in numbers}
        await asyncio.wait(
            tasks.values(), timeout=check_wait(timeout), return_when=asyncio.FIRST_COMPLETED
        )
        return [number for number, task in tasks.items() if task.done()]

    def _of(self, number: Any) -> _Spawned:
        spawned = self._by_number.get(number) if type(number) is int else None
        if spawned is None:
            raise LookupError("this episode has spawned no such call")
        return spawned


# Sub-call functions as the code of a session sees them: names, signatures, `help`.

_ONE = "(prompt, model=None, *, context=None, schema=None, timeout=None)"
_MANY = "(prompts, model=None, *, context=None, schema=None, timeout=None)"
_RAISES = ("BudgetExceeded",)

_ASK = """Ask {answerer} one question; returns its answer as a str.

context: what the question is about: text, bytes or JSON{context}.
schema: a JSON schema; the answer is JSON that fits it, and .value has it parsed.
timeout: seconds to wait for the answer.
The answer has .ok, .error, .usage, .truncated and .value. One that failed reads "Error: ..."."""
_ASK_ALL = """Ask {answerer} a list of questions at once; returns as many answers, in order.

context: one for all, or a list with one for each. The rest is as for a single question."""
_SPAWN = """Begin a question of rlm_query and go on; returns a handle.

handle.result(timeout=None) waits for the answer, handle.done() looks, handle.cancel() gives up."""
_BUDGET = "What is left of the budget of this work, and what was spent, as a dict."


def subcall_functions(
    *,
    ask: Callable[..., Any],
    ask_all: Callable[..., Any],
    spawn: Callable[..., Any],
    budget: Callable[..., Any],
    handles: Mapping[str, Callable[..., Any]],
) -> dict[str, HostFunction]:
    """Return the functions for the session, by name.

    `ask` and `ask_all` take the kind of call before the code's arguments; `handles` are the methods
    of the result of `spawn`.
    """
    model = "a language model, which sees nothing but the question,"
    recursive_model = "a model that works in a REPL of its own, for tasks of several steps,"
    as_variable = "; it is the child's variable `context`"
    return {
        "llm_query": _host_function(partial(ask, "llm"), _ASK, model, ""),
        "rlm_query": _host_function(partial(ask, "rlm"), _ASK, recursive_model, as_variable),
        "llm_query_batched": _host_function(partial(ask_all, "llm"), _ASK_ALL, model),
        "llm_batch": _host_function(partial(ask_all, "llm"), _ASK_ALL, model),
        "rlm_query_batched": _host_function(partial(ask_all, "rlm"), _ASK_ALL, recursive_model),
        "rlm_spawn": HostFunction(
            _documented(spawn, _SPAWN),
            returns="handle",
            raw=("context",),
            raises=_RAISES,
            signature=_ONE,
            methods=handles,
        ),
        "budget": HostFunction(_documented(budget, _BUDGET), signature="()"),
    }


def _host_function(
    function: Callable[..., Any], doc: str, answerer: str, context: str | None = None
) -> HostFunction:
    single = context is not None
    return HostFunction(
        _documented(function, doc.format(answerer=answerer, context=context)),
        returns="text" if single else "texts",
        raw=("context",),
        raises=_RAISES,
        signature=_ONE if single else _MANY,
    )


def _documented(function: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """Return `function` with a docstring for the code of the session."""

    @wraps(function)
    async def described(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    described.__doc__ = doc
    return described


# `EpisodeSubcalls`: the sub-calls of one episode, from call to answer.
#
# The session has only names; the host has answerers, accounts and listeners. A failed call yields
# a text that begins with "Error:", at its position in a batch. It masks the episode only if its
# endpoint then fails for the host as well (`answerers.py`).

# Seconds that a blocking episode waits at its end for cancelled calls.
_CANCEL_TIMEOUT = 10.0


class EpisodeSubcalls:
    """The sub-calls of one episode.

    Args:
        llm: answers plain requests; None: none are answered.
        rlm: answers recursive ones; None: `llm` does.
        account: pays for all of them.
        gate: limits the process's concurrent requests to endpoints.
        slots: limits the concurrent sub-calls of the episode. A child run has its own limit.
        run: the path of the episode's run.
        on_event: receives the events of calls.
    """

    def __init__(
        self,
        llm: Answerer | None,
        rlm: Answerer | None,
        *,
        account: LedgerAccount,
        gate: RequestGate,
        slots: int = DEFAULT_MAX_CONCURRENT_SUBCALLS,
        run: str = "0",
        on_event: EventHandler | None = None,
    ) -> None:
        self.account = account
        self.cell = 0  # the running or last cell; set by the episode
        self._llm, self._rlm = llm, rlm or llm
        self._gate, self._run, self._on_event = gate, run, on_event
        self._failed_calls = FailedCalls(self._probe, slots)
        self._slots = RequestGate(slots, "max_concurrent_subcalls")
        self._calls = 0
        self._first_cell = 0
        self._spawned = SpawnedCalls()
        self._open: set[Future[None]] = set()
        self._closed = False
        self._owned_model: ChatModel | None = None

    @property
    def closed(self) -> bool:
        """Whether the episode is over, so that no further call is answered."""
        return self._closed

    def set_answerers(self, llm: Answerer | None, rlm: Answerer | None) -> None:
        """Let others answer later calls."""
        self._llm, self._rlm = llm, rlm or llm

    def begin_run(self, run: str) -> None:
        """Assign later calls to another run in the same session."""
        self._run, self._calls, self._first_cell = run, 0, self.cell

    # ── the functions of the session ─────────────────────────────────────────────────────────────

    def functions(self) -> dict[str, HostFunction]:
        """Return the functions for the session, by name."""
        return subcall_functions(
            ask=self._ask,
            ask_all=self._ask_all,
            spawn=self._spawn,
            budget=self._budget,
            handles=self._spawned.methods(),
        )

    async def _ask(
        self,
        kind: CallKind,
        prompt: Any,
        model: Any = None,
        *,
        context: Any = None,
        schema: Any = None,
        timeout: Any = None,
    ) -> dict[str, Any]:
        checked_schema = await _check_schema(schema)
        request = _request(check_prompt(prompt), model, context, checked_schema, timeout)
        reply = await self._answer_one(kind, request, self._next_origin())
        if reply.refusal is not None:
            raise reply.refusal
        return reply.to_json()

    async def _ask_all(
        self,
        kind: CallKind,
        prompts: Any,
        model: Any = None,
        *,
        context: Any = None,
        schema: Any = None,
        timeout: Any = None,
    ) -> list[dict[str, Any]]:
        each = check_prompts(prompts)
        contexts = context if isinstance(context, list) else [context] * len(each)
        if len(contexts) != len(each):
            raise ValueError(f"context: a list of {len(contexts)} for {len(each)} prompts")
        checked_schema = await _check_schema(schema)
        requests = [
            _request(prompt, model, context_of_one, checked_schema, timeout)
            for prompt, context_of_one in zip(each, contexts, strict=True)
        ]
        calls = [self._next_origin() for _ in requests]
        began = time.time()
        for request, call in zip(requests, calls, strict=True):
            self._emit_start(kind, request, call)

        waiting = dict(enumerate(zip(requests, calls, strict=True)))

        def ended(index: int, reply: SubcallReply) -> None:
            self._emit_end(kind, *waiting.pop(index), reply, began)

        with self._counted_as_open():
            try:
                replies = await self._answerer(kind).answer_all(requests, calls, ended)
            except asyncio.CancelledError:
                for index in list(waiting):
                    ended(index, CANCELLED)
                raise
        refusals = [reply.refusal for reply in replies if reply.refusal is not None]
        if refusals and len(refusals) == len(replies):
            raise refusals[0]
        return [reply.to_json() for reply in replies]

    async def _answer_one(
        self, kind: CallKind, request: SubcallRequest, call: SubcallOrigin
    ) -> SubcallReply:
        """Have one request answered, and report its events."""
        began = time.time()
        self._emit_start(kind, request, call)
        with self._counted_as_open():
            try:
                reply = await answered(self._answerer(kind), request, call)
            except asyncio.CancelledError:
                self._emit_end(kind, request, call, CANCELLED, began)
                raise
        self._emit_end(kind, request, call, reply, began)
        return reply

    @contextmanager
    def _counted_as_open(self) -> Iterator[None]:
        """Count a call, including its answerer, as open inside."""
        ended: Future[None] = Future()
        self._open.add(ended)
        try:
            yield
        finally:
            self._open.discard(ended)
            ended.set_result(None)

    async def _budget(self) -> dict[str, Any]:
        left, limits = self.account.left(), self.account.ledger.budget
        return {
            "left": {field.name: getattr(left, field.name) for field in fields(left)},
            "limit": asdict(limits),
            "spent": asdict(self.account.total),
        }

    async def _spawn(
        self,
        prompt: Any,
        model: Any = None,
        *,
        context: Any = None,
        schema: Any = None,
        timeout: Any = None,
    ) -> dict[str, Any]:
        checked_schema = await _check_schema(schema)
        request = _request(check_prompt(prompt), model, context, checked_schema, timeout)
        self._spawned.check_limit()
        self.account.check()
        return {"id": self._spawned.begin(self._answer_one("rlm", request, self._next_origin()))}

    # ── failures ─────────────────────────────────────────────────────────────────────────────────

    def suspected_failures(self, *, out_of_time: bool) -> frozenset[CallKind]:
        """Return the kinds of calls of the ended cell whose endpoint may fail for everybody."""
        return self._failed_calls.take_suspected(out_of_time=out_of_time)

    def endpoint_fails(self, kinds: frozenset[CallKind]) -> bool:
        """Return whether an endpoint of these kinds of calls fails for the host as well."""
        return RUNS.wait_for(self._failed_calls.confirmed(kinds))

    async def endpoint_fails_async(self, kinds: frozenset[CallKind]) -> bool:
        """`endpoint_fails` for an event loop."""
        return await self._failed_calls.confirmed(kinds)

    async def _probe(self, kind: CallKind) -> None:
        await self._answerer(kind).probe()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def end_calls(self) -> None:
        """Cancel spawned calls, and wait for their end and for that of an interrupted cell's
        calls.
        """
        await _all_of((*self._spawned.cancel_all(), *self._open))

    def close_at_end(self, model: ChatModel) -> EpisodeSubcalls:
        """Close `model` at the end: it was made for this episode."""
        self._owned_model = model
        return self

    def close(self) -> None:
        """Cancel open calls, and wait for their end. For blocking episodes."""
        self._closed = True
        wait_for(self._spawned.cancel_all(), timeout=_CANCEL_TIMEOUT)
        self.account.close()
        model, self._owned_model = self._owned_model, None
        if model is not None:
            RUNS.wait_for(model.close())

    async def close_async(self) -> None:
        """`close` for an event loop."""
        self._closed = True
        # Without waiting for calls of cells: the caller may be one of them.
        await _all_of(self._spawned.cancel_all())
        self.account.close()
        model, self._owned_model = self._owned_model, None
        if model is not None:
            await model.close()

    # ── what every call needs ────────────────────────────────────────────────────────────────────

    def _next_origin(self) -> SubcallOrigin:
        if self._closed:
            raise RuntimeError("the episode is over")
        self._calls += 1
        cell = self.cell - self._first_cell
        return SubcallOrigin(self._run, self._calls, self.account, self._gate, self._slots, cell)

    def _answerer(self, kind: CallKind) -> Answerer:
        answerer = self._llm if kind == "llm" else self._rlm
        if answerer is None:
            raise RuntimeError(
                f"{kind}_query is not configured: the episode has no model for sub-calls"
            )
        return answerer

    def _emit_start(self, kind: CallKind, request: SubcallRequest, call: SubcallOrigin) -> None:
        self._failed_calls.begin(call.number, kind, request)
        if self._on_event is not None:
            self._on_event(
                CallStarted(
                    run=call.run,
                    time=time.time(),
                    call=call.path,
                    kind=kind,
                    cell=call.cell,
                    model=request.model,
                    prompt=request.prompt,
                )
            )

    def _emit_end(
        self,
        kind: CallKind,
        request: SubcallRequest,
        call: SubcallOrigin,
        reply: SubcallReply,
        began: float,
    ) -> None:
        self._failed_calls.end(call.number, kind, reply)
        if self._on_event is None:
            return
        now = time.time()
        self._on_event(
            CallEnded(
                run=call.run,
                time=now,
                call=call.path,
                kind=kind,
                cell=call.cell,
                model=reply.model or request.model,
                prompt=request.prompt,
                text=reply.text if reply.full_text is None else reply.full_text,
                error=reply.error,
                truncated=reply.truncated,
                usage=reply.usage,
                seconds=now - began,
                child=reply.child,
            )
        )


async def _all_of(futures: Iterable[Future[None]]) -> None:
    waited = [asyncio.wrap_future(future) for future in futures]
    if waited:
        await asyncio.wait(waited, timeout=_CANCEL_TIMEOUT)


async def _check_schema(schema: object) -> Mapping[str, Any] | None:
    return None if schema is None else await offload(partial(check_schema, schema))


def _request(
    prompt: str, model: Any, context: Any, schema: Mapping[str, Any] | None, timeout: Any
) -> SubcallRequest:
    return SubcallRequest(prompt, check_model(model), context, schema, check_timeout(timeout))
