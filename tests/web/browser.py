"""The browser of the tests: the system's Chromium, driven by Playwright.

`python -m tests.web.browser` sees that it is there: as root on Debian it installs the package, else
it says what to install, and fails where the variable CI is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

HINT = "no Chromium found; install it (Debian: apt-get install chromium)"
IN_CI = bool(os.environ.get("CI"))

# Violations of a page's policy, and shifts of its layout, as the page itself sees them.
REPORT = """
window.shifts = 0;
new PerformanceObserver((list) => {
    for (const shift of list.getEntries()) window.shifts += shift.hadRecentInput ? 0 : shift.value;
}).observe({ type: "layout-shift", buffered: true });
addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def executable() -> str | None:
    """Return the path of Chromium."""
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. As root it has no sandbox of its own: its pages are those of the tests."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, and all that it must not do.

    `complaints` are errors of scripts, violations of the policy, dialogs, and requests to another
    origin than those of `origins`. `failing`: a part of console messages about requests that
    the test makes fail, such as those to a session that it ends.
    """

    page: Page
    origins: tuple[str, ...] = ()
    failing: str | None = None
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.add_init_script(REPORT)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type == "error" and (self.failing is None or self.failing not in message.text):
            self.complaints.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((*self.origins, "data:", "blob:")):
            self.complaints.append(f"request: {request.url}")


def main() -> str | None:
    """Return an error for `sys.exit`, or None."""
    if executable() is not None:
        return None
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "--quiet"], check=False)
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"]
        subprocess.run(command, check=False)
    if executable() is not None:
        return None
    if IN_CI:
        return HINT
    print(f"{HINT}; the tests are skipped")
    return None


if __name__ == "__main__":
    sys.exit(main())
