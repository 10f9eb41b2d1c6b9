"""Work in the playground: nothing visible is lost when a session, a server or a page ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl_sandbox import Limits
from repl_server.auth import new_key
from tests.server.conftest import serving
from tests.waiting import PATIENCE, eventually

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Dialog, Page, expect

from tests.web.playground_page import Playground

KEY, LINE = new_key("alice")
# The files of a session that ends may be asked for at that moment.
MISSING = "404 (Not Found)"
SETTINGS = {"recovery": "snapshot", "limits": Limits(memory="1GiB", timeout=60.0), "grace_s": 30.0}

# The smallest PNG, as a figure of matplotlib would come.
FIGURE = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()
"""
TABLE = """
class Table:
    def _repr_html_(self): return '<table><tr><td class="seen">framed</td></tr></table>'
Table()
"""


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address; killed in the end."""
    program = "from repl_env.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--recovery", "snapshot", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            line = running.stdout.readline()
            assert "serves on " in line, line
            yield running, line.rpartition(" ")[2].strip()
        finally:
            running.kill()


@pytest.fixture(scope="module")
def server():
    with serving(SETTINGS) as running:
        yield running


@pytest.fixture
def started(server, open_page):
    """A playground with an episode."""
    playground = Playground(open_page(server.url, failing=MISSING), server.url)
    playground.start("one two", "Count", "2")
    return playground


@pytest.fixture
def free_page(browser: Browser) -> Iterator[Page]:
    """A page that may complain: of a server that is gone, or of a storage that is forbidden."""
    with browser.new_context() as context:
        yield context.new_page()


def attached(server):
    """The session of the page that was used last."""
    sessions = (each for each in server.manager.sessions if each.sink is not None)
    return max(sessions, key=lambda each: each.used_at)


def end_sessions(server) -> None:
    for session in server.manager.sessions:
        server.loop.call_soon_threadsafe(session.end)


def downloaded(playground: Playground, name: str) -> str:
    with playground.page.expect_download() as downloading:
        playground.button(f"Download {name}").click()
    return Path(downloading.value.path()).read_text()


def assert_work_is_shown(playground: Playground) -> None:
    """The cells that `work` ran: code, output, value, figure and table."""
    expect(playground.cell(1)).to_contain_text("n = len(context.split())")
    expect(playground.cell(1).locator(".output").first).to_contain_text("counted")
    expect(playground.cell(1).locator(".value")).to_contain_text("2")
    expect(playground.cell(2).locator("figure img")).to_be_visible()
    frame = playground.cell(3).frame_locator("iframe[title=displayed]")
    expect(frame.locator(".seen")).to_have_text("framed")
    expect(playground.cell(4).locator(".output.error")).to_contain_text("ZeroDivisionError")


def work(playground: Playground) -> None:
    for code in ("n = len(context.split())\nprint('counted')\nn", FIGURE, TABLE, "1 / 0"):
        playground.run(code)
    assert_work_is_shown(playground)


def test_a_server_that_is_killed_takes_no_work_with_it(free_page: Page) -> None:
    with process("--port", "0", "--grace", "1") as (first, url):
        playground = Playground(free_page, url)
        playground.start("one two", "Count", "2")
        work(playground)
        playground.begin("print('partial', flush=True)\nwhile True: pass")
        expect(playground.cell(5)).to_contain_text("partial")
        playground.begin("'queued'")
        playground.editor.fill("'a draft'")
        first.kill()
        first.wait()
        expect(playground.cell(5)).to_contain_text("no connection")
        expect(playground.page.get_by_role("status")).to_contain_text("probably ended")
        assert_work_is_shown(playground)
        expect(playground.cell(5)).to_contain_text("partial")
        expect(playground.editor).to_have_value("'a draft'")
        expect(playground.page.get_by_text("As of the last cell")).to_be_visible()

    with process("--port", url.rpartition(":")[2]):
        panel = playground.page.get_by_role("region", name="Session ended")
        expect(panel).to_contain_text("does not have this session any more")
        assert_work_is_shown(playground)
        for number, told in ((5, "no result"), (6, "not run")):
            expect(playground.cell(number)).to_contain_text(told)
        expect(playground.cell(5)).to_contain_text("partial")
        expect(panel).to_contain_text("'a draft'")
        expect(playground.page.locator(".variables")).to_have_count(0)
        assert "while True" in downloaded(playground, "Python file")
        free_page.reload()
        assert_work_is_shown(playground)
        expect(playground.cell(5)).to_contain_text("partial")
        expect(panel).to_contain_text("'a draft'")


def test_cells_run_again_in_a_new_session(server, started) -> None:
    work(started)
    started.run("k = n + 1")
    started.button("Undo").click()
    expect(started.cell(5)).to_contain_text("undone")
    end_sessions(server)
    expect(started.page.get_by_role("alert")).to_contain_text("ended this session")
    assert_work_is_shown(started)
    started.button("Run these again in a new session").click()
    expect(started.page.get_by_role("tab")).to_have_count(2)
    assert_work_is_shown(started)
    expect(started.page.locator(".cell")).to_have_count(4)
    expect(started.editor).to_have_value("k = n + 1")
    started.run("FINAL(n)")
    outcome = started.page.get_by_role("region", name="Outcome")
    expect(outcome).to_contain_text("reward 1")
    started.page.get_by_role("tab", name="Session", exact=True).click()
    assert_work_is_shown(started)
    expect(started.cell(5)).to_contain_text("undone")


def test_a_task_that_followed_and_an_uploaded_context_run_again(
    server, open_page, tmp_path
) -> None:
    (tmp_path / "large.txt").write_text("ab\n" * 300_000)
    playground = Playground(open_page(server.url, failing=MISSING), server.url)
    playground.page.get_by_label("Context file").set_input_files(tmp_path / "large.txt")
    preview = playground.page.get_by_label("Beginning of the context")
    expect(preview).to_contain_text("ab\nab\n")
    playground.start()
    playground.run("FINAL(len(context))")
    playground.button("New task, same session").click()
    playground.page.get_by_label("Task").fill("another one")
    playground.button("Start").click()
    playground.run("FINAL(len(context) * 2)")
    playground.page.reload()
    expect(playground.page.get_by_text("another one").first).to_be_visible()
    end_sessions(server)
    playground.button("Run these again in a new session").click()
    outcome = playground.page.get_by_role("region", name="Outcome")
    expect(outcome).to_contain_text("1800000")
    expect(playground.page.locator(".cell")).to_have_count(2)


def test_an_idle_session_ends_and_its_cells_stay(open_page) -> None:
    with serving({**SETTINGS, "idle_s": 2.0}) as idle:
        playground = Playground(open_page(idle.url, failing=MISSING), idle.url)
        playground.start("one two")
        work(playground)
        expect(playground.page.get_by_role("alert")).to_contain_text("idle for too long")
        assert_work_is_shown(playground)
        expect(playground.button("Run these again in a new session")).to_be_enabled()


def test_a_reload_goes_on_with_the_session(server, started) -> None:
    work(started)
    session = attached(server)
    started.editor.fill("'a draft'")
    started.page.reload()
    assert_work_is_shown(started)
    expect(started.editor).to_have_value("'a draft'")
    assert set(started.names()) >= {"context", "n"}
    assert attached(server) is session
    expect(started.run("n + 1").locator(".value")).to_contain_text("3")
    started.button("Undo").click()
    expect(started.cell(5)).to_contain_text("undone")
    started.page.reload()
    expect(started.cell(5)).to_contain_text("undone")
    recording = json.loads(downloaded(started, "recording"))
    assert len(recording["actions"]) == 4
    assert recording["reset"]["expected_answer"] == "2"


def test_a_reload_in_the_middle_of_a_cell(server, started) -> None:
    started.run("runs = 0")
    started.begin("runs += 1\nprint('begun', flush=True)\nwhile True: pass")
    expect(started.cell(2)).to_contain_text("begun")
    started.begin("runs")
    for _ in range(2):
        started.page.reload()
        expect(started.cell(2)).to_contain_text("running")
        expect(started.cell(2).locator(".output")).to_contain_text("begun")
        expect(started.cell(3)).to_contain_text("queued")
    started.button("Interrupt").click()
    expect(started.cell(2).locator(".output.error")).to_contain_text("KeyboardInterrupt")
    expect(started.cell(3)).to_contain_text("not run")
    started.button("Run it").click()
    expect(started.cell(3).locator(".value")).to_contain_text("1")


def test_a_cell_that_ends_while_no_page_is_there(server, started) -> None:
    started.begin("import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('ended')\n6 * 7")
    expect(started.cell(1)).to_contain_text("begun")
    started.begin("'queued'")
    session = attached(server)
    started.page.goto("about:blank")
    assert eventually(lambda: not session.busy)
    started.page.go_back()
    expect(started.cell(1).locator(".value")).to_contain_text("42")
    expect(started.cell(1)).to_contain_text("ended")
    expect(started.cell(2).locator(".value")).to_contain_text("queued")
    expect(started.page.get_by_text("2 of 200")).to_be_visible()


def test_a_reload_goes_on_with_branches(started) -> None:
    started.run("x = 'both'")
    started.button("Branch").click()
    expect(started.page.get_by_role("tab")).to_have_count(2)
    started.run("x = 'branch'")
    started.page.reload()
    expect(started.cell(2)).to_contain_text("x = 'branch'")
    expect(started.run("x").locator(".value")).to_contain_text("branch")
    started.page.get_by_role("tab", name="Session", exact=True).click()
    expect(started.page.locator(".cell")).to_have_count(1)
    expect(started.run("x").locator(".value")).to_contain_text("both")


def test_cells_wait_for_the_running_one(started) -> None:
    started.begin("import time\nprint('begun', flush=True)\ntime.sleep(0.5)\nx = 1")
    expect(started.cell(1)).to_contain_text("begun")
    started.begin("x += 1")
    started.begin("print('x is', x)")
    expect(started.cell(3).locator(".output")).to_contain_text("x is 2")

    started.begin("while True: pass")
    expect(started.cell(4)).to_contain_text("running")
    started.begin("x += 1")
    started.begin("x")
    started.begin("not wanted")
    started.cell(7).get_by_role("button", name="Take back").click()
    expect(started.editor).to_have_value("not wanted")
    started.editor.press("Control+c")
    for number in (5, 6):
        expect(started.cell(number)).to_contain_text("Not run: cell 4 failed.")
    started.button("Run them").click()
    expect(started.cell(6).locator(".value")).to_contain_text("3")
    started.editor.fill("")
    started.begin("while True: pass")
    expect(started.cell(7)).to_contain_text("running")
    started.begin("FINAL(x)")
    started.begin("x += 1")
    started.editor.press("Control+c")
    started.button("Run them").click()
    expect(started.cell(9)).to_contain_text("Not run: the episode has ended.")


def test_long_outputs_are_folded(started) -> None:
    cell = started.run("for i in range(400): print('line', i)")
    expect(cell.get_by_role("button", name="Show all 400 lines")).to_be_visible()
    expect(cell).to_contain_text("line 0")
    expect(cell).to_contain_text("line 399")
    expect(cell).not_to_contain_text("line 200")
    cell.get_by_role("button", name="Show all 400 lines").click()
    expect(cell).to_contain_text("line 200")
    cell.get_by_role("button", name="Fold 400 lines").click()
    expect(cell).not_to_contain_text("line 200")


def test_the_editor_does_not_cover_the_output_of_a_running_cell(started) -> None:
    started.page.set_viewport_size({"width": 1000, "height": 500})
    for number in range(4):
        started.run(f"print({number}, 'x\\n' * 10)")
    started.begin(
        "import time\nfor i in range(60):\n    print('line', i, flush=True); time.sleep(0.01)\n"
        "print('all', flush=True)\nwhile True: pass"
    )
    expect(started.cell(5)).to_contain_text("all")
    assert eventually(lambda: ends(started) <= (0, 500))  # the editor is in sight, below the output
    started.page.mouse.wheel(0, -300)
    assert eventually(lambda: ends(started)[1] > 500)
    assert ends(started)[0] <= 0
    started.page.keyboard.press("Control+c")
    expect(started.cell(5).locator(".output.error")).to_contain_text("KeyboardInterrupt")


def ends(playground: Playground) -> tuple[float, float]:
    """How far the last cell reaches below the top of the editor, and the end of the editor."""
    covered, end = playground.page.evaluate("""() => {
        const [cells, editor] = [".cells", ".composer"].map((each) =>
            document.querySelector(each).getBoundingClientRect());
        return [cells.bottom - editor.top, editor.bottom];
    }""")
    return covered, end


def test_a_visitor_tries_the_example_with_one_click(server, open_page) -> None:
    playground = Playground(open_page(server.url), server.url)
    expect(playground.page.get_by_role("region", name="A Python session")).to_be_visible()
    playground.button("Try an example").click()
    expect(playground.cell(2).locator(".value")).to_contain_text("Lisbon")
    expect(playground.page.locator(".variables")).to_contain_text("date,city,visitors")
    playground.editor.press("Shift+Enter")
    outcome = playground.page.get_by_role("region", name="Outcome")
    expect(outcome).to_contain_text("reward 1")


def test_a_duplicated_tab_and_its_original_keep_both_works(server, browser: Browser) -> None:
    with browser.new_context() as context:
        first = Playground(context.new_page(), server.url)
        first.start("one two")
        work(first)
        # A browser that duplicates a tab copies its storage.
        stored = first.page.evaluate("JSON.stringify({...sessionStorage})")
        page = context.new_page()
        page.goto(f"{server.url}/docs")
        page.evaluate(f"Object.assign(sessionStorage, {stored})")
        second = Playground(page, server.url)
        panel = page.get_by_role("region", name="Session ended")
        expect(panel).to_contain_text("Another page has this session")
        assert_work_is_shown(second)
        first.run("mine = 1")
        second.button("Run these again in a new session").click()
        assert_work_is_shown(second)
        second.run("other = 2")
        for playground, code in ((first, "mine = 1"), (second, "other = 2")):
            playground.page.reload()
            assert_work_is_shown(playground)
            expect(playground.cell(5)).to_contain_text(code)
            expect(playground.page.locator(".cell")).to_have_count(5)


def test_a_session_that_another_page_took_over_can_be_taken_back(server, started) -> None:
    work(started)
    session = attached(server)
    server.loop.call_soon_threadsafe(session.sink.end, 4001, "")
    expect(started.page.get_by_role("alert")).to_contain_text("Another page has taken over")
    assert_work_is_shown(started)
    started.button("Continue here").click()
    expect(started.run("n").locator(".value")).to_contain_text("2")


def test_the_work_of_a_closed_tab_is_listed(server, browser: Browser) -> None:
    with browser.new_context() as context:
        first = Playground(context.new_page(), server.url)
        first.start("one two", "Count the words", "2")
        work(first)
        first.page.close()
        second = Playground(context.new_page(), server.url)
        second.button("Open Count the words").click()
        assert_work_is_shown(second)
        expect(second.page.get_by_role("alert")).to_contain_text("kept by this browser")
        second.page.close()
        third = Playground(context.new_page(), server.url)
        third.button("Remove Count the words").click()
        expect(third.page.get_by_text("Earlier work")).to_have_count(0)
        assert stored_text(third.page).count("counted") == 0


def stored_text(page: Page) -> str:
    """Everything that the database of the page has, as JSON."""
    return str(
        page.evaluate("""async () => {
            const [{name}] = await indexedDB.databases();
            const wait = (request) => new Promise((done) => {
                request.onsuccess = () => done(request.result);
            });
            const database = await wait(indexedDB.open(name));
            const stores = [...database.objectStoreNames];
            const all = stores.map((store) =>
                wait(database.transaction(store).objectStore(store).getAll()));
            return JSON.stringify(await Promise.all(all));
        }""")
    )


def test_the_kept_work_has_neither_keys_nor_tokens(browser: Browser) -> None:
    with serving({**SETTINGS, "hashed_keys": (LINE,)}) as keyed, browser.new_context() as context:
        page = context.new_page()
        playground = Playground(page, keyed.url)
        page.get_by_label("API key").fill(KEY)
        playground.button("Continue").click()
        playground.start("one two")
        work(playground)
        token = attached(keyed).token
        stored = stored_text(page)
        assert "counted" in stored
        assert KEY not in stored
        assert token not in stored
        page.reload()
        assert_work_is_shown(playground)
        playground.begin("print('streamed', flush=True)\nwhile True: pass")
        expect(playground.cell(5).locator(".output")).to_contain_text("streamed")
        playground.button("Forget key").click()
        playground.button("Forget key and cells").click()
        expect(page.get_by_label("API key")).to_be_visible()
        page.wait_for_timeout(1500)  # running output is kept within a second
        stored = stored_text(page)
        assert "counted" not in stored
        assert "streamed" not in stored
        assert token not in page.evaluate("JSON.stringify({...sessionStorage})")


FULL = """
const put = IDBObjectStore.prototype.put;
IDBObjectStore.prototype.put = function (value) {
    if (window.full) throw new DOMException("The quota is used up", "QuotaExceededError");
    return put.call(this, value);
};
"""


def test_a_full_storage_is_told_and_nothing_on_the_page_is_lost(server, free_page: Page) -> None:
    free_page.add_init_script(FULL)
    playground = Playground(free_page, server.url)
    playground.start("one two")
    playground.run("n = 2")
    free_page.evaluate("window.full = true")
    cell = playground.run("print('kept later')")
    alert = free_page.get_by_role("alert")
    expect(alert).to_contain_text("the browser's storage for this site is full")
    expect(cell.locator(".output")).to_contain_text("kept later")
    assert "print('kept later')" in downloaded(playground, "notebook")
    free_page.evaluate("window.full = false")
    playground.run("n")
    expect(alert).to_have_count(0)
    free_page.reload()
    expect(playground.cell(2).locator(".output")).to_contain_text("kept later")


def test_a_full_storage_of_the_tab_is_told(server, free_page: Page) -> None:
    playground = Playground(free_page, server.url)
    free_page.evaluate("sessionStorage.setItem('x', 'y'.repeat(5 * 1024 * 1024 - 2))")
    playground.start("one two")
    expect(free_page.get_by_role("alert")).to_contain_text("A reload of this page will not find")
    work(playground)
    free_page.reload()
    playground.button("Open Session").click()
    assert_work_is_shown(playground)


FORBIDDEN = """
for (const name of ["indexedDB", "sessionStorage", "localStorage"]) {
    const refuse = () => { throw new DOMException("Access is denied", "SecurityError"); };
    Object.defineProperty(window, name, { get: refuse });
}
"""


def test_a_forbidden_storage_is_told_and_the_page_works(server, free_page: Page) -> None:
    errors: list[str] = []
    free_page.on("pageerror", lambda error: errors.append(str(error)))
    free_page.add_init_script(FORBIDDEN)
    playground = Playground(free_page, server.url)
    playground.start("one two")
    work(playground)
    alert = free_page.get_by_role("alert")
    expect(alert).to_contain_text("the browser forbids this page to store anything")
    dialogs: list[str] = []

    def stay(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.dismiss()

    free_page.on("dialog", stay)
    free_page.close(run_before_unload=True)
    assert eventually(lambda: (free_page.title(), dialogs)[1]) == ["beforeunload"]
    assert_work_is_shown(playground)
    end_sessions(server)
    playground.button("Run these again in a new session").click()
    expect(free_page.get_by_role("tab")).to_have_count(2)
    assert_work_is_shown(playground)
    assert errors == []


HOSTILE = """
from IPython.display import HTML, display
display(HTML('<form action="https://example.org"></form><b class="seen">framed</b>'))
"""


def test_the_notebook_and_the_python_file(started, tmp_path) -> None:
    work(started)
    started.run(HOSTILE)
    started.run("print('unicode \U0001f600 \\\\ \"')")
    notebook = json.loads(downloaded(started, "notebook"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells[0]["source"] == 'context = "one two"'
    (printed, value) = cells[1]["outputs"]
    assert printed == {"output_type": "stream", "name": "stdout", "text": "counted\n"}
    assert value["data"] == {"text/plain": "2"}
    assert any("image/png" in each.get("data", {}) for each in cells[2]["outputs"])
    assert "ZeroDivisionError" in cells[4]["outputs"][0]["text"]
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", each) for each in ids)
    framed = cells[5]["outputs"][0]["data"]["text/html"]
    assert framed.startswith("<iframe sandbox ")
    assert framed.count("<") == 2  # the frame's own: that of the session is quoted

    file = tmp_path / "episode.py"
    file.write_text(downloaded(started, "Python file").replace(FIGURE, "").replace("1 / 0", ""))
    file.write_text(file.read_text().replace(HOSTILE, ""))
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == 'counted\nunicode \U0001f600 \\ "\n'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(server, open_page, tmp_path, scheme) -> None:
    faint = Path(__file__).with_name("contrast.js").read_text()
    page = open_page(server.url, failing=MISSING, color_scheme=scheme)
    playground = Playground(page, server.url)
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    page.get_by_label("Context file").set_input_files(tmp_path / "data.csv")
    expect(page.get_by_label("Beginning of the context")).to_be_visible()
    assert page.evaluate(faint) == []
    playground.start()
    playground.begin("for i in range(400): print('line', i, flush=True)\nwhile True: pass")
    expect(playground.cell(1)).to_contain_text("line 399")
    playground.begin("'queued'")
    assert page.evaluate(faint) == []
    playground.button("Interrupt").click()
    expect(playground.cell(2)).to_contain_text("not run")
    assert page.evaluate(faint) == []
    end_sessions(server)
    expect(playground.button("Run these again in a new session")).to_be_visible()
    assert page.evaluate(faint) == []
    playground.button("Open another session").click()
    playground.button("Close Session").click()
    expect(page.get_by_role("region", name="Earlier work")).to_be_visible()
    assert page.evaluate(faint) == []
