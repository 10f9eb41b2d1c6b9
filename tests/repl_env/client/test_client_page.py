"""docs/client.md says what the client does: its tables of names."""

from __future__ import annotations

import re
from pathlib import Path

import repl_env

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")


def test_every_error_of_a_server_says_what_to_do():
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE))
    kinds = {kind.__name__ for kind in repl_env.ServerError.__subclasses__()}

    assert named == kinds - {"BadReply"}  # not an error that the caller can act on


def test_the_page_lists_the_attributes_that_the_client_lacks():
    (row,) = re.findall(r"^\| not available on a remote session \| (.*?), and", PAGE, re.MULTILINE)
    absent = re.findall(r"`(\w+)`", row)

    assert absent
    assert not [name for name in absent if hasattr(repl_env.REPLEnv, name)]
    assert all(hasattr(repl_env.LocalREPLEnv, name) for name in absent)
