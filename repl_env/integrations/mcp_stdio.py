"""The Model Context Protocol over standard input and output: a message is a line.

Unlike the SDK's own way of it, a line that is no message is answered, a line has a limit, and
nothing waits in a thread: a signal ends the conversation as the end of the input does.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from repl_env.integrations.mcp import BadMessage, parse

# Of one line. A context may come in one; what is longer goes by --context, or by files.
MAX_LINE = 128 << 20

_CHUNK = 1 << 16

# Seconds in which a client that ended the conversation is still answered: requests may come from a
# file, and clients end what they started after two.
_LAST_WORDS = 1.0


class StdioLines:
    """Bytes to lines; holds at most `limit` bytes of one that is not whole."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._partial_line = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """The lines that are whole now; None stands for one that was too long."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._take(end)
            yield None if self._too_long else bytes(self._partial_line)
            self._partial_line.clear()
            self._too_long = False
        self._take(rest)

    def _take(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._partial_line) + len(part) > self._limit
        if self._too_long:
            self._partial_line.clear()
        else:
            self._partial_line += part


@contextmanager
def standard_streams() -> Iterator[tuple[int, int]]:
    """Descriptors for the standard input and output, which nothing else can reach meanwhile.

    Descriptor 0 reads nothing, and what a library prints goes to standard error, so that it is no
    message. Afterwards both are as they were.
    """
    input_fd, output_fd = os.dup(0), os.dup(1)
    modes = {fd: os.get_blocking(fd) for fd in (input_fd, output_fd)}
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        for fd in modes:
            os.set_blocking(fd, False)
        yield input_fd, output_fd
    finally:
        for fd, blocking in modes.items():
            os.set_blocking(fd, blocking)
        os.dup2(input_fd, 0)
        os.dup2(output_fd, 1)
        for fd in (input_fd, output_fd, null):
            os.close(fd)


async def serve(server: Server[Any], input_fd: int, output_fd: int, stop: anyio.Event) -> None:
    """Serve the client whose messages come from `input_fd`, until they end or `stop` is set.

    Both descriptors must not block. Returns when nothing runs any more.
    """
    await _Conversation(input_fd, output_fd).run(server, stop)


class _Conversation:
    """The code between the descriptors and the SDK's streams."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._receiving = anyio.CancelScope()
        self._sending = anyio.CancelScope()
        self._open: set[RequestId] = set()  # what was asked, and not answered or cancelled
        self._answered = anyio.Event()

    async def run(self, server: Server[Any], stop: anyio.Event) -> None:
        incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        answers, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop, stop)
            tasks.start_soon(self._receive, incoming, answers.clone())
            tasks.start_soon(self._send, outgoing)
            await server.run(messages, answers, server.create_initialization_options())
            self._sending.deadline = anyio.current_time() + _LAST_WORDS
            stop.set()

    async def _stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._receiving.cancel()

    async def _receive(
        self,
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
        answers: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        async with incoming, answers:
            with self._receiving:
                async for line in _lines(self._input_fd):
                    try:
                        message = _message(line)
                    except BadMessage as error:
                        await answers.send(SessionMessage(error.answer()))
                        continue
                    if isinstance(message, (JSONRPCRequest, JSONRPCNotification)):
                        self._note(message)
                    await incoming.send(SessionMessage(message))
                await self._last_calls()

    def _note(self, message: JSONRPCMessage) -> None:
        """Keep book of what is to be answered."""
        match message:
            case JSONRPCRequest(id=id):
                self._open.add(id)
            case JSONRPCResponse(id=id) | JSONRPCError(id=id):
                self._open.discard(id)
                self._answered.set()
            case JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": str() | int() as id}
            ):
                self._open.discard(id)

    async def _last_calls(self) -> None:
        """Let what was asked before the end be answered, if that takes no time."""
        with anyio.move_on_after(_LAST_WORDS):
            while self._open:
                self._answered = anyio.Event()
                await self._answered.wait()

    async def _send(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        with outgoing, self._sending:
            async for item in outgoing:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await _write(self._output_fd, f"{text}\n".encode())
                except OSError:
                    # The client is gone, which its input may not have shown yet.
                    self._receiving.cancel()
                    return
                self._note(item.message)


def _message(line: bytes | None) -> JSONRPCMessage:
    if line is None:
        raise BadMessage(INVALID_REQUEST, f"a message may have {MAX_LINE} bytes")
    return parse(line.removeprefix(codecs.BOM_UTF8))  # which pipes of some systems begin with


async def _lines(input_fd: int) -> AsyncIterator[bytes | None]:
    lines = StdioLines()
    while True:
        try:
            data = os.read(input_fd, _CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(input_fd)
            continue
        # The last message need not end its line, as in a file that a person wrote.
        for line in lines.feed(data or b"\n"):
            if line is None or line.strip():
                yield line
        if not data:
            return
        await anyio.lowlevel.checkpoint()  # a file never makes anybody wait


async def _write(output_fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(output_fd, view) :]
        except BlockingIOError:
            await anyio.wait_writable(output_fd)
