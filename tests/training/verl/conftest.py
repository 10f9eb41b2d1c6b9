"""These tests run where verl is installed: `make test-training`."""

from importlib.util import find_spec

import pytest

from tests.training import library_warnings

HERE = find_spec("verl") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of verl and its libraries; warnings of this project are errors."""
    if HERE:
        library_warnings.ignore(config, "ResourceWarning")
