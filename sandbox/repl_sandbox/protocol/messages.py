"""The vocabulary: what the host and a worker say to each other, and its form as frames.

Parsed strictly at the edge: a field that is missing, of another type or out of range is a
`RemoteProtocolError` that names it. docs/protocol.md is the authoritative description.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast, get_args

from ..errors import RemoteProtocolError
from ..types import JSON, Answer, AnswerForm, Change, ErrorInfo, Variable
from .fixed_headers import CELL_HEADER, CELL_KIND, EMPTY_RESULT_HEADER, EMPTY_RESULT_KIND
from .frames import Frame, pack
from .function_schema import FunctionSchema
from .function_schema import read as read_offered
from .header_limits import FORMS, MAX_CHANGES, MAX_FIGURES, MAX_LOST, MAX_MESSAGE, MAX_NAME, kind_of
from .values.json_conversion import encoded
from .values.json_value_count import more_values, values
from .values.raw_arguments import Parts, cut, describe, each_part
from .values.utf8_text import LONE_SURROGATE
from .values.utf8_text import read_text as _text

VERSION = 7

# Bytes of them together, and of a value as it is shown: a million characters, each perhaps an
# escape. The longest is what a session says that it could not load of a checkpoint.
MAX_FIGURE_BYTES = 8 << 20
MAX_SHOWN = 16 << 20
# Nobody reads a longer list; the sender cuts it.
MAX_VARIABLES = 10_000
_VARIABLE_VALUES = 6  # a list of four, and what is behind it
# Sizes, numbers and lengths are below this: a signed 64-bit integer, as other languages have it.
MAX_COUNT = 1 << 63
# Lists and objects in one another. JSON readers have a limit of their own that depends on the
# interpreter and its stack (serde_json: 128, CPython: some 1,000 to 10,000); this one is the same
# on both sides, and what passes it can be walked by recursion everywhere on the host.
MAX_DEPTH = 128
# Lists and objects in one JSON text. Three bytes of text can make an object of 72 bytes, and the
# garbage collector walks each: 64 MiB of `[],` would cost the host 1.5 GB and half a minute.
MAX_CONTAINERS = 1 << 20
# Values in the JSON of a call's arguments. Two bytes can make one, which takes a host 32 bytes and
# a third of a microsecond: 64 MiB of them would hold its event loop for five seconds.
MAX_ARGUMENT_VALUES = 1 << 20
# Bytes of an answer's text, and values in it. A host has answers looked at, scored and written
# down, each of which takes as long as to read them.
MAX_ANSWER = 8 << 20
MAX_ANSWER_VALUES = 1 << 18
# The function by which a worker asks for the file in memory that goes with what it was told.
MEMFD = "_memfd"
# That by which it asks for its standard output and error, which its code has closed.
STREAMS = "_streams"
# Digits of a number, CPython's own limit for reading one (int's "max_str_digits").
MAX_DIGITS = 4300


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: the jail is built and the loop waits. Sent once, before any other code has run."""

    version: int


@dataclass(frozen=True, slots=True)
class Restored:
    """Worker: it was a waiting copy, made after cell `cell`; `lost` names what it had to leave.

    Sent once, after `Ready`, by a worker that takes over from another.
    """

    cell: int
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Configure:
    """Host: what this session offers: functions of the host, a seed, final answers.

    And what it begins with: `variables` are bound as by messages of their own, without a memfd.
    """

    functions: tuple[FunctionSchema, ...] = ()
    seed: int | None = None
    answers: str | None = None
    variables: tuple[Assign, ...] = ()


@dataclass(frozen=True, slots=True)
class Execute:
    """Host: run `code` (UTF-8, surrogates passed) as cell number `cell`."""

    cell: int
    code: bytes


