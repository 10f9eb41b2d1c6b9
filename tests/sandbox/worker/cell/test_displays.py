"""Rich results: what a cell displays, as a MIME bundle beside the plain text of its output."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from repl_sandbox import Display, Finished, Session
from repl_sandbox.protocol.messages import MAX_DISPLAY_BYTES
from repl_sandbox.worker.displays import MOST_DISPLAYS, MOST_FIGURES

RICH = """
class Rich:
    def __init__(self, **forms): self.forms = forms
    def __repr__(self): return 'rich'
    def _repr_html_(self): return self.forms.get('html')
    def _repr_markdown_(self): return self.forms.get('markdown')
    def _repr_latex_(self): return self.forms.get('latex')
    def _repr_svg_(self): return self.forms.get('svg')
    def _repr_json_(self): return self.forms.get('json')
    def _repr_png_(self): return self.forms.get('png')
class Bundle:
    def __init__(self, bundle): self.bundle = bundle
    def __repr__(self): return 'bundle'
    def _repr_mimebundle_(self, include=None, exclude=None): return self.bundle
"""
PNG = "b'\\x89PNG\\r\\n\\x1a\\n picture'"


def shown(session: Session, code: str) -> Finished:
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return outcome


@pytest.fixture
def rich(session: Session) -> Session:
    shown(session, RICH)
    return session


def test_a_table_has_its_text_and_its_html(session: Session) -> None:
    outcome = shown(session, "import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    assert outcome.value == "   a\n0  1\n1  2"
    (display,) = outcome.displays
    assert (display.text, display.is_value) == (outcome.value, True)
    assert "<th>a</th>" in display.forms["text/html"]


def test_a_table_of_polars_has_its_html(session: Session) -> None:
    (display,) = shown(session, "import polars as pl\npl.DataFrame({'a': [1]})").displays
    assert "<th>a</th>" in display.forms["text/html"]


@pytest.mark.parametrize(
    ("name", "form", "content"),
    [
        ("html", "text/html", "<b>größe 🐍</b>"),
        ("markdown", "text/markdown", "# t"),
        ("latex", "text/latex", "$x^2$"),
        ("svg", "image/svg+xml", "<svg/>"),
    ],
)
def test_a_value_has_the_form_of_each_method(
    rich: Session, name: str, form: str, content: str
) -> None:
    outcome = shown(rich, f"Rich({name}={content!r})")
    assert outcome.displays == (Display("rich", {form: content}, is_value=True),)
    assert outcome.value == "rich"


def test_json_is_text_of_json(rich: Session) -> None:
    (display,) = shown(rich, "Rich(json={'a': [1, None]})").displays
    assert json.loads(display.forms["application/json"]) == {"a": [1, None]}
    assert shown(rich, "Rich(json={1, 2})").displays == ()  # a set is no JSON


def test_a_png_is_a_figure(rich: Session) -> None:
    outcome = shown(rich, f"Rich(png={PNG}, html='<b>')")
    assert [bytes(figure) for figure in outcome.figures] == [b"\x89PNG\r\n\x1a\n picture"]
    assert outcome.displays[0].forms == {"text/html": "<b>"}
    assert shown(rich, "Rich(png=b'GIF89a')").figures == ()


def test_display_prints_the_text_and_keeps_the_order(rich: Session) -> None:
    outcome = shown(rich, "display(Rich(html='1'), 3)\nprint('then')\ndisplay(Rich(html='2'))")
    assert outcome.stdout == "rich\n3\nthen\nrich\n"
    assert [display.forms["text/html"] for display in outcome.displays] == ["1", "2"]
    assert not any(display.is_value for display in outcome.displays)


def test_display_is_a_builtin_once_a_cell_names_it(session: Session) -> None:
    assert shown(session, "'play' in str(dir(__builtins__))").value == "False"
    assert shown(session, "display(1)").stdout == "1\n"
    assert shown(session, "display = 5\ndisplay").value == "5"


@pytest.mark.parametrize(
    "bundle",
    [
        {"text/html": "<b>", "text/plain": "b", "application/x-unknown": "no", 3: "no"},
        ({"text/html": "<b>"}, {"text/html": {"isolated": True}}),
    ],
)
def test_a_bundle_gives_the_forms_that_are_known(rich: Session, bundle: object) -> None:
    (display,) = shown(rich, f"Bundle({bundle!r})").displays
    assert display.forms == {"text/html": "<b>"}


def test_a_picture_of_a_bundle_may_be_base64(rich: Session) -> None:
    code = f"import base64\nBundle({{'image/png': base64.b64encode({PNG}).decode()}})"
    assert len(shown(rich, code).figures) == 1
    assert shown(rich, "Bundle({'image/png': 'no base64'})").figures == ()


@pytest.mark.parametrize("bundle", ["None", "[]", "()", "3", "(None, {})", "{'text/html': 3}"])
def test_what_is_no_bundle_is_no_display(rich: Session, bundle: str) -> None:
    outcome = shown(rich, f"Bundle({bundle})")
    assert (outcome.value, outcome.displays, outcome.figures) == ("bundle", (), ())


def test_a_form_that_fails_is_named_and_the_others_are_shown(rich: Session) -> None:
    code = "class Odd(Rich):\n def _repr_svg_(self): 1 / 0\nOdd(html='<b>')"
    outcome = shown(rich, code)
    assert outcome.stderr == "Odd._repr_svg_() raised ZeroDivisionError\n"
    assert outcome.displays[0].forms == {"text/html": "<b>"}


def test_a_class_that_answers_every_name_has_no_forms(session: Session) -> None:
    code = "class Any:\n def __getattr__(self, name): return lambda: name\nAny()"
    assert shown(session, code).displays == ()
    code = "class Meta(type):\n def __getattr__(cls, name): 1 / 0\nclass Any(metaclass=Meta): pass"
    assert shown(session, f"{code}\nAny()").displays == ()


def test_many_displays_are_counted(rich: Session) -> None:
    outcome = shown(rich, "for n in range(100_000): display(Rich(html='x'));")
    assert len(outcome.displays) == MOST_DISPLAYS
    assert f"{100_000 - MOST_DISPLAYS} more displays are not shown" in outcome.stderr
    assert shown(rich, "display(Rich(html='x'))").stderr == ""


def test_many_pictures_are_counted(rich: Session) -> None:
    outcome = shown(rich, f"for n in range(20): display(Rich(png={PNG}))")
    assert len(outcome.figures) == MOST_FIGURES
    assert f"{20 - MOST_FIGURES} more figures are not shown" in outcome.stderr


def test_displays_of_too_many_bytes_are_named_and_smaller_ones_are_shown(rich: Session) -> None:
    code = f"display(Rich(html='🐍' * {MAX_DISPLAY_BYTES // 4 + 1}))\ndisplay(Rich(html='x'))"
    outcome = shown(rich, code)
    assert "a display is not shown" in outcome.stderr
    assert [display.forms for display in outcome.displays] == [{"text/html": "x"}]


def test_what_a_failed_cell_has_displayed_is_kept(rich: Session) -> None:
    outcome = rich.run("display(Rich(html='x'))\n1 / 0")
    assert [display.forms for display in outcome.displays] == [{"text/html": "x"}]


# ── libraries ────────────────────────────────────────────────────────────────────────────────────

FORMS_OF_IPYTHON = """
from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, Math, clear_output, display
open('p.png', 'wb').write({png})
display(HTML('<b>'), Markdown('# t'), Latex('$x$'), Math('x'), SVG('<svg/>'), JSON([1]))
display(Image({png}), Image(filename='p.png'))
clear_output()
"""


def test_code_for_ipython_works_without_it(session: Session) -> None:
    outcome = shown(session, FORMS_OF_IPYTHON.replace("{png}", PNG))
    assert [next(iter(display.forms.items())) for display in outcome.displays] == [
        ("text/html", "<b>"),
        ("text/markdown", "# t"),
        ("text/latex", "$x$"),
        ("text/latex", "x"),
        ("image/svg+xml", "<svg/>"),
        ("application/json", "[1]"),
    ]
    assert len(outcome.figures) == 2
    assert shown(session, "import IPython\nIPython.get_ipython()").value is None


@pytest.mark.parametrize(
    ("shown_object", "text"),
    [
        ("Markdown('# Title\\n\\n* one\\n')", "# Title\n\n* one"),
        ("Latex('$x^2$')", "$x^2$"),
        ("Math('x')", "x"),
        (
            "HTML('<p>a &amp;&#32;b<br>c</p><!-- no --><script>x()</script><style>p{}</style>')",
            "a & b\nc",
        ),
        ("HTML('<ul><li>one</li>\\n <li>two &lt;b&gt;</ul> 1 < 2')", "one\ntwo <b>\n1 < 2"),
        ("HTML('<b>' * 200_000)", "... [500,000 characters of HTML left out]"),
        ("HTML('<p>&#1114112; &#xd800;')", "&#1114112; \\ud800"),
        ("SVG('<svg/>')", "<IPython.display.SVG object>"),
    ],
)
def test_text_of_an_object_whose_repr_says_nothing(
    session: Session, shown_object: str, text: str
) -> None:
    """The policy reads it, and a person at a terminal."""
    code = f"from IPython.display import *\ndisplay({shown_object})\n{shown_object}"
    outcome = shown(session, code)
    assert (outcome.stdout, outcome.value) == (f"{text}\n", text)
    assert [display.text for display in outcome.displays] == [text] * 2


def test_a_table_without_a_repr_has_its_cells_as_text(rich: Session) -> None:
    table = "<table><tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td>2</td></tr></table>"
    code = f"class Table(Rich): __repr__ = object.__repr__\nTable(html={table!r})"
    assert shown(rich, code).value == "a  b\n1  2"
    assert shown(rich, f"display({{'text/html': {table!r}}}, raw=True)").stdout == "a  b\n1  2\n"
    assert shown(rich, f"Rich(html={table!r})").value == "rich"


def test_a_module_of_ipython_that_is_not_there_is_missing(session: Session) -> None:
    outcome = session.run("import IPython.core")
    assert outcome.error is not None
    assert outcome.error.type == "ModuleNotFoundError"


def test_pictures_of_pil_are_figures(session: Session) -> None:
    outcome = shown(session, "from PIL import Image\nImage.new('RGB', (3, 2)).show()")
    assert Image.open(io.BytesIO(outcome.figures[0])).size == (3, 2)
    assert shown(session, "Image.new('RGB', (4, 2))").figures


# The parts of plotly that are used: it is not installed where the tests run.
PLOTLY = {
    "plotly/__init__.py": "",
    "plotly/basedatatypes.py": """
