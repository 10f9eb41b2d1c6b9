"""Objects of ours at a prompt and in a notebook: a short repr, HTML, and their public module."""

from __future__ import annotations

import base64
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ForwardRef, NoReturn, TypeVar

# `Displayed`: a short repr, and HTML for notebooks.


class Displayed:
    """Gives a class a repr below 300 characters and an HTML form, by its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        return html_of(self)


class DisplayedByRepr:
    """Gives a class its repr as its HTML form, for objects that are shown by their condition."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of_repr(self)


class DisplayedByMethods(DisplayedByRepr):
    """Gives a class a repr with its methods, and names them in the error of an unknown one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr_of_methods(self)

    if not TYPE_CHECKING:  # a checker would take every attribute for known

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_method(self, name)


# Values at a prompt and in a notebook: a repr below 300 characters, and HTML that is only shown.
#
# Values hold texts of sessions and models, which are hostile: each is bounded and escaped. Works
# on dataclasses and on pydantic's models, by the standard library alone, and loads no other
# module of the engine.

# Characters of a repr, and of one value in it.
MAX_REPR, _MAX_VALUE = 299, 70
_MAX_LINE = 120  # characters of a cell of a text table: that of a preview
# Bounds of the HTML: characters of one text and of all, rows and columns of a table, characters of
# a cell, figures, their bytes, and levels of values in values.
_MAX_TEXT, _MAX_ALL, _MAX_ROWS, _MAX_COLUMNS, _MAX_CELL = 10_000, 60_000, 20, 8, 100
_MAX_FIGURES, _MAX_FIGURE_BYTES, _DEEPEST = 10, 4 << 20, 3
_PNG = b"\x89PNG\r\n\x1a\n"
# Fields that HTML shows although no repr does. Others may be secret.
_ALSO = frozenset({"figures", "changes", "displays"})
# Fields of bytes, those of a cell that its output has, and those that have such a cell.
_SIZES = frozenset({"size", "peak_memory"})
_OUTCOMES = frozenset({"observation", "result"})
_OF_OUTPUT = frozenset({"stdout", "stderr", "value", "displays", "exception"})
# Marks that turn the direction of text could show a line in another order.
_DIRECTION = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_UNSHOWABLE = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class _Short(reprlib.Repr):
    """Reprs of values, of a long text its beginning and its length."""

    def repr_str(self, text: str, level: int) -> str:
        if len(text) <= self.maxstring:
            return repr(text)
        return f"{text[: self.maxstring]!r}... ({len(text):,} characters)"

    def repr_int(self, number: int, level: int) -> str:
        # Decimal digits take quadratic time, and beyond a limit they are refused.
        bits = number.bit_length()
        return repr(number) if bits < 200 else f"<an int of {bits:,} bits>"


_short = _Short()
_short.maxstring = _short.maxother = _short.maxlong = _MAX_VALUE
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxfrozenset = 3
_short.maxlevel = 2


def short_repr(value: object, limit: int = MAX_REPR) -> str:
    """Return `Class(field=value, ...)` of the fields that have no default value, short ones first.

    It has at most `limit` characters, where that is enough for the name of the class.
    """
    name = type(value).__qualname__
    parts: list[str] = []
    room = limit - len(name) - len("(, ...)")
    for field, content in sorted(_fields(value), key=lambda each: not _is_brief(each[1])):
        part = f"{field}={_brief(content, room - len(field) - 3)}"
        room -= len(part) + 2
        if room < 0:
            parts.append("...")
            break
        parts.append(part)
    return f"{name}({', '.join(parts)})"


def repr_of_methods(value: object) -> str:
    """Return the class of `value` and its public methods, for objects without fields to show."""
    return f"<{type(value).__qualname__} with {_methods(value)}>"


def unknown_method(value: object, name: str) -> AttributeError:
    """Return the error of an attribute that `value` lacks, with the methods that it has."""
    text = f"{type(value).__qualname__!r} object has no attribute {name!r}"
    return AttributeError(f"{text}; it has {_methods(value)}", name=name, obj=value)


def _methods(value: object) -> str:
    return ", ".join(name for name in dir(type(value)) if not name.startswith("_"))


def _is_brief(content: object) -> bool:
    if isinstance(content, str):
        return len(content) <= _MAX_VALUE
    return content is None or isinstance(content, (bool, int, float))


def _brief(content: object, room: int) -> str:
    """Return a repr of a value, for the most part below `room` characters."""
    if _has_fields(content):
        return short_repr(content, room)
    if isinstance(content, float):
        return repr(round(content, 6))
    if type(content) is str and len(content) > (limit := min(_MAX_VALUE, max(room - 40, 10))):
        return f"{content[:limit]!r}... ({len(content):,} characters)"
    return _short.repr(content)


def size_text(size: int) -> str:
    """Return a number of bytes as people read it, such as "640 B" or "1.2 MB"."""
    shown, units = float(min(size, 1 << 80)), ["B", "kB", "MB", "GB", "TB"]
    while shown >= 999.5 and len(units) > 1:
        shown /= 1000
        del units[0]
    return (
        f"{shown:.0f} {units[0]}" if units[0] == "B" or shown >= 99.5 else f"{shown:.1f} {units[0]}"
    )


def text_of_rows(rows: Iterable[Mapping[str, object]], *, most: int = 100) -> str:
    """Return rows as aligned columns below their names, sizes in units; at most `most` rows."""
    every = list(rows)
    table = [[*every[0]]] if every else []
    table += [
        [_line(_readable(name, content)) for name, content in row.items()] for row in every[:most]
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in table
    ]
    more = [f"... {len(every) - most:,} more"] if len(every) > most else []
    return "\n".join([*lines, *more])


def _line(content: object) -> str:
    text = " ".join(_showable(str(content)).translate(_DIRECTION).split())
    return text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}..."


def _readable(name: str, content: object) -> object:
    return size_text(content) if name in _SIZES and type(content) is int else content


def html_of(value: object) -> str:
    """Return `value` as HTML: texts, tables and pictures, without any element from its contents."""
    return _HTML().card(value, _DEEPEST)


def page_of(value: object, title: str) -> str:
    """Return `value` as a page of its own, which runs and loads nothing."""
    style = "body{font:14px system-ui,sans-serif;margin:1em}dd{margin:0 0 1em}th{text-align:left}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_FRAME_POLICY}">'
        f"<title>{_escaped(title)}</title><style>{style}td,th{{padding:2px 8px}}</style>"
        f"<body>{html_of(value)}</body></html>"
    )


def html_of_rows(value: object, rows: Iterable[object]) -> str:
    """Return a table of `rows` as HTML, below the repr of `value`."""
    return f"<div>{html_of_repr(value)}{_HTML().table(rows)}</div>"


def html_of_repr(value: object) -> str:
    """Return the repr of `value` as HTML, for objects that are shown by their condition."""
    return f"<code>{_escaped(repr(value)[:MAX_REPR])}</code>"


class _HTML:
    """Builds one HTML text within the bounds."""

    def __init__(self) -> None:
        self._room = _MAX_ALL
        self._figures, self._figure_bytes = _MAX_FIGURES, _MAX_FIGURE_BYTES

    def card(self, value: Any, levels: int) -> str:
        """Return a value by its fields: the outcome of a cell first, then the short ones."""
        is_cell = hasattr(value, "stdout") and hasattr(value, "displays")
        first = self._ran(value) if is_cell else []
        rows: list[str] = []
        blocks: list[str] = []
        for name, content in _fields(value, also=_ALSO):
            if is_cell and (name in _OF_OUTPUT or hasattr(content, "traceback")):
                continue
            content = _readable(name, content)
            if self._is_short(content):
                rows.append(f"<tr><th>{_escaped(name)}</th><td>{self._cell(content)}</td></tr>")
            elif block := self._block(name, content, levels):
                (first if name in _OUTCOMES else blocks).append(block)
        table = f"<table>{''.join(rows)}</table>" if rows else ""
        name = _escaped(type(value).__qualname__)
        return f"<div><strong>{name}</strong>{''.join(first)}{table}{''.join(blocks)}</div>"

    def _ran(self, cell: Any) -> list[str]:
        """Return what a cell did: its traceback, its output and value, its standard error."""
        traceback = _traceback(cell)
        stderr = _string(cell.stderr).removesuffix(traceback)
        *output, value = self._output(cell)
        blocks = {"traceback": traceback and self.text(traceback), "output": "".join(output)}
        blocks |= {"value": value, "stderr": stderr and self.text(stderr)}
        return [self._labelled(name, block) for name, block in blocks.items()]

    def _output(self, cell: Any) -> Iterator[str]:
        """Yield the output in its order, displays in place of their text, and last the value."""
        rest, value = _string(cell.stdout), _string(cell.value)
        if value and hasattr(cell, "exception"):  # this output ends with the value
            rest = rest.removesuffix(f"{value}\n")
        of_value = value and self.text(value)
        displays = cell.displays if isinstance(cell.displays, (tuple, list)) else ()
        for display in displays[:_MAX_FIGURES]:
            shown = self._display(display)
            if getattr(display, "is_value", False) is True:
                of_value = shown
                continue
            if text := _string(getattr(display, "text", "")):
                before, found, after = rest.partition(f"{text}\n")
                if found:
                    yield before and self.text(before)
                    rest = after
            yield shown
        yield rest and self.text(rest)
        yield of_value

    def _is_short(self, content: object) -> bool:
        if isinstance(content, str):
            return len(content) <= _MAX_CELL and "\n" not in content
        return content is None or isinstance(content, (bool, int, float))

    def _block(self, name: str, content: Any, levels: int) -> str:
        if self._room <= 0 or levels == 0:
            return ""
        if isinstance(content, str):
            return self._labelled(name, self.text(content))
        if name == "figures" and isinstance(content, (tuple, list)):
            return self._labelled(name, "".join(map(self._picture, content[:_MAX_FIGURES])))
        if name == "roots" and len(content) == 1:
            (content,) = content
        if _has_fields(content):
            return self._labelled(name, self.card(content, levels - 1))
        if isinstance(content, Mapping):
            rows = [{"key": key, "value": content[key]} for key in content]
            return self._labelled(name, self.table(rows))
        if isinstance(content, (tuple, list)):
            return self._labelled(name, self.table(content))
        return self._labelled(name, self.text(_short.repr(content)))

    def _labelled(self, name: str, block: str) -> str:
        return f"<dl><dt><em>{_escaped(name)}</em></dt><dd>{block}</dd></dl>" if block else ""

    def text(self, text: str) -> str:
        limit = min(_MAX_TEXT, max(self._room, 0))
        self._room -= min(len(text), limit)
        if len(text) > limit:
            tail = limit // 4
            notice = f"\n... ({len(text) - limit:,} characters left out) ...\n"
            text = text[: limit - tail] + notice + (text[-tail:] if tail else "")
        return f"<pre>{_escaped(text)}</pre>"

    def table(self, rows: Iterable[Any]) -> str:
        shown = list(rows)
        records = [_record(row) for row in shown[:_MAX_ROWS]]
        columns = list(dict.fromkeys(name for record in records for name in record))
        columns = columns[:_MAX_COLUMNS]
        lines = [
            "".join(
                f"<td>{self._cell(_readable(name, record.get(name, '')))}</td>" for name in columns
            )
            for record in records
        ]
        head = "".join(f"<th>{self._cell(name)}</th>" for name in columns)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        more = len(shown) - len(records)
        note = f"<div>{more:,} more rows</div>" if more else ""
        return f"<table><tr>{head}</tr>{body}</table>{note}" if shown else ""

    def _cell(self, content: object) -> str:
        if isinstance(content, (tuple, list, Mapping)):
            text = f"{len(content):,} items"
        else:
            text = content if isinstance(content, str) else _brief(content, _MAX_CELL)
        text = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}..."
        self._room -= len(text)
        return _escaped(text)

    def _display(self, display: object) -> str:
        text, forms = getattr(display, "text", ""), getattr(display, "forms", {})
        if isinstance(forms, Mapping):
            self._figure_bytes -= sum(len(str(content)) for content in forms.values())
        if self._figure_bytes < 0:
            return "<div>(a display that is too large to be shown here)</div>"
        return framed(text, forms)

    def _picture(self, figure: object) -> str:
        try:
            png = figure if isinstance(figure, bytes) else getattr(figure, "png", b"")
        except ValueError:  # no base64
            png = b""
        self._figure_bytes -= len(png)
        if not png.startswith(_PNG):
            return "<div>(a figure that is no PNG)</div>"
        if self._figure_bytes < 0:
            return "<div>(a figure that is too large to be shown here)</div>"
        data = base64.b64encode(png).decode()
        return f'<img alt="figure" src="data:image/png;base64,{data}">'


# `framed`: an object that a session displays, as HTML that does nothing but show.
#
# The session's HTML is hostile. The frame has no origin, scripts, forms, plugins or navigation of
# other frames (`sandbox` without any right, which stops `meta refresh` too), and its policy loads
# nothing, so it cannot tell anybody that it is shown. A link opens a new page, for which the frame
# has no right. An SVG in an image runs and loads nothing.

_FRAME_POLICY = "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'"
_FRAME_HEAD = (
    f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{_FRAME_POLICY}">'
    '<base target="_blank"><style>body{font:13px system-ui,sans-serif;margin:4px}'
    "table{border-collapse:collapse}td,th{padding:2px 8px;text-align:right}</style>"
)
# Characters of a form that is shown; larger ones are shown as text.
_MAX_FORM = 2 << 20
# Pixels of a frame, whose page cannot be measured from outside: lines are blocks and rows of
# tables, or as many as the text fills; paragraphs and lists have margins, a picture takes the place
# of several lines.
_LINE, _MARGIN, _PICTURE, _LEAST, _MOST, _LETTERS = 22, 18, 160, 20, 480, 90
_BLOCKS = re.compile(r"(?i)<(?:tr|li|p|br|h[1-6]|div|pre|hr|dt|dd)\b")
_WITH_MARGIN = re.compile(r"(?i)<(?:p|h[1-6]|[uo]l)\b")
_PICTURES = re.compile(r"(?i)<(?:img|svg)\b")


def framed(text: object, forms: object) -> str:
    """Return HTML that shows an object by its richest form; `text` is its plainest."""
    shown = {
        form: content
        for form, content in (forms.items() if isinstance(forms, Mapping) else ())
        if isinstance(content, str) and len(content) <= _MAX_FORM
    }
    if "text/html" in shown:
        return _frame(shown["text/html"])
    if "image/svg+xml" in shown:
        data = base64.b64encode(_showable(shown["image/svg+xml"]).encode()).decode()
        return f'<img alt="figure" src="data:image/svg+xml;base64,{data}">'
    for form in ("text/latex", "text/markdown"):
        text = shown.get(form, text)
    return _HTML().text(text) if isinstance(text, str) else ""


def _frame(page: str) -> str:
    letters = sum(len(part) - part.find(">") - 1 for part in page.split("<"))
    lines = max(len(_BLOCKS.findall(page)), letters // _LETTERS + 1)
    height = _LEAST + _LINE * lines + _MARGIN * len(_WITH_MARGIN.findall(page))
    height = min(_MOST, height + _PICTURE * len(_PICTURES.findall(page)))
    style = f"width:100%;height:{height}px;border:0;resize:vertical;background:white"
    content = _escaped(_FRAME_HEAD + page)
    return f'<iframe sandbox title="displayed" style="{style}" srcdoc="{content}"></iframe>'


def _string(content: object) -> str:
    return content if isinstance(content, str) else ""


def _traceback(cell: Any) -> str:
    """Return the traceback of a cell, "" of one that did not fail."""
    if failure := _string(getattr(cell, "exception", None)):  # the message, then the traceback
        message, _, traceback = failure.partition("\n")
        return traceback or message
    return _string(getattr(cell.error, "traceback", None))


def _record(row: Any) -> dict[str, Any]:
    """Return the columns of a row of a table."""
    if _has_fields(row):
        return dict(_fields(row, whole=True))
    if isinstance(row, Mapping):
        return {str(name): row[name] for name in list(row)[:_MAX_COLUMNS]}
    return {"": row}


def _has_fields(value: object) -> bool:
    return is_dataclass(value) or hasattr(type(value), "model_fields")


def _fields(
    value: object, *, also: frozenset[str] = frozenset(), whole: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a value that its repr shows, without those that have their default."""
    for name, in_repr, default in _declared(value):
        content = getattr(value, name, default)
        is_shown = whole or not (content is None or _is_default(content, default))
        if is_shown and (in_repr or name in also):
            yield name, content
    for name in getattr(type(value), "_DISPLAYED_TOO", ()):
        try:
            content = getattr(value, name)
        except ValueError:  # a record that contradicts itself has no tree
            continue
        if content is not None:
            yield name, content