@dataclass(frozen=True, slots=True)
class Assign:
    """Host: bind `name` to `data`, or to `size` bytes of a memfd, which is to be asked for.

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
class Save:
    """Host: pickle the variables into a memfd of `size` bytes, which is to be asked for.

    It is held as cell number `cell` is, and ends with a `Result`, whose value is the report.
    """

    cell: int
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """Host: bind what the pickles in a memfd hold, which is to be asked for.

    `manifest` is JSON and says what they are of. Held and ended as `Save` is.
    """

    cell: int
    manifest: bytes


@dataclass(frozen=True, slots=True)
class HostReply:
    """Host: what call `call` came to; `data` is JSON, of the value or of [type, message]."""

    call: int
    ok: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class HostCall:
    """Worker: call the host function `name`; `data` is JSON of [args, kwargs].

    `parts` are the arguments in whose place there is a null: text and bytes as they are.
    """

    call: int
    cell: int
    name: str
    data: bytes
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """Worker: the cell gives an answer; the reply says whether it is taken.

    `values`: about how many its value has, as it came.
    """

    call: int
    cell: int
    answer: Answer
    values: int = field(default=0, compare=False)


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


HostMessage: TypeAlias = (
    Configure | Execute | Assign | Fetch | ListVariables | Save | Load | HostReply
)
WorkerMessage: TypeAlias = (
    Ready | Restored | HostCall | Answered | Result | Value | Variables | Failed
)
Message: TypeAlias = HostMessage | WorkerMessage

_Header: TypeAlias = dict[str, Any]

# ASCII only, so that a lone surrogate travels as an escape and is dealt with by the reader.
_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
_quote = json.encoder.encode_basestring_ascii


def encode(message: Message) -> bytes:
    """`message` as one frame."""
    return _ENCODERS[type(message)](message)


def decode(frame: Frame) -> Message:
    """The message that `frame` carries.

    Raises:
        RemoteProtocolError: the frame is not a message of this protocol.
    """
    data, blob = frame
    short = _SHORT.get(data[:1])
    if short is not None:
        return short(data, blob)
    kind = kind_of(data, blob)
    header = _parse(data)
    if type(header) is not dict or header["type"] != kind:
        raise RemoteProtocolError("header is not an object with one type")
    try:
        message = _DECODERS[kind](header, blob)
        # Each decoder asks for all of its fields, so one more is one that nobody knows.
        if len(header) != FORMS[kind].fields:
            raise ValueError("a field that the message does not have")
        return message
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"malformed {kind} message: {error}") from None


def dump_json(value: object) -> bytes:
    """`value`, converted as `conversion.encoded` does, as JSON bytes.

    TypeError or ValueError where the protocol cannot carry it.
    """
    data = encoded(value).encode()
    if problem := _misshapen(data):
        raise ValueError(problem)
    # Python writes longer numbers only where somebody has lifted its limit.
    if len(data) > MAX_DIGITS and not 0 < _most_digits() <= MAX_DIGITS and _has_long_number(data):
        raise ValueError(f"a number of more than {MAX_DIGITS:,} digits")
    return data


_most_digits = sys.get_int_max_str_digits


def parse_json(data: bytes) -> JSON:
    """JSON from the other side; text in it has no lone surrogates afterwards.

    Raises:
        RemoteProtocolError: not JSON, not UTF-8, not finite, or past `MAX_DEPTH` or
            `MAX_CONTAINERS`.
    """
    if problem := _misshapen(data):
        raise RemoteProtocolError(problem)
    return _parse(data)


def parse_arguments(data: bytes) -> JSON:
    """As `parse_json`, of a call's arguments, which have at most `MAX_ARGUMENT_VALUES`."""
    if more_values(data, MAX_ARGUMENT_VALUES):
        raise RemoteProtocolError(f"a call with more than {MAX_ARGUMENT_VALUES:,} values")
    return parse_json(data)


def parse_answer(data: bytes) -> JSON:
    """As `parse_json`, of an answer, which has at most `MAX_ANSWER_VALUES`.

    Raises:
        ValueError: it is too large.
    """
    _answer_values(data)
    return parse_json(data)


