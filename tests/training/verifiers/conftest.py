"""These tests run where verifiers is installed: `make test-training`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.training import library_warnings

HERE = find_spec("verifiers") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of verifiers and its libraries; warnings of this project are errors."""
    if HERE:
        library_warnings.ignore(config, "ResourceWarning")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Runtimes of verifiers, and its results, lie in a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIME_API_KEY", "none")
