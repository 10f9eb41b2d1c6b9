"""Messages of the host to a worker and of a worker to the host, and their form as frames."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, get_args

from ..errors import RemoteProtocolError
from ..types import DISPLAY_FORMS, JSON, Answer, AnswerForm, Change, Display, ErrorInfo, Variable
from .frames import (
    CELL_HEADER,
    CELL_KIND,
    EMPTY_RESULT_HEADER,
    EMPTY_RESULT_KIND,
    FORMS,
    MAX_CHANGES,
    MAX_DISPLAYS,
    MAX_FIGURES,
    MAX_LOST,
    MAX_MESSAGE,
    MAX_NAME,
    Frame,
    kind_of,
    pack,
)
from .values import (
    MAX_ANSWER,
    Parts,
    count_answer_values,
    cut,
    describe,
    dump_header,
    dump_json,
    each_part,
    more_values,
    parse_header,
    parse_json,
    read_text,
)

# Schema of a host function: the description that a session receives.

# Stands for a default value that the host does not send.
HIDDEN: Final = "..."

# Values of `inspect.Parameter`; a session does not load `inspect` for them.
POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD = range(5)


@dataclass(frozen=True, slots=True)
class Default:
    """A parameter's default: `value`, or a display `text` where JSON cannot carry the value."""

    value: JSON = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `kind` is a number of `inspect.Parameter`; `annotation` is display text."""

    name: str
    kind: int
    default: Default | None = None
    annotation: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters. With `checked`, the session refuses calls that do not fit."""

    parameters: tuple[Parameter, ...]
    returns: str | None = None
    checked: bool = True

    @property
    def by_position(self) -> tuple[str, ...]:
        """Names of the parameters that accept positional arguments."""
        return tuple(each.name for each in self.parameters if each.kind < VAR_POSITIONAL)

    def row(self) -> list[Any]:
        """Return the fields in order, as JSON."""
        return [self.checked, self.returns, [_parameter_row(each) for each in self.parameters]]