from types import SimpleNamespace as Part
class BaseFigure:
    data = [Part(type='bar'), Part(type='scatter'), Part(type='bar')]
    layout = Part(title=Part(text='Sales'))
    def __repr__(self): return 'Figure' + 'x' * 7000
    def to_json(self): return '{"data": []}'
    def show(self, *arguments, **named):
        import plotly.io
        return plotly.io.show(self, *arguments, **named)
""",
    "plotly/io.py": "def show(figure): raise ValueError('nbformat')",
}


def test_figures_of_plotly_are_their_json(session: Session) -> None:
    session.files.put_all(PLOTLY)
    form = "application/vnd.plotly.v1+json"
    code = "from plotly.basedatatypes import BaseFigure\nBaseFigure().show()\nBaseFigure()"
    outcome = shown(session, code)
    assert [display.forms for display in outcome.displays] == [{form: '{"data": []}'}] * 2
    text = "Figure(3 traces: bar, scatter, title='Sales')"
    assert (outcome.stdout, outcome.value) == (f"{text}\n", text)
    assert shown(session, "BaseFigure.data = ()\nBaseFigure()").value == (
        "Figure(0 traces, title='Sales')"
    )
    assert shown(session, "BaseFigure.data = 1\nBaseFigure()").value == "Figure()"


DRAWN = """
import matplotlib.pyplot as plt
plt.figure(figsize=(3, 2))
plt.plot([1, 2])
plt.xticks([0, 1], ['a long label ' * 3, 'another'], rotation=90)
plt.ylabel('a label at the side', labelpad=40)
plt.show()
"""


def test_labels_of_a_figure_are_not_cut(session: Session) -> None:
    """Its edges are of its background's colour, so nothing crosses them."""
    outcome = shown(session, DRAWN)
    assert outcome.stderr == ""
    picture = Image.open(io.BytesIO(outcome.figures[0])).convert("RGB")
    width, height = picture.size
    assert height > 200  # of the figure alone
    edges = [(x, y) for x in range(width) for y in (0, height - 1)]
    edges += [(x, y) for x in (0, width - 1) for y in range(height)]
    assert {picture.getpixel(place) for place in edges} == {(255, 255, 255)}


def test_a_figure_that_is_displayed_is_shown_once(session: Session) -> None:
    code = "import matplotlib.pyplot as plt\nfigure = plt.figure()\ndisplay(figure)"
    assert len(shown(session, code).figures) == 1
    assert len(shown(session, "plt.figure()").figures) == 1


def test_a_figure_of_too_many_pixels_is_named(session: Session) -> None:
    outcome = shown(session, "import matplotlib.pyplot as plt\nplt.figure(figsize=(320, 320));")
    assert outcome.figures == ()
    assert "figure 1 is not shown: 32,000 x 32,000 pixels are too many" in outcome.stderr
