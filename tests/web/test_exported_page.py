"""Pages of one file, opened from disk: they work without a request to any host."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_env.display.files import NamedFiles
from repl_env.display.pages import evaluation_page_data, files_data, trajectory_data, write_page
from repl_env.evaluation import read_results
from repl_env.rlm import TrajectoryWriter
from tests.web.hostile_runs import hostile_events
from tests.web.recorded_runs import SCRIPT, evaluations, record


def test_a_run_opens_from_disk_with_its_figures(open_page, tmp_path):
    record(tmp_path / "run.jsonl", SCRIPT, expected_answer="west")
    write_page(trajectory_data(tmp_path / "run.jsonl"), tmp_path / "run.html")
    address = (tmp_path / "run.html").as_uri()
    page = open_page(address)
    page.goto(address)

    expect(page.get_by_role("heading", name="Run 0")).to_be_visible()
    page.get_by_role("treeitem").filter(has_text="import matplotlib").get_by_role("link").click()
    expect(page.locator("figure.plot img")).to_be_visible()
    assert page.locator("figure.plot img").evaluate("image => image.naturalWidth") > 100
    page.get_by_role("button", name="Colours").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("link", name="All runs").click()
    expect(page.locator(".run-row")).to_have_count(1)


def test_an_evaluation_opens_with_its_trajectories(open_page, tmp_path):
    evaluations(tmp_path)
    results = read_results(tmp_path / "careful.jsonl").results
    data = evaluation_page_data("careful", results, tmp_path / "careful-runs")
    write_page(data, tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    page.goto((tmp_path / "page.html").as_uri())

    page.get_by_role("link", name="1 task with a score from 0 to 0.1").click()
    page.locator(".run-row .run-link").click()
    expect(page.locator(".task-detail")).to_contain_text("Add the numbers in the context.")
    page.get_by_role("link", name="Trajectory").click()
    expect(page.get_by_role("heading", name="Run 0")).to_be_visible()


def test_a_page_of_two_evaluations_has_their_comparison(open_page, tmp_path):
    evaluations(tmp_path)
    files = NamedFiles([tmp_path / "careless.jsonl", tmp_path / "exact.jsonl"])
    write_page(files_data(files), tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    page.goto((tmp_path / "page.html").as_uri())

    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".difference")).to_contain_text("95 % interval +")
    assert page.locator(".changes-list li").count() > 10


@pytest.mark.parametrize("place", ["0", "0/turn/1", "0/call/0.1"])
def test_hostile_content_stays_text(open_page, tmp_path, place):
    path: Path = tmp_path / "run.jsonl"
    with TrajectoryWriter(path) as write:
        for event in hostile_events():
            write(event)
    write_page(trajectory_data(path), tmp_path / "run.html")
    address = f"{(tmp_path / 'run.html').as_uri()}#/run/0/{place}"
    page = open_page((tmp_path / "run.html").as_uri())
    page.goto(address)

    expect(page.locator(".detail")).to_contain_text("<img src=x onerror=alert(1)>")
    for details in page.locator("details:not([open]) > summary").all():
        details.click()
    page.wait_for_load_state("networkidle")
    assert page.locator("script").count() == 2
    assert page.locator("iframe, object, embed, foreignObject, .detail img").count() == 0
