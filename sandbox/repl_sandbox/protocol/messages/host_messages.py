"""Messages of the host to a worker, and their form as frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..fixed_headers import CELL_HEADER, CELL_KIND
from ..frames import pack
from ..function_schema import FunctionSchema
from ..function_schema import read as read_offered
from ..values.json_text import dump_header, dump_json, parse_json
from .message_values import (
    Header,
    read_count,
    read_fixed_header,
    read_list,
    read_row,
    read_text_field,
)

# Variables in one list; the sender cuts longer lists.
MAX_VARIABLES = 10_000


@dataclass(frozen=True, slots=True)
class Configure:
    """Setup of the session: host functions, random seed, dialect of final answers, variables.

    `variables` are bound like `Assign` messages without a memfd.
    """

    functions: tuple[FunctionSchema, ...] = ()
    seed: int | None = None
    answers: str | None = None
    variables: tuple[Assign, ...] = ()


@dataclass(frozen=True, slots=True)
class Execute:
    """Run `code` (UTF-8, surrogates passed) as cell number `cell`."""

    cell: int
    code: bytes


@dataclass(frozen=True, slots=True)
class Assign:
    """Bind `name` to `data`, or to `size` bytes of a memfd that the worker requests.

    `kind` is the form of the bytes: "str" (UTF-8), "bytes" or "json".
    """

    name: str
    kind: str
    data: bytes = b""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send the value of the variable `name` as JSON."""

    name: str


@dataclass(frozen=True, slots=True)
class ListVariables:
    """List the variables."""


@dataclass(frozen=True, slots=True)
class Save:
    """Pickle the variables into a memfd of `size` bytes that the worker requests.

    Runs under the limits of cell number `cell`; ends with a `Result` whose value is the report.
    """

    cell: int
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """Bind the variables that are pickled in a memfd, which the worker requests.

    `manifest` is JSON and describes the pickles. Runs and ends like `Save`.
    """

    cell: int
    manifest: bytes


@dataclass(frozen=True, slots=True)
class HostReply:
    """Result of call `call`; `data` is JSON of the value, or of [type, message]."""

    call: int
    ok: bool
    data: bytes


HostMessage: TypeAlias = (
    Configure | Execute | Assign | Fetch | ListVariables | Save | Load | HostReply
)


def _encode_configure(m: Configure) -> bytes:
    functions = dump_json([f.row() for f in m.functions])
    header = {
        "type": "configure",
        "seed": m.seed,
        "answers": m.answers,
        "functions": len(functions),
        "variables": [[v.name, v.kind, len(v.data)] for v in m.variables],
    }
    return pack(dump_header(header).encode(), b"".join((functions, *(v.data for v in m.variables))))


def _encode_execute(m: Execute) -> bytes:
    return pack(CELL_HEADER.pack(CELL_KIND, m.cell), m.code)


def _encode_assign(m: Assign) -> bytes:
    header = {"type": "assign", "name": m.name, "kind": m.kind, "size": m.size}
    return pack(dump_header(header).encode(), m.data)


def _encode_fetch(m: Fetch) -> bytes:
    return pack(dump_header({"type": "fetch", "name": m.name}).encode())


def _encode_list(m: ListVariables) -> bytes:
    return pack(b'{"type":"list"}')


def _encode_save(m: Save) -> bytes:
    return pack(b'{"type":"save","cell":%d,"size":%d}' % (m.cell, m.size))


def _encode_load(m: Load) -> bytes:
    return pack(b'{"type":"load","cell":%d}' % m.cell, m.manifest)


def _encode_reply(m: HostReply) -> bytes:
    return pack(dump_header({"type": "reply", "call": m.call, "ok": m.ok}).encode(), m.data)


def _decode_configure(header: Header, blob: bytes) -> Configure:
    end = read_count(header, "functions")
    rows = parse_json(blob[:end])
    if type(rows) is not list:
        raise TypeError("functions are not a list")
    functions = tuple(map(read_offered, rows))
    seed, answers = header["seed"], header["answers"]
    if answers is not None and answers not in ("strict", "compatible"):
        raise ValueError("answers")
    variables = _initial_variables(read_list(header, "variables", MAX_VARIABLES), blob[end:])
    return Configure(
        functions, None if seed is None else read_count(header, "seed"), answers, variables
    )


def _initial_variables(rows: list[Any], data: bytes) -> tuple[Assign, ...]:
    variables = []
    for row in rows:
        name, kind, size = read_row(row, 3, "variable")
        if type(name) is not str or type(size) is not int or not 0 <= size <= len(data):
            raise TypeError("a variable has a field of the wrong type")
        variables.append(Assign(name, _kind(kind), data[:size]))
        data = data[size:]
    if data:
        raise ValueError("more data than variables")
    return tuple(variables)


def _decode_assign(header: Header, blob: bytes) -> Assign:
    size = None if header["size"] is None else read_count(header, "size")
    return Assign(read_text_field(header, "name"), _kind(header["kind"]), blob, size)


def _kind(value: object) -> str:
    if value not in ("str", "bytes", "json"):
        raise ValueError("kind")
    return str(value)


def _decode_fetch(header: Header, blob: bytes) -> Fetch:
    return Fetch(read_text_field(header, "name"))


def _decode_list(header: Header, blob: bytes) -> ListVariables:
    return ListVariables()


def _decode_save(header: Header, blob: bytes) -> Save:
    return Save(read_count(header, "cell"), read_count(header, "size"))


def _decode_load(header: Header, blob: bytes) -> Load:
    return Load(read_count(header, "cell"), blob)


def _decode_reply(header: Header, blob: bytes) -> HostReply:
    if type(header["ok"]) is not bool:
        raise TypeError("ok is not a bool")
    return HostReply(read_count(header, "call"), header["ok"], blob)


def _decode_fixed_execute(header: bytes, blob: bytes) -> Execute:
    _, cell = read_fixed_header(CELL_HEADER, header)
    return Execute(cell, blob)


ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Configure: _encode_configure,
    Execute: _encode_execute,
    Assign: _encode_assign,
    Fetch: _encode_fetch,
    ListVariables: _encode_list,
    Save: _encode_save,
    Load: _encode_load,
    HostReply: _encode_reply,
}
DECODERS: dict[str, Callable[[Header, bytes], HostMessage]] = {
    "configure": _decode_configure,
    "assign": _decode_assign,
    "fetch": _decode_fetch,
    "list": _decode_list,
    "save": _decode_save,
    "load": _decode_load,
    "reply": _decode_reply,
}
FIXED_DECODERS: dict[bytes, Callable[[bytes, bytes], HostMessage]] = {
    bytes((CELL_KIND,)): _decode_fixed_execute
}
