"""`make demo` works: on real input, without a key or a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_both_episodes_of_the_demo_end_with_reward_1() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done True   reward 1.0") == 2
    assert "error kind: timeout" in done.stdout
    assert "error kind: exception" in done.stdout
