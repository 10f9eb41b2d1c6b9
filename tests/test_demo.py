"""`make demo` works: on real input, without a key or a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_the_demo_runs_a_tree_replays_it_and_plays_an_episode() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward 1.0   turns 4   calls 10   runs below 1" in done.stdout
    assert "differences 0   answer the same" in done.stdout
    assert done.stdout.count("done True   reward 1.0") == 1
    assert "error kind: timeout" in done.stdout
    assert "error kind: exception" in done.stdout
