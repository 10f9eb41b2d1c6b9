"""Rich forms of objects, and pictures, that a cell displays beside its output.

The value of a cell, `display(...)` and what libraries show (`IPython.display`, `Image.show()` of
PIL, `Figure.show()` of plotly, open figures of pyplot) come as MIME bundles, by the methods that
Jupyter calls (https://ipython.readthedocs.io/en/stable/config/integrating.html). The policy reads
the plain text, which is output like any other and is taken from Markdown, LaTeX or HTML where the
repr says nothing; hosts have the rest in `Outcome.displays` and
`Outcome.figures`.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from ..protocol.messages import MAX_DISPLAY_BYTES, MAX_FIGURE_BYTES
from ..types import DISPLAY_FORMS, JSON_FORM, PLOTLY, Display
from .namespace import loaded_class, type_name
from .preview import DISPLAY_LIMIT, cut, encodable
from .preview import display as shown_text

_PNG: Final = "image/png"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_METHODS: Final = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_json_": JSON_FORM,
    "_repr_png_": _PNG,
}
# A model looks at a few figures, and a person at some more tables; they share one message.
MOST_DISPLAYS, MOST_FIGURES = 32, 10
# Pixels of a figure: a session may not have the memory to draw more, and nobody can look at it.
MOST_PIXELS = 50_000_000
# Values of these classes have no rich form, so no method is looked for.
_PLAIN = frozenset(map(id, (int, float, bool, complex, str, bytes, list, tuple, dict, set)))

_write = os.write
_modules = sys.modules


class Displays:
    """The displays and pictures of one cell."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.shown: list[Display] = []
        self.figures: list[bytes] = []
        self._left_out = {"displays": 0, "figures": 0}

    def __bool__(self) -> bool:
        return bool(self.shown or self.figures or any(self._left_out.values()))

    def take(self) -> tuple[tuple[Display, ...], tuple[bytes, ...]]:
        """Return what was displayed, and begin anew. Notes on standard error say what was not."""
        for name, count in self._left_out.items():
            if count:
                _note(f"{count} more {name} are not shown")
        taken = tuple(self.shown), tuple(self.figures)
        self._clear()
        return taken

    def add_value(self, value: object) -> str:
        """Add the rich forms of a cell's value, if its class has any, and return its text."""
        text, forms = _shown(value)
        if forms:
            self.add(forms, text, is_value=True)
        return text

    def add_figure(self, png: bytes, name: str = "a figure") -> None:
        """Add a picture, unless there are too many, or it is too large."""
        if len(self.figures) >= MOST_FIGURES:
            self._left_out["figures"] += 1
        elif sum(map(len, self.figures)) + len(png) > MAX_FIGURE_BYTES:
            _note(f"{name} is not shown: {len(png):,} bytes are too many")
        else:
            self.figures.append(png)

    def leave_out_figures(self, count: int) -> None:
        """Count pictures that were not drawn."""
        self._left_out["figures"] += count

    def add(self, forms: dict[str, Any], text: str, *, is_value: bool = False) -> None:
        """Add an object with these forms, a PNG as a picture."""
        if (png := forms.pop(_PNG, None)) is not None:
            self.add_figure(png)
        if not forms:
            return
        if len(self.shown) >= MOST_DISPLAYS:
            self._left_out["displays"] += 1
            return
        room = MAX_DISPLAY_BYTES - sum(map(_size, self.shown))
        display = Display(text, forms, is_value)
        if _size(display) > room:
            _note(f"a display is not shown: {_size(display):,} bytes are too many")
        else:
            self.shown.append(display)


DISPLAYS: Final = Displays()


def _size(display: Display) -> int:
    """The most bytes that the texts of a display can take as UTF-8."""
    return sum(
        len(text) if text.isascii() else 4 * len(text)
        for text in (display.text, *display.forms.values())
    )


def _note(text: str) -> None:
    try:
        _write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # the cell has closed its standard error