def _answer_values(data: bytes) -> int:
    """About how many values an answer has; ValueError if it is too large."""
    # A short one is not looked at: it has no more than so many.
    found = len(data) // 2 if len(data) < _SHORT_ANSWER else values(data, MAX_ANSWER_VALUES)
    if found is None or len(data) > _LONGEST_ANSWER:
        raise ValueError(
            f"larger than {MAX_ANSWER >> 20} MiB, or more than {MAX_ANSWER_VALUES:,} values"
        )
    return found


# As JSON: each byte of a text can be an escape, and quotes are around it.
_LONGEST_ANSWER = 6 * MAX_ANSWER + 2
_SHORT_ANSWER = 1 << 10


def _parse(data: bytes) -> JSON:
    """As `parse_json`, but for its two limits: a header is too small to need them."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end != len(text):
            raise ValueError("text after the value")
        # Lone surrogates can only have come as escapes; without one there is nothing to clean.
        if "\\u" in text:
            return _clean(value)
    except (ValueError, RecursionError, StopIteration) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    return cast(JSON, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


# The C scanner itself, without the search for white space around the value that `decode` makes: no
# peer of this protocol writes any.
_scan = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).scan_once  # type: ignore[attr-defined]

_TOO_DEEP = f"JSON nested more than {MAX_DEPTH} deep"
_TOO_MANY = f"JSON of more than {MAX_CONTAINERS:,} lists and objects"
# To the end of the data if the string does not end: each byte is looked at once, whatever it is.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))


def _misshapen(data: bytes) -> str:
    """How the JSON `data` passes a limit, or ""; found without parsing it."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return ""
    steps = _STRING.sub(b"", data).translate(_STEPS, _NO_BRACKET)
    if steps.count(1) > MAX_CONTAINERS:
        return _TOO_MANY
    depth = max(itertools.accumulate(array.array("b", steps)), default=0)
    return _TOO_DEEP if depth > MAX_DEPTH else ""


_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))


def _has_long_number(data: bytes) -> bool:
    return _LONG_NUMBER.search(_STRING.sub(b"", data)) is not None


def _clean(value: Any) -> JSON:
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _clean(key)): _clean(item) for key, item in value.items()}
    return cast(JSON, value)


# ── header fields ─────────────────────────────────────────────────────────────────────────────


def _int(header: _Header, name: str) -> int:
    value = header[name]
    if type(value) is not int or not 0 <= value < MAX_COUNT:
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


_FAILURES = frozenset(("unknown", "not json", "too large"))
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
        and 0 <= size < MAX_COUNT
        and type(preview) is str
    ):
        return Change(kind, name, type_name, size, preview)  # type: ignore[arg-type]
    raise TypeError("a field of a change is not what it must be")


def _variable(row: Any) -> Variable:
    name, type_name, size, preview = _texts(row, 4, "variable")
    if (
        all(type(text) is str for text in (name, type_name, preview))
        and type(size) is int
        and 0 <= size < MAX_COUNT
    ):
        return Variable(name, type_name, size, preview)
    raise TypeError("a field of a variable is not what it must be")


def _error(row: Any) -> ErrorInfo:
    type_name, message, traceback, line = _texts(row, 4, "error")
    if all(type(text) is str for text in (type_name, message, traceback)) and (
        line is None or (type(line) is int and 0 <= line < MAX_COUNT)
    ):
        return ErrorInfo(type_name, message, traceback, line)
    raise TypeError("a field of the error is not what it must be")


# ── encoding, one function a message ──────────────────────────────────────────────────────────


def _encode_ready(m: Ready) -> bytes:
    return pack(b'{"type":"ready","version":%d}' % m.version)


def _encode_restored(m: Restored) -> bytes:
    lost = [text[:MAX_NAME] for text in m.lost[:MAX_LOST]]
    return pack(_dumps({"type": "restored", "cell": m.cell, "lost": lost}).encode())


def _encode_configure(m: Configure) -> bytes:
    functions = dump_json([f.row() for f in m.functions])
    header = {
        "type": "configure",
        "seed": m.seed,
        "answers": m.answers,
        "functions": len(functions),
        "variables": [[v.name, v.kind, len(v.data)] for v in m.variables],
    }
    return pack(_dumps(header).encode(), b"".join((functions, *(v.data for v in m.variables))))


