"""Blocks of pages that need OpenEnv run where its newest release is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.compat.environments import NEWEST, ROOT, program, wanted
from tests.pages.blocks import Block, blocks_run_by

pytestmark = wanted


@pytest.mark.parametrize(
    "block", blocks_run_by("tests/compat"), ids=lambda block: f"{block.page}:{block.line}"
)
def test_a_block_prints_what_the_page_says(block: Block, our_server: str, tmp_path: Path) -> None:
    code = block.code.replace("http://127.0.0.1:8000", our_server).replace("/tmp", str(tmp_path))
    python = program(NEWEST, "python")
    command = [python, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*command, code],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    if block.output is not None:
        assert done.stdout == block.output