# The forms of an object. All of this runs code of the object's class.


def _shown(value: object) -> tuple[str, dict[str, Any]]:
    """Return the text of an object, which a policy reads, and its further forms."""
    if id(type(value)) in _PLAIN:
        return shown_text(value), {}
    if _is_of(value, "plotly.basedatatypes", "BaseFigure"):
        return _plotly_text(value), bundle_of(value)
    text = shown_text(value)
    forms = bundle_of(value)
    if forms and _SAYS_NOTHING.fullmatch(text):
        text = text_of_forms(forms) or text
    return text, forms


# The repr of a class that defines none, and of the classes of `IPython.display`.
_SAYS_NOTHING = re.compile(r"<[\w.<>]+ object(?: at 0x[0-9a-fA-F]+)?>")
_HIDDEN = re.compile(r"(?is)<!--.*?-->|<(script|style|head|template)\b.*?</\1\s*>")
_END_OF_CELL = re.compile(r"(?i)</t[dh]\s*>(?=\s*<t[dh]\b)")
_END_OF_LINE = re.compile(r"(?i)<(?:[bh]r|/(?:p|div|h\d|li|tr|table|pre|dt|dd|ul|ol))\b[^>]*>")
_TAG = re.compile(r"(?i)</?[a-z!][^>]*(?:>|\Z)|<\Z")
_ENTITY = re.compile(r"(?i)&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(amp|lt|gt|quot|apos|nbsp));")
# The module `html` is not loaded for it: cells may have one of their own by that name.
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": " "}
# Characters of HTML that become text, which is for a quick look.
_READ = 100_000


def text_of_forms(forms: Mapping[str, Any]) -> str:
    """Return the form that reads best as text, HTML without its tags; "" if there is none."""
    for form in ("text/markdown", "text/latex"):
        if content := forms.get(form):
            return cut(encodable(content.strip("\n")), DISPLAY_LIMIT)
    return _text_of_html(forms.get("text/html", ""))


def _text_of_html(page: str) -> str:
    text = " ".join(_HIDDEN.sub("", page[:_READ]).split())
    text = _END_OF_LINE.sub("\n", _END_OF_CELL.sub("  ", text))
    lines = (line.strip() for line in _ENTITY.sub(_character, _TAG.sub("", text)).split("\n"))
    more = f"... [{len(page) - _READ:,} characters of HTML left out]" if len(page) > _READ else ""
    return encodable("\n".join(filter(None, (*lines, more))))


def _character(found: re.Match[str]) -> str:
    if found[3]:
        return _ENTITIES[found[3].lower()]
    code = int(found[1]) if found[1] else int(found[2], 16)
    return chr(code) if code <= sys.maxunicode else found[0]


def _plotly_text(figure: Any) -> str:
    """Name the traces and the title of a figure of plotly, whose repr is all of its data."""
    try:
        kinds = [str(trace.type) for trace in figure.data]
        title = str(figure.layout.title.text or "")
    # Boundary: the figure's class may be the user's.
    except Exception:  # noqa: BLE001
        return "Figure()"
    named = f", title={title[:100]!r}" if title else ""
    listed = f": {', '.join(dict.fromkeys(kinds))[:100]}" if kinds else ""
    return f"Figure({len(kinds)} trace{'' if len(kinds) == 1 else 's'}{listed}{named})"


def bundle_of(value: Any) -> dict[str, Any]:
    """Return the forms of `value` by MIME type: texts, and a PNG as bytes."""
    forms: dict[str, Any] = {}
    cls = type(value)
    if _is_of(value, "matplotlib.figure", "Figure"):
        png = _drawn(value)
        if "matplotlib.pyplot" in _modules:
            _modules["matplotlib.pyplot"].close(value)  # or it would be shown again at the end
        return {} if png is None else {_PNG: png}
    if _is_of(value, "plotly.basedatatypes", "BaseFigure"):
        return dict(_checked({PLOTLY: _called(value, "to_json"), _PNG: _plotly_png(value)}))
    if _defines(cls, "_repr_mimebundle_"):
        found = _called(value, "_repr_mimebundle_")
        bundle = found[0] if isinstance(found, tuple) and found else found
        forms.update(_checked(bundle if isinstance(bundle, Mapping) else {}))
    for method, form in _METHODS.items():
        if form not in forms and _defines(cls, method):
            found = _called(value, method)
            # With metadata, as of a size, it is a pair.
            content = found[0] if isinstance(found, tuple) and found else found
            forms.update(_checked({form: content}))
    return forms


def _is_of(value: object, module: str, name: str) -> bool:
    """Return whether `value` is of that class or a subclass, without importing its module."""
    cls = loaded_class(module, name)
    return cls is not None and issubclass(type(value), cls)


def _defines(cls: type, method: str) -> bool:
    try:
        return getattr(cls, method, None) is not None
    except Exception:  # noqa: BLE001 (the metaclass may be the user's)
        return False


def _called(value: object, method: str) -> Any:
    try:
        return getattr(value, method)()
    except KeyboardInterrupt:
        raise
    # Boundary: code of the object's class; a form that fails does not cost the others.
    except Exception as error:  # noqa: BLE001
        _note(f"{type_name(value)}.{method}() raised {type_name(error)}")
        return None


