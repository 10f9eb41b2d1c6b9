"""The virtual environments of OpenEnv's generations, and programs that run in them.

`make test-compat` makes them and says where they are.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEWEST = "openenv-0.10.0"
# With the adapter, which the environment of the oldest client lacks.
ADAPTED = (NEWEST, "openenv-0.4.1")
GENERATIONS = (*ADAPTED, "openenv-core-0.3.0")

wanted = pytest.mark.skipif(
    "REPL_TEST_COMPAT" not in os.environ,
    reason="only `make test-compat` installs OpenEnv's clients",
)


def program(generation: str, name: str) -> str:
    """The path of a program of an environment."""
    return str((ROOT / os.environ["REPL_TEST_COMPAT"] / generation / "bin" / name).absolute())


def run(generation: str, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment to its end."""
    return subprocess.run(
        [program(generation, name), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def told(generation: str, file: str, *arguments: str) -> dict[str, Any]:
    """Run a program of this folder and return its result for each story, one JSON line each."""
    done = run(generation, "python", str(HERE / file), *arguments)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["story"]: line["told"] for line in lines}


@contextmanager
def served(*command: str) -> Iterator[str]:
    """A server that prints its URL and serves until its standard input ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http"), f"{command} printed {url!r}"
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0
