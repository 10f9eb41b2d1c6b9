"""Reprs and HTML for notebooks: short, bounded, and without markup from hostile contents."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repl_env.common.display import Displayed
from repl_env.common.display import DisplayedByRepr as ByRepr
from repl_env.models import (
    CellDisplay,
    CodeBlockResult,
    EncodedFigure,
    REPLObservation,
    result_of,
)
from repl_env.rlm import Trajectory
from repl_sandbox import (
    Change,
    Display,
    ErrorInfo,
    Figure,
    File,
    Finished,
    Listing,
    Raised,
    Sandbox,
    Usage,
    Variable,
    VariableList,
)
from repl_sandbox import display as engine_displayed
from repl_sandbox.display import size_text
from repl_sandbox.types import DISPLAY_FORMS

ROOT = Path(__file__).parents[3]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
EVIL = "<script>alert(1)</script>"
EVIL += "<img src=x onerror=y>\"'`</pre></td>\x00\x1b]0;t\x07\u202e\ud800\n&lt;"
HOSTILE: list[Any] = [
    EVIL * 20_000,
    [EVIL * 1000] * 10_000,
    ({EVIL: EVIL * 1000} for _ in range(1)),
    [{EVIL: EVIL * 100, "b": [EVIL] * 1000}] * 10_000,
    {EVIL * n: EVIL * 1000 for n in range(1, 40)},
    (Change("new", EVIL, EVIL, 3, EVIL),) * 500,
    Raised(stdout=EVIL * 10_000, error=ErrorInfo(EVIL, EVIL, EVIL, 1)),
    10**5000,
    [],
]
DISPLAYED = (Displayed, engine_displayed.Displayed)


def public_classes() -> Iterator[type[Any]]:
    names = tomllib.loads((ROOT / "docs/public_names.toml").read_text())
    for module in (
        "repl_sandbox",
        "repl_env",
        "repl_env.models",
        "repl_env.rlm",
        "repl_env.evaluation",
    ):
        for name in names[module]:
            found = getattr(import_module(module), name, None)
            if isinstance(found, type) and issubclass(found, DISPLAYED):
                yield found


CLASSES = sorted(set(public_classes()), key=lambda kind: kind.__qualname__)


def filled(kind: type[Any], content: Any) -> Any:
    """An instance whose fields all hold `content`, whatever their types."""
    if is_dataclass(kind):
        made = object.__new__(kind)
        for field in fields(kind):
            object.__setattr__(made, field.name, content)
        if kind is Trajectory:
            object.__setattr__(made, "events", ())
        return made
    values = dict.fromkeys(kind.model_fields, content)
    if "metadata" in values:
        values["metadata"] = {"final_answer": content, "error_kind": content}
    return kind.model_construct(**values)


class Tags(HTMLParser):
    """The tags and attributes of a text; others than ours fail."""

    ALLOWED = frozenset(
        {"div", "strong", "table", "tr", "th", "td", "pre", "code", "img", "dl", "dt", "dd", "em"}
        | {"iframe"}
    )
    # The frame around hostile HTML: `tests/web/test_displays.py` attacks it in a browser.
    FRAME = re.compile(
        r"<!doctype html><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"
    )

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.ALLOWED, tag
        named = dict(attrs)
        if tag == "img":
            assert set(named) == {"alt", "src"}
            form = r"data:image/(png|svg\+xml);base64,[A-Za-z0-9+/=]*"
            assert re.fullmatch(form, named["src"] or "")
        elif tag == "iframe":
            assert set(named) == {"sandbox", "title", "style", "srcdoc"}
            assert named["sandbox"] is None
            assert self.FRAME.match(named["srcdoc"] or "")
            self.open.append(tag)
        else:
            assert not attrs
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)


def check(value: Any) -> str:
    assert len(repr(value)) < 300
    assert len(str(value)) < 300
    return html_of(value)


def html_of(value: Any) -> str:
    html: str = value._repr_html_()
    html.encode()  # no lone surrogates
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return html


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_hostile_contents_of_any_size_stay_short_and_are_no_markup(kind: type[Any]) -> None:
    for content in HOSTILE:
        html = check(filled(kind, content))
        assert len(html) < 500_000
        assert "\x1b" not in html and "\x00" not in html


@pytest.mark.parametrize("form", DISPLAY_FORMS)
def test_hostile_forms_of_a_display_are_framed_or_text(form: str) -> None:
    for display in (Display(EVIL, {form: EVIL * 100}), CellDisplay(text=EVIL, forms={form: EVIL})):
        check(display)
        assert display.html() == display._repr_html_()
    check(Finished(displays=(Display(EVIL, {form: EVIL}),)))
    large = Finished(displays=(Display("x", {form: "x" * (1 << 20)}),) * 10)
    html = check(large)
    assert len(html) < 10 << 20
    assert "too large to be shown here" in html


def test_forms_are_shown_from_the_richest_to_the_plainest() -> None:
    display = Display("plain", {"text/markdown": "# marked", "text/html": "<b>"})
    assert "&lt;b&gt;" in display.html()
    assert Display("plain", {"text/markdown": "# marked"}).html() == "<pre># marked</pre>"
    assert Display("plain", {"application/json": "{}"}).html() == "<pre>plain</pre>"


def test_all_kinds_of_outcomes_are_covered() -> None:
    names = {kind.__qualname__ for kind in CLASSES}
    assert names >= {
        "Finished", "Raised", "TimedOut", "Killed", "StepResult", "REPLObservation",
        "CodeBlockResult", "REPLState", "RLMRunResult", "Trajectory", "Isolation", "Variable",
    }  # fmt: skip
    assert any("Result" in name for name in names)


def test_a_repr_names_attributes_alone_and_leaves_out_defaults() -> None:
    outcome = Finished(
        stdout="out\n",
        value="5",
        changes=(Change("new", "x", "int", 28, "5"),),
        figures=(Figure(PNG),),
    )
    assert repr(Finished()) == "Finished()"
    assert repr(Finished(value="x" * 500)) == f"Finished(value={'x' * 70!r}... (500 characters))"
    observation = REPLObservation(
        result=CodeBlockResult(stdout="1\n"), reward=0.5, done=True, metadata={"final_answer": "4"}
    )
    for value in (outcome, observation, result_of(observation), Usage(1.0, peak_memory=3)):
        for name in re.findall(r"(?<=[(\s])(\w+)=", repr(value)):
            owners = (value, getattr(value, "result", None), getattr(value, "observation", None))
            assert any(
                hasattr(each, name) for each in (*owners, outcome.changes[0], observation.result)
            )
    assert "final_answer='4'" in repr(observation)
    assert f"{len(PNG)} bytes of PNG" in repr(Finished(figures=(Figure(PNG),)))
    assert "bytes of PNG" in repr(CodeBlockResult(figures=[base64.b64encode(PNG).decode()]))


def test_html_shows_texts_tables_and_pictures() -> None:
    html = check(
        Raised(
            stdout="two\nlines",
            error=ErrorInfo("ValueError", "no", "Traceback\n  no", 3),
            changes=(Change("new", "x", "int", 28, "5"), Change("deleted", "y", "str", 1, "")),
            figures=(Figure(PNG), Figure(b"not a picture")),
        )
    )
    assert "<pre>two\nlines</pre>" in html
    assert "<td>deleted</td>" in html and "<th>kind</th>" in html
    assert base64.b64encode(PNG).decode() in html and "no PNG" in html
    observation = REPLObservation(
        result=CodeBlockResult(figures=[base64.b64encode(PNG).decode(), "no base64 <b>"])
    )
    assert base64.b64encode(PNG).decode() in check(observation)


def test_the_html_of_a_cell_begins_with_its_traceback_and_has_each_text_once() -> None:
    traceback = "Traceback\n  1 / 0\nZeroDivisionError: zero\n"
    error = ErrorInfo("ZeroDivisionError", "zero", traceback, 1)
    outcome = check(Raised(stdout="printed\n", stderr="warned\n", error=error))
    result = CodeBlockResult(
        stdout="printed\n",
        stderr=f"warned\n{traceback}",
        success=False,
        exception=f"ZeroDivisionError: zero\n{traceback}",
    )
    for html in (outcome, check(result), check(result_of(REPLObservation(result=result)))):
        assert html.count("1 / 0") == html.count("printed") == html.count("warned") == 1
        order = [html.index(text) for text in ("1 / 0", "printed", "warned")]
        assert order == sorted(order) and not re.search("<table>.*1 / 0", html, re.DOTALL)


def test_a_table_stands_in_the_place_of_its_text_and_once() -> None:
    table = {"text/html": "<table><tr><td>cell</td></tr></table>"}
    displays = (Display("a\n1", table), Display("b\n2", table, is_value=True))
    outcome = Finished(stdout="first\na\n1\nthen\n", value="b\n2", displays=displays)
    shown = [{"text": each.text, "forms": table, "is_value": each.is_value} for each in displays]
    result = CodeBlockResult(
        stdout="first\na\n1\nthen\nb\n2\n",
        value="b\n2",
        displays=[CellDisplay(**each) for each in shown],
    )
    for html in (check(outcome), check(result)):
        blocks = re.findall(r"<pre>(?s:.*?)</pre>|<iframe", html)
        assert blocks == ["<pre>first\n</pre>", "<iframe", "<pre>then\n</pre>", "<iframe"]
    assert "<pre>3</pre>" in check(Finished(stdout="3\n", value="3"))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (99_500_000, "100 MB"),
        (8 << 30, "8.6 GB"), (10**30, "1208925819615 TB"),
    ],
)  # fmt: skip
def test_sizes_are_in_units(size: int, text: str) -> None:
    assert size_text(size) == text
    assert f"<td>{text}</td>" in check(Finished(changes=(Change("new", "x", "T", size, ""),)))


def test_variables_are_a_table_in_notebooks_and_terminals(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert str(session.variables()) == "no variables"
        session.run(f"text = 'x' * 1_200_000\nnumber = 5\nglobals()[{EVIL!r}] = 'a\\nb'")
        variables = session.variables()
    assert [each.name for each in variables][:2] == ["text", "number"]
    assert variables == list(variables)
    name, text, number, evil = str(variables).splitlines()
    assert name.split() == ["name", "type", "size", "preview"]
    assert text.startswith("text  ") and "  1.2 MB  'xxx" in text
    assert number.split() == ["number", "int", "28", "B", "5"]
    assert "<script>" in evil and not {"\x1b", "\x00", "\u202e"} & {*evil} and len(evil) < 500
    html = html_of(variables)
    assert len(repr(variables)) < 300 and "<th>size</th>" in html and "<td>1.2 MB</td>" in html
    many = VariableList([Variable("x", "int", 28, "1")] * 10_000)
    assert str(many).endswith("\n... 9,900 more") and len(str(many).splitlines()) == 102
    shown: list[str] = []
    variables._repr_pretty_(SimpleNamespace(text=shown.append), cycle=False)
    assert shown == [str(variables)]  # as IPython shows it


def test_a_figure_is_its_bytes_and_an_object(tmp_path: Path) -> None:
    figure = Figure(PNG)
    assert figure == PNG and figure.png == PNG and type(figure.png) is bytes
    figure.save(tmp_path / "a.png")
    (encoded,) = CodeBlockResult(figures=[base64.b64encode(PNG).decode()]).figures
    assert isinstance(encoded, EncodedFigure) and encoded == base64.b64encode(PNG).decode()
    encoded.save(tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes() == PNG
    assert encoded._repr_png_() == figure._repr_png_() == PNG
    with pytest.raises(ValueError, match="base64"):
        _ = EncodedFigure("<no>").png
    again = CodeBlockResult.model_validate_json(
        CodeBlockResult(figures=[encoded]).model_dump_json()
    )
    assert again.figures == [encoded]


def test_a_listing_and_a_session_are_shown(sandbox: Sandbox) -> None:
    listing = Listing([File(EVIL, 1, "file", 0.0)] * 5000, complete=False)
    assert repr(listing) == "<Listing, 5,000 entries, complete=False>"
    assert repr(Listing(listing[:1], complete=True)) == "<Listing, 1 entry, complete=True>"
    assert "4,980 more rows" in check(listing)
    with sandbox.session() as session:
        outcome = session.run("print(1)")
        assert check(outcome)
        for value in (session, sandbox):
            assert "&lt;" in check(value)
        assert len(repr(session.isolation)) < 300
        check(session.isolation)


def test_a_trajectory_is_shown_without_engine_and_server() -> None:
    code = (
        "import sys\nfrom repl_env.rlm import Trajectory\nshown = Trajectory(())\n"
        "assert len(repr(shown)) < 300 and shown._repr_html_()\n"
        "ours = ('repl_sandbox', 'repl_server')\n"
        "loaded = {each for each in sys.modules if each.startswith(ours)}\n"
        "assert loaded <= {'repl_sandbox', 'repl_sandbox.display'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _Client(ByRepr):
    def __repr__(self) -> str:
        return f"<{EVIL * 100}>"


def test_an_object_shown_by_its_repr_is_escaped_and_cut() -> None:
    tags = Tags()
    tags.feed(_Client()._repr_html_())
    assert len(_Client()._repr_html_()) < 3000
