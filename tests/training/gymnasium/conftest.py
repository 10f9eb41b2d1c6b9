"""These tests run where Gymnasium is installed, as it is by the extra `dev`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("gymnasium") else ["test_*.py"]
