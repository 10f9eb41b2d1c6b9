"""`ServerSession`: one environment on the server, which serves one request at a time.

A session outlives the sockets that carry its requests. A reply goes to every socket that sent the
request. The last reply is kept, so that a request which the client repeats does not run twice.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from repl_env.client.protocol.refusal_codes import TAKEN_OVER
from repl_env.errors import EpisodeAborted

from ..protocol.error_mapping import request_error_of, server_fault
from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.json_codec import JSONCodec
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError, draining_error
from ..protocol.validation import validation_error
from ..quotas.usage_meters import UsageMeter
from ..settings import Settings
from ..telemetry.recorder import Telemetry
from ..tenants.tenant import Tenant
from .cpu_accounting import CPUAccounting, seconds_of
from .environments.environment_adapter import EnvironmentAdapter
from .request_queue import PendingRequest, ReplySink, cancelled_reply
from .request_runner import RequestRunner
from .scheduler import RequestScheduler

# Requests that a draining server does not start.
_BEGINS = frozenset({"reset", "step", "follow_up", "rollback", "branch"})

# Answers one type of request. An exception that it raises becomes the error reply.
Handler: TypeAlias = Callable[
    ["ServerSession", PendingRequest, ClientRequest], Awaitable[ServerReply]
]


class SessionServices(Protocol):
    """The parts of the session manager that a session uses."""

    settings: Settings
    telemetry: Telemetry
    scheduler: RequestScheduler
    json_codec: JSONCodec
    handlers: dict[str, Handler]

    def check_open(self) -> None:
        """Raise RequestError DRAINING if nothing new may begin."""

    def new_cpu_accounting(self, session: ServerSession) -> CPUAccounting:
        """Account for the processes of a new episode."""

    async def branch(self, parent: ServerSession, seed: int | None) -> ServerSession:
        """Open a session that is a copy of `parent`."""

    def forget(self, session: ServerSession) -> None:
        """Free the capacity of a closed session."""


def _subcalls_of(settings: Settings) -> dict[str, Any] | None:
    """The operator's model and the limit of its calls, for resets that name no model."""
    if settings.llm is None:
        return None
    return {"model": settings.llm.model, "calls": settings.budget.calls}


