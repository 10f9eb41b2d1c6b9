"""Completions of a name or an attribute, from the session; no code runs in this process.

Names come from the list of its variables. Attributes come from `dir()` in a branch that is dropped
afterwards: properties and `__getattr__` run there, and the session stays as it is, with its cells
and what can be undone.
"""

from __future__ import annotations

import builtins
import keyword
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from repl_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from repl_sandbox import Session

# Seconds that a person waits for a list without wondering.
_PATIENCE = 0.5
_MOST = 2000
_LONGEST = 100

_PATH = re.compile(r"(?:(?P<owner>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\.)?(?P<prefix>[^\W\d]\w*|)")
_OURS = (*keyword.kwlist, *(name for name in dir(builtins) if not name.startswith("_")))


def completions(session: Session, before: str) -> tuple[str, list[str]]:
    """Return the part of a name that ends the text `before`, and its completions in order.

    Nothing after what is no name, as a call or a number. Names with a leading underscore come only
    when one was typed.
    """
    match = _path(before)
    if match is None:
        return "", []
    owner, prefix = match["owner"], match["prefix"]
    if owner is None and not prefix:
        return "", []
    names = names_of(session) if owner is None else attributes_of(session, owner)
    fitting = {name for name in names if name.startswith(prefix)}
    if not prefix.startswith("_"):
        fitting = {name for name in fitting if not name.startswith("_")}
    return prefix, sorted(fitting)[:_MOST]


def names_of(session: Session) -> list[str]:
    """Return the variables of the session, keywords and builtins."""
    with suppress(SandboxError):
        return [*(one.name for one in session.variables()), *_OURS]
    return list(_OURS)


def attributes_of(session: Session, owner: str) -> list[str]:
    """Return `dir()` of `owner`, a dotted name; empty if it fails or takes too long."""
    if any(keyword.iskeyword(part) for part in owner.split(".")):
        return []
    try:
        with session.branch() as branch:
            outcome = branch.run(f"print(*dir({owner}), sep='\\n')", timeout=_PATIENCE)
    except SandboxError:
        return []
    if not outcome.ok:
        return []
    # A `__dir__` of the session's may say anything.
    names = outcome.stdout.split("\n", _MOST)[:_MOST]
    return [name for name in names if name.isidentifier() and len(name) <= _LONGEST]


def _path(before: str) -> re.Match[str] | None:
    """The dotted name that ends `before`; None for `f().x`, `1.x` and `"a".x`, which are none."""
    start = len(before)
    while start and (before[start - 1].isalnum() or before[start - 1] in "_."):
        start -= 1
    if start and before[start - 1] in ")]}'\"":
        return None
    return _PATH.fullmatch(before, start)
