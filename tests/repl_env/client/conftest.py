"""Short pauses between the attempts of clients, and uploads in small pieces."""

from __future__ import annotations

import pytest

from repl_env.client.connection import timeouts
from repl_env.client.upload import resumable_upload
from tests.repl_env.client.upload.upload_server import KIB


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(timeouts, "LONGEST_PAUSE_S", 0.01)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(resumable_upload, "CHUNK", 256 * KIB)
    monkeypatch.setattr(resumable_upload, "MIN_CHUNK", 64 * KIB)
