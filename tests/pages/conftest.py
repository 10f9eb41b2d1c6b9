"""Fixtures of pages and examples: a server, and an endpoint of models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repl_env.llm.endpoint import Endpoint
from tests.server.conftest import serving

ANSWER = '```repl\nFINAL("yes")\n```'


@pytest.fixture(scope="session")
def addresses() -> Iterator[dict[str, str]]:
    """Addresses on pages of a server and of an endpoint of models, with the addresses here."""
    with serving({"recovery": "snapshot"}) as server, Endpoint(ANSWER) as endpoint:
        yield {
            "http://localhost:8000/v1": endpoint.base_url,
            "http://localhost:8000": server.url,
            "http://127.0.0.1:8000": server.url,
            "https://ann-repl.hf.space": server.url,
            "OPENAI_BASE_URL": endpoint.base_url,
        }
