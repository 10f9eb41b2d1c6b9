"""Measure the viewer on a trajectory of 200 MB beside a plain page of the same size.

`python -m tests.web.measure_large [--megabytes N]` prints of each page the time to the first rows,
the longest task, and the memory of the tab.
"""

from __future__ import annotations

import argparse
import html
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page
from playwright.sync_api import TimeoutError as PageTimeout

from repl_env.display.files import NamedFiles
from repl_env.display.pages import ViewServer
from repl_env.display.viewer import ViewData
from tests.web.browser import chromium
from tests.web.large_runs import write_large

EVENTS = 30_000
MOST_SECONDS = 120  # that a page may load
TEXTS = 5  # of a turn, each with the same filler
TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""


def memory(browser: Browser) -> float:
    """Return the proportional memory of the largest tab, in MB."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    tabs = [process["id"] for process in found if process["type"] == "renderer"]
    session.detach()
    return max(map(_proportional, tabs))


def _proportional(process: int) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    (line,) = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1000


def measure(context: BrowserContext, name: str, address: str, rows: str, done: str | None) -> None:
    """Open a page and print its figures: `rows` is there first, `done` when all is read."""
    page = context.new_page()
    page.add_init_script(TASKS)
    begun = time.perf_counter()
    page.goto(address, wait_until="commit", timeout=300_000)
    page.wait_for_selector(rows, state="attached", timeout=300_000)
    first = time.perf_counter() - begun
    if done is not None:
        page.get_by_text(done).wait_for(timeout=300_000)
    browser = context.browser
    assert browser is not None
    try:
        page.wait_for_load_state("load", timeout=MOST_SECONDS * 1000)
    except PageTimeout:
        print(
            f"{name}: first rows {first:.2f} s, not all after {MOST_SECONDS} s, "
            f"tab {memory(browser):.0f} MB"
        )
        return
    whole = time.perf_counter() - begun
    for _ in range(20):
        _scroll(page)
    longest = page.evaluate("window.longest")
    print(
        f"{name}: first rows {first:.2f} s, all {whole:.1f} s, "
        f"longest task {longest:.0f} ms, tab {memory(browser):.0f} MB"
    )


def _scroll(page: Page) -> None:
    page.mouse.move(200, 400)
    page.mouse.wheel(0, 20_000)
    page.evaluate("new Promise(requestAnimationFrame)")


def main() -> None:
    """Print the figures of both pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    body = parser.parse_args().megabytes * 1_000_000 // (EVENTS // 3) // TEXTS
    with tempfile.TemporaryDirectory() as folder:
        path = write_large(Path(folder, "large.jsonl"), EVENTS, body)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {EVENTS:,} events")
        with ViewServer(ViewData(NamedFiles([path]))) as server, chromium() as browser:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            context = browser.new_context()
            page = context.new_page()
            page.goto(server.url)  # the browser keeps the token
            page.wait_for_selector(".run-row")
            page.close()
            address = f"{server.origin}/#/run/0"
            measure(context, "viewer", address, ".node.turn", f"{EVENTS:,} events")
            server.shutdown()
        plain = Path(folder, "plain.html")
        # With the lines of its texts as lines, which browsers lay out best.
        text = html.escape(path.read_text(encoding="utf-8").replace("\\n", "\n"))
        plain.write_text(f"<!doctype html><meta charset=utf-8><pre>{text}</pre>", encoding="utf-8")
        with chromium() as browser:
            measure(browser.new_context(), "plain page", plain.as_uri(), "pre", None)


if __name__ == "__main__":
    main()
