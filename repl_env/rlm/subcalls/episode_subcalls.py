"""`EpisodeSubcalls`: the sub-calls of one episode, from call to answer.

The session has only names; the host has answerers, accounts and listeners. A failed call yields a
text
that begins with "Error:", at its position in a batch, and masks the episode, because the failure is
not
the policy's.
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
from repl_env.rlm.events import CallEnded, CallKind, CallStarted, Watcher
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
        width: limits the concurrent sub-calls of the episode. A child run has its own limit.
        run: the path of the episode's run.
        failed: called, from any thread, for each infrastructure failure.
        watch: receives the events of calls.
    """

    def __init__(
        self,
        llm: Answerer | None,
        rlm: Answerer | None,
        *,
        account: LedgerAccount,
        gate: RequestGate,
        failed: Failed,
        width: int = DEFAULT_MAX_CONCURRENT_SUBCALLS,
        run: str = "0",
        watch: Watcher | None = None,
    ) -> None:
        self.account = account
        self.cell = 0  # the running or last cell; set by the episode
        self._llm, self._rlm = llm, rlm or llm
        self._gate, self._run, self._failed, self._watch = gate, run, failed, watch
        self._width = RequestGate(width, "max_concurrent_subcalls")
        self._calls = 0
        self._first_cell = 0
        self._spawned = SpawnedCalls()
        self._open: set[Future[None]] = set()
        self._closed = False
        self._own: ChatModel | None = None

    @property
    def closed(self) -> bool:
        """Whether the episode is over, so that no further call is answered."""
        return self._closed

    def answer_by(self, llm: Answerer | None, rlm: Answerer | None) -> None:
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
        fits = await _checked(schema)
        question = _question(check_prompt(prompt), model, context, fits, timeout)
        reply = await self._follow(kind, question, self._next())
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
        fits = await _checked(schema)
        questions = [
            _question(prompt, model, about, fits, timeout)
            for prompt, about in zip(each, contexts, strict=True)
        ]
        calls = [self._next() for _ in questions]
        began = time.time()
        for question, call in zip(questions, calls, strict=True):
            self._tell_start(kind, question, call)

        waiting = dict(enumerate(zip(questions, calls, strict=True)))

        def ended(index: int, reply: SubcallReply) -> None:
            self._tell_end(kind, *waiting.pop(index), reply, began)

        with self._under_way():
            try:
                replies = await self._answerer(kind).answer_all(questions, calls, ended)
            except asyncio.CancelledError:
                for index in list(waiting):
                    ended(index, CANCELLED)
                raise
        refusals = [reply.refusal for reply in replies if reply.refusal is not None]
        if refusals and len(refusals) == len(replies):
            raise refusals[0]
        return [reply.to_json() for reply in replies]

    async def _follow(
        self, kind: CallKind, question: SubcallRequest, call: SubcallOrigin
    ) -> SubcallReply:
        """Have one request answered, and report its events."""
        began = time.time()
        self._tell_start(kind, question, call)
        with self._under_way():
            try:
                reply = await answered(self._answerer(kind), question, call)
            except asyncio.CancelledError:
                self._tell_end(kind, question, call, CANCELLED, began)
                raise
        self._tell_end(kind, question, call, reply, began)
        return reply

    @contextmanager
    def _under_way(self) -> Iterator[None]:
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
        fits = await _checked(schema)
        question = _question(check_prompt(prompt), model, context, fits, timeout)
        self._spawned.check_room()
        return {"id": self._spawned.begin(self._follow("rlm", question, self._next()))}

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def end_calls(self) -> None:
        """Cancel spawned calls, and wait for their end and for that of an interrupted cell's
        calls.
        """
        await _all_of((*self._spawned.cancel_all(), *self._open))

    def own(self, model: ChatModel) -> EpisodeSubcalls:
        """Close `model` at the end: it was made for this episode."""
        self._own = model
        return self

    def close(self) -> None:
        """Cancel open calls, and wait for their end. For blocking episodes."""
        self._closed = True
        wait_for(self._spawned.cancel_all(), timeout=_CANCEL_TIMEOUT)
        self.account.close()
        own, self._own = self._own, None
        if own is not None:
            RUNS.wait_for(own.close())

    async def close_async(self) -> None:
        """`close` for an event loop."""
        self._closed = True
        # Without waiting for calls of cells: the caller may be one of them.
        await _all_of(self._spawned.cancel_all())
        self.account.close()
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    # ── what every call needs ────────────────────────────────────────────────────────────────────

    def _next(self) -> SubcallOrigin:
        if self._closed:
            raise RuntimeError("the episode is over")
        self._calls += 1
        cell = self.cell - self._first_cell
        return SubcallOrigin(self._run, self._calls, self.account, self._gate, self._width, cell)

    def _answerer(self, kind: CallKind) -> Answerer:
        answerer = self._llm if kind == "llm" else self._rlm
        if answerer is None:
            raise RuntimeError(
                f"{kind}_query is not configured: the episode has no model for sub-calls"
            )
        return answerer

    def _tell_start(self, kind: CallKind, question: SubcallRequest, call: SubcallOrigin) -> None:
        if self._watch is not None:
            self._watch(
                CallStarted(
                    run=call.run,
                    time=time.time(),
                    call=call.path,
                    kind=kind,
                    cell=call.cell,
                    model=question.model,
                    prompt=question.prompt,
                )
            )

    def _tell_end(
        self,
        kind: CallKind,
        question: SubcallRequest,
        call: SubcallOrigin,
        reply: SubcallReply,
        began: float,
    ) -> None:
        if reply.ours:
            self._failed(ModelError("subcall", reply.error or ""))
        if self._watch is None:
            return
        now = time.time()
        self._watch(
            CallEnded(
                run=call.run,
                time=now,
                call=call.path,
                kind=kind,
                cell=call.cell,
                model=reply.model or question.model,
                prompt=question.prompt,
                text=reply.text if reply.said is None else reply.said,
                error=reply.error,
                truncated=reply.truncated,
                usage=reply.usage,
                seconds=now - began,
                child=reply.child,
            )
        )


async def _all_of(ending: Iterable[Future[None]]) -> None:
    waited = [asyncio.wrap_future(each) for each in ending]
    if waited:
        await asyncio.wait(waited, timeout=_CANCEL_TIMEOUT)


async def _checked(schema: object) -> Mapping[str, Any] | None:
    return None if schema is None else await offload(partial(check_schema, schema))


def _question(
    prompt: str, model: Any, context: Any, schema: Mapping[str, Any] | None, timeout: Any
) -> SubcallRequest:
    return SubcallRequest(prompt, check_model(model), context, schema, check_timeout(timeout))
