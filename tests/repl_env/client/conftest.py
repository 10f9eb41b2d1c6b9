"""Short pauses between the attempts of clients, and uploads in small pieces."""

from __future__ import annotations

import pytest

from repl_env.client import address, uploads
from tests.repl_env.client.upload.upload_server import KIB


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(address, "LONGEST_PAUSE_S", 0.01)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(uploads, "CHUNK", 256 * KIB)
    monkeypatch.setattr(uploads, "MIN_CHUNK", 64 * KIB)
