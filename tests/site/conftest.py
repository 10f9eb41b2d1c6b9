"""These tests run where mkdocs is installed: `make test-docs`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("mkdocs") else ["test_*.py"]
