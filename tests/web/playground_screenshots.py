"""Screenshots of the playground and of `/docs`, from a real session.

`python -m tests.web.playground_screenshots FOLDER` writes each page at 1280 and 400 pixels, light
and dark; `--docs` writes the pictures of docs/playground.md into docs/images instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.server.conftest import Serving, serving
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
RUNNING = """for number in range(400): print("row", number, flush=True)
while True: pass"""
CONTEXT = "date,city,visitors\n" + "".join(
    f"2024-05-{day:02},{city},{visitors + day}\n"
    for day in range(1, 32)
    for city, visitors in (("Lisbon", 400), ("Porto", 230))
)
DOCS = {"cells": "playground", "ended": "playground-ended"}
PLACES = ("start", "preview", "cells", "outcome", "queue", "ended", "earlier", "routes")


def main() -> None:
    """Play an episode for each size and scheme, and write the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/screenshots"))
    parser.add_argument(
        "--docs", action="store_true", help="the pictures of docs/playground.md alone"
    )
    given = parser.parse_args()
    with serving({"recovery": "snapshot", "require": "jailed"}) as server, chromium() as browser:
        if given.docs:
            IMAGES.mkdir(exist_ok=True)
            take(browser, server, (1280, 860), "light", IMAGES, DOCS)
            return
        given.folder.mkdir(parents=True, exist_ok=True)
        for size in SIZES:
            for scheme in SCHEMES:
                names = {place: f"playground-{place}-{size[0]}-{scheme}" for place in PLACES}
                take(browser, server, size, scheme, given.folder, names)


def take(
    browser: Browser,
    server: Serving,
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
    watched = Watched(context.new_page(), (server.url,), "404 (Not Found)")
    for place, page in places(watched.page, server):
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], place
        if place in names:
            (folder / f"{names[place]}.png").write_bytes(small(page.screenshot()))
    assert watched.complaints == [], watched.complaints
    context.close()


def places(page: Page, server: Serving):
    """Go through an episode and the routes, and stop at each place of a picture."""
    playground = Playground(page, server.url)
    expect(playground.button("Try an example")).to_be_visible()
    yield "start", page
    file = {"name": "visitors.csv", "mimeType": "text/csv", "buffer": CONTEXT.encode()}
    page.get_by_label("Context file").set_input_files([file])  # type: ignore[list-item]
    expect(page.get_by_label("Beginning of the context")).to_be_visible()
    yield "preview", page
    playground.start(task="Which city had more visitors?", expected="Lisbon")
    for code in (TOTALS, "totals['Porto'] / 0", FIGURE):
        playground.run(code)
    expect(page.locator("figure img")).to_be_visible()
    playground.editor.press_sequentially("best, visitors = totals.most_common(1)[0]\nFINAL(best)")
    yield "cells", page
    playground.editor.press("Shift+Enter")
    expect(page.locator(".outcome")).to_be_visible()
    yield "outcome", page
    playground.button("New task, same session").click()
    playground.button("Start").click()
    playground.begin(RUNNING)
    expect(page.get_by_text("row 399")).to_be_visible()
    playground.begin("totals.total()")
    playground.editor.fill("FINAL(totals.total())")
    yield "queue", page
    playground.editor.press("Control+c")
    expect(playground.button("Run it")).to_be_visible()
    for session in server.manager.sessions:
        server.loop.call_soon_threadsafe(session.end)
    expect(playground.button("Run these again in a new session")).to_be_visible()
    yield "ended", page
    playground.button("Open another session").click()
    playground.button("Close Session").click()
    expect(page.get_by_role("region", name="Earlier work")).to_be_visible()
    page.get_by_role("region", name="Earlier work").scroll_into_view_if_needed()
    yield "earlier", page
    page.goto(f"{server.url}/docs")
    page.locator("summary", has_text="/step").click()
    yield "routes", page


if __name__ == "__main__":
    main()
