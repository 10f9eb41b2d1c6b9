"""`ServerSession`: one environment that a client plays, one request at a time.

It outlives the sockets that bring its requests. A reply goes to everybody who asked for it, and the
last one is kept, so that a request sent again over another socket is not run again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from repl_env.client.protocol.refusal_codes import TAKEN_OVER
from repl_env.errors import EpisodeAborted

from ..mcp.session_tools import SessionTools
from ..protocol.error_mapping import request_error_of, server_fault
from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError, draining_error
from ..protocol.validation import validation_error
from ..quotas.usage_meters import UsageMeter
from ..tenants.tenant import Tenant
from .cpu_accounting import seconds_of
from .environments.environment_adapter import EnvironmentAdapter
from .request_handlers import HANDLERS
from .request_queue import PendingRequest, ReplySink, RequestQueue, cancelled_reply

if TYPE_CHECKING:
    from .manager import SessionManager

# What nobody may begin any more on a server that drains.
_BEGINS = frozenset({"reset", "step", "follow_up", "branch"})
# A request that was refused so was not begun, and may be sent again under its id.
_NOT_RUN = frozenset({"RATE_LIMITED", "QUOTA_EXCEEDED"})


class ServerSession:
    """A session of `owner`.

    Attributes:
        id: its name in logs.
        token: what its client knows it by; a secret.
        outlet: the socket that holds it; None for none.
        touched: when it was last asked for something, by `time.monotonic`.
        left: when its socket went; None while it has one, or if it never had.
        known: whether its client has shown that it knows of it, where clients are to.
        ending: why it ends, by one of `metrics.ENDINGS`.
        tools: by which a model plays it, over the Model Context Protocol.
        cpu: the account of its processes.
        host: the server's.
        episodes: its environment, for whoever runs its requests.
    """

    def __init__(
        self, host: SessionManager, owner: Tenant, meter: UsageMeter, episodes: EnvironmentAdapter
    ) -> None:
        self.id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(24)
        self.owner, self.meter = owner, meter
        self.outlet: ReplySink | None = None
        self.touched = time.monotonic()
        self.left: float | None = None
        self.known = True
        self._resumable = False  # it ends a grace time after its socket went
        self.ending = "closed"
        self.tools = SessionTools(self, episodes, host.settings)
        self.cpu = host.cpu_account(self)
        self.host = host
        self.episodes = episodes
        self._line = RequestQueue()
        self._slot = host.slots.slot()
        self._last: PendingRequest | None = None
        self._running: PendingRequest | None = None
        self._telling: PendingRequest | None = None  # its reply is on its way
        self._stepping = False
        self._cancelled: PendingRequest | None = None
        self._runner = asyncio.create_task(self._run())
        self._closing: asyncio.Task[None] | None = None

    # ── what sockets and routes call ─────────────────────────────────────────────────────────────

    @property
    def running(self) -> str | None:
        """The id of the request that runs; None if none does, or it has none."""
        return None if self._running is None else self._running.request.id

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return self._running is not None or len(self._line) > 0

    @property
    def awaited(self) -> bool:
        """Whether somebody is there for what runs or waits."""
        running = () if self._running is None else (self._running,)
        return any(not to.gone for asked in (*running, *self._line) for to in asked.outlets)

    @property
    def closing(self) -> bool:
        """Whether it ends, or has ended."""
        return self._closing is not None

    def facts(self, *, resumed: bool) -> dict[str, Any]:
        """What a client is told of it when its socket begins."""
        settings = self.host.settings
        return {
            "session_id": self.id,
            "token": self.token,
            "resumed": resumed,
            "grace_s": settings.grace_s,
            "running": self.running,
            "limits": {
                "timeout_s": settings.limits.timeout,
                "max_timeout_s": settings.longest_step_s,
                "message_bytes": settings.largest_message,
                "context_bytes": settings.context_bytes,
                "idle_s": settings.idle_s,
            },
        }

    def ask(self, request: ClientRequest | InvalidFrame, to: ReplySink) -> None:
        """Have `request` answered to `to`, after those before it."""
        self.touched, self.known = time.monotonic(), True
        again = None if request.id is None else self._asked_before(request.id)
        if again is None:
            self._line.add(PendingRequest(request, to))
        elif again.reply is None:
            again.asked_again(to)
        else:
            self._line.add(PendingRequest(again.request, to, again.reply))

    @property
    def queued(self) -> int:
        """How many requests wait behind the one that runs."""
        return len(self._line)

    @property
    def has_room(self) -> bool:
        """Whether more may be asked now."""
        return not self._line.full

    async def room(self) -> None:
        """Wait until it has."""
        await self._line.room()

    async def cancel(self, id: str) -> bool:
        """End the request `id` early; whether it runs, or waits to."""
        running = self._running
        if running is None or running.request.id != id:
            return self._line.give_up(id)
        if self._slot.waits:
            self._leave(running)
        elif await self.episodes.interrupt():
            # What does not heed the interrupt is left, and what ran is ended behind it.
            grace = float(self.host.settings.limits.grace)
            asyncio.get_running_loop().call_later(grace, self._leave, running)
        return True

    def keep(self) -> None:
        """Keep it for a socket that will resume it, for as long as a grace time."""
        self.left, self._resumable = time.monotonic(), True

    def take(self, outlet: ReplySink, *, resumable: bool = False) -> None:
        """Make `outlet` the socket that holds this session; another that does is closed.

        `resumable`: from now on the session ends a grace time after its socket went.
        """
        before, self.outlet, self.left = self.outlet, outlet, None
        self._resumable |= resumable
        self.touched = time.monotonic()
        if before is not None and before is not outlet:
            self._line.forget(before)
            before.end(TAKEN_OVER, "the session was resumed by another socket")

    def leave(self, outlet: ReplySink) -> None:
        """The socket has gone. What it asked for and was not begun is forgotten."""
        if self.outlet is outlet:
            self.outlet, self.left = None, time.monotonic()
            self._line.forget(outlet)
            self.host.watch.session_left(self)

    def detach(self, outlet: ReplySink) -> None:
        """A socket that was added to the session has gone; the session stays as before it came.

        That is: until it is idle, or to be resumed.
        """
        if self.outlet is outlet:
            self.outlet, self.left = None, time.monotonic() if self._resumable else None
            self._line.forget(outlet)

    async def begin(self, data: Any) -> Any:
        """Begin an episode, which is counted; its observation. For whoever runs its requests."""
        began = time.monotonic()
        async with self._slot:
            self.look_at_cpu()
            observation = await self.episodes.reset(data)
            self.cpu = self.host.cpu_account(self)  # of other processes; a refusal leaves them
        self.host.watch.reset(self, time.monotonic() - began)
        return observation

    async def play(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Take an action, which is counted; its observation. Likewise."""
        if timeout_s is not None and timeout_s > (longest := self.host.settings.longest_step_s):
            raise validation_error("timeout_s", f"at most {longest:g} seconds", "less_than_equal")
        self.meter.step()
        began, slots, slot = time.monotonic(), self.host.slots, self._slot
        # As `async with slot`, which runs two coroutines more.
        if not slots.take(slot):
            await slots.wait(slot)
        self._stepping = True
        try:
            observation = await self.episodes.step(action, timeout_s, on_output)
        finally:
            self._stepping = False
            slots.give_back(slot)
        self.cpu.step(seconds_of(observation))
        self.host.watch.step(self, action, observation, time.monotonic() - began)
        return observation

    def look_at_cpu(self) -> bool:
        """Book what its processes used; whether some are busy beside its steps."""
        if not self.meter.counts_cpu:
            return False  # nobody asks, and a look takes longer than a short step
        total = self.episodes.cpu_seconds
        return total is not None and self.cpu.look(total)

    async def branched(self, seed: int | None) -> EnvironmentAdapter:
        """A copy of its environment. For whoever runs its requests."""
        return await self.episodes.branch(seed)

    async def quiet(self) -> None:
        """Wait until no request runs and all replies were sent, or it has ended."""
        await self._line.quiet()

    def over(self, code: str) -> RequestError:
        """What is told of its end: `code`, unless all sessions end."""
        return (
            draining_error()
            if self.ending == "drain"
            else RequestError(code, "the session has ended")
        )

    def end(self, why: str = "closed") -> asyncio.Task[None]:
        """Begin to close it; the task is done when nothing of it is left."""
        if self._closing is None:
            self.ending = why
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def close(self, why: str = "closed") -> None:
        """End it and everything that it holds."""
        await asyncio.shield(self.end(why))

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while self._closing is None:  # the end may have come amid what does not heed it
            asked = await self._line.take()
            if asked.reply is None:
                self._running, before = asked, self._last
                if asked.request.id is not None:
                    self._last = asked
                asked.reply = await self._reply(asked)
                if asked.reply.refusal is not None and asked.reply.refusal.code in _NOT_RUN:
                    self._last = before
                self._running = None
            self.touched = time.monotonic()
            self._telling = asked
            await asked.to.deliver(asked.request.id, asked.reply)
            for to in reversed(asked.before):
                await to.deliver(asked.request.id, asked.reply)
            self._telling = None

    async def _reply(self, asked: PendingRequest) -> ServerReply:
        request = asked.request
        if isinstance(request, InvalidFrame):
            return ServerReply.refusing(request.refusal)
        try:
            if self._closing is not None:
                raise self.over("UNKNOWN_SESSION")
            if request.type in _BEGINS:
                self.host.check_open()
            return await HANDLERS[request.type](self, asked, request)
        except asyncio.CancelledError:
            if not self._recall(asked):
                raise
            return cancelled_reply()
        # Boundary: whatever an environment raises is its client's to know, as a refusal.
        except Exception as error:  # noqa: BLE001
            if self._closing is not None and isinstance(error, EpisodeAborted):
                # Its session was taken from under it, by `_close`: no fault for the log.
                return ServerReply.refusing(self.over("EPISODE_ABORTED"))
            return ServerReply.refusing(request_error_of(error))
        finally:
            if self._cancelled is not None:
                self._recall(asked)  # of what did not heed it

    # ── the parts ────────────────────────────────────────────────────────────────────────────────

    def _asked_before(self, id: str) -> PendingRequest | None:
        """The request of this id, if it is the last one or one that waits."""
        if self._last is not None and self._last.request.id == id:
            return self._last
        return self._line.find(id)

    def _leave(self, asked: PendingRequest) -> None:
        """Give up on what runs, unless it has a result that waits for a slow reader."""
        early = self._stepping or self._slot.waits
        if self._running is asked and early and self._closing is None:
            self._cancelled = asked
            self._runner.cancel()

    def _recall(self, asked: PendingRequest) -> bool:
        """Take back what `_leave` did to `asked`; whether it did, and nobody else ends it."""
        left, self._cancelled = self._cancelled is asked, None
        return left and self._runner.uncancel() == 0

    def _tell_who_waits(self) -> None:
        """Whoever waits for a reply, or holds the session, learns that there is none any more."""
        asked = (*self._line, *filter(None, [self._running, self._telling]))
        told = [to for each in asked for to in each.outlets]
        if self.outlet is not None:
            told.append(self.outlet)
        if told:
            over = self.over("UNKNOWN_SESSION")
            for outlet in told:
                outlet.end(over.close or 1000, over.message)

    async def _close(self) -> None:
        try:
            self.look_at_cpu()
            if self._stepping:
                # Its session is taken from under it, which is quicker than to wait for its end.
                await self.episodes.cut_off()
            self._runner.cancel()
            await asyncio.wait([self._runner])
            self._tell_who_waits()
            await self.episodes.close()
        # Boundary: a session must not stay in the books because its environment breaks at its end.
        except Exception as error:  # noqa: BLE001
            server_fault("SESSION_ERROR", "closing", error)
        finally:
            # It is part of cycles, and may be collected late; replies may be large.
            self._last = self._running = self._telling = None
            self._line.end()  # whoever waits for it to be quiet
            self.host.gone(self)