def _parameter_row(parameter: Parameter) -> list[Any]:
    default = parameter.default
    row = None if default is None else [default.value, default.text]
    return [parameter.name, parameter.kind, row, parameter.annotation]


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """One host function of `Configure`; `repl_sandbox.HostFunction` documents the fields.

    `methods` are names: the worker calls the method "result" of the function "spawn" as the
    function "spawn.result". That is no identifier, so no function of a user can have the name.
    """

    name: str
    doc: str = ""
    returns: str = "plain"
    signature: Signature | None = None
    raw: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if the function takes and returns JSON and needs no further stub."""
        return self.returns == "plain" and not (self.raw or self.raises)

    def row(self) -> list[Any]:
        """Return the fields in order, as JSON."""
        lists = [list(names) for names in (self.raw, self.methods, self.raises)]
        signature = None if self.signature is None else self.signature.row()
        return [self.name, self.doc, self.returns, signature, *lists]


def read(row: Any) -> FunctionSchema:
    """Return the schema that `row` describes; TypeError if it describes none."""
    if type(row) is not list or len(row) != 7:
        raise TypeError("a function is not a list of 7 fields")
    name, doc, returns, signature, *lists = row
    if not all(type(text) is str for text in (name, doc, returns)):
        raise TypeError("name, docstring or returns of a function is not text")
    for names in lists:
        if type(names) is not list or not all(type(each) is str for each in names):
            raise TypeError("a function has a field that is not a list of names")
    parsed = None if signature is None else _signature(signature)
    return FunctionSchema(name, doc, returns, parsed, *map(tuple, lists))


def _signature(row: Any) -> Signature:
    if type(row) is not list or len(row) != 3 or type(row[2]) is not list:
        raise TypeError("a signature is not a list of 3 fields")
    checked, returns, parameters = row
    if type(checked) is not bool or not _is_text_or_none(returns):
        raise TypeError("a field of a signature has the wrong type")
    return Signature(tuple(map(_parameter, parameters)), returns, checked)


def _parameter(row: Any) -> Parameter:
    if type(row) is not list or len(row) != 4:
        raise TypeError("a parameter is not a list of 4 fields")
    name, kind, default, annotation = row
    if type(name) is not str or kind not in range(5) or not _is_text_or_none(annotation):
        raise TypeError("a field of a parameter has the wrong type")
    if default is None:
        return Parameter(name, kind, None, annotation)
    if type(default) is not list or len(default) != 2 or not _is_text_or_none(default[1]):
        raise TypeError("a default is not a value and a text")
    return Parameter(name, kind, Default(*default), annotation)


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str


# Fields of headers and rows in messages, checked one by one as they are read.

# Sizes, numbers and lengths are below this: a signed 64-bit integer, as other languages have it.
MAX_COUNT = 1 << 63
# Bytes of all figures of a cell, and of all else that it displays.
MAX_FIGURE_BYTES = MAX_DISPLAY_BYTES = 8 << 20

Header: TypeAlias = dict[str, Any]

_CHANGE_KINDS = frozenset(("new", "modified", "deleted"))
_PNG = b"\x89PNG\r\n\x1a\n"
_quote = json.encoder.encode_basestring_ascii


def read_count(header: Header, name: str) -> int:
    """Return the field `name`, which must be an integer from 0 to below `MAX_COUNT`."""
    value = header[name]
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is not a count")
    return value


def read_text_field(header: Header, name: str) -> str:
    """Return the field `name`, which must be text."""
    value = header[name]
    if type(value) is not str:
        raise TypeError(f"{name} is not text")
    return value


def read_list(header: Header, name: str, limit: int) -> list[Any]:
    """Return the field `name`, which must be a list of at most `limit` items."""
    value = header[name]
    if type(value) is not list or len(value) > limit:
        raise TypeError(f"{name} is not a list of at most {limit}")
    return value


def read_row(row: Any, count: int, name: str) -> list[Any]:
    """Return `row` if it is a list of `count` fields; TypeError otherwise."""
    if type(row) is not list or len(row) != count:
        raise TypeError(f"{name} is not a list of {count} fields")
    return row


def read_change(row: Any) -> Change:
    """Return the change that a row describes."""
    kind, name, type_name, size, preview = read_row(row, 5, "change")
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
    raise TypeError("a field of a change has the wrong type")


def dump_changes(changes: Iterable[Change]) -> str:
    """`changes` as JSON rows, written out: a dict through the encoder costs four times as much."""
    rows = [
        f'["{c.kind}",{_quote(c.name[:MAX_NAME])},{_quote(c.type)},{count_or_zero(c.size)},'
        f"{_quote(c.preview)}]"
        for c in changes
    ]
    return f"[{','.join(rows)}]"


def read_variable(row: Any) -> Variable:
    """Return the variable that a row describes."""
    name, type_name, size, preview = read_row(row, 4, "variable")
    if (
        all(type(text) is str for text in (name, type_name, preview))
        and type(size) is int
        and 0 <= size < MAX_COUNT
    ):
        return Variable(name, type_name, size, preview)
    raise TypeError("a field of a variable has a field of the wrong type")


def read_error(row: Any) -> ErrorInfo:
    """Return the error that a row describes."""
    type_name, message, traceback, line = read_row(row, 4, "error")
    if all(type(text) is str for text in (type_name, message, traceback)) and (
        line is None or (type(line) is int and 0 <= line < MAX_COUNT)
    ):
        return ErrorInfo(type_name, message, traceback, line)
    raise TypeError("a field of the error has the wrong type")


def dump_error(error: ErrorInfo) -> str:
    """Return `error` as a JSON row."""
    line = error.line  # a SyntaxError that a cell constructs can carry any number
    is_valid = line is not None and 0 <= line < MAX_COUNT
    return dump_header([error.type, error.message, error.traceback, line if is_valid else None])


def cut_figures(sizes: list[Any], blob: bytes, start: int) -> tuple[tuple[bytes, ...], int]:
    """Return the figures of these sizes from `blob`, and the position behind them."""
    figures = []
    for size in sizes:
        figure = blob[start : start + read_count({"figure": size}, "figure")]
        if not figure.startswith(_PNG):
            raise ValueError("a figure is not a PNG")
        figures.append(figure)
        start += size
    if sum(map(len, figures)) > MAX_FIGURE_BYTES:
        raise ValueError("the figures are too large")
    return tuple(figures), start


def dump_displays(displays: Iterable[Display]) -> tuple[str, list[bytes]]:
    """Return `displays` as JSON rows with the sizes of their texts, and these texts."""
    rows: list[Any] = []
    texts: list[bytes] = []
    for display in displays:
        encoded = {
            form: content.encode("utf-8", "surrogatepass")
            for form, content in {"": display.text, **display.forms}.items()
        }
        texts += encoded.values()
        rows.append([display.is_value, [[form, len(text)] for form, text in encoded.items()]])
    return dump_header(rows), texts


def cut_displays(rows: list[Any], blob: bytes, start: int) -> tuple[tuple[Display, ...], int]:
    """Return the displays that rows describe from `blob`, and the position behind them."""
    displays, first = [], start
    for row in rows:
        is_value, sizes = read_row(row, 2, "display")
        if type(is_value) is not bool or type(sizes) is not list:
            raise TypeError("a field of a display has the wrong type")
        forms: dict[str, str] = {}
        for size_row in sizes:
            form, size = read_row(size_row, 2, "form of a display")
            if form in forms or form not in ("", *DISPLAY_FORMS):
                raise ValueError("a display has an unknown form, or one twice")
            end = start + read_count({"form": size}, "form")
            forms[form], start = read_text(blob[start:end]), end
        displays.append(Display(forms.pop(""), forms, is_value))
    if start - first > MAX_DISPLAY_BYTES:
        raise ValueError("the displays are too large")
    return tuple(displays), start


def count_or_zero(number: int) -> int:
    """`number`, or 0 if the protocol cannot carry it: arrays can lie about their size."""
    return number if 0 <= number < MAX_COUNT else 0


def read_fixed_header(form: struct.Struct, header: bytes) -> tuple[int, ...]:
    """Return the numbers of a header of fixed size."""
    if len(header) != form.size:
        raise RemoteProtocolError(f"a short header of {len(header)} bytes, not {form.size}")
    numbers = form.unpack(header)
    if max(numbers) >= MAX_COUNT:
        raise RemoteProtocolError("a number in a short header is not a count")
    return numbers


# Messages of the host to a worker, and their form as frames.

# Variables in one list; the sender cuts longer lists.
MAX_VARIABLES = 10_000
# Forms of a value from the host: UTF-8 with surrogates passed, bytes, JSON, a table (`tables.py`).
VALUE_KINDS = frozenset(("str", "bytes", "json", "table"))


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

    `kind` is the form of the bytes: one of `VALUE_KINDS`.
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
    """Result of call `call`; `data` is the value in the form `kind`, or JSON of [type, message]."""

    call: int
    ok: bool
    data: bytes
    kind: str = "json"


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
    header = {"type": "reply", "call": m.call, "ok": m.ok, "kind": m.kind}
    return pack(dump_header(header).encode(), m.data)


def _decode_configure(header: Header, blob: bytes) -> Configure:
    end = read_count(header, "functions")
    rows = parse_json(blob[:end])
    if type(rows) is not list:
        raise TypeError("functions are not a list")
    functions = tuple(map(read, rows))
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
    if value not in VALUE_KINDS:
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
    return HostReply(read_count(header, "call"), header["ok"], blob, _kind(header["kind"]))


def _decode_fixed_execute(header: bytes, blob: bytes) -> Execute:
    _, cell = read_fixed_header(CELL_HEADER, header)
    return Execute(cell, blob)


HOST_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Configure: _encode_configure,
    Execute: _encode_execute,
    Assign: _encode_assign,
    Fetch: _encode_fetch,
    ListVariables: _encode_list,
    Save: _encode_save,
    Load: _encode_load,
    HostReply: _encode_reply,
}
HOST_DECODERS: dict[str, Callable[[Header, bytes], HostMessage]] = {
    "configure": _decode_configure,
    "assign": _decode_assign,
    "fetch": _decode_fetch,
    "list": _decode_list,
    "save": _decode_save,
    "load": _decode_load,
    "reply": _decode_reply,
}
FIXED_HOST_DECODERS: dict[bytes, Callable[[bytes, bytes], HostMessage]] = {
    bytes((CELL_KIND,)): _decode_fixed_execute
}


# Messages of a worker to the host, and their form as frames.

# Bytes of a displayed value: a million characters, each perhaps an escape. The longest text lists
# the variables that a session could not load from a checkpoint.
MAX_SHOWN = 16 << 20
_VARIABLE_VALUES = 6  # a list of four, and the value behind it
# Names of calls that ask for descriptors: the memfd of the last message; new standard streams in
# place of the ones that the session's code closed.
MEMFD = "_memfd"
STREAMS = "_streams"
_FAILURES = frozenset(("unknown", "not json", "too large", "unreadable"))
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
    displays: tuple[Display, ...] = ()


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
    if m.value is None and m.error is None and not (m.changes or m.figures or m.displays):
        return pack(EMPTY_RESULT_HEADER.pack(EMPTY_RESULT_KIND, m.cell, m.peak_memory))
    value = None if m.value is None else m.value.encode("utf-8", "surrogatepass")
    displays, texts = dump_displays(m.displays) if m.displays else ("[]", [])
    header = (
        f'{{"type":"result","cell":{m.cell},"value":{"null" if value is None else len(value)},'
        f'"error":{"null" if m.error is None else dump_error(m.error)},'
        f'"changes":{dump_changes(m.changes)},"figures":{[len(figure) for figure in m.figures]},'
        f'"displays":{displays},"peak":{m.peak_memory}}}'
    )
    return pack(header.encode(), b"".join((value or b"", *m.figures, *texts)))


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
    displays: tuple[Display, ...] = ()
    if header["displays"] != []:
        displays, start = cut_displays(read_list(header, "displays", MAX_DISPLAYS), blob, start)
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
        displays,
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


WORKER_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ready: _encode_ready,
    Restored: _encode_restored,
    HostCall: _encode_call,
    Answered: _encode_answered,
    Result: _encode_result,
    Value: _encode_value,
    Variables: _encode_variables,
    Failed: _encode_failed,
}
WORKER_DECODERS: dict[str, Callable[[Header, bytes], WorkerMessage]] = {
    "ready": _decode_ready,
    "restored": _decode_restored,
    "call": _decode_call,
    "answered": _decode_answered,
    "result": _decode_result,
    "value": _decode_value,
    "variables": _decode_variables,
    "failed": _decode_failed,
}
FIXED_WORKER_DECODERS: dict[bytes, Callable[[bytes, bytes], WorkerMessage]] = {
    bytes((EMPTY_RESULT_KIND,)): _decode_fixed_result
}


# The messages that the host and a worker exchange. docs/protocol.md describes them.

__all__ = [
    "MAX_COUNT",
    "MAX_FIGURE_BYTES",
    "MAX_SHOWN",
    "MAX_VARIABLES",
    "MEMFD",
    "STREAMS",
    "VERSION",
    "Answered",
    "Assign",
    "Configure",
    "Execute",
    "Failed",
    "Fetch",
    "HostCall",
    "HostMessage",
    "HostReply",
    "ListVariables",
    "Load",
    "Message",
    "Ready",
    "Restored",
    "Result",
    "Save",
    "Value",
    "Variables",
    "WorkerMessage",
    "decode",
    "encode",
]

VERSION = 10

Message: TypeAlias = HostMessage | WorkerMessage

_ENCODERS = HOST_ENCODERS | WORKER_ENCODERS
_DECODERS: dict[str, Callable[[Header, bytes], Message]] = {
    **HOST_DECODERS,
    **WORKER_DECODERS,
}
_FIXED_DECODERS: dict[bytes, Callable[[bytes, bytes], Message]] = {
    **FIXED_HOST_DECODERS,
    **FIXED_WORKER_DECODERS,
}


def encode(message: Message) -> bytes:
    """Return `message` as one frame."""
    return _ENCODERS[type(message)](message)


def decode(frame: Frame) -> Message:
    """Return the message that `frame` carries.

    Raises:
        RemoteProtocolError: the frame is not a message of this protocol.
    """
    data, blob = frame
    decode_fixed = _FIXED_DECODERS.get(data[:1])
    if decode_fixed is not None:
        return decode_fixed(data, blob)
    kind = kind_of(data, blob)
    header = parse_header(data)
    if type(header) is not dict or header["type"] != kind:
        raise RemoteProtocolError("header is not an object with one type")
    try:
        message = _DECODERS[kind](header, blob)
        # Each decoder reads all of its fields, so a further field is unknown.
        if len(header) != FORMS[kind].fields:
            raise ValueError("a field that the message does not have")
        return message
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"malformed {kind} message: {error}") from None
