"""Regular expressions of the packages mean the same on every supported CPython.

Before CPython 3.11.5 (Debian 12 has 3.11.2), a group that is repeated possessively, as `(?:ab)*+`,
may match half of its last repetition (https://github.com/python/cpython/issues/106052). An atomic
group, `(?>(?:ab){0,99})`, means the same and is right there; its bound limits the memory.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ["sandbox/repl_sandbox", "repl_env", "server/repl_server"]
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{+\d*,?\d*\}+)\+")
# These walk through strings of JSON in constant memory. No repetition of their groups can fail
# after its first character, except at the end of the text, where `\Z` follows.
RIGHT_ANYWHERE = {
    "repl_env/common/values.py",
    "sandbox/repl_sandbox/protocol/values.py",
}


def test_no_group_is_repeated_possessively() -> None:
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if POSSESSIVE_GROUP.search(path.read_text(encoding="utf-8"))
    }
    assert files == RIGHT_ANYWHERE
