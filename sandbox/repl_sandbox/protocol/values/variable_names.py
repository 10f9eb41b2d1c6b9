"""Rules for names of variables that a host may set in a session."""

from __future__ import annotations

import keyword

from ...types import ANSWER_NAMES

# The last displayed value and the pages of earlier output, which belong to the REPL.
REPL_NAMES = frozenset({"_", "_out"})
# Names that a session may bind in its own namespace, with or without answers.
RESERVED = frozenset({*ANSWER_NAMES, "HostCallError", "PolicyError"})


def check_name(name: object, argument: str) -> str:
    """Return `name` if code can use it as a variable; else raise TypeError or ValueError.

    `argument` is the name of the caller's argument in the message.
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument}: {name!r} must be a str, not {type(name).__name__}")
    if not name.isidentifier():
        raise ValueError(
            f"{argument}: {name!r} is not a name for a variable: letters, digits and underscores, "
            "and no digit first"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"{argument}: {name!r} is a keyword of Python; give it another name")
    if not name.isascii() and (read := _as_read(name)) != name:
        raise ValueError(f"{argument}: {name!a} is read as {read!a} in code; give it that")
    return name


def check_free(name: object, argument: str) -> str:
    """Return `name` like `check_name`, and refuse names that sessions reserve."""
    checked = check_name(name, argument)
    if checked in REPL_NAMES or checked[:2] == "__" == checked[-2:]:
        raise ValueError(f"{argument}: {name!r} is the session's own; give it another name")
    if checked in RESERVED:
        raise ValueError(f"{argument}: the name {name!r} is taken; the session has it already")
    return checked


def _as_read(name: str) -> str:
    from unicodedata import normalize  # imported here, because few names need it

    return normalize("NFKC", name)
