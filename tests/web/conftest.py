"""A browser for all tests, and for each a page that must not complain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from repl_env.display.files import NamedFiles
from repl_env.display.pages import ViewServer
from repl_env.display.viewer import ViewData

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The virtual environment of `make test` has no Playwright: pages are tested by `make test-web`.
if find_spec("playwright") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from tests.web.browser import HINT, IN_CI, chromium, executable

    if executable() is None:
        (pytest.fail if IN_CI else pytest.skip)(HINT)
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages; each is closed at the end, and none may have complained."""
    from tests.web.browser import Watched

    watched: list[Watched] = []
    with ExitStack() as stack:

        def opened(*origins: str, failing: str | None = None, **options) -> Page:
            context = browser.new_context(**options)
            stack.callback(context.close)
            watched.append(Watched(context.new_page(), origins, failing))
            return watched[-1].page

        yield opened
        for each in watched:
            assert each.complaints == []


@pytest.fixture
def serve() -> Iterator[Callable[[Path], ViewServer]]:
    """Serve the viewer on paths until the end of the test."""
    with ExitStack() as stack:

        def served(*paths: Path) -> ViewServer:
            server = stack.enter_context(ViewServer(ViewData(NamedFiles(paths))))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield served