def _is_default(content: object, default: object) -> bool:
    return content is default or (type(content) is type(default) and _short_equal(content, default))


def _short_equal(content: Any, default: Any) -> bool:
    # Only of scalars and of empty collections: others are never a default here, and may be large.
    return (isinstance(content, (str, int, float)) and content == default) or (
        isinstance(content, (tuple, list, dict)) and not content and not default
    )


def _declared(value: object) -> Iterator[tuple[str, bool, Any]]:
    """Yield name, whether a repr shows it, and default of the fields of a class."""
    if is_dataclass(value):
        for field in fields(value):
            factory = field.default_factory
            default = factory() if factory is not MISSING else field.default
            yield field.name, field.repr and not field.name.startswith("_"), default
        return
    declared: Mapping[str, Any] = type(value).model_fields  # type: ignore[attr-defined]
    for name, info in declared.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        yield name, info.repr is not False, default if not info.is_required() else MISSING


def _escaped(text: str) -> str:
    return escape(_showable(text))


def _showable(text: str) -> str:
    return text.translate(_UNSHOWABLE).encode("utf-8", "replace").decode()


# `set_module`: the module that documents a class or function, as its `__module__`.
#
# Tracebacks, reprs and pickles name the documented path, which stays when files move. A session
# resolves the path too, from modules that the worker has loaded.

T = TypeVar("T")


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets `__module__` to `module`, which exports the object.

    It is the outermost decorator: `dataclass` evaluates annotations in the defining module, which
    `__module__` names until then. `typing.get_type_hints` does so as well, later; the annotations
    of a class therefore keep the defining module.
    """

    def decorate(decorated: T) -> T:
        if isinstance(decorated, type) and (annotations := decorated.__annotations__):
            decorated.__annotations__ = {
                name: _reference(value, decorated.__module__) if isinstance(value, str) else value
                for name, value in annotations.items()
            }
        decorated.__module__ = module
        return decorated

    return decorate


def _reference(annotation: str, module: str) -> ForwardRef:
    return ForwardRef(annotation, is_argument=False, module=module, is_class=True)
