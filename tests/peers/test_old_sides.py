"""The old side of each diff of docs/migrating.md runs with the other library: `make test-peers`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, blocks
from tests.repl_env.llm.endpoint import Endpoint

PYTHON = os.environ.get("REPL_TEST_PEERS", "")
DIFFS = [block for block in blocks(ROOT / "docs" / "migrating.md") if block.peer]
# rlms knows no other form of answer.
REPLY = """```repl
answer["content"] = "yes"
answer["ready"] = True
```"""


@pytest.mark.skipif(not PYTHON, reason="REPL_TEST_PEERS names no interpreter with the peers")
@pytest.mark.parametrize("diff", DIFFS, ids=lambda block: block.peer)
def test_the_old_side_prints_what_the_page_says(diff, tmp_path: Path) -> None:
    with Endpoint(REPLY) as endpoint:
        done = subprocess.run(
            [PYTHON, "-c", diff.before.replace("http://localhost:8000/v1", endpoint.base_url)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, diff.output), done.stderr
