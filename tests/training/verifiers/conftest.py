"""These tests run where verifiers is installed: `make test-training`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HERE = find_spec("verifiers") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of verifiers and its libraries; warnings of this project are errors."""
    if HERE:
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning", "ResourceWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Runtimes of verifiers, and its results, lie in a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIME_API_KEY", "none")
