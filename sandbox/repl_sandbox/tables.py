"""Tables that the host gives to a session: pandas, polars and pyarrow, as themselves.

The host writes a table as bytes, and the session reads the bytes with the same library:

- a DataFrame of pandas as a stream of Arrow's IPC format if pyarrow is installed and Arrow has each
  of its columns exactly, else as a pickle;
- a Series of pandas as a pickle;
- a DataFrame or Series of polars, and a Table or RecordBatch of pyarrow, as a stream of Arrow.

Bytes of a table go from the host to a session alone: loading a pickle runs what is in it, which the
session may and the host may not. The other way, tables are lists of rows (docs/values.md).

The bytes are a line of JSON that describes the table, and the stream or the pickle after it.
"""

from __future__ import annotations

import io
import json
import mmap
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Protocol, Self, TypeAlias

from .types import JSON

# Of the description of a table, which is shown to a model: columns with their types, and characters
# of the first rows and of a column's name.
MAX_COLUMNS: Final = 200
MAX_SHOWN: Final = 4000
_MAX_NAME = 100
_ROWS_SHOWN = 10
# Bytes of the line with the description, in which a character may be an escape of six or twelve.
_MAX_LINE = 1 << 20


class TableLike(Protocol):
    """A DataFrame or Series of pandas or polars, or a Table or RecordBatch of pyarrow."""

    @property
    def shape(self) -> Any:
        """Rows and columns."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the bytes in which it goes to a session.

    Attributes:
        library: "pandas", "polars" or "pyarrow".
        type: The name of its class: "DataFrame", "Series", "Table" or "RecordBatch".
        form: "arrow" or "pickle".
        rows: The number of its rows.
        width: The number of its columns.
        columns: Name and type of the first `MAX_COLUMNS` columns.
        shown: The first rows as text.
        data: The description and the content.
    """

    library: str
    type: str
    form: str
    rows: int
    width: int
    columns: tuple[tuple[str, str], ...]
    shown: str = field(repr=False)
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return the table that `value` is, or None if it is none.

        Raises:
            TypeError: an object in the table can neither be written by Arrow nor pickled.
        """
        if isinstance(value, cls):
            return value
        found = _class_of(value)
        return None if found is None else cls._written(value, *found)

    @classmethod
    def _written(cls, value: Any, library: str, name: str) -> Self:
        form, content = _WRITE[library](value)
        columns = _columns(value, library)
        line = {
            "library": library,
            "type": name,
            "form": form,
            "rows": len(value),
            "width": len(columns),
            "columns": [[text[:_MAX_NAME] for text in each] for each in columns[:MAX_COLUMNS]],
            "shown": _first_rows(value, library)[:MAX_SHOWN],
        }
        return cls.from_bytes(json.dumps(line).encode() + b"\n" + content)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the table whose bytes are `data`; the content is not read.

        Raises:
            ValueError: they do not begin with the description of a table.
        """
        line = _line(data)
        try:
            columns = tuple((str(name), str(kind)) for name, kind in line["columns"])
            rows, width = line["rows"], line["width"]
            if type(rows) is not int or type(width) is not int or rows < 0 or width < 0:
                raise ValueError("its size is none")
            if (line["form"], line["library"]) not in _READ:
                raise ValueError("its form or library is unknown")
            return cls(
                _text(line["library"]),
                _text(line["type"]),
                _text(line["form"]),
                rows,
                width,
                columns[:MAX_COLUMNS],
                _text(line["shown"])[:MAX_SHOWN],
                data,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no table: {type(error).__name__}: {error}") from None

    @property
    def size(self) -> str:
        """Rows and columns in words, as "1000 rows x 3 columns"."""
        return f"{self.rows} rows x {self.width} columns"


# The values that a host gives to a session's variables.
Settable: TypeAlias = "str | bytes | JSON | Table | TableLike"


def read(data: bytes | mmap.mmap) -> Any:
    """Return the table whose bytes are `data`, in the session that was given it.

    Raises:
        ValueError: a library is not installed here, or it cannot read the content.
    """
    line = _line(data)
    name = f"the {line['type']} of {line['library']}"
    reader = _READ[line["form"], line["library"]]
    try:
        with memoryview(data) as whole, whole[data.find(b"\n") + 1 :] as content:
            return reader(content, str(line["type"]))
    except ImportError as error:
        raise ValueError(f"{name} cannot be read here: {error}; to_dict() has its values") from None
    except MemoryError:
        problem = "does not fit into the memory that the session may use (Limits.memory)"
        raise ValueError(f"{name}, {line['rows']:,} rows, {problem}") from None
    # Boundary: the library decides what it raises for content of another version, or for none.
    except Exception as error:  # noqa: BLE001
        raise ValueError(f"{name} cannot be read here: {type(error).__name__}: {error}") from None


def _line(data: bytes | mmap.mmap) -> dict[str, Any]:
    end = data.find(b"\n", 0, _MAX_LINE)
    try:
        line = json.loads(data[: max(end, 0)])
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise ValueError("this is no table: its description is missing")
    return line


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a part of the description is no text")
    return value


def is_table(value: object) -> bool:
    """Return whether `value` is a table, written or not."""
    return isinstance(value, Table) or _class_of(value) is not None


def _class_of(value: object) -> tuple[str, str] | None:
    """Return the library and the class of a table; None if `value` is none."""
    for library, name in _CLASSES:
        kind = getattr(_loaded(library), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return library, name
    return None


def _loaded(library: str) -> ModuleType | None:
    return sys.modules.get(library)


# Classes by the module that has them; subclasses are written as these, but for pandas' pickles.
_CLASSES: Final = (
    ("pandas", "DataFrame"),
    ("pandas", "Series"),
    ("polars", "DataFrame"),
    ("polars", "Series"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
)

# Writing, on the host.

# Types of columns of pandas that Arrow gives back as they were, by the name of the type's class;
# those of NumPy by kind. A column of objects comes back with other objects in it: None for NaN,
# arrays for lists.
_EXACT_KINDS = frozenset("biufmM")
_EXACT_TYPES = frozenset(
    """BooleanDtype CategoricalDtype DatetimeTZDtype Float32Dtype Float64Dtype Int8Dtype Int16Dtype
    Int32Dtype Int64Dtype StringDtype UInt8Dtype UInt16Dtype UInt32Dtype UInt64Dtype""".split()
)


def _write_pandas(value: Any) -> tuple[str, bytes]:
    pyarrow: Any = _loaded("pyarrow")  # pandas loads it where it is installed
    if pyarrow is not None and _is_exact_in_arrow(value):
        # A text may have a lone surrogate, which Arrow has not.
        with suppress(UnicodeError, pyarrow.ArrowException):
            return "arrow", _stream(pyarrow, pyarrow.Table.from_pandas(value, nthreads=1))
    try:
        return "pickle", pickle.dumps(value, protocol=5)
    # Boundary: classes of objects in the table are the caller's.
    except Exception as error:  # noqa: BLE001
        kind = type(value).__name__
        raise TypeError(f"an object in the {kind} cannot be pickled: {error}") from None


def _is_exact_in_arrow(value: Any) -> bool:
    """Return whether Arrow gives a DataFrame of pandas back as it was.

    Its columns have plain names, its index counts the rows, and it has no attributes.
    """
    pandas: Any = _loaded("pandas")
    if type(value) is not pandas.DataFrame or type(value.index) is not pandas.RangeIndex:
        return False
    names = value.columns
    return (
        names.is_unique
        and names.name is None
        and all(type(name) is str for name in names)
        and not value.attrs
        and all(map(_is_exact_type, value.dtypes))
    )


def _is_exact_type(dtype: Any) -> bool:
    name = type(dtype).__name__
    if name == "CategoricalDtype":
        return _is_exact_type(dtype.categories.dtype)
    return (
        name in _EXACT_TYPES
        if hasattr(dtype, "construct_array_type")
        else (dtype.kind in _EXACT_KINDS)
    )


def _write_polars(value: Any) -> tuple[str, bytes]:
    polars: Any = _loaded("polars")
    frame = polars.DataFrame([value]) if isinstance(value, polars.Series) else value
    for column, dtype in frame.schema.items():
        if _holds_objects(polars, dtype):  # polars would write their addresses
            kind = type(value).__name__
            raise TypeError(f"Arrow has no form for column {column!r} of the {kind}: {dtype}")
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)
    return "arrow", stream.getvalue()


def _holds_objects(polars: Any, dtype: Any) -> bool:
    if isinstance(dtype, polars.Struct):
        return any(_holds_objects(polars, each.dtype) for each in dtype.fields)
    if isinstance(dtype, (polars.List, polars.Array)):
        return _holds_objects(polars, dtype.inner)
    return bool(dtype == polars.Object)


def _write_pyarrow(value: Any) -> tuple[str, bytes]:
    return "arrow", _stream(_loaded("pyarrow"), value)


def _stream(pyarrow: Any, table: Any) -> bytes:
    import importlib

    ipc = importlib.import_module("pyarrow.ipc")
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


_WRITE: Final[dict[str, Callable[[Any], tuple[str, bytes]]]] = {
    "pandas": _write_pandas,
    "polars": _write_polars,
    "pyarrow": _write_pyarrow,
}


def _columns(value: Any, library: str) -> list[tuple[str, str]]:
    if library == "pyarrow":
        return [(each.name, str(each.type)) for each in value.schema]
    if hasattr(value, "columns"):
        return [(str(n), str(t)) for n, t in zip(value.columns, value.dtypes, strict=True)]
    return [(str(value.name), str(value.dtype))]


def _first_rows(value: Any, library: str) -> str:
    if library == "pyarrow":
        return str(value.slice(0, _ROWS_SHOWN).to_pydict())
    # As text is printed: cells of at most 50 characters, and the outer ones of many columns.
    return str(value.head(_ROWS_SHOWN))


# Reading, in the session.


def _read_pandas(content: memoryview, name: str) -> Any:
    # Without threads, which would be lost with the first snapshot. A copy, because columns may be
    # memory of Arrow, which pandas 2 cannot write to.
    return _read_pyarrow(content, "Table").to_pandas(use_threads=False).copy()


def _read_polars(content: memoryview, name: str) -> Any:
    import polars

    frame = polars.read_ipc_stream(io.BytesIO(content), use_pyarrow=False)
    return frame.to_series() if name == "Series" else frame


def _read_pyarrow(content: memoryview, name: str) -> Any:
    import importlib

    # A copy, because the table refers to the bytes that it was read from.
    reader = importlib.import_module("pyarrow.ipc").open_stream(bytes(content))
    return reader.read_next_batch() if name == "RecordBatch" else reader.read_all()


def _unpickled(content: memoryview, name: str) -> Any:
    return pickle.loads(content)


_READ: Final[dict[tuple[str, str], Callable[[memoryview, str], Any]]] = {
    ("arrow", "pandas"): _read_pandas,
    ("arrow", "polars"): _read_polars,
    ("arrow", "pyarrow"): _read_pyarrow,
    ("pickle", "pandas"): _unpickled,
}