def _encode_execute(m: Execute) -> bytes:
    return pack(CELL_HEADER.pack(CELL_KIND, m.cell), m.code)


def _encode_assign(m: Assign) -> bytes:
    header = {"type": "assign", "name": m.name, "kind": m.kind, "size": m.size}
    return pack(_dumps(header).encode(), m.data)


def _encode_fetch(m: Fetch) -> bytes:
    return pack(_dumps({"type": "fetch", "name": m.name}).encode())


def _encode_list(m: ListVariables) -> bytes:
    return pack(b'{"type":"list"}')


def _encode_save(m: Save) -> bytes:
    return pack(b'{"type":"save","cell":%d,"size":%d}' % (m.cell, m.size))


def _encode_load(m: Load) -> bytes:
    return pack(b'{"type":"load","cell":%d}' % m.cell, m.manifest)


def _encode_reply(m: HostReply) -> bytes:
    return pack(_dumps({"type": "reply", "call": m.call, "ok": m.ok}).encode(), m.data)


def _encode_call(m: HostCall) -> bytes:
    header = {
        "type": "call",
        "call": m.call,
        "cell": m.cell,
        "name": m.name,
        "parts": describe(m.parts),
    }
    data = [part.data for _, raw in m.parts for part in each_part(raw)]
    return pack(_dumps(header).encode(), b"".join((m.data, *data)) if data else m.data)


def _encode_answered(m: Answered) -> bytes:
    a = m.answer
    text = a.text.encode("utf-8", "surrogatepass")
    printed = None if a.printed is None else a.printed.encode("utf-8", "surrogatepass")
    try:
        value = dump_json(a.value)
    except (TypeError, ValueError):
        # Nested too deeply. The text is the answer; a value is there where JSON can carry it.
        value = b"null"
    header = {
        "type": "answered",
        "call": m.call,
        "cell": m.cell,
        "form": a.form,
        "text": len(text),
        "printed": None if printed is None else len(printed),
    }
    return pack(_dumps(header).encode(), b"".join((text, printed or b"", value)))


def _count(number: int) -> int:
    """`number`, or 0 if the protocol cannot carry it: arrays can lie about their size."""
    return number if 0 <= number < MAX_COUNT else 0


def _error_row(error: ErrorInfo) -> str:
    line = error.line  # of a SyntaxError that a cell made itself, it is what the cell says
    known = line is not None and 0 <= line < MAX_COUNT
    return _dumps([error.type, error.message, error.traceback, line if known else None])


def _encode_result(m: Result) -> bytes:
    if m.value is None and m.error is None and not m.changes and not m.figures:
        return pack(EMPTY_RESULT_HEADER.pack(EMPTY_RESULT_KIND, m.cell, m.peak_memory))
    value = None if m.value is None else m.value.encode("utf-8", "surrogatepass")
    # Written out, because this is every step's answer and a dict through the encoder costs 4 times.
    changes = ",".join(
        [
            f'["{c.kind}",{_quote(c.name[:MAX_NAME])},{_quote(c.type)},{_count(c.size)},'
            f"{_quote(c.preview)}]"
            for c in m.changes
        ]
    )
    header = (
        f'{{"type":"result","cell":{m.cell},"value":{"null" if value is None else len(value)},'
        f'"error":{"null" if m.error is None else _error_row(m.error)},'
        f'"changes":[{changes}],"figures":{[len(figure) for figure in m.figures]},'
        f'"peak":{m.peak_memory}}}'
    )
    return pack(header.encode(), b"".join((value or b"", *m.figures)))


def _encode_value(m: Value) -> bytes:
    return pack(b'{"type":"value"}', m.data)


def _encode_variables(m: Variables) -> bytes:
    rows = [
        [v.name[:MAX_NAME], v.type, _count(v.size), v.preview] for v in m.variables[:MAX_VARIABLES]
    ]
    return pack(b'{"type":"variables"}', dump_json(rows))


