"""Screenshots of each page of the viewer, from real runs.

`python -m tests.web.screenshots FOLDER` writes each page at 1280 and 400 pixels, light and dark;
`--readme` writes the pictures of the README and of the guide into docs/images instead.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Browser, Page, expect

from repl_env.display.files import NamedFiles
from repl_env.display.pages import ViewServer
from repl_env.display.viewer import ViewData
from tests.web.browser import Watched, chromium
from tests.web.recorded_rollouts import record_training
from tests.web.recorded_runs import record_all

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZES = ((1280, 820), (400, 820))
SCHEMES = ("light", "dark")
RUN, FIRST, SECOND = "billing-by-region.jsonl", "careless.jsonl", "careful.jsonl"
SAMPLES = [f"sample-{number}.jsonl" for number in range(1, 5)]

# Places by name; a name of a file in braces is its id. Of a second element: scrolled to it.
PAGES: dict[str, tuple[str, str | None]] = {
    "runs": ("#/", None),
    "group": ("#/?group=billing-rise%2F7", None),
    "groups": ("#/groups", None),
    "rollouts": ("#/side?group={GROUP}", None),
    "tree": (f"#/run/{{{RUN}}}", None),
    "run": (f"#/run/{{{RUN}}}/0", None),
    "turn": (f"#/run/{{{RUN}}}/0/turn/4", None),
    "cell": (f"#/run/{{{RUN}}}/0/turn/4", ".cells"),
    "error": (f"#/run/{{{RUN}}}/0/turn/2", ".cells"),
    "calls": (f"#/run/{{{RUN}}}/0/turn/3", ".rows"),
    "call": (f"#/run/{{{RUN}}}/0/call/0.3", None),
    "side": ("#/side?runs=" + ",".join(f"{{{name}}}:0" for name in SAMPLES), None),
    "evaluation": (f"#/evaluation/{{{SECOND}}}", None),
    "task": (f"#/evaluation/{{{FIRST}}}?task=sum-002", None),
    "comparison": (f"#/compare/{{{FIRST}}}/{{{SECOND}}}", None),
    "missing": ("#/nowhere", None),
}
README = {"viewer-run": "run", "viewer-turn": "cell", "viewer-group": "rollouts"}


def main() -> None:
    """Record the runs, and write the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/screenshots"))
    parser.add_argument(
        "--readme", action="store_true", help="the pictures of README and guide alone"
    )
    parser.add_argument("--runs", type=Path, help="a folder of earlier runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = given.runs or record_all(Path(scratch))
        if given.runs is None:
            record_training(runs / "training")
        with ViewServer(ViewData(NamedFiles([runs]))) as server, chromium() as browser:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            if given.readme:
                IMAGES.mkdir(exist_ok=True)
                for name, page in README.items():
                    take(browser, server, "light", (1280, 760), {name: PAGES[page]}, IMAGES)
            else:
                given.folder.mkdir(parents=True, exist_ok=True)
                for size in SIZES:
                    for scheme in SCHEMES:
                        pages = {f"{name}-{size[0]}-{scheme}": PAGES[name] for name in PAGES}
                        take(browser, server, scheme, size, pages, given.folder)
            server.shutdown()


def take(
    browser: Browser,
    server: ViewServer,
    scheme: str,
    size: tuple[int, int],
    pages: dict[str, tuple[str, str | None]],
    folder: Path,
) -> None:
    """Write a picture of each of `pages`; a complaint of a page ends it."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    watched = Watched(context.new_page(), (server.origin,))
    page = watched.page
    page.goto(server.url)
    page.wait_for_selector(".run-row")
    ids = {file["name"]: file["id"] for file in server.data.listing()["files"]}
    roots = [root for file in server.data.listing()["files"] for root in file.get("roots", [])]
    groups = sorted(
        {root["group"] for root in roots if root["group"] and root["task"] != "billing-rise"}
    )
    group = quote(groups[len(groups) // 6], safe="") if groups else ""
    for name, (place, below) in pages.items():
        place = place.replace("{GROUP}", group)
        for file, number in ids.items():
            place = place.replace(f"{{{file}}}", number)
        page.goto(f"{server.origin}/{place}")
        settle(page)
        if below is not None:
            page.locator(below).first.evaluate("element => element.scrollIntoView()")
            settle(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size[0], f"{name} is {wide} pixels wide"
        (folder / f"{name}.png").write_bytes(small(page.screenshot()))
    assert watched.complaints == [], watched.complaints
    context.close()


def settle(page: Page) -> None:
    """Wait until nothing is fetched and no place shows that it waits."""
    page.wait_for_load_state("networkidle")
    for waiting in (page.locator(".spinner"), page.get_by_text("Loading…")):
        expect(waiting).to_have_count(0, timeout=20_000)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")


def small(png: bytes) -> bytes:
    """Return a picture in 256 colours, a fifth of the size."""
    with Image.open(io.BytesIO(png)) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        written = io.BytesIO()
        reduced.save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    main()
