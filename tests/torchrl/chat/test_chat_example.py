"""`examples/torchrl_chat.py` runs, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrl_chat.py"


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rewards [0.0, 1.0]") == 2
    assert "batch 1: turns 6   episodes 2   reward" in done.stdout
    assert "batch 1: turns 12   episodes 4   reward" in done.stdout
