"""No state of a page has a fault that axe-core knows, narrow and wide, dark and light."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from repl_env.display.files import NamedFiles
from repl_env.display.pages import files_data, write_page
from repl_env.rlm import TrajectoryWriter
from repl_server.auth import new_key
from tests.server.conftest import serving
from tests.web.access import Audit, violations
from tests.web.hostile_runs import hostile_events
from tests.web.playground_page import Playground
from tests.web.recorded_runs import record_all
from tests.web.screenshots import PAGES, settle

SETTINGS = {"recovery": "snapshot", "grace_s": 30.0}
_, KEY_LINE = new_key("alice")

LONG = "for i in range(900): print(i, 'x' * 200)"
TABLE = """
class Table:
    def _repr_html_(self): return '<table><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    def _repr_latex_(self): return 'x'
class Data:
    def _repr_json_(self): return {'a': 1}
display(Table(), Data())
Table()
"""
FIGURE = """
import sys, matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2, 3]); plt.show()
print('seen', file=sys.stderr)
open('rows.csv', 'w').close(); open('.hidden', 'w').close()
"""


@pytest.fixture
def audit() -> Iterator[Audit]:
    """The states of a test; at its end there were some, and none had a fault."""
    audit = Audit()
    yield audit
    assert audit.states
    if report := audit.report():
        pytest.fail(report, pytrace=False)


@pytest.fixture
def refused(browser) -> Iterator[Page]:
    """A page that may complain: the console names each request that is refused."""
    with browser.new_context() as context:
        yield context.new_page()


@pytest.fixture(scope="module")
def server():
    with serving(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Every kind of run and evaluation, one run hostile, and a file that cannot be read."""
    folder = record_all(tmp_path_factory.mktemp("runs"))
    with TrajectoryWriter(folder / "hostile.jsonl") as write:
        for event in hostile_events():
            write(event)
    return folder


def test_axe_finds_faults_of_each_kind(open_page) -> None:
    page = open_page("about:")
    page.set_content(
        "<html lang=en><title>t</title><main><h1>t</h1><img src='data:,'><input>"
        "<p style='color:#999;background:#fff'>faint</p><a href='#a' style='padding:0'>a</a>"
        "<div style='overflow:auto;height:20px'><p style='height:99px'>tall</p></div>"
    )
    found = {line.partition(":")[0] for line in violations(page)}
    assert found == {"color-contrast", "image-alt", "label", "scrollable-region-focusable"}


def test_the_playground(server, open_page, audit) -> None:
    page = open_page(server.url, failing="404 (Not Found)")
    playground = Playground(page, server.url)
    expect(playground.button("Start")).to_be_visible()
    audit.check("start form", page)
    page.get_by_label("Context file").set_input_files(Path(__file__))
    expect(page.get_by_label("Beginning of the context")).to_be_visible()
    audit.check("start form with a file", page)
    playground.button("Remove").click()
    playground.start("one two " * 99, "How many words?", "198")
    audit.check("no cell yet", page)
    playground.begin("print('begun', flush=True)\nwhile True: pass")
    expect(playground.cell(1)).to_contain_text("begun")
    playground.begin("'queued'")
    audit.check("running cell", page)
    playground.button("Interrupt").click()
    expect(playground.cell(2)).to_contain_text("not run")
    audit.check("cell that did not run", page)
    playground.button("Run it").click()
    expect(playground.cell(1).get_by_text("running", exact=True)).to_have_count(0)
    for code in (LONG, TABLE, FIGURE, "1 / 0", "del Table"):
        playground.run(code)
    expect(page.locator("figure img")).to_be_visible()
    playground.button("Undo").click()
    expect(playground.cell(7)).to_contain_text("undone")
    audit.check("cells", page)
    page.locator(".isolation summary").click()
    playground.page.get_by_role("button", name="Show 1 hidden file").click()
    playground.editor.fill("x = 1  # one")
    audit.check("opened parts", page)
    page.locator(".isolation summary").click()
    playground.button("Branch").click()
    expect(page.get_by_role("tab")).to_have_count(2)
    audit.check("branches", page)
    playground.begin("FINAL('198')")
    expect(page.get_by_role("region", name="Outcome")).to_be_visible()
    audit.check("outcome", page)
    playground.button("New task, same session").click()
    audit.check("follow-up form", page)
    for session in server.manager.sessions:
        server.loop.call_soon_threadsafe(session.end)
    expect(page.get_by_text("ended").first).to_be_visible()
    audit.check("ended session", page)
    playground.button("Open another session").click()
    playground.button("Close Session.1").click()
    expect(page.get_by_role("region", name="Earlier work")).to_be_visible()
    audit.check("earlier work", page)


