"""The playground, with a real server, real sessions and a browser."""

from __future__ import annotations

import asyncio
import base64
import re
import tarfile
from pathlib import Path

import pytest

from repl_env.display.viewer import viewable
from repl_env.env.recordings import Recording
from repl_sandbox import Limits
from repl_server.auth import new_key
from tests.server.conftest import serving
from tests.waiting import PATIENCE, eventually

pytest.importorskip("playwright")

from playwright.sync_api import expect

from tests.web.playground_page import Playground

CONTRAST = Path(__file__).with_name("contrast.js")
KEY, LINE = new_key("alice")
SETTINGS = {"recovery": "snapshot", "limits": Limits(memory="1GiB", timeout=60.0), "grace_s": 30.0}

FIGURE = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()
"""

# Each is text wherever the page shows it: as output, as a value, as an error, as a name, as a type.
MARKUP = "<img src=x onerror='hacked=1'><script>hacked=1</script><svg onload='hacked=1'>"
HOSTILE = f"""
import sys
text = {MARKUP!r}
print(text, "\\x1b]8;;javascript:hacked=1\\x07link", "[a](javascript:hacked=1)", "\\u202e\\x00")
print(text, file=sys.stderr)
globals()[text] = text
class Rich:
    def _repr_latex_(self): return text
    def _repr_json_(self): return text
    def __repr__(self): return text
