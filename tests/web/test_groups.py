"""Groups of rollouts in the viewer: a list with rewards, and a group side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from repl_env.display.files import NamedFiles
from repl_env.display.pages import files_data, write_page
from repl_env.env.rollouts import RolloutNote
from repl_env.env.rows import EpisodeRows
from tests.web.recorded_rollouts import GROUP, record_training

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Path:
    """The rollouts of six batches."""
    folder: Path = tmp_path_factory.mktemp("training")
    record_training(folder, groups=6)
    return folder


@pytest.fixture(params=["served", "exported"])
def page(request, open_page, serve, training, tmp_path) -> Page:
    """The list of runs of the training, of a server or of a page in a file."""
    if request.param == "exported":
        out = tmp_path / "page.html"
        write_page(files_data(NamedFiles([training])), out)
        opened: Page = open_page(out.as_uri())
        opened.goto(out.as_uri())
    else:
        server = serve(training)
        opened = open_page(server.origin)
        opened.goto(server.url)
    return opened


def test_groups_are_listed_with_their_rewards_and_seen_side_by_side(page):
    page.get_by_role("link", name="Groups (6)").click()
    rows = page.get_by_role("listitem")
    expect(rows).to_have_count(6)
    expect(rows.first).to_contain_text(f"{GROUP} runs")
    # The policy became better: the last batch has a higher mean than the first.
    means = [
        float(text.replace("−", "-")) for text in page.locator(".cell-score").all_inner_texts()
    ]
    assert means[0] > means[-1]
    assert (
        rows.first.get_by_role("img").get_attribute("aria-label").startswith(f"{GROUP} rewards: ")
    )

    page.get_by_label("Order").select_option("worst")
    lowest = page.locator(".cell-score").filter(has_text=f"{min(means):g}".replace("-", "−"))
    expect(rows.first.locator(".cell-score").and_(lowest)).to_be_visible()
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_contain_text("words-")
    expect(page.locator(".group-head")).to_contain_text("mean reward")
    expect(page.locator(".column")).to_have_count(6)
    page.get_by_role("link", name="After →").click()
    expect(page.locator(".column")).to_have_count(GROUP - 6)
    expect(page.locator(".pager")).to_contain_text(f"7 to {GROUP} of {GROUP}")


def test_a_bar_of_the_histogram_shows_the_rollouts_with_such_rewards(page):
    page.get_by_role("link", name="Groups (6)").click()
    page.get_by_role("listitem").first.get_by_role("link").click()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_contain_text("words-")
    bar = page.locator(".histogram a:not(.none)").last
    number = int(bar.locator("text").text_content())
    assert 0 < number < GROUP
    bar.click()
    expect(page.locator(".column")).to_have_count(min(number, 6))
    for reward in page.locator(".side-facts .score").all_inner_texts():
        assert reward == "1"
    page.locator(".histogram a.chosen").click()  # all of them again
    expect(page.locator(".pager")).to_contain_text(f"of {GROUP}")


def test_a_masked_rollout_and_names_with_markup(open_page, serve, tmp_path):
    with EpisodeRows(2, record=tmp_path) as rows:
        note = RolloutNote(HOSTILE, {"task_id": HOSTILE, "group_id": f"{HOSTILE}/1&x=2"})
        rows.reset([{"task_prompt": HOSTILE}] * 2, notes=[note] * 2)
        rows.environments.environments[0].session.close()  # stands in for a failure of the host
        rows.step([f"```repl\nprint({HOSTILE!r})\nFINAL(1)\n```"] * 2)
    server = serve(tmp_path)
    page = open_page(server.origin)
    page.goto(server.url)
    page.get_by_role("link", name="Groups (1)").click()
    expect(page.get_by_role("listitem")).to_contain_text("1 masked")
    page.get_by_role("listitem").get_by_role("link").click()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.locator(".column")).to_have_count(2)
    expect(page.locator(".column", has_text="sandbox")).to_have_count(1)
    assert page.locator("img").count() == 0


def test_an_unknown_group_and_a_folder_without_groups(open_page, serve, tmp_path):
    with EpisodeRows(1, record=tmp_path) as rows:
        rows.reset()
        rows.step(["FINAL(1)"])
    (file,) = tmp_path.rglob("*.jsonl")
    without = tmp_path / "without.jsonl"
    group = file.parent.name + "/000000"
    without.write_bytes(file.read_bytes().replace(f'"{group}"'.encode(), b"null"))
    server = serve(without)
    page = open_page(server.origin)
    page.goto(server.url)
    expect(page.locator(".run-row")).to_have_count(1)
    expect(page.get_by_role("link", name="Groups")).to_have_count(0)
    page.goto(f"{server.origin}/#/groups")
    expect(page.get_by_text("No groups yet")).to_be_visible()
    page.goto(f"{server.origin}/#/side?group=g")
    expect(page.get_by_text("No such group")).to_be_visible()
