"""The examples of the README run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
EXAMPLES = [code for language, code in BLOCKS if language == "python"]
# Where `repl-env serve` is, if nothing else is said.
SERVED = "http://127.0.0.1:8000"
# Limits of the examples, and what they are here: the machine may stand still for longer.
PATIENCE = {"timeout=5)": "timeout=60, grace=20)", "timeout_s=5": "timeout_s=60"}
OUTPUTS = [text for language, text in BLOCKS if language == "text"]


def run(code: str) -> str:
    for limit, longer in PATIENCE.items():
        code = code.replace(limit, longer)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_prints_what_the_readme_says() -> None:
    assert run(EXAMPLES[0]) == OUTPUTS[0]


def test_the_first_example_has_five_lines() -> None:
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]

    assert len(lines) == 5


@pytest.mark.parametrize("code", [code for code in EXAMPLES[1:] if SERVED not in code])
def test_the_other_examples_hold_what_they_assert(code: str) -> None:
    assert "assert " in code
    run(code)


def test_the_remote_example_holds_against_a_server() -> None:
    (code,) = [code for code in EXAMPLES if SERVED in code]
    assert "assert " in code
    with subprocess.Popen(
        [Path(sys.executable).with_name("repl-env"), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            run(code.replace(SERVED, found[0]))
        finally:
            server.terminate()