Rich.__name__ = Rich.__qualname__ = text
rich = Rich()
open(text.replace("/", " "), "w").close()
rich
"""


@pytest.fixture(scope="module")
def server():
    with serving(SETTINGS) as running:
        yield running


@pytest.fixture
def playground(server, open_page):
    """A playground that has not started an episode."""
    return Playground(open_page(server.url), server.url)


@pytest.fixture
def started(playground):
    """A playground with an episode."""
    playground.start()
    return playground


def test_an_episode_from_context_to_reward(playground, tmp_path) -> None:
    playground.start("one two three", "How many words?", "3")
    first = playground.run("n = len(context.split())\nn")
    expect(first.locator(".value")).to_contain_text("3")
    expect(first.locator(".changes")).to_contain_text("n")
    playground.run("FINAL(n)")

    outcome = playground.page.get_by_role("region", name="Outcome")
    expect(outcome).to_contain_text("reward 1")
    expect(outcome.locator("table")).to_contain_text("outcome")
    expect(playground.page.locator(".isolation summary")).to_have_text(
        re.compile("jailed|confined")
    )
    with playground.page.expect_download() as downloading:
        playground.button("Download recording").click()
    download = Path(downloading.value.path())
    assert viewable(download, tmp_path) != download
    recording = Recording.from_json(download.read_text())
    assert [action.code for action in recording.actions][-1] == "FINAL(n)"
    assert recording.reset["expected_answer"] == "3"
    assert recording.observations[-1].reward == 1.0

    playground.button("New task, same session").click()
    playground.page.get_by_label("Expected answer").fill("6")
    playground.button("Start").click()
    playground.run("FINAL(n * 2)")
    expect(outcome).to_contain_text("reward 1")


def test_output_comes_while_the_code_runs_and_an_interrupt_ends_it(started) -> None:
    started.begin("x = 1\nprint('begun', flush=True)\nwhile True: pass")
    expect(started.cell(1)).to_contain_text("begun")
    expect(started.button("Run")).to_have_count(0)
    started.button("Interrupt").click()
    expect(started.cell(1).locator(".output.error")).to_contain_text("KeyboardInterrupt")
    expect(started.run("x").locator(".value")).to_contain_text("1")


def test_a_figure_is_a_picture(started) -> None:
    picture = started.run(FIGURE).locator("img")
    expect(picture).to_be_visible()
    assert picture.get_attribute("src").startswith("blob:")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_undo_takes_back_variables_and_gives_back_the_code(started) -> None:
    expect(started.button("Undo")).to_be_disabled()
    started.run("kept = 1")
    started.run("kept = 2; gone = 3")
    assert set(started.names()) == {"context", "kept", "gone"}
    started.button("Undo").click()
    expect(started.editor).to_have_value("kept = 2; gone = 3")
    expect(started.cell(2)).to_contain_text("undone")
    assert set(started.names()) == {"context", "kept"}
    assert started.run("kept").locator(".value").inner_text().endswith("1")
    started.editor.press("Control+z")
    expect(started.editor).to_have_value("kept")
    expect(started.cell(3)).to_contain_text("undone")


def test_branches_go_on_apart(started) -> None:
    started.run("x = 'both'")
    started.button("Branch").click()
    expect(started.page.get_by_role("tab")).to_have_count(2)
    started.run("x = 'branch'")
    started.page.get_by_role("tab", name="Session", exact=True).click()
    expect(started.run("x").locator(".value")).to_contain_text("both")
    started.page.get_by_role("button", name="Close Session.1").click()
    expect(started.page.get_by_role("tab")).to_have_count(0)
    assert started.run("x, 2").locator(".value").inner_text().endswith("('both', 2)")


@pytest.mark.parametrize(
    ("content", "shown"),
    [(b"ab\n" * 300_000, "(900000, 'ab')"), (b"\xff\x00ab", "(4, b'\\xff\\x00')")],
)
def test_a_file_as_context(playground, tmp_path, content, shown) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(content)
    playground.page.get_by_label("Context file").set_input_files(file)
    expect(playground.page.get_by_text("data.bin")).to_be_visible()
    playground.start()
    cell = playground.run("(len(context), context[:2])")
    expect(cell.locator(".value .output")).to_have_text(shown)


def test_files_up_and_down(started, tmp_path) -> None:
    (tmp_path / "in put.txt").write_text("from here")
    started.page.get_by_label("Files to upload").set_input_files(tmp_path / "in put.txt")
    expect(started.page.locator(".files li")).to_have_count(1)
    started.run("text = open('in put.txt').read()\nopen('out.html', 'w').write('<b>' + text)")
    with started.page.expect_download() as downloading:
        started.page.get_by_role("button", name="Save out.html").click()
    assert downloading.value.suggested_filename == "out.html"
    assert Path(downloading.value.path()).read_text() == "<b>from here"
    with started.page.expect_download() as downloading:
        started.button("Save all").click()
    with tarfile.open(downloading.value.path()) as archive:
        assert {name.rpartition("/")[2] for name in archive.getnames()} >= {
            "out.html",
            "in put.txt",
        }


def test_text_of_a_session_is_never_markup(started) -> None:
    started.run(HOSTILE)
    cell = started.run("raise type(text, (Exception,), {})(text)")
    expect(cell.locator(".output.error")).to_contain_text("<img src=x")
    started.begin(f"FINAL({MARKUP!r})")
    expect(started.page.locator(".answer")).to_contain_text("<script>")

    page = started.page
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("main script, main svg, main iframe, main img[src='x']").count() == 0
    assert page.evaluate("[...document.links].every(each => each.protocol !== 'javascript:')")


def test_a_lost_connection_is_resumed(server, started) -> None:
    started.run("x = 41")
    (session,) = (each for each in server.manager.sessions if each.sink is not None)
    server.loop.call_soon_threadsafe(session.sink.end, 1011, "")
    expect(started.button("Branch")).to_be_enabled()
    expect(started.run("x + 1").locator(".value")).to_contain_text("42")


def test_a_session_that_ended_says_so(server, started) -> None:
    expect(started.page.get_by_text("The workspace is empty")).to_be_visible()
    for session in server.manager.sessions:
        server.loop.call_soon_threadsafe(session.end)
    expect(started.page.get_by_role("alert")).to_contain_text("ended")
    started.button("Open another session").click()
    started.start()


def test_a_key_is_asked_for_and_stays_out_of_addresses(browser) -> None:
    with serving({**SETTINGS, "hashed_keys": (LINE,)}) as keyed, browser.new_context() as context:
        page, addresses = context.new_page(), []
        page.on("request", lambda request: addresses.append(request.url))
        page.on("websocket", lambda socket: addresses.append(socket.url))
        playground = Playground(page, keyed.url)
        for key in ("repl_wrong", KEY):
            page.get_by_label("API key").fill(key)
            playground.button("Continue").click()
            if key != KEY:
                expect(page.get_by_role("alert")).to_contain_text("does not know")
        playground.start("abc")
        expect(playground.run("context").locator(".value")).to_contain_text("abc")
        page.goto(f"{keyed.url}/docs")
        expect(page.locator(".operation").first).to_be_visible()
        page.goto(f"{keyed.url}/")
        playground.button("Forget key").click()
        playground.button("Forget key and cells").click()
        expect(page.get_by_label("API key")).to_be_visible()

        assert any(url.startswith("ws:") for url in addresses)
        encoded = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
        assert not [url for url in addresses if "repl_" in url or encoded in url]
        assert {url.split("/")[2] for url in addresses} == {f"127.0.0.1:{keyed.port}"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_sideways_scrolling(server, open_page, scheme) -> None:
    page = open_page(server.url, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    playground = Playground(page, server.url)
    expect(playground.button("Start")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    playground.start("x" * 500, "y" * 200)
    playground.run("long_name_" + "a" * 100 + " = 'b' * 1000\nprint('c' * 3000)\n1/0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_keys_of_the_editor(started) -> None:
    started.editor.press_sequentially("if True:\nx = 1")
    expect(started.editor).to_have_value("if True:\n    x = 1")
    started.editor.press("Control+Enter")
    expect(started.cell(1)).to_contain_text("x = 1")
    started.editor.press("ArrowUp")
    expect(started.editor).to_have_value("if True:\n    x = 1")
    started.editor.press("ArrowDown")
    expect(started.editor).to_have_value("")
    started.editor.press("Tab")
    expect(started.editor).to_have_value("    ")
    started.editor.press("Escape")
    started.editor.press("Tab")
    expect(started.editor).not_to_be_focused()


def test_the_routes_are_listed_without_internet(server, open_page) -> None:
    page = open_page(server.url)
    page.goto(f"{server.url}/docs")
    page.get_by_label("Filter routes").fill("/step")
    expect(page.locator(".operation")).to_have_count(1, timeout=PATIENCE * 1000)
    page.locator(".operation summary").click()
    expect(page.locator(".operation")).to_contain_text("timeout_s")
    expect(page.locator(".command pre")).to_contain_text(f"curl -X POST '{server.url}/step'")


def test_a_page_takes_a_session_only_when_it_starts_one(server, playground) -> None:
    expect(playground.button("Start")).to_be_visible()
    before = server.manager.sessions
    playground.start()
    (session,) = (each for each in server.manager.sessions if each not in before)
    playground.page.goto("about:blank")
    assert eventually(lambda: session.sink is None)
    assert session.detached_at is not None  # kept for a reload, for the server's grace period


def test_a_full_server_says_so_and_the_form_stays(open_page) -> None:
    with serving(
        {**SETTINGS, "max_sessions": 1, "pool": 0, "max_waiting": 0, "grace_s": 0.2}
    ) as full:
        first = Playground(open_page(full.url), full.url)
        first.start("abc")
        second = Playground(open_page(full.url), full.url)
        second.page.get_by_label("Task").fill("kept")
        second.button("Start").click()
        expect(second.page.get_by_role("alert")).to_be_visible()
        expect(second.page.get_by_label("Task")).to_have_value("kept")
        first.page.goto("about:blank")
        assert eventually(lambda: not full.manager.admission.open)
        second.start()


@pytest.mark.parametrize("again", [False, True])
def test_an_episode_that_was_lost_can_start_over(server, started, again) -> None:
    expect(started.page.get_by_text("The workspace is empty")).to_be_visible()
    with started.page.expect_response("**/files*"):
        started.run("x = 1")
    (session,) = (each for each in server.manager.sessions if each.sink is not None)
    leaving = asyncio.run_coroutine_threadsafe(session.adapter.close(), server.loop)
    leaving.result(PATIENCE)
    expect(started.run("x")).to_contain_text("no result")
    expect(started.cell(1)).to_contain_text("x = 1")
    if again:
        started.button("Run these again in a new session").click()
        expect(started.run("x").locator(".value")).to_contain_text("1")
        return
    started.button("Start over").click()
    started.start()
    expect(started.run("2").locator(".value")).to_contain_text("2")


def test_many_variables_do_not_stop_the_page(started) -> None:
    started.run("globals().update({f'v{i}': i for i in range(20_000)})")
    expect(started.page.get_by_text("more", exact=False).last).to_be_visible()
    expect(started.run("v7").locator(".value")).to_contain_text("7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(server, open_page, scheme) -> None:
    page = open_page(server.url, color_scheme=scheme)
    playground, faint = Playground(page, server.url), CONTRAST.read_text()
    expect(playground.button("Try an example")).to_be_visible()
    assert page.evaluate(faint) == []
    playground.start(expected="Lisbon")
    playground.run("import sys\nx = 1  # one\nprint('a'); print('b', file=sys.stderr)\n'v'")
    playground.run("1 / 0")
    playground.run("y = 2")
    playground.button("Undo").click()
    expect(playground.cell(3)).to_contain_text("undone")
    assert page.evaluate(faint) == []
    playground.run("FINAL('Lisbon')")
    assert page.evaluate(faint) == []
    page.goto(f"{server.url}/docs")
    page.locator("summary", has_text="/step").click()
    assert page.evaluate(faint) == []
