"""These tests run where TorchRL is installed: `make test-torchrl`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torchrl") else ["test_*.py"]
