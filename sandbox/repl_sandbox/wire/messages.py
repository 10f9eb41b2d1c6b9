"""The vocabulary: what the host and a worker say to each other, and its form as frames.

Parsed strictly at the edge: a field that is missing, of another type or out of range is a
`RemoteProtocolError` that names it. docs/protocol.md is the authoritative description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, get_args

from ..errors import RemoteProtocolError
from ..types import JSON, Answer, AnswerForm, Change, ErrorInfo, Variable
from .frames import Frame, pack

VERSION = 1

# More than the worker ever sends; a hostile one cannot make the host build longer tuples.
MAX_CHANGES = 256
MAX_FIGURES = 16
MAX_VARIABLES = 10_000


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: the jail is built and the loop waits. Sent once, before any other code has run."""

    version: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Host: what this session offers. `functions` are (name, docstring) of host functions."""

    functions: tuple[tuple[str, str], ...] = ()
    seed: int | None = None
    answers: str | None = None


@dataclass(frozen=True, slots=True)
class Execute:
    """Host: run `code` (UTF-8, surrogates passed) as cell number `cell`."""

    cell: int
    code: bytes


@dataclass(frozen=True, slots=True)
class Assign:
    """Host: bind `name` to `data`, or to `size` bytes of the memfd sent beside this frame.

    `kind` says what the bytes are: "str" (UTF-8), "bytes" or "json".
    """

    name: str
    kind: str
    data: bytes = b""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Host: send the value of the variable `name` as JSON."""

    name: str


@dataclass(frozen=True, slots=True)
class ListVariables:
    """Host: list the variables."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Host: what call `call` came to; `data` is JSON, of the value or of [type, message]."""

    call: int
    ok: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """Worker: call the host function `name`; `data` is JSON of [args, kwargs]."""

    call: int
    cell: int
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """Worker: the cell gives an answer; the reply says whether it is taken."""

    call: int
    cell: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Result:
    """Worker: cell `cell` has ended. `peak_memory` in bytes, as the worker sees itself."""

    cell: int
    value: str | None
    error: ErrorInfo | None
    changes: tuple[Change, ...]
    figures: tuple[bytes, ...]
    peak_memory: int


@dataclass(frozen=True, slots=True)
class Value:
    """Worker: what a `Fetch` or `Assign` came to; `data` is JSON."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Variables:
    """Worker: the variables, as asked by `ListVariables`."""

    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker: a request could not be served; `kind` is "unknown", "not json" or "too large"."""

    kind: str
    message: str


HostMessage: TypeAlias = Configure | Execute | Assign | Fetch | ListVariables | Reply
WorkerMessage: TypeAlias = Ready | Call | Answered | Result | Value | Variables | Failed
Message: TypeAlias = HostMessage | WorkerMessage

_Header: TypeAlias = dict[str, Any]

# ASCII only, so that a lone surrogate travels as an escape and is dealt with by the reader.
_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
_quote = json.encoder.encode_basestring_ascii
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(message: Message) -> bytes:
    """`message` as one frame."""
    return _ENCODERS[type(message)](message)


def decode(frame: Frame) -> Message:
    """The message that `frame` carries.

    Raises:
        RemoteProtocolError: the frame is not a message of this protocol.
    """
    header = parse_json(frame.header)
    if type(header) is not dict:
        raise RemoteProtocolError("header is not an object")
    kind = header.get("type")
    decoder = _DECODERS.get(kind) if type(kind) is str else None
    if decoder is None:
        raise RemoteProtocolError(f"unknown message type {str(kind)[:40]!r}")
    try:
        return decoder(header, frame.blob)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"malformed {kind} message: {error}") from None


def dump_json(value: object) -> bytes:
    """`value` as JSON bytes; TypeError or ValueError where JSON cannot carry it."""
    try:
        return _dump_checked(value).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply for JSON") from None


_dump_checked = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def parse_json(data: bytes) -> JSON:
    """JSON from the other side; text in it has no lone surrogates afterwards.

    Raises:
        RemoteProtocolError: not JSON, not UTF-8, not finite, or nested too deeply.
    """
    try:
        value = _loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    # Lone surrogates can only have come as escapes; without one there is nothing to clean.
    if b"\\ud" in data or b"\\uD" in data:
        return _clean(value)
    return cast(JSON, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_loads = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _clean(value: Any) -> JSON:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _clean(key)): _clean(item) for key, item in value.items()}
    return cast(JSON, value)


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


# ── header fields ─────────────────────────────────────────────────────────────────────────────


def _int(header: _Header, name: str) -> int:
    value = header[name]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is not a count")
    return value