def test_the_form_for_a_key(refused, audit) -> None:
    with serving({**SETTINGS, "hashed_keys": (KEY_LINE,)}) as keyed:
        playground = Playground(refused, keyed.url)
        refused.get_by_label("API key").fill("repl_wrong")
        audit.check("key form", refused)
        playground.button("Continue").click()
        expect(refused.get_by_role("alert")).to_be_visible()
        audit.check("wrong key", refused)


def test_the_routes(server, open_page, audit) -> None:
    page = open_page(server.url)
    page.goto(f"{server.url}/docs")
    expect(page.locator(".operation").first).to_be_visible()
    audit.check("routes", page)
    for name in ("/reset", "/health"):
        page.locator("summary", has_text=name).first.click()
    page.get_by_role("button", name="Show").first.click()
    audit.check("open routes", page)
    page.get_by_label("Filter routes").fill("nothing like that")
    audit.check("no route", page)


def test_the_viewer(serve, open_page, runs, audit) -> None:
    server = serve(runs)
    page = open_page(server.origin)
    page.goto(server.url)
    page.wait_for_selector(".run-row")
    audit.check("list", page)
    ids = {file["name"]: file["id"] for file in server.data.listing()["files"]}
    places = {name: place for name, (place, _) in PAGES.items()}
    hostile = {
        f"hostile {place}": f"#/run/{{hostile.jsonl}}/{place}" for place in ("0", "0/turn/1")
    }
    for name, place in (places | hostile).items():
        for file, number in ids.items():
            place = place.replace(f"{{{file}}}", number)
        page.goto(f"{server.origin}/{place}")
        settle(page)
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        settle(page)
        audit.check(name, page)


def test_an_exported_page(open_page, runs, tmp_path, audit) -> None:
    write_page(files_data(NamedFiles([runs])), tmp_path / "page.html")
    address = (tmp_path / "page.html").as_uri()
    page = open_page(address)
    page.goto(address)
    expect(page.locator(".run-row").first).to_be_visible()
    audit.check("exported list", page)
    page.get_by_role("link", name="billing-by-region.jsonl").click()
    expect(page.locator(".tree")).to_be_visible()
    audit.check("exported tree", page)
    page.get_by_role("treeitem").filter(has_text="import matplotlib").get_by_role("link").click()
    expect(page.locator("figure.plot img")).to_be_visible()
    audit.check("exported turn", page)


def test_an_empty_folder_and_a_page_without_its_token(serve, open_page, refused, tmp_path, audit):
    server = serve(tmp_path)
    page = open_page(server.origin)
    page.goto(server.url)
    expect(page.get_by_role("heading", name="Nothing to show yet")).to_be_visible()
    audit.check("nothing", page)
    refused.goto(server.origin)
    expect(refused.get_by_role("alert")).to_contain_text("token")
    audit.check("no token", refused)


def test_the_keyboard_alone_reaches_runs_and_leaves_the_editor(server, open_page) -> None:
    """As the page tells: Tab indents in the editor, and leaves the editor after Escape."""
    page = open_page(server.url)
    playground = Playground(page, server.url)
    playground.start()
    expect(playground.editor).to_have_accessible_description(
        re.compile("Esc, then Tab, leaves the editor")
    )
    keys, focused = page.keyboard, page.locator(":focus")
    for _ in range(20):
        if focused.count() and focused.get_attribute("aria-label") == "Python code":
            break
        keys.press("Tab")
    keys.type("if True:")
    for key in ("Enter", "Tab", "x", "Escape", "Tab"):
        keys.press(key)
    expect(playground.editor).to_have_value("if True:\n        x")
    expect(focused).to_have_text("Run")
    keys.press("Shift+Tab")
    keys.press("Escape")
    keys.press("Shift+Tab")
    expect(playground.editor).not_to_be_focused()

    playground.begin("print('begun', flush=True)\nwhile True: pass")
    expect(playground.cell(1)).to_contain_text("begun")
    keys.press("Escape")
    keys.press("Tab")
    expect(focused).to_have_text("Interrupt")
    expect(playground.cell(1)).to_contain_text("running")
    keys.press("Enter")
    expect(playground.cell(1)).to_contain_text("KeyboardInterrupt")
    playground.begin("print('begun', flush=True)\nwhile True: pass")
    expect(playground.cell(2)).to_contain_text("begun")
    playground.editor.press("Control+c")
    expect(playground.cell(2)).to_contain_text("KeyboardInterrupt")
