"""The viewer in a browser: real runs, a large trajectory, a live one, hostile content."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from repl_env import LocalREPLEnv, Recorder
from repl_env.display.viewer import viewable
from repl_env.rlm import Trajectory, TrajectoryWriter
from tests.web.hostile_runs import HOSTILE, hostile_events
from tests.web.large_runs import write_large
from tests.web.recorded_runs import SCRIPT, evaluations, record

# Elements that content of a recording would make, if it were markup.
MARKUP = "script:not([type=module]), iframe, object, embed, foreignObject, textarea, .detail img"


def open_viewer(open_page, server, place: str = "", **options) -> Page:
    page = open_page(server.origin, **options)
    page.goto(server.url)
    expect(page.locator(".top")).to_be_visible()
    if place:
        page.goto(f"{server.origin}/{place}")
    return page


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """One run with a figure, an error, sub-calls and runs below it, and three evaluations."""
    folder: Path = tmp_path_factory.mktemp("recorded")
    record(folder / "run.jsonl", SCRIPT, expected_answer="west", group_id="g")
    evaluations(folder)
    return folder


def test_a_run_is_found_in_the_list_and_read_turn_by_turn(open_page, serve, recorded):
    page = open_viewer(open_page, serve(recorded / "run.jsonl"))
    page.get_by_role("link", name="run.jsonl").click()

    expect(page.get_by_role("heading", name="Run 0")).to_be_visible()
    expect(page.locator(".detail")).to_contain_text("In which region did the share")
    expect(page.locator(".timeline .piece.wait").first).to_be_visible()

    page.get_by_role("treeitem").filter(has_text="import matplotlib").get_by_role("link").click()
    expect(page.get_by_role("heading", name="Turn 4")).to_be_visible()
    expect(page.locator(".panel.sampled .code-block .k").first).to_have_text("import")
    expect(page.locator(".message.sampled").first).to_contain_text("sampled in turn 1")
    picture = page.locator("figure.plot img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 100
    expect(page.locator(".changes")).to_contain_text("share")
    page.reload()
    expect(picture).to_be_visible()
    assert page.evaluate("window.shifts") < 0.1


def test_the_messages_that_the_model_saw_can_be_opened(open_page, serve, recorded):
    shown = Trajectory.load(recorded / "run.jsonl").messages_at("0", 3)
    page = open_viewer(open_page, serve(recorded / "run.jsonl"), "#/run/0/0/turn/3")
    messages = page.locator(".message")

    expect(messages).to_have_count(len(shown))
    for index, message in enumerate(shown):
        if not messages.nth(index).evaluate("element => element.open"):
            messages.nth(index).locator("summary").click()
        expect(messages.nth(index).locator("pre")).to_have_text(message["content"].strip())


LABELS = {
    0.000001: "0 | 0.2 µs | 0.4 µs | 0.6 µs | 0.8 µs | 1 µs",
    0.00005: "0 | 10 µs | 20 µs | 30 µs | 40 µs | 50 µs",
    0.0013: "0 | 0.5 ms | 1 ms",
    0.61: "0 | 0.2 s | 0.4 s | 0.6 s",
    7: "0 | 2 s | 4 s | 6 s",
    33: "0 | 10 s | 20 s | 30 s",
    90: "0 | 20 s | 40 s | 1 min | 1 min 20 s",
    299: "0 | 1 min | 2 min | 3 min | 4 min",
    3599: "0 | 15 min | 30 min | 45 min",
    20_000: "0 | 2 h | 4 h",
    90_000: "0 | 6 h | 12 h | 18 h | 1 d",
    200_000: "0 | 12 h | 1 d | 1 d 12 h | 2 d",
    3e7: "0 | 100 d | 200 d | 300 d",
}


def test_ticks_of_a_time_axis_are_round_and_equally_far_apart(open_page, serve, recorded):
    page = open_viewer(open_page, serve(recorded / "run.jsonl"))
    module = "/web/viewer/parts/time_ticks.js"
    ticks_of = f"(seconds) => import({module!r}).then((it) => it.timeTicks(seconds, 6))"
    for seconds, labels in LABELS.items():
        ticks = page.evaluate(ticks_of, seconds)
        assert " | ".join(tick["label"] for tick in ticks) == labels
        steps = {round((b["at"] - a["at"]) / seconds, 6) for a, b in pairwise(ticks)}
        assert len(steps) == 1


def test_the_keyboard_walks_and_folds_the_tree(open_page, serve, recorded):
    page = open_viewer(open_page, serve(recorded / "run.jsonl"), "#/run/0/0")
    tree = page.get_by_role("tree")
    tree.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
        tree.press(key)

    expect(page.get_by_role("heading", name="Call 0.1")).to_be_visible()
    tree.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Turn 3")).to_be_visible()
    tree.press("ArrowLeft")
    expect(page.locator(".node.call")).to_have_count(0)


def test_evaluations_are_compared_and_bins_are_links(open_page, serve, recorded):
    page = open_viewer(open_page, serve(recorded / "careless.jsonl", recorded / "exact.jsonl"))
    page.get_by_role("link", name="Compare").click()

    expect(page.locator(".difference")).to_contain_text("95 % interval +")
    changes = page.locator(".changes-list li")
    assert changes.count() > 10
    page.get_by_role("link", name="careless.jsonl").click()
    page.get_by_role("link", name="tasks with a score from 0 to 0.1").click()
    expect(page.get_by_role("status")).to_have_text(f"{changes.count() or 26} of 60", timeout=5000)


def test_runs_are_filtered_and_seen_side_by_side(open_page, serve, tmp_path):
    for number in range(3):
        script = [f"```repl\nx = {number}\n```", f"```repl\nFINAL({number})\n```"]
        record(tmp_path / f"s{number}.jsonl", script, expected_answer="1", group_id="g1")
    page = open_viewer(open_page, serve(tmp_path))
    expect(page.locator(".run-row")).to_have_count(3)
    page.get_by_role("link", name="1 run with a score from 0.9 to 1").click()
    expect(page.locator(".run-row")).to_have_count(1)
    expect(page.locator(".run-row")).to_contain_text("s1.jsonl")

    page.goto(page.url.partition("#")[0] + "#/?group=g1")
    page.get_by_role("link", name="Side by side (3)").click()
    expect(page.locator(".column")).to_have_count(3)
    expect(page.locator(".column").nth(2)).to_contain_text("x = 2")


def test_thirty_thousand_events_show_a_few_rows_and_read_a_few_events(open_page, serve, tmp_path):
    path = write_large(tmp_path / "large.jsonl", events=30_000, body=200)
    server = serve(path)
    page = open_page(server.origin)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    page.get_by_role("link", name="large.jsonl").click()

    expect(page.locator(".side-head")).to_contain_text("30,000 events", timeout=30_000)
    assert page.locator(".node").count() < 100
    page.get_by_role("tree").press("End")
    expect(page.get_by_role("heading", name="Turn 9999")).to_be_visible()
    expect(page.locator(".cell .output")).to_contain_text("printed 9999")
    expect(page.locator(".node.chosen")).to_be_in_viewport()
    assert page.locator(".node").count() < 100
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    assert sum("/bytes" in url for url in asked) < 40


def test_a_run_is_followed_while_it_is_written(open_page, serve, tmp_path):
    events = hostile_events()
    with TrajectoryWriter(tmp_path / "live.jsonl") as write:
        write(events[0])
        page = open_viewer(open_page, serve(tmp_path))
        expect(page.locator(".run-row")).to_contain_text("running")
        page.locator(".run-link").click()
        expect(page.locator(".node")).to_have_count(1)
        page.get_by_role("button", name="Follow").click()
        for event in events[1:]:
            write(event)

    expect(page.get_by_role("heading", name="Turn 1")).to_be_visible(timeout=15_000)
    expect(page.get_by_role("button", name="Follow")).to_have_count(0, timeout=15_000)


@pytest.mark.parametrize("place", ["0", "0/turn/1", "0/call/0.1"])
def test_hostile_content_stays_text(open_page, serve, tmp_path, place):
    with TrajectoryWriter(tmp_path / f"{HOSTILE[:20].replace('/', '')}.jsonl") as write:
        for event in hostile_events():
            write(event)
    page = open_viewer(open_page, serve(tmp_path))
    expect(page.locator(".run-row")).to_be_visible()
    page.goto(f"{page.url.partition('#')[0]}#/run/0/{place}")

    expect(page.locator(".detail")).to_contain_text("<img src=x onerror=alert(1)>")
    for details in page.locator("details:not([open]) > summary").all():
        details.click()
    page.wait_for_load_state("networkidle")
    assert page.locator(MARKUP).count() == 0
    for address in page.locator("a").evaluate_all("all => all.map(a => a.href.baseVal ?? a.href)"):
        assert address.startswith(("#/", page.url.partition("#")[0]))


def test_a_recorded_episode_shows_its_cells_and_no_replies(open_page, serve, tmp_path):
    with LocalREPLEnv() as environment:
        recorder = Recorder(environment)
        recorder.reset(context="one two", task_prompt="How many words?")
        recorder.execute("print(context.split())")
        (tmp_path / "episode.json").write_text(recorder.recording.to_json())
    page = open_viewer(open_page, serve(viewable(tmp_path / "episode.json", tmp_path)))
    page.get_by_role("link", name="episode.json").click()

    expect(page.locator(".detail h1")).to_contain_text("not ended")
    expect(page.locator(".detail")).to_contain_text("No times are recorded.")
    page.get_by_role("treeitem").filter(has_text="context.split").get_by_role("link").click()
    expect(page.locator(".output")).to_have_text("['one', 'two']")
    expect(page.locator(".detail")).to_contain_text("No reply of a model is recorded.")
    expect(page.locator(".panel.sampled")).to_have_count(0)


def test_without_the_token_there_is_no_data(open_page, serve, recorded, browser):
    server = serve(recorded)
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.origin)

    expect(page.get_by_role("alert")).to_contain_text("token")
    context.close()


def test_small_screens_show_tree_and_turn_one_after_the_other(open_page, serve, recorded):
    page = open_viewer(
        open_page, serve(recorded / "run.jsonl"), viewport={"width": 400, "height": 800}
    )
    page.locator(".run-link").first.click()
    page.get_by_role("treeitem").nth(4).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Turn 4")).to_be_visible()
    expect(page.get_by_role("tree")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("link", name="Runs and turns").click()
    expect(page.get_by_role("tree")).to_be_visible()


def test_a_broken_file_and_an_empty_folder_say_so(open_page, serve, tmp_path):
    page = open_viewer(open_page, serve(tmp_path))
    expect(page.get_by_role("heading", name="Nothing to show yet")).to_be_visible()

    header = {"format": "repl-env trajectory", "version": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(header) + "\n{broken\n")
    expect(page.locator(".main, .run-list")).to_be_visible(timeout=10_000)
    page.goto(page.url.partition("#")[0] + "#/run/0")
    expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