def _str(header: _Header, name: str) -> str:
    value = header[name]
    if type(value) is not str:
        raise TypeError(f"{name} is not text")
    return value


def _list(header: _Header, name: str, most: int) -> list[Any]:
    value = header[name]
    if type(value) is not list or len(value) > most:
        raise TypeError(f"{name} is not a list of at most {most}")
    return value


def _texts(row: Any, count: int, name: str) -> list[Any]:
    if type(row) is not list or len(row) != count:
        raise TypeError(f"{name} is not a list of {count} fields")
    return row


_CHANGE_KINDS = frozenset(("new", "modified", "deleted"))
_FORMS = frozenset(get_args(AnswerForm))
_PNG = b"\x89PNG\r\n\x1a\n"


def _change(row: Any) -> Change:
    kind, name, type_name, size, preview = _texts(row, 5, "change")
    if (
        type(kind) is str
        and kind in _CHANGE_KINDS
        and type(name) is str
        and type(type_name) is str
        and type(size) is int
        and type(preview) is str
    ):
        return Change(kind, name, type_name, size, preview)  # type: ignore[arg-type]
    raise TypeError("a field of a change has the wrong type")


def _variable(row: Any) -> Variable:
    name, type_name, size, preview = _texts(row, 4, "variable")
    if all(type(text) is str for text in (name, type_name, preview)) and type(size) is int:
        return Variable(name, type_name, size, preview)
    raise TypeError("a field of a variable has the wrong type")


def _error(row: Any) -> ErrorInfo:
    type_name, message, traceback, line = _texts(row, 4, "error")
    if all(type(text) is str for text in (type_name, message, traceback)) and (
        line is None or type(line) is int
    ):
        return ErrorInfo(type_name, message, traceback, line)
    raise TypeError("a field of the error has the wrong type")


# ── encoding, one function a message ──────────────────────────────────────────────────────────


def _encode_ready(m: Ready) -> bytes:
    return pack(_dumps({"type": "ready", "version": m.version}).encode())


def _encode_configure(m: Configure) -> bytes:
    header = {"type": "configure", "seed": m.seed, "answers": m.answers}
    return pack(_dumps(header).encode(), dump_json([list(f) for f in m.functions]))


def _encode_execute(m: Execute) -> bytes:
    return pack(b'{"type":"execute","cell":%d}' % m.cell, m.code)


def _encode_assign(m: Assign) -> bytes:
    header = {"type": "assign", "name": m.name, "kind": m.kind, "size": m.size}
    return pack(_dumps(header).encode(), m.data)


def _encode_fetch(m: Fetch) -> bytes:
    return pack(_dumps({"type": "fetch", "name": m.name}).encode())


def _encode_list(m: ListVariables) -> bytes:
    return pack(b'{"type":"list"}')


def _encode_reply(m: Reply) -> bytes:
    return pack(_dumps({"type": "reply", "call": m.call, "ok": m.ok}).encode(), m.data)


def _encode_call(m: Call) -> bytes:
    header = {"type": "call", "call": m.call, "cell": m.cell, "name": m.name}
    return pack(_dumps(header).encode(), m.data)


def _encode_answered(m: Answered) -> bytes:
    a = m.answer
    header = {"type": "answered", "call": m.call, "cell": m.cell, "form": a.form}
    return pack(_dumps(header).encode(), dump_json([a.text, a.value, a.printed]))


def _encode_result(m: Result) -> bytes:
    value = None if m.value is None else m.value.encode("utf-8", "surrogatepass")
    error = m.error
    # Written out, because this is every step's answer and a dict through the encoder costs 4 times.
    changes = ",".join(
        [
            f'["{c.kind}",{_quote(c.name)},{_quote(c.type)},{c.size},{_quote(c.preview)}]'
            for c in m.changes
        ]
    )
    header = (
        f'{{"type":"result","cell":{m.cell},"value":{"null" if value is None else len(value)},'
        f'"error":{_dumps([error.type, error.message, error.traceback, error.line]) if error else "null"},'
        f'"changes":[{changes}],"figures":{[len(figure) for figure in m.figures]},'
        f'"peak":{m.peak_memory}}}'
    )
    return pack(header.encode(), b"".join((value or b"", *m.figures)))


def _encode_value(m: Value) -> bytes:
    return pack(b'{"type":"value"}', m.data)


def _encode_variables(m: Variables) -> bytes:
    rows = [[v.name, v.type, v.size, v.preview] for v in m.variables]
    return pack(b'{"type":"variables"}', dump_json(rows))


