"""These tests run where SkyRL is installed: `make test-training`."""

from importlib.util import find_spec

import pytest

HERE = find_spec("skyrl_gym") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of SkyRL and its libraries; warnings of this project are errors."""
    if HERE:
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning", "ResourceWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")
