"""Run the blocks of one page in this process: a list of them as JSON on standard input."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import linecache
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_ADDRESS = re.compile(r"http://[\w.]+:\d+")
_ENDED = (0, 130)  # a command that ended by itself, or after Ctrl-C


def run_python(block: dict[str, Any], namespace: dict[str, Any]) -> str:
    """Execute the block and return what it printed."""
    name = f"{block['page']}, line {block['line']}"
    linecache.cache[name] = (len(block["code"]), None, block["code"].splitlines(True), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block["code"], name, "exec"), namespace)
    return printed.getvalue()


def run_shell(block: dict[str, Any]) -> str:
    """Run the block in bash and return its standard output.

    A command that serves until Ctrl-C is a mistake of the page, and must not hold up the tests.
    """
    done = subprocess.run(
        ["timeout", "300", "bash", "-euo", "pipefail", "-c", block["code"]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def serve_until_interrupted(block: dict[str, Any]) -> str:
    """Run each line of the block; interrupt a command when it has printed its address."""
    for line in block["code"].splitlines():
        command = line.partition(" #")[0].rstrip(" &")
        with subprocess.Popen(
            ["timeout", "300", "bash", "-c", f"exec {command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            printed = []
            for text in process.stdout:
                printed.append(text)
                if _ADDRESS.search(text):
                    process.send_signal(signal.SIGINT)  # `timeout` passes it on
                    break
            printed.append(process.stdout.read())
        if process.returncode not in _ENDED:
            raise AssertionError(f"{command}: status {process.returncode}\n{''.join(printed)}")
    return ""


def run_file(block: dict[str, Any]) -> str:
    """Write the file of the block; run an example and return its standard output."""
    path = Path(block["title"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block["code"], encoding="utf-8")
    if path.parts[0] != "examples":
        return ""
    return run_shell({"code": f"{sys.executable} -W error {path}"})


def run(block: dict[str, Any], namespace: dict[str, Any]) -> str:
    """Run the block by its kind and return what it printed."""
    if block["title"]:
        return run_file(block)
    if block["until"]:
        return serve_until_interrupted(block)
    return run_shell(block) if block["language"] == "sh" else run_python(block, namespace)


def main() -> int:
    """Return 1 after the first block that fails, else 0."""
    page = sys.modules["page"] = ModuleType("page")  # where classes of blocks are looked up
    for block in json.load(sys.stdin):
        try:
            printed = run(block, vars(page))
            if block["output"] is not None:
                want, same = block["output"], doctest.OutputChecker().check_output
                assert same(want, printed, doctest.ELLIPSIS), f"printed:\n{printed}"
        except BaseException:  # noqa: BLE001
            # A block may raise anything, SystemExit too; the page is named beside it.
            print(f"{block['page']}, line {block['line']}:", file=sys.stderr)
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