def _encode_failed(m: Failed) -> bytes:
    return pack(_dumps({"type": "failed", "kind": m.kind, "message": m.message}).encode())


# ── decoding, one function a message ──────────────────────────────────────────────────────────


def _decode_ready(header: _Header, blob: bytes) -> Ready:
    return Ready(_int(header, "version"))


def _decode_configure(header: _Header, blob: bytes) -> Configure:
    rows = parse_json(blob)
    if type(rows) is not list:
        raise TypeError("functions are not a list")
    functions = []
    for row in rows:
        name, doc = _texts(row, 2, "function")
        functions.append((_str({"name": name}, "name"), _str({"doc": doc}, "doc")))
    seed, answers = header["seed"], header["answers"]
    if answers is not None and answers not in ("strict", "compatible"):
        raise ValueError("answers")
    return Configure(tuple(functions), None if seed is None else _int(header, "seed"), answers)


def _decode_execute(header: _Header, blob: bytes) -> Execute:
    return Execute(_int(header, "cell"), blob)


def _decode_assign(header: _Header, blob: bytes) -> Assign:
    size = None if header["size"] is None else _int(header, "size")
    kind = _str(header, "kind")
    if kind not in ("str", "bytes", "json"):
        raise ValueError("kind")
    return Assign(_str(header, "name"), kind, blob, size)


def _decode_fetch(header: _Header, blob: bytes) -> Fetch:
    return Fetch(_str(header, "name"))


def _decode_list(header: _Header, blob: bytes) -> ListVariables:
    return ListVariables()


def _decode_reply(header: _Header, blob: bytes) -> Reply:
    if type(header["ok"]) is not bool:
        raise TypeError("ok is not a bool")
    return Reply(_int(header, "call"), header["ok"], blob)


def _decode_call(header: _Header, blob: bytes) -> Call:
    return Call(_int(header, "call"), _int(header, "cell"), _str(header, "name"), blob)


def _decode_answered(header: _Header, blob: bytes) -> Answered:
    form = _str(header, "form")
    if form not in _FORMS:
        raise ValueError("form")
    text, value, printed = _texts(parse_json(blob), 3, "answer")
    if type(text) is not str or not (printed is None or type(printed) is str):
        raise TypeError("a field of the answer has the wrong type")
    answer = Answer(cast(AnswerForm, form), text, value, printed)
    return Answered(_int(header, "call"), _int(header, "cell"), answer)


def _decode_result(header: _Header, blob: bytes) -> Result:
    value, start = None, 0
    if header["value"] is not None:
        start = _int(header, "value")
        value = clean_text(blob[:start].decode("utf-8", "surrogatepass"))
    figures = []
    for size in _list(header, "figures", MAX_FIGURES):
        figure = blob[start : start + _int({"figure": size}, "figure")]
        if not figure.startswith(_PNG):
            raise ValueError("a figure is not a PNG")
        figures.append(figure)
        start += size
    if start != len(blob):
        raise ValueError("the parts do not add up to the blob")
    return Result(
        _int(header, "cell"),
        value,
        None if header["error"] is None else _error(header["error"]),
        tuple([_change(row) for row in _list(header, "changes", MAX_CHANGES)]),
        tuple(figures),
        _int(header, "peak"),
    )


def _decode_value(header: _Header, blob: bytes) -> Value:
    return Value(blob)


def _decode_variables(header: _Header, blob: bytes) -> Variables:
    rows = _list({"variables": parse_json(blob)}, "variables", MAX_VARIABLES)
    return Variables(tuple(_variable(row) for row in rows))


def _decode_failed(header: _Header, blob: bytes) -> Failed:
    return Failed(_str(header, "kind"), _str(header, "message"))


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ready: _encode_ready,
    Configure: _encode_configure,
    Execute: _encode_execute,
    Assign: _encode_assign,
    Fetch: _encode_fetch,
    ListVariables: _encode_list,
    Reply: _encode_reply,
    Call: _encode_call,
    Answered: _encode_answered,
    Result: _encode_result,
    Value: _encode_value,
    Variables: _encode_variables,
    Failed: _encode_failed,
}
_DECODERS: dict[str, Callable[[_Header, bytes], Message]] = {
    "ready": _decode_ready,
    "configure": _decode_configure,
    "execute": _decode_execute,
    "assign": _decode_assign,
    "fetch": _decode_fetch,
    "list": _decode_list,
    "reply": _decode_reply,
    "call": _decode_call,
    "answered": _decode_answered,
    "result": _decode_result,
    "value": _decode_value,
    "variables": _decode_variables,
    "failed": _decode_failed,
}