def _checked(bundle: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the forms that hosts take, each as text, or as bytes for a PNG."""
    for form, content in bundle.items():
        if form == _PNG:
            png = _png_of(content)
            if png is not None:
                yield form, png
        elif form in (JSON_FORM, PLOTLY) and content is not None:
            text = content if form == PLOTLY and isinstance(content, str) else _json_of(content)
            if text is not None:
                yield form, text
        elif form in DISPLAY_FORMS and isinstance(content, str):
            yield form, content


def _png_of(content: object) -> bytes | None:
    if isinstance(content, str):  # as in a notebook's file
        try:
            content = b64decode(content)
        except ValueError:
            return None
    return content if isinstance(content, bytes) and content.startswith(_PNG_START) else None


def _json_of(content: object) -> str | None:
    try:
        return json.dumps(content, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _plotly_png(figure: Any) -> object:
    """Return the picture of a plotly figure, if kaleido is loaded: it starts a browser."""
    return _called(figure, "to_image") if "kaleido" in _modules else None


# Figures of matplotlib, drawn as Jupyter does: with the figure's own resolution, and all labels.


def take_figures() -> None:
    """Add the open pyplot figures, oldest first, and close all.

    Figures that cannot be drawn are named on standard error. An interrupt, such as a time-out's,
    ends the drawing. If `matplotlib.pyplot` is not loaded, nothing is imported.
    """
    pyplot: Any = _modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    try:
        numbers = pyplot.get_fignums()
        try:
            for number in numbers[:MOST_FIGURES]:
                png = _drawn(pyplot.figure(number), f"figure {number}")
                if png is not None:
                    DISPLAYS.add_figure(png, f"figure {number}")
            DISPLAYS.leave_out_figures(max(0, len(numbers) - MOST_FIGURES))
        finally:
            if numbers:
                pyplot.close("all")
    except KeyboardInterrupt:
        _note(f"drawing was interrupted; figures shown: {len(DISPLAYS.figures)}")
    # Boundary: a figure runs code of the user's (formatters, artists), and pyplot may be changed.
    except BaseException as error:  # noqa: BLE001
        _note(f"figures cannot be shown: {type(error).__name__}")


def _drawn(figure: Any, name: str = "a figure") -> bytes | None:
    """Return a figure of matplotlib as PNG, or None and a note."""
    picture = io.BytesIO()
    try:
        width, height = (float(side) * float(figure.dpi) for side in figure.get_size_inches())
        if width * height > MOST_PIXELS:
            _note(f"{name} is not shown: {width:,.0f} x {height:,.0f} pixels are too many")
            return None
        figure.savefig(picture, format="png", bbox_inches="tight", dpi="figure")
    except KeyboardInterrupt:
        raise
    # Boundary, as above: one broken figure does not cost the others.
    except BaseException as error:  # noqa: BLE001
        _note(f"{name} cannot be drawn: {type(error).__name__}: {_first_line(error)}")
        return None
    return picture.getvalue()


def _first_line(error: BaseException) -> str:
    try:
        return str(error).partition("\n")[0][:200]
    except Exception:  # noqa: BLE001 (the exception's class may be the user's)
        return ""


# `display`, and the functions of libraries that show.


def display(*objects: object, raw: bool = False, **_: object) -> None:
    """Show objects: their text in the output, and their rich forms to whoever looks.

    `raw`: the objects are MIME bundles themselves. Other arguments of IPython's are accepted.
    """
    for shown in objects:
        if raw and isinstance(shown, Mapping):
            plain, forms = shown.get("text/plain"), dict(_checked(shown))
            text = plain if isinstance(plain, str) else text_of_forms(forms)
        else:
            text, forms = _shown(shown)
        if text:
            sys.stdout.write(f"{text}\n")
        DISPLAYS.add(forms, text)


def offer_display() -> None:
    """Make `display` known to all code, as IPython does. Called by a cell that names it."""
    vars(builtins).setdefault("display", display)


def _show(shown: object, *_: object, **__: object) -> None:
    display(shown)


def _adapt_ipython(module: Any) -> None:
    module.display = display
    if hasattr(module, "publish_display_data"):
        module.publish_display_data = lambda data, *_, **__: display(data, raw=True)


def _adapt_pil(module: Any) -> None:
    """`Image.show()` tries viewers in their order; ours takes every picture."""

    class Shown(module.Viewer):  # type: ignore[misc]
        def show(self, image: object, **_: object) -> int:
            display(image)
            return 1

    module.register(Shown(), 0)


def _adapt_plotly(module: Any) -> None:
    module.show = _show


# Adaptations of modules, when they are imported (`imports.adapt_imports`).
ON_IMPORT: Final[Mapping[str, Callable[[Any], None]]] = {
    "IPython.core.display_functions": _adapt_ipython,
    "IPython.display": _adapt_ipython,
    "PIL.ImageShow": _adapt_pil,
    "plotly.io": _adapt_plotly,
}


# `IPython.display` where IPython is not installed: code that models write imports it.


class _Shown:
    """An object of `IPython.display` with one form."""

    def __init__(self, data: Any = None, filename: str | None = None, **_: object) -> None:
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data

    def __repr__(self) -> str:
        return f"<IPython.display.{type(self).__name__} object>"


def _class(name: str, method: str) -> type:
    """Return the class of objects with one form; text may be given as bytes of UTF-8."""

    def form(self: Any) -> Any:
        is_text = isinstance(self.data, bytes) and method != "_repr_png_"
        return self.data.decode() if is_text else self.data

    return type(name, (_Shown,), {method: form, "__module__": "IPython.display"})


@cache
def stand_in() -> dict[str, ModuleType]:
    """Return the modules `IPython` and `IPython.display`, with what needs no shell."""
    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    forms = {
        "HTML": "_repr_html_",
        "Markdown": "_repr_markdown_",
        "Latex": "_repr_latex_",
        "Math": "_repr_latex_",
        "SVG": "_repr_svg_",
        "JSON": "_repr_json_",
        "Image": "_repr_png_",
    }
    vars(module).update({name: _class(name, method) for name, method in forms.items()})
    vars(module).update(display=display, clear_output=lambda wait=False: None)
    vars(package).update(
        __path__=[], display=module, get_ipython=lambda: None, version_info=(0, 0, 0)
    )
    return {"IPython": package, "IPython.display": module}
