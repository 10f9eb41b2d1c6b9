"""HTML and SVG of a session in a real browser: shown, without scripts, and without a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from repl_env import LocalREPLEnv
from repl_env.display.pages import trajectory_data, write_page
from repl_env.rlm import CellRan, RunStarted, TrajectoryWriter
from repl_env.rlm.model_call import CellStarted
from repl_sandbox import Display
from tests.server.conftest import serving
from tests.web.playground_page import Playground

# Each line asks the server LISTENER, or runs a script that changes the title of the page.
ATTACKS, SVG = (
    (Path(__file__).parent / name).read_text() for name in ("attacks.html", "attacks.svg")
)

REFRESH = '<meta http-equiv="refresh" content="0; url=LISTENER/refresh">'


class Listener:
    """A server that others must not ask; `asked` has the paths."""

    def __init__(self) -> None:
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            do_POST = do_GET  # noqa: N815 (the name that http.server calls)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.attacks, self.svg, self.refresh = (
            text.replace("LISTENER", self.url) for text in (ATTACKS, SVG, REFRESH)
        )

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may complain: attacks that fail are reported at its console."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


def hostile(listener: Listener) -> list[Display]:
    """A display with the attacks as HTML, and one with those of an SVG."""
    return [
        Display("table", {"text/html": listener.attacks}),
        Display("picture", {"image/svg+xml": listener.svg}),
        Display("page", {"text/html": listener.refresh}),
    ]


def assert_harmless(page: Page, listener: Listener, address: str) -> None:
    """The frame shows its HTML; neither that nor a click on a link asks the listener."""
    expect(page.locator("img[alt=displayed], img[alt=figure]").first).to_be_visible()
    frame = page.frame_locator("iframe[title=displayed]").first
    expect(frame.locator(".seen")).to_have_text("shown")
    for link in ("top", "parent", "blank"):
        frame.locator(f"a.{link}").click(no_wait_after=True)
    frame.get_by_role("button", name="Send").click(no_wait_after=True)
    page.wait_for_timeout(500)  # a refresh or an image would come within it
    assert listener.asked == []
    assert page.url.partition("#")[0] == address
    assert page.title() != "hacked"
    assert len(page.context.pages) == 1


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("attacks", {"/img", "/frame", "/stylesheet", "/script", "/onerror", "/form"}),
        ("refresh", {"/refresh"}),
    ],
)
def test_the_attacks_work_without_a_frame(
    page: Page, listener: Listener, tmp_path: Path, name: str, asked: set[str]
) -> None:
    """The attacks that are tried below are not empty."""
    (tmp_path / "page.html").write_text(getattr(listener, name))
    page.goto((tmp_path / "page.html").as_uri(), wait_until="commit")
    for _ in range(200):
        if asked <= {path.partition("?")[0] for path in listener.asked}:
            return
        page.wait_for_timeout(100)
    raise AssertionError(listener.asked)


def test_a_notebook_shows_html_and_svg_harmlessly(
    page: Page, listener: Listener, tmp_path: Path
) -> None:
    """As `_repr_html_` puts them into a page that has no policy of its own."""
    shown = "".join(display.html() for display in hostile(listener))
    (tmp_path / "page.html").write_text(f"<!doctype html><title>notebook</title>{shown}")
    address = (tmp_path / "page.html").as_uri()
    page.goto(address)
    assert_harmless(page, listener, address)


def test_an_exported_page_shows_html_and_svg_harmlessly(
    page: Page, listener: Listener, tmp_path: Path
) -> None:
    with LocalREPLEnv() as env:
        env.reset()
        observation = env.execute("x = 1").observation
    displays = [
        {"text": display.text, "forms": dict(display.forms)} for display in hostile(listener)
    ]
    result = observation.result.model_copy(update={"stdout": "table\npicture\npage\nthen\n"})
    result = type(result).model_validate({**result.model_dump(), "displays": displays})
    observation = observation.model_copy(update={"result": result})
    with TrajectoryWriter(tmp_path / "run.jsonl") as write:
        write(
            RunStarted(
                run="0", time=1.0, depth=0, question="q", model="m", max_iterations=3, contexts=()
            )
        )
        write(CellStarted(run="0", time=2.0, turn=1, cell=1, code="show()"))
        write(
            CellRan(
                run="0",
                time=2.1,
                turn=1,
                cell=1,
                code="show()",
                observation=observation,
                seconds=0.1,
            )
        )
    write_page(trajectory_data(tmp_path / "run.jsonl"), tmp_path / "run.html")
    address = (tmp_path / "run.html").as_uri()
    page.goto(f"{address}#/run/0/0/turn/1")
    expect(page.locator(".cell")).to_contain_text("then")
    assert_harmless(page, listener, address)


CELL = """
from IPython.display import HTML, SVG, display
print('before')
display(HTML({attacks!r}))
print('between')
display(SVG({svg!r}), HTML({refresh!r}))
"""


TABLE = """
class Table:
    def _repr_html_(self): return '<table><tr><th>a</th></tr><tr><td>1</td></tr></table>'
Table()
"""


LONG_TABLE = """
class Table:
    def _repr_html_(self): return '<table>' + '<tr><td>1</td></tr>' * 100 + '</table>'
Table()
"""


def test_the_playground_shows_html_and_svg_harmlessly(page: Page, listener: Listener) -> None:
    with serving() as server:
        playground = Playground(page, server.url)
        playground.start()
        cell = playground.run(CELL.format(**vars(listener)))
        expect(cell.locator(".output")).to_have_text(["before\n", "between\n"])
        assert_harmless(page, listener, f"{server.url}/")
        page.reload()
        assert_harmless(page, listener, f"{server.url}/")
        value = playground.run(TABLE)
        expect(value.frame_locator("iframe").locator("table tr")).to_have_count(2)
        expect(value.locator(".output")).to_have_count(0)  # the text is not shown twice
        expect(value.get_by_role("button", name="Show all")).to_have_count(0)
        long = playground.run(LONG_TABLE)
        frame = long.locator("iframe").bounding_box
        assert frame()["height"] < 500
        long.get_by_role("button", name="Show all").click()
        expect(long.get_by_role("button", name="Show less")).to_be_visible()
        assert frame()["height"] > 2000