class ServerSession:
    """A session of `tenant`.

    Attributes:
        id: identifies the session in logs.
        token: identifies the session to its client; a secret.
        sink: the socket that holds the session, or None.
        used_at: time of the last request (`time.monotonic`).
        detached_at: time at which the socket closed; None while there is one, or never was.
        confirmed: the client has used the session; False only where its protocol must confirm it.
        ending: reason for the end, one of `metrics.ENDINGS`.
        cpu: accounting of the session's processes.
        manager: the session manager.
        adapter: the environment; for request handlers only.
    """

    def __init__(
        self,
        manager: SessionServices,
        tenant: Tenant,
        meter: UsageMeter,
        adapter: EnvironmentAdapter,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(24)
        self.tenant, self.meter = tenant, meter
        self.sink: ReplySink | None = None
        self.used_at = time.monotonic()
        self.detached_at: float | None = None
        self.confirmed = True
        self._resumable = False  # a grace period follows when its socket closes
        self.ending = "closed"
        self.cpu = manager.new_cpu_accounting(self)
        self.manager = manager
        self.adapter = adapter
        self._slot = manager.scheduler.slot()
        self._stepping = False
        self._requests = RequestRunner(self._reply)
        self._closing: asyncio.Task[None] | None = None

    # ── for sockets and routes ───────────────────────────────────────────────────────────────────

    @property
    def running(self) -> str | None:
        """The id of the running request; None without one, or if it has no id."""
        running = self._requests.running
        return None if running is None else running.request.id

    @property
    def busy(self) -> bool:
        """True if a request is running or pending."""
        return self._requests.running is not None or len(self._requests.queue) > 0

    @property
    def awaited(self) -> bool:
        """True if a client waits for a running or pending request."""
        return self._requests.awaited

    @property
    def closing(self) -> bool:
        """True if the session is closing or closed."""
        return self._closing is not None

    def facts(self, *, resumed: bool) -> dict[str, Any]:
        """The fields of the reply that announces the session to its client."""
        settings = self.manager.settings
        return {
            "session_id": self.id,
            "token": self.token,
            "resumed": resumed,
            "grace_s": settings.grace_s,
            "running": self.running,
            "subcalls": _subcalls_of(settings),
            "limits": {
                "timeout_s": settings.limits.timeout,
                "max_timeout_s": settings.longest_step_s,
                "message_bytes": settings.largest_message,
                "context_bytes": settings.context_bytes,
                "idle_s": settings.idle_s,
                "undo": settings.undoable,
            },
        }

    def submit(self, request: ClientRequest | InvalidFrame, sink: ReplySink) -> None:
        """Queue a request; its reply, possibly the kept one, goes to `sink`."""
        self.used_at, self.confirmed = time.monotonic(), True
        self._requests.submit(request, sink)

    @property
    def queued(self) -> int:
        """Number of pending requests."""
        return len(self._requests.queue)

    @property
    def accepts_more(self) -> bool:
        """True if the client may send further requests now."""
        return not self._requests.queue.full

    async def wait_for_space(self) -> None:
        """Wait until the client may send further requests."""
        await self._requests.queue.wait_for_space()

    async def cancel(self, id: str) -> bool:
        """Cancel the request with this id; False if it is neither running nor pending."""
        running = self._requests.running
        if running is None or running.request.id != id:
            return self._requests.queue.cancel(id)
        if self._slot.waits:
            self._abandon(running)
        elif await self.adapter.interrupt():
            # A step that ignores the interrupt is abandoned after the grace time.
            grace = float(self.manager.settings.limits.grace)
            asyncio.get_running_loop().call_later(grace, self._abandon, running)
        return True

    def start_grace_period(self) -> None:
        """Keep the session for the grace period, for a socket to resume it."""
        self.detached_at, self._resumable = time.monotonic(), True

    def attach(self, sink: ReplySink, *, resumable: bool = False) -> None:
        """Attach a socket, and close the socket that was attached before.

        `resumable`: when the socket closes, a grace period follows.
        """
        before, self.sink, self.detached_at = self.sink, sink, None
        self._resumable |= resumable
        self.used_at = time.monotonic()
        if before is not None and before is not sink:
            self._requests.queue.remove_sink(before)
            before.end(TAKEN_OVER, "the session was resumed by another socket")

    def detach(self, sink: ReplySink) -> None:
        """Detach a closed socket, and drop its pending requests."""
        if self.sink is sink:
            self.sink, self.detached_at = None, time.monotonic()
            self._requests.queue.remove_sink(sink)
            self.manager.telemetry.session_left(self)

    def detach_guest(self, sink: ReplySink) -> None:
        """Detach a socket that had joined an existing session; the session goes on as before."""
        if self.sink is sink:
            self.sink, self.detached_at = None, time.monotonic() if self._resumable else None
            self._requests.queue.remove_sink(sink)

    async def reset(self, data: Any) -> Any:
        """Start an episode and record it; returns the observation. For request handlers."""
        began = time.monotonic()
        async with self._slot:
            self.account_cpu()
            observation = await self.adapter.reset(data)
            # Only now, since a failed reset keeps the processes.
            self.cpu = self.manager.new_cpu_accounting(self)
        self.manager.telemetry.reset(self, time.monotonic() - began)
        return observation

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Perform an action and record it; returns the observation. For request handlers."""
        if timeout_s is not None and timeout_s > (longest := self.manager.settings.longest_step_s):
            raise validation_error("timeout_s", f"at most {longest:g} seconds", "less_than_equal")
        self.meter.step()
        began, scheduler, slot = time.monotonic(), self.manager.scheduler, self._slot
        # Like `async with slot`, which would run two more coroutines.
        if not scheduler.take(slot):
            await scheduler.wait(slot)
        self._stepping = True
        try:
            observation = await self.adapter.step(action, timeout_s, on_output)
        finally:
            self._stepping = False
            scheduler.give_back(slot)
        self.cpu.add_step(seconds_of(observation))
        self.manager.telemetry.step(self, action, observation, time.monotonic() - began)
        return observation

    async def roll_back(self, cells: int) -> Sequence[str]:
        """Undo cells, in turn with the steps of other sessions. For request handlers."""
        async with self._slot:
            return await self.adapter.rollback(cells)

    def account_cpu(self) -> bool:
        """Charge CPU time that was used outside of steps; whether processes were busy."""
        if not self.meter.counts_cpu:
            return False  # reading the CPU time takes longer than a short step
        total = self.adapter.cpu_seconds
        return total is not None and self.cpu.observe(total)

    async def branch_environment(self, seed: int | None) -> EnvironmentAdapter:
        """Copy the environment. For request handlers."""
        return await self.adapter.branch(seed)

    async def wait_idle(self) -> None:
        """Wait until no request is left and all replies were sent, or the session ended."""
        await self._requests.queue.wait_idle()

    def ended_error(self, code: str) -> RequestError:
        """The error for requests to the ended session: `code`, or DRAINING."""
        if self.ending == "drain":
            return draining_error()
        return RequestError(code, "the session has ended")

    def end(self, why: str = "closed") -> asyncio.Task[None]:
        """Start to close the session; the task finishes when all its resources are released."""
        if self._closing is None:
            self.ending = why
            self._requests.closing = True
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def close(self, why: str = "closed") -> None:
        """Close the session and release its resources."""
        await asyncio.shield(self.end(why))

    # ── performing requests ──────────────────────────────────────────────────────────────────────

    async def _reply(self, pending: PendingRequest) -> ServerReply:
        request = pending.request
        if isinstance(request, InvalidFrame):
            return ServerReply.of_error(request.refusal)
        try:
            if self._closing is not None:
                raise self.ended_error("UNKNOWN_SESSION")
            if request.type in _BEGINS:
                self.manager.check_open()
            return await self.manager.handlers[request.type](self, pending, request)
        except asyncio.CancelledError:
            if not self._requests.recall(pending):
                raise
            return cancelled_reply()
        # Boundary: an error of the environment becomes the error reply of its request.
        except Exception as error:  # noqa: BLE001
            if self._closing is not None and isinstance(error, EpisodeAborted):
                # `_close` killed the session under the running step: not a fault to log.
                return ServerReply.of_error(self.ended_error("EPISODE_ABORTED"))
            return ServerReply.of_error(request_error_of(error))
        finally:
            self.used_at = time.monotonic()
            if self._requests.cancelled:
                self._requests.recall(pending)  # the environment swallowed the cancellation

    def _notify_sinks(self) -> None:
        """End all sinks that wait for a reply or hold the session."""
        sinks = self._requests.sinks
        if self.sink is not None:
            sinks.append(self.sink)
        if sinks:
            ended = self.ended_error("UNKNOWN_SESSION")
            for sink in sinks:
                sink.end(ended.close or 1000, ended.message)

    def _abandon(self, pending: PendingRequest) -> None:
        """Cancel the running request, unless its result is only waiting for a slow reader."""
        if (self._stepping or self._slot.waits) and self._closing is None:
            self._requests.abandon(pending)

    async def _close(self) -> None:
        try:
            self.account_cpu()
            if self._stepping:
                # Kill the session under the step: quicker than waiting for the step to end.
                await self.adapter.cut_off()
            await self._requests.stop()
            self._notify_sinks()
            await self.adapter.close()
        # Boundary: the manager must forget the session even if its environment fails to close.
        except Exception as error:  # noqa: BLE001
            server_fault("SESSION_ERROR", "closing", error)
        finally:
            self._requests.discard()
            self.manager.forget(self)
