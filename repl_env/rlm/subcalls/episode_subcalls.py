"""`EpisodeSubcalls`: the sub-calls of one episode, from call to answer.

The session has only names; the host has answerers, accounts and listeners. A failed call yields a
text that begins with "Error:", at its position in a batch, and masks the episode, because the
failure is not the policy's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from repl_env.concurrency.background_loop import RUNS
from repl_env.concurrency.offload import offload
from repl_env.errors import ModelError
from repl_env.llm.base import ChatModel
from repl_env.llm.request_gate import RequestGate
from repl_env.models import DEFAULT_MAX_CONCURRENT_SUBCALLS
from repl_env.rlm.budget.ledger import LedgerAccount
from repl_env.rlm.events import CallEnded, CallKind, CallStarted, EventHandler
from repl_env.rlm.subcalls.answerers import Answerer, SubcallOrigin, answered
from repl_env.rlm.subcalls.spawned_calls import CANCELLED, SpawnedCalls
from repl_env.rlm.subcalls.subcall_functions import subcall_functions
from repl_env.rlm.subcalls.subcall_messages import (
    SubcallReply,
    SubcallRequest,
    check_model,
    check_prompt,
    check_prompts,
    check_schema,
    check_timeout,
)
from repl_env.rlm.subcalls.subcall_settings import Failed
from repl_sandbox import HostFunction

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
        failed: called, from any thread, for each infrastructure failure.
        on_event: receives the events of calls.
    """

    def __init__(
        self,
        llm: Answerer | None,
        rlm: Answerer | None,
        *,
        account: LedgerAccount,
        gate: RequestGate,
        failed: Failed,
        slots: int = DEFAULT_MAX_CONCURRENT_SUBCALLS,
        run: str = "0",
        on_event: EventHandler | None = None,
    ) -> None:
        self.account = account
        self.cell = 0  # the running or last cell; set by the episode
        self._llm, self._rlm = llm, rlm or llm
        self._gate, self._run, self._failed, self._on_event = gate, run, failed, on_event
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
            "left": {each.name: getattr(left, each.name) for each in fields(left)},
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
        return {"id": self._spawned.begin(self._answer_one("rlm", request, self._next_origin()))}

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
        if reply.infrastructure:
            self._failed(ModelError("subcall", reply.error or ""))
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
    waited = [asyncio.wrap_future(each) for each in futures]
    if waited:
        await asyncio.wait(waited, timeout=_CANCEL_TIMEOUT)


async def _check_schema(schema: object) -> Mapping[str, Any] | None:
    return None if schema is None else await offload(partial(check_schema, schema))


def _request(
    prompt: str, model: Any, context: Any, schema: Mapping[str, Any] | None, timeout: Any
) -> SubcallRequest:
    return SubcallRequest(prompt, check_model(model), context, schema, check_timeout(timeout))
