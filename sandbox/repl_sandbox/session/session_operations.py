"""The operations of a session besides running a cell, with checks of their arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator
from typing import Any

from ..errors import RemoteProtocolError, SandboxError
from ..native.sealed_memfd import seal
from ..protocol.messages import (
    Assign,
    Failed,
    Fetch,
    ListVariables,
    Value,
    Variables,
    WorkerMessage,
)
from ..protocol.values.json_conversion import encoded
from ..protocol.values.json_text import parse_answer, parse_json
from ..protocol.values.variable_names import check_name
from ..session_limits import Limits, check_seconds
from ..types import JSON, Variable
from .core import Core

# A cell is a message of a model; data is passed by `set`. CPython's parser takes seconds and some
# 100 bytes of memory for each byte of source.
MAX_CODE = 8 << 20
# Below this size a copy through the socket is cheaper than making and mapping a memfd.
_BULK = 1 << 16
# Encoding in pieces keeps the copy in the processor's cache.
_PIECE = 1 << 20


def check_code(code: str) -> bytes:
    """Return `code` encoded, without a BOM; raise TypeError or ValueError if it is not a valid
    cell.
    """
    if not isinstance(code, str):
        raise TypeError(f"code must be a str, not {type(code).__name__}")
    code = code.removeprefix("\ufeff")
    try:
        data = code.encode()
    except UnicodeEncodeError:
        data = code.encode("utf-8", "surrogatepass")  # slower
    if len(data) > MAX_CODE:
        raise ValueError(
            f"code is {len(data):,} bytes; the limit is {MAX_CODE:,}. Pass data with set()"
        )
    return data


def check_answer_handler(on_output: Callable[[str, str], None]) -> None:
    """Raise TypeError unless `on_output` is a plain function: the engine awaits none."""
    if not callable(on_output) or inspect.iscoroutinefunction(on_output):
        kind = "coroutine function" if callable(on_output) else type(on_output).__name__
        raise TypeError(f"on_output must be a plain function, which is not awaited, not a {kind}")


def check_timeout(timeout: float | None, limits: Limits, timeout_s: float | None = None) -> float:
    """The execution limit of a cell in seconds; the argument has two names, of which one may be
    used.
    """
    if timeout_s is None:
        return limits.timeout if timeout is None else check_seconds(timeout, "timeout")
    if timeout is not None:
        raise TypeError("timeout and timeout_s are the same argument: give one of them")
    return check_seconds(timeout_s, "timeout_s")


def store(core: Core, name: str, value: str | bytes | JSON) -> Generator[float, Any, None]:
    """Bind a variable. Large values travel in a sealed memfd, others in the frame."""
    check_name(name, "name")
    kind, source = _kind(value)
    if len(source) <= _BULK:
        data = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
        variable = Assign(name, kind, data)
        if core.io.configuration.add(variable):
            return
        answer = yield from core.queries.ask(variable)
    else:
        fd, size = memfd(source)
        core.mapped_bytes = size
        try:
            answer = yield from core.queries.ask(Assign(name, kind, b"", size), fd)
        finally:
            core.mapped_bytes = 0
            os.close(fd)
    if isinstance(answer, Failed):
        raise SandboxError(f"{name}: the session has no room for it: {answer.message}")
    _expect(answer, Value)
    core.recovery.history.assign()


def _kind(value: str | bytes | JSON) -> tuple[str, str | bytes]:
    if type(value) is str:
        return "str", value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    try:
        return "json", encoded(value)
    except TypeError as error:
        raise TypeError(f"value must be str, bytes or JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"value must be str, bytes or JSON: {error}") from None


def memfd(source: str | bytes) -> tuple[int, int]:
    """Return the descriptor of a sealed file in memory with the content `source`, and its size in
    bytes.
    """
    fd = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = 0
        for start in range(0, len(source), _PIECE):
            piece = source[start : start + _PIECE]
            data = piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
            while data:
                written = os.write(fd, data)
                size += written
                data = data[written:]
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def fetch(core: Core, name: str, *, as_answer: bool) -> Generator[float, Any, JSON]:
    """Read a variable; with `as_answer`, raise ValueError if it exceeds the size of an answer."""
    answer = yield from core.queries.ask(Fetch(check_name(name, "name")))
    if isinstance(answer, Failed):
        raise _FETCH_ERRORS.get(answer.kind, SandboxError)(f"{name}: {answer.message}")
    try:
        return (parse_answer if as_answer else parse_json)(_expect(answer, Value).data)
    except RemoteProtocolError:
        core.breach("protocol", core.worker_number)
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_FETCH_ERRORS: dict[str, type[Exception]] = {
    "unknown": KeyError,
    "not json": TypeError,
    "too large": ValueError,
}


def list_variables(core: Core) -> Generator[float, Any, list[Variable]]:
    """List the variables."""
    answer = yield from core.queries.ask(ListVariables())
    return list(_expect(answer, Variables).variables)


def _expect(answer: WorkerMessage, kind: type[Any]) -> Any:
    if not isinstance(answer, kind):
        raise SandboxError(
            f"the session answered with {type(answer).__name__}; open another session"
        )
    return answer