def _encode_failed(m: Failed) -> bytes:
    header = {"type": "failed", "kind": m.kind, "message": m.message[:MAX_MESSAGE]}
    return pack(_dumps(header).encode())


# ── decoding, one function a message ──────────────────────────────────────────────────────────


def _decode_ready(header: _Header, blob: bytes) -> Ready:
    return Ready(_int(header, "version"))


def _decode_restored(header: _Header, blob: bytes) -> Restored:
    lost = _list(header, "lost", MAX_LOST)
    if not all(type(text) is str and len(text) <= MAX_NAME for text in lost):
        raise TypeError("lost is not a list of short texts")
    return Restored(_int(header, "cell"), tuple(lost))


def _decode_configure(header: _Header, blob: bytes) -> Configure:
    end = _int(header, "functions")
    rows = parse_json(blob[:end])
    if type(rows) is not list:
        raise TypeError("functions are not a list")
    functions = tuple(map(read_offered, rows))
    seed, answers = header["seed"], header["answers"]
    if answers is not None and answers not in ("strict", "compatible"):
        raise ValueError("answers")
    variables = _begun_with(_list(header, "variables", MAX_VARIABLES), blob[end:])
    return Configure(functions, None if seed is None else _int(header, "seed"), answers, variables)


def _begun_with(rows: list[Any], data: bytes) -> tuple[Assign, ...]:
    variables = []
    for row in rows:
        name, kind, size = _texts(row, 3, "variable")
        if type(name) is not str or type(size) is not int or not 0 <= size <= len(data):
            raise TypeError("a variable is not what it must be")
        variables.append(Assign(name, _kind(kind), data[:size]))
        data = data[size:]
    if data:
        raise ValueError("more data than variables")
    return tuple(variables)


def _decode_assign(header: _Header, blob: bytes) -> Assign:
    size = None if header["size"] is None else _int(header, "size")
    return Assign(_str(header, "name"), _kind(header["kind"]), blob, size)


def _kind(value: object) -> str:
    if value not in ("str", "bytes", "json"):
        raise ValueError("kind")
    return str(value)


def _decode_fetch(header: _Header, blob: bytes) -> Fetch:
    return Fetch(_str(header, "name"))


def _decode_list(header: _Header, blob: bytes) -> ListVariables:
    return ListVariables()


def _decode_save(header: _Header, blob: bytes) -> Save:
    return Save(_int(header, "cell"), _int(header, "size"))


def _decode_load(header: _Header, blob: bytes) -> Load:
    return Load(_int(header, "cell"), blob)


def _decode_reply(header: _Header, blob: bytes) -> HostReply:
    if type(header["ok"]) is not bool:
        raise TypeError("ok is not a bool")
    return HostReply(_int(header, "call"), header["ok"], blob)


def _decode_call(header: _Header, blob: bytes) -> HostCall:
    data, parts = cut(header["parts"], blob)
    return HostCall(_int(header, "call"), _int(header, "cell"), _str(header, "name"), data, parts)


def _decode_answered(header: _Header, blob: bytes) -> Answered:
    form = _str(header, "form")
    if form not in _FORMS:
        raise ValueError("form")
    start = _int(header, "text")
    if start > MAX_ANSWER:
        raise ValueError("the text is too long")
    text, printed = _text(blob[:start]), None
    if header["printed"] is not None:
        size = _int(header, "printed")
        printed = _text(blob[start : start + size])
        start += size
    data = blob[start:]
    count = _answer_values(data)
    answer = Answer(cast(AnswerForm, form), text, parse_json(data), printed)
    return Answered(_int(header, "call"), _int(header, "cell"), answer, count)


