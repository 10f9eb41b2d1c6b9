"""These tests run where mkdocs is installed: `make test-docs`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

collect_ignore_glob = [] if find_spec("mkdocs") else ["test_*.py"]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The built site."""
    folder: Path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder
