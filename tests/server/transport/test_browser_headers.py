"""Headers of every response to a browser: the pages that may frame it, and its type."""

from __future__ import annotations

import pytest

from repl_server.app import create_app
from repl_server.settings import Settings
from tests.server.conftest import ask, serving

# Answered by the guard, by a route, by a route's refusal, and by nothing.
ANSWERS = [("GET", "/health", 200), ("GET", "/docs", 200), ("GET", "/mcp", 405), ("GET", "/x", 404)]


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
def test_no_site_may_frame_an_answer_unless_named(server, method, path, status) -> None:
    found, headers, _ = ask(server, method, path)

    assert found == status
    # Pages have a policy of their own as well.
    assert headers.get_all("Content-Security-Policy")[-1] == "frame-ancestors 'none'"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_a_named_site_may_frame_answers_and_errors() -> None:
    sites = ("https://huggingface.co/", "https://*.example.org:8443")
    with serving({"frame_ancestors": sites, "no_auth": True}) as one:
        for origin, status in ({}, 200), ({"Origin": "https://evil.example"}, 403):
            found, headers, _ = ask(one, "GET", "/docs", **origin)
            assert found == status
            expected = "frame-ancestors https://huggingface.co https://*.example.org:8443"
            assert headers.get_all("Content-Security-Policy")[-1] == expected
            assert headers["X-Frame-Options"] is None


@pytest.mark.parametrize(
    "site",
    [
        "", "huggingface.co", "*", "https://", "'self'", "data:", "javascript:alert(1)",
        "https://a.example; script-src *", "https://a.example b.example", "https://a.example/path",
        "https://user@a.example", "https://a.example\r\nX: y", "https://*", "https://a.*.example",
    ],
)  # fmt: skip
def test_an_invalid_site_is_refused_by_name(site) -> None:
    with pytest.raises(ValueError, match="frame_ancestors: "):
        create_app(Settings(frame_ancestors=(site,)))