def _decode_result(header: _Header, blob: bytes) -> Result:
    # Every step's answer: the checks of _int and _list are written out, a call costs more than one.
    cell, peak, rows = header["cell"], header["peak"], header["changes"]
    if type(cell) is not int or type(peak) is not int or type(rows) is not list:
        raise TypeError("cell, peak or changes has the wrong type")
    if not (0 <= cell < MAX_COUNT and 0 <= peak < MAX_COUNT and len(rows) <= MAX_CHANGES):
        raise ValueError("cell, peak or the number of changes is out of range")
    value, start = None, 0
    if header["value"] is not None:
        start = _int(header, "value")
        if start > MAX_SHOWN:
            raise ValueError("the value is too long")
        value = _text(blob[:start])
    figures: tuple[bytes, ...] = ()
    if header["figures"] != []:
        figures, start = _figures(_list(header, "figures", MAX_FIGURES), blob, start)
    if start != len(blob):
        raise ValueError("the parts do not add up to the blob")
    error = header["error"]
    return Result(
        cell,
        value,
        None if error is None else _error(error),
        tuple([_change(row) for row in rows]) if rows else (),
        figures,
        peak,
    )


def _figures(sizes: list[Any], blob: bytes, start: int) -> tuple[tuple[bytes, ...], int]:
    figures = []
    for size in sizes:
        figure = blob[start : start + _int({"figure": size}, "figure")]
        if not figure.startswith(_PNG):
            raise ValueError("a figure is not a PNG")
        figures.append(figure)
        start += size
    if sum(map(len, figures)) > MAX_FIGURE_BYTES:
        raise ValueError("the figures are too large")
    return tuple(figures), start


def _decode_value(header: _Header, blob: bytes) -> Value:
    return Value(blob)


def _decode_variables(header: _Header, blob: bytes) -> Variables:
    if more_values(blob, MAX_VARIABLES * _VARIABLE_VALUES):
        raise ValueError("too many values")
    rows = _list({"variables": parse_json(blob)}, "variables", MAX_VARIABLES)
    return Variables(tuple(_variable(row) for row in rows))


def _decode_failed(header: _Header, blob: bytes) -> Failed:
    kind = _str(header, "kind")
    if kind not in _FAILURES:
        raise ValueError("kind")
    return Failed(kind, _str(header, "message"))


# ── short headers ─────────────────────────────────────────────────────────────────────────────


def _short_execute(header: bytes, blob: bytes) -> Execute:
    _, cell = _short(CELL_HEADER, header)
    return Execute(cell, blob)


def _short_result(header: bytes, blob: bytes) -> Result:
    _, cell, peak = _short(EMPTY_RESULT_HEADER, header)
    if blob:
        raise RemoteProtocolError("an empty result with a blob")
    return Result(cell, None, None, (), (), peak)


def _short(form: struct.Struct, header: bytes) -> tuple[int, ...]:
    if len(header) != form.size:
        raise RemoteProtocolError(f"a short header of {len(header)} bytes, not {form.size}")
    numbers = form.unpack(header)
    if max(numbers) >= MAX_COUNT:
        raise RemoteProtocolError("a number in a short header is not a count")
    return numbers


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ready: _encode_ready,
    Restored: _encode_restored,
    Configure: _encode_configure,
    Execute: _encode_execute,
    Assign: _encode_assign,
    Fetch: _encode_fetch,
    ListVariables: _encode_list,
    Save: _encode_save,
    Load: _encode_load,
    HostReply: _encode_reply,
    HostCall: _encode_call,
    Answered: _encode_answered,
    Result: _encode_result,
    Value: _encode_value,
    Variables: _encode_variables,
    Failed: _encode_failed,
}
_DECODERS: dict[str, Callable[[_Header, bytes], Message]] = {
    "ready": _decode_ready,
    "restored": _decode_restored,
    "configure": _decode_configure,
    "assign": _decode_assign,
    "fetch": _decode_fetch,
    "list": _decode_list,
    "save": _decode_save,
    "load": _decode_load,
    "reply": _decode_reply,
    "call": _decode_call,
    "answered": _decode_answered,
    "result": _decode_result,
    "value": _decode_value,
    "variables": _decode_variables,
    "failed": _decode_failed,
}
_SHORT: dict[bytes, Callable[[bytes, bytes], Message]] = {
    bytes((CELL_KIND,)): _short_execute,
    bytes((EMPTY_RESULT_KIND,)): _short_result,
}
