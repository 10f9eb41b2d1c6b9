"""These tests run CPython's own: `make test-python`."""

import os

collect_ignore_glob = [] if os.environ.get("REPL_TEST_PYTHON") else ["test_*.py"]
