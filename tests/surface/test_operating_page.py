"""The tables of docs/operating.md are those of the code: `python -m tests.surface --write`."""

from __future__ import annotations

import pytest

from tests.surface.operating import PAGE, written


def test_the_page_has_the_metrics_the_events_and_the_figures() -> None:
    pytest.importorskip("fastapi", reason="this environment has no server")
    assert PAGE.read_text(encoding="utf-8") == written()
