"""`make test` runs the suite in two halves, and neither fails unseen."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.halves import side_by_side


@pytest.mark.parametrize(
    ("said", "ended", "sums"),
    [
        (
            [
                ".\n== 3 passed, 1 skipped in 1.00s ==",
                "== 2 passed, 1 deselected in 2.00s ==",
            ],
            [0, 0],
            "5 passed, 1 skipped, 1 deselected",
        ),
        (
            ["== 3 passed in 1.00s ==", "== 1 failed, 2 passed in 2.00s =="],
            [0, 1],
            "5 passed, 1 failed; the second ended with status 1",
        ),
        (
            ["== 1 error in 1.00s ==", "== 2 passed in 2.00s =="],
            [2, 0],
            "1 error, 2 passed; the first ended with status 2",
        ),
        (
            ["interrupted", "5 of 7 tests"],
            [3, 5],
            "nothing was run; the first ended with status 3; the second ended with status 5",
        ),
    ],
    ids=["both pass", "the second fails", "the first fails", "neither comes to its end"],
)
def test_output_of_both_halves_is_shown_in_turn_and_a_failure_of_either_counts(
    said: list[str], ended: list[int], sums: str
) -> None:
    halves = [
        [sys.executable, "-Sc", f"print({text!r}); raise SystemExit({status})"]
        for text, status in zip(said, ended, strict=True)
    ]
    screen = io.BytesIO()

    assert side_by_side(*halves, screen) == int(any(ended))

    assert screen.getvalue().decode() == f"{said[0]}\n{said[1]}\nboth halves: {sums}\n"


LEAVING = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(3600)"])
with open(sys.argv[1], "w") as file:
    file.write(str(left.pid))
print("== 1 passed in 1.00s ==")
"""


def test_a_process_left_by_a_test_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    screen = io.BytesIO()
    passing = [sys.executable, "-Sc", "print('== 2 passed in 1.00s ==')"]
    try:
        first = [sys.executable, "-Sc", LEAVING, str(pid)]
        assert side_by_side(first, passing, screen) == 0
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)

    assert screen.getvalue().decode().endswith("\nboth halves: 3 passed\n")
