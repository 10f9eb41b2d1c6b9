"""Prose with commands in backticks, wrapped so that every command can be copied from a terminal."""

from __future__ import annotations

import re
import textwrap

_COMMAND = re.compile(r"`[^`]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def copyable(text: str, width: int, indent: int = 0) -> str:
    """Wrap `text` at words into `width` columns; a line break never stands inside backticks.

    A command that is longer than a line has a line of its own, which the terminal wraps: copying it
    gives no line break.
    """
    unbroken = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    margin = " " * indent
    wrapped = textwrap.fill(
        unbroken,
        max(width, indent + 20),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(_NO_BREAK, " ")
