"""Screenshots of the playground and of `/docs`, from a real session.

`python -m tests.web.playground_screenshots FOLDER` writes each page at 1280 and 400 pixels, light
and dark; `--docs` writes the picture of docs/playground.md into docs/images instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.server.conftest import serving
from tests.web.browser import Watched, chromium
from tests.web.playground_page import Playground
from tests.web.screenshots import IMAGES, SCHEMES, SIZES, settle, small

TOTALS = """import csv, io, collections
totals = collections.Counter()
for row in csv.DictReader(io.StringIO(context)):
    totals[row["city"]] += int(row["visitors"])  # by city
print(totals)
totals.most_common(1)"""
FIGURE = """import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.figure(figsize=(5, 2.4))
plt.bar(list(totals), list(totals.values()))
plt.show()"""


def main() -> None:
    """Play an episode for each size and scheme, and write the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/screenshots"))
    parser.add_argument(
        "--docs", action="store_true", help="the picture of docs/playground.md alone"
    )
    given = parser.parse_args()
    with serving({"recovery": "snapshot", "require": "jailed"}) as server, chromium() as browser:
        if given.docs:
            IMAGES.mkdir(exist_ok=True)
            take(browser, server.url, (1280, 860), "light", IMAGES, {"cells": "playground"})
            return
        given.folder.mkdir(parents=True, exist_ok=True)
        for size in SIZES:
            for scheme in SCHEMES:
                names = {
                    place: f"playground-{place}-{size[0]}-{scheme}"
                    for place in ("start", "cells", "outcome", "routes")
                }
                take(browser, server.url, size, scheme, given.folder, names)


def take(
    browser: Browser,
    url: str,
    size: tuple[int, int],
    scheme: str,
    folder: Path,
    names: dict[str, str],
) -> None:
    """Write the pictures of the places in `names`; a complaint of the page ends it."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    watched = Watched(context.new_page(), (url,))
    for place, page in places(watched.page, url):
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], place
        if place in names:
            (folder / f"{names[place]}.png").write_bytes(small(page.screenshot()))
    assert watched.complaints == [], watched.complaints
    context.close()


def places(page: Page, url: str):
    """Go through an episode and the routes, and stop at each place of a picture."""
    playground = Playground(page, url)
    playground.button("Fill in an example").click()
    yield "start", page
    playground.start()
    for code in (TOTALS, "totals['Porto'] / 0", FIGURE):
        playground.run(code)
    expect(page.locator("figure img")).to_be_visible()
    playground.editor.press_sequentially("best, visitors = totals.most_common(1)[0]\nFINAL(best)")
    yield "cells", page
    playground.editor.press("Shift+Enter")
    expect(page.locator(".outcome")).to_be_visible()
    yield "outcome", page
    page.goto(f"{url}/docs")
    page.locator("summary", has_text="/step").click()
    yield "routes", page


if __name__ == "__main__":
    main()
