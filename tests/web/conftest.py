"""A browser for all tests, and for each a page that must not complain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# The virtual environment of `make test` has no browser: pages are tested by `make test-web`.
pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page

from repl_env.display.viewer.named_files import NamedFiles
from repl_env.display.viewer.view_data import ViewData
from repl_env.display.viewer.view_server import ViewServer
from tests.web.browser import HINT, IN_CI, Watched, chromium, executable


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if executable() is None:
        (pytest.fail if IN_CI else pytest.skip)(HINT)
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages; each is closed at the end, and none may have complained."""
    watched: list[Watched] = []
    with ExitStack() as stack:

        def opened(*origins: str, **options) -> Page:
            context = browser.new_context(**options)
            stack.callback(context.close)
            watched.append(Watched(context.new_page(), origins))
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
