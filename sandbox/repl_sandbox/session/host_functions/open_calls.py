"""`OpenCalls`: the open host calls of the running cell, and their replies."""

from __future__ import annotations

import functools
from collections.abc import Awaitable

from ...protocol.messages import HostCall, HostReply
from .call_codec import refusal, size
from .call_replies import CallReplies
from .function_executor import FunctionExecutor
from .function_registry import FunctionRegistry
from .running_call import RunningCall

# The number of calls that one session may have open; the host refuses another one.
MAX_OPEN_CALLS = 256
# Bytes of arguments that the open calls of one session may have together, likewise.
MAX_OPEN_BYTES = 256 << 20


class OpenCalls:
    """The open calls of one session; `registry` has its functions, `executor` runs them."""

    def __init__(self, registry: FunctionRegistry, executor: FunctionExecutor) -> None:
        self.registry = registry
        self.executor = executor
        # Made when first needed: a descriptor for each session, and one more to wait for.
        self._replies = CallReplies() if registry.rows else None
        self.running: dict[int, RunningCall] = {}  # by call number

    @property
    def reply_fds(self) -> tuple[int, ...]:
        """The descriptors that are readable while there are `replies`."""
        return () if self._replies is None else (self._replies.wake_fd,)

    def refused(self, call: HostCall) -> HostReply | None:
        """Return the reason why `call` cannot be opened; None if it can."""
        if call.name not in self.registry.functions or self._replies is None:
            return refusal(call.call, "NameError", f"the host offers no function {call.name!r}")
        if len(self.running) >= MAX_OPEN_CALLS:
            message = f"{MAX_OPEN_CALLS} calls to the host are open"
            return refusal(call.call, "TooManyCalls", message)
        if sum(each.size for each in self.running.values()) + size(call) > MAX_OPEN_BYTES:
            message = f"open calls to the host have arguments of {MAX_OPEN_BYTES:,} bytes"
            return refusal(call.call, "TooManyCalls", message)
        return None

    def begin(self, call: HostCall, cell: int) -> None:
        """Run the host function that `cell` calls, after `refused` returned None.

        Raises:
            RemoteProtocolError: the arguments do not follow the protocol.
        """
        assert self._replies is not None
        self.running[call.call] = running = RunningCall(size(call))
        function, places = self.registry.functions[call.name], self.registry.places(call.name)
        put = functools.partial(self._replies.put, cell)
        self.executor.start(function, call, places, running, put)

    def wait_for(self, awaited: Awaitable[None], call: HostCall, size: int) -> None:
        """Await `awaited`, whose result is the reply to `call`."""
        if self._replies is None:
            self._replies = CallReplies()
        self.running[call.call] = running = RunningCall(size)
        put = functools.partial(self._replies.put, call.cell)
        self.executor.wait_for(awaited, call, running, put)

    def replies(self, cell: int) -> list[HostReply]:
        """The replies of finished calls, unless the cell that made them is over.

        Call numbers start again with each worker; only together with the cell they identify a call.
        """
        if self._replies is None:
            return []
        finished = [reply for of, reply in self._replies.take() if of == cell]
        return [reply for reply in finished if self.running.pop(reply.call, None) is not None]

    def end(self) -> list[int]:
        """End all open calls; return their numbers."""
        numbers = list(self.running)
        for running in self.running.values():
            running.end()
        self.running.clear()
        return numbers

    def close(self) -> None:
        """End all open calls, and accept no more replies."""
        for running in list(self.running.values()):
            running.end()
        if self._replies is not None:
            self._replies.close()
