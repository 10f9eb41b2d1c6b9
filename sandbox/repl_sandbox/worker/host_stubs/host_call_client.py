"""Calls of host functions, from any thread of the session's code."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

from ...errors import HostCallError
from ...protocol.frames import MAX_BLOB
from ...protocol.function_schema import FunctionSchema
from ...protocol.messages import MEMFD, STREAMS, Answered, HostCall, HostReply
from ...protocol.values.json_text import MAX_ARGUMENT_VALUES, dump_json
from ...protocol.values.json_value_count import more_values
from ...protocol.values.raw_arguments import MAX_PARTS, Parts, each_part
from ...types import Answer
from ..worker_channel import WorkerChannel
from .host_errors import host_error
from .stub_signatures import add_signature, stand_in

_loads = json.loads
_NO_ARGUMENTS = b"[[],{}]"


class HostCallClient:
    """Makes calls for the running cell, whose number is 0 while no cell runs."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self.cell = 0
        self.forked = False

    def function(self, schema: FunctionSchema) -> Callable[..., Any]:
        """Return a function that calls the host function with JSON arguments and a JSON result."""
        name = schema.name
        like = None if schema.signature is None else stand_in(name, schema.signature)
        check = like if schema.signature and schema.signature.checked else None

        def call(*args: Any, **kwargs: Any) -> Any:
            if check is not None:
                check(*args, **kwargs)
            return self.call(name, args, kwargs)

        add_signature(call, schema, like)
        return call

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts = ()
    ) -> Any:
        """Call the host function `name` and return its result; `parts` are raw arguments.

        Raises:
            TypeError, ValueError: the arguments are not JSON, or too large.
            HostCallError: the function raised, or no cell is running; see `host_errors`.
        """
        try:
            data = dump_json([args, kwargs])
        except TypeError as error:
            raise TypeError(f"{name}() takes JSON values only: {error}") from None
        except ValueError as error:
            raise ValueError(f"{name}() takes JSON values only: {error}") from None
        if parts:
            _check_parts(name, data, parts)
        elif len(data) > MAX_BLOB:
            raise ValueError(
                f"the arguments of {name}() are {len(data):,} bytes of JSON; "
                f"the limit is {MAX_BLOB:,}"
            )
        if more_values(data, MAX_ARGUMENT_VALUES):
            raise ValueError(
                f"the arguments of {name}() have more than {MAX_ARGUMENT_VALUES:,} values"
            )
        cell, number = self._begin()
        return self._result(HostCall(number, cell, name, data, parts))

    def answer(self, answer: Answer) -> None:
        """Send an answer to the host; ValueError with the host's message if refused."""
        cell, number = self._begin()
        try:
            self._result(Answered(number, cell, answer))
        except HostCallError as error:
            raise ValueError(error.message) from None

    def memfd(self) -> int:
        """Request the memfd that belongs to the current command.

        Raises:
            OSError: no descriptor number was free, because the session's code uses all of its
                limit; or
                the host no longer needs the file.
        """
        reply = self._channel.ask(HostCall(next(self._numbers), self.cell, MEMFD, _NO_ARGUMENTS))
        if not reply.ok:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        return self._channel.next_descriptor()

    def streams(self) -> tuple[int, int]:
        """Request new descriptors of the session's standard output and error.

        Raises:
            OSError: no descriptor number was free, or the host refuses now.
        """
        reply = self._channel.ask(HostCall(next(self._numbers), self.cell, STREAMS, _NO_ARGUMENTS))
        if not reply.ok:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        first = self._channel.next_descriptor()
        try:
            return first, self._channel.next_descriptor()
        except OSError:
            os.close(first)
            raise

    def _begin(self) -> tuple[int, int]:
        if self.forked:
            raise HostCallError("ForkedProcess", "a forked process cannot call the host")
        if not self.cell:
            raise HostCallError("NoCell", "the cell that could make calls to the host has ended")
        return self.cell, next(self._numbers)

    def _result(self, message: HostCall | Answered) -> Any:
        reply: HostReply = self._channel.ask(message)
        value = _loads(reply.data)
        if reply.ok:
            return value
        raise host_error(*value)


def _check_parts(name: str, data: bytes, parts: Parts) -> None:
    """Raise ValueError if the arguments of a call exceed the limits of the protocol."""
    sizes = [len(part.data) for _, raw in parts for part in each_part(raw)]
    total = len(data) + sum(sizes)
    if total > MAX_BLOB:
        raise ValueError(
            f"the arguments of {name}() are {total:,} bytes; the limit is {MAX_BLOB:,}"
        )
    count = sum(len(raw) if isinstance(raw, tuple) else 1 for _, raw in parts)
    if count > MAX_PARTS:
        raise ValueError(
            f"the arguments of {name}() are {count:,} texts; the limit is {MAX_PARTS:,}"
        )
