"""Pages of the site have no fault that axe-core knows; the search, too."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Page, expect

from tests.waiting import PATIENCE
from tests.web.access import Audit, violations
from tests.web.browser import HINT, IN_CI, chromium, executable

# These have every kind of content: tables, wide ones, code, long lists of links.
LOOKED_AT_CLOSELY = ("index", "cli", "numbers", "CONTRIBUTING", "design/jail")
# Colours are those of the theme on each page, and axe takes most of its time for them.
OF_ALL_PAGES = ["color-contrast"]


@pytest.fixture(scope="module")
def page():
    if executable() is None:
        (pytest.fail if IN_CI else pytest.skip)(HINT)
    with chromium() as browser:
        yield browser.new_page(viewport={"width": 1280, "height": 820})


def reported(audit: Audit) -> None:
    if report := audit.report():
        pytest.fail(report, pytrace=False)


def test_pages_have_no_fault_narrow_and_wide_dark_and_light(site: Path, page: Page) -> None:
    audit = Audit()
    for name in LOOKED_AT_CLOSELY:
        page.goto((site / f"{name}.html").as_uri())
        audit.check(name, page)
    reported(audit)


def test_the_open_search_has_no_fault(site: Path, page: Page) -> None:
    audit = Audit()
    page.goto((site / "getting-started.html").as_uri())
    page.get_by_role("textbox", name="Search").click()
    expect(page.get_by_text("Type to start searching")).to_be_visible(timeout=PATIENCE * 1000)
    page.keyboard.type("sandbox")  # the theme listens to keys
    results = page.get_by_role("dialog", name="Search").locator("li a")
    expect(results.first).to_be_visible(timeout=PATIENCE * 1000)
    audit.check("search", page)
    reported(audit)


def test_no_page_has_a_fault(site: Path, page: Page) -> None:
    found = {}
    for path in site.rglob("*.html"):
        if path.name != "404.html":  # which has addresses of a server
            page.goto(path.as_uri())
            if lines := violations(page, OF_ALL_PAGES):
                found[str(path)] = lines
    assert found == {}
