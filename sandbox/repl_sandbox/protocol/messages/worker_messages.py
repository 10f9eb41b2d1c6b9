"""Messages of a worker to the host, and their form as frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast, get_args

from ...errors import RemoteProtocolError
from ...types import Answer, AnswerForm, Change, ErrorInfo, Variable
from ..fixed_headers import EMPTY_RESULT_HEADER, EMPTY_RESULT_KIND
from ..frames import pack
from ..header_limits import MAX_CHANGES, MAX_FIGURES, MAX_LOST, MAX_MESSAGE, MAX_NAME
from ..values.json_text import MAX_ANSWER, count_answer_values, dump_header, dump_json, parse_json
from ..values.json_value_count import more_values
from ..values.raw_arguments import Parts, cut, describe, each_part
from ..values.utf8_text import read_text
from .host_messages import MAX_VARIABLES
from .message_values import (
    MAX_COUNT,
    Header,
    count_or_zero,
    cut_figures,
    dump_changes,
    dump_error,
    read_change,
    read_count,
    read_error,
    read_fixed_header,
    read_list,
    read_text_field,
    read_variable,
)

# Bytes of a displayed value: a million characters, each perhaps an escape. The longest text lists
# the variables that a session could not load from a checkpoint.
MAX_SHOWN = 16 << 20
_VARIABLE_VALUES = 6  # a list of four, and the value behind it
# Names of calls that ask for descriptors: the memfd of the last message; new standard streams in
# place of the ones that the session's code closed.
MEMFD = "_memfd"
STREAMS = "_streams"
_FAILURES = frozenset(("unknown", "not json", "too large"))
_FORMS = frozenset(get_args(AnswerForm))


@dataclass(frozen=True, slots=True)
class Ready:
    """The jail is complete and the worker waits. Sent once, before any code of the session runs."""

    version: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The worker is a snapshot made after cell `cell`; `lost` names the resources that it lost.

    Sent once, after `Ready`, by a snapshot that takes over from another worker.
    """

    cell: int
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostCall:
    """Call of the host function `name`; `data` is JSON of [args, kwargs].

    `parts` are raw arguments, text and bytes; the JSON has null in place of each.
    """

    call: int
    cell: int
    name: str
    data: bytes
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the cell; the reply says whether the host accepts it.

    `values`: about how many values the answer has, counted on arrival.
    """

    call: int
    cell: int
    answer: Answer
    values: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Result:
    """End of cell `cell`. `peak_memory` in bytes, as the worker measures itself."""

    cell: int
    value: str | None
    error: ErrorInfo | None
    changes: tuple[Change, ...]
    figures: tuple[bytes, ...]
    peak_memory: int


@dataclass(frozen=True, slots=True)
class Value:
    """Result of a `Fetch` or `Assign`; `data` is JSON."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables, in reply to `ListVariables`."""

    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of a request; `kind` is "unknown", "not json" or "too large"."""

    kind: str
    message: str


WorkerMessage: TypeAlias = (
    Ready | Restored | HostCall | Answered | Result | Value | Variables | Failed
)


def _encode_ready(m: Ready) -> bytes:
    return pack(b'{"type":"ready","version":%d}' % m.version)


def _encode_restored(m: Restored) -> bytes:
    lost = [text[:MAX_NAME] for text in m.lost[:MAX_LOST]]
    return pack(dump_header({"type": "restored", "cell": m.cell, "lost": lost}).encode())


def _encode_call(m: HostCall) -> bytes:
    header = {
        "type": "call",
        "call": m.call,
        "cell": m.cell,
        "name": m.name,
        "parts": describe(m.parts),
    }
    data = [part.data for _, raw in m.parts for part in each_part(raw)]
    return pack(dump_header(header).encode(), b"".join((m.data, *data)) if data else m.data)


def _encode_answered(m: Answered) -> bytes:
    a = m.answer
    text = a.text.encode("utf-8", "surrogatepass")
    printed = None if a.printed is None else a.printed.encode("utf-8", "surrogatepass")
    try:
        value = dump_json(a.value)
    except (TypeError, ValueError):
        # Nested too deeply for JSON: the text alone is the answer.
        value = b"null"
    header = {
        "type": "answered",
        "call": m.call,
        "cell": m.cell,
        "form": a.form,
        "text": len(text),
        "printed": None if printed is None else len(printed),
    }
    return pack(dump_header(header).encode(), b"".join((text, printed or b"", value)))


def _encode_result(m: Result) -> bytes:
    if m.value is None and m.error is None and not m.changes and not m.figures:
        return pack(EMPTY_RESULT_HEADER.pack(EMPTY_RESULT_KIND, m.cell, m.peak_memory))
    value = None if m.value is None else m.value.encode("utf-8", "surrogatepass")
    header = (
        f'{{"type":"result","cell":{m.cell},"value":{"null" if value is None else len(value)},'
        f'"error":{"null" if m.error is None else dump_error(m.error)},'
        f'"changes":{dump_changes(m.changes)},"figures":{[len(figure) for figure in m.figures]},'
        f'"peak":{m.peak_memory}}}'
    )
    return pack(header.encode(), b"".join((value or b"", *m.figures)))


def _encode_value(m: Value) -> bytes:
    return pack(b'{"type":"value"}', m.data)


def _encode_variables(m: Variables) -> bytes:
    rows = [
        [v.name[:MAX_NAME], v.type, count_or_zero(v.size), v.preview]
        for v in m.variables[:MAX_VARIABLES]
    ]
    return pack(b'{"type":"variables"}', dump_json(rows))


def _encode_failed(m: Failed) -> bytes:
    header = {"type": "failed", "kind": m.kind, "message": m.message[:MAX_MESSAGE]}
    return pack(dump_header(header).encode())


def _decode_ready(header: Header, blob: bytes) -> Ready:
    return Ready(read_count(header, "version"))


def _decode_restored(header: Header, blob: bytes) -> Restored:
    lost = read_list(header, "lost", MAX_LOST)
    if not all(type(text) is str and len(text) <= MAX_NAME for text in lost):
        raise TypeError("lost is not a list of short texts")
    return Restored(read_count(header, "cell"), tuple(lost))


def _decode_call(header: Header, blob: bytes) -> HostCall:
    data, parts = cut(header["parts"], blob)
    return HostCall(
        read_count(header, "call"),
        read_count(header, "cell"),
        read_text_field(header, "name"),
        data,
        parts,
    )


def _decode_answered(header: Header, blob: bytes) -> Answered:
    form = read_text_field(header, "form")
    if form not in _FORMS:
        raise ValueError("form")
    start = read_count(header, "text")
    if start > MAX_ANSWER:
        raise ValueError("the text is too long")
    text, printed = read_text(blob[:start]), None
    if header["printed"] is not None:
        size = read_count(header, "printed")
        printed = read_text(blob[start : start + size])
        start += size
    data = blob[start:]
    count = count_answer_values(data)
    answer = Answer(cast(AnswerForm, form), text, parse_json(data), printed)
    return Answered(read_count(header, "call"), read_count(header, "cell"), answer, count)


def _decode_result(header: Header, blob: bytes) -> Result:
    # Each step decodes a result: the checks of read_count and read_list are written out, because a
    # call costs more than a check.
    cell, peak, rows = header["cell"], header["peak"], header["changes"]
    if type(cell) is not int or type(peak) is not int or type(rows) is not list:
        raise TypeError("cell, peak or changes has the wrong type")
    if not (0 <= cell < MAX_COUNT and 0 <= peak < MAX_COUNT and len(rows) <= MAX_CHANGES):
        raise ValueError("cell, peak or the number of changes is out of range")
    value, start = None, 0
    if header["value"] is not None:
        start = read_count(header, "value")
        if start > MAX_SHOWN:
            raise ValueError("the value is too long")
        value = read_text(blob[:start])
    figures: tuple[bytes, ...] = ()
    if header["figures"] != []:
        figures, start = cut_figures(read_list(header, "figures", MAX_FIGURES), blob, start)
    if start != len(blob):
        raise ValueError("the parts do not add up to the blob")
    error = header["error"]
    return Result(
        cell,
        value,
        None if error is None else read_error(error),
        tuple([read_change(row) for row in rows]) if rows else (),
        figures,
        peak,
    )


def _decode_value(header: Header, blob: bytes) -> Value:
    return Value(blob)


def _decode_variables(header: Header, blob: bytes) -> Variables:
    if more_values(blob, MAX_VARIABLES * _VARIABLE_VALUES):
        raise ValueError("too many values")
    rows = read_list({"variables": parse_json(blob)}, "variables", MAX_VARIABLES)
    return Variables(tuple(read_variable(row) for row in rows))


def _decode_failed(header: Header, blob: bytes) -> Failed:
    kind = read_text_field(header, "kind")
    if kind not in _FAILURES:
        raise ValueError("kind")
    return Failed(kind, read_text_field(header, "message"))


def _decode_fixed_result(header: bytes, blob: bytes) -> Result:
    _, cell, peak = read_fixed_header(EMPTY_RESULT_HEADER, header)
    if blob:
        raise RemoteProtocolError("an empty result with a blob")
    return Result(cell, None, None, (), (), peak)


ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ready: _encode_ready,
    Restored: _encode_restored,
    HostCall: _encode_call,
    Answered: _encode_answered,
    Result: _encode_result,
    Value: _encode_value,
    Variables: _encode_variables,
    Failed: _encode_failed,
}
DECODERS: dict[str, Callable[[Header, bytes], WorkerMessage]] = {
    "ready": _decode_ready,
    "restored": _decode_restored,
    "call": _decode_call,
    "answered": _decode_answered,
    "result": _decode_result,
    "value": _decode_value,
    "variables": _decode_variables,
    "failed": _decode_failed,
}
FIXED_DECODERS: dict[bytes, Callable[[bytes, bytes], WorkerMessage]] = {
    bytes((EMPTY_RESULT_KIND,)): _decode_fixed_result
}
