"""docs/client.md says what the client does: its examples, and its tables of names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import repl_env
from tests.server.conftest import serving

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SERVED = "http://127.0.0.1:8000"
# A limit on the page, and what it is here: the machine may stand still for longer.
SHORT, LONG = "timeout_s=5", "timeout_s=60"


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_hold_what_they_assert(server, code):
    assert "assert " in code and SERVED in code
    code = code.replace(SERVED, server.url).replace(SHORT, LONG)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_error_of_a_server_says_what_to_do():
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE))
    kinds = {kind.__name__ for kind in repl_env.ServerError.__subclasses__()}

    assert named == kinds - {"BadReply"}  # which is nobody's here to act on


def test_the_page_lists_the_attributes_that_the_client_lacks():
    (row,) = re.findall(r"^\| not to be had from afar \| (.*?), and", PAGE, re.MULTILINE)
    absent = re.findall(r"`(\w+)`", row)

    assert absent
    assert not [name for name in absent if hasattr(repl_env.REPLEnv, name)]
    assert all(hasattr(repl_env.LocalREPLEnv, name) for name in absent)
