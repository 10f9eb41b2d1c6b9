"""Where a cell ends: in what is typed, and in what comes through a pipe.

The text is parsed here, never run; what is wrong with it the session says.
"""

from __future__ import annotations

import ast
import codeop
import re
import warnings
from collections.abc import Iterable, Iterator

_compile = codeop.CommandCompiler()
_compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

# What continues a compound statement at its own indentation.
_CONTINUES = re.compile(r"(elif|else|except|finally)\b|[)\]}]|#")
# Two empty lines end a block, as they do between the functions of a module; one may be inside it.
_BLANKS_THAT_END = 2


def is_whole(text: str) -> bool:
    """Whether `text` can be run: nothing is open in it, or it is wrong however it goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the session warns
        try:
            # Behind a backslash the end of a line would be taken for that of the statement.
            return _compile(text.rstrip("\n"), "<cell>", "exec") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True


def is_block(text: str) -> bool:
    """Whether `text` ends in a compound statement of several lines, which more may follow."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if not statements:
        return False
    last = statements[-1]
    return hasattr(last, "body") and last.end_lineno != last.lineno


def cells(lines: Iterable[str]) -> Iterator[str]:
    """The cells of a text: its statements at the top level, each as soon as it is known to end.

    A statement of one line ends there. One that goes on indented ends before the next line that is
    not, after two empty lines, or with the text. A line that begins with `:` is a cell of its own.
    """
    held: list[str] = []
    blanks = 0
    for line in lines:
        blank = not line.strip()
        text = "".join(held)
        begins = not blank and not line[0].isspace() and not _CONTINUES.match(line)
        if held and (begins or blanks + blank >= _BLANKS_THAT_END) and is_whole(text):
            yield text
            held, blanks = [], 0
        if blank and not held:
            continue
        held.append(line)
        blanks = blanks + 1 if blank else 0
        if len(held) == 1 and (line.startswith(":") or _ends_here(line)):
            yield line
            held, blanks = [], 0
    if held:
        yield "".join(held)


def _ends_here(line: str) -> bool:
    return not line.startswith("#") and is_whole(line) and not _may_go_on(line)


def _may_go_on(line: str) -> bool:
    """Whether a whole line of a compound statement may be followed by an `else`, as `if x: y`."""
    try:
        statements = ast.parse(line).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return bool(statements) and hasattr(statements[-1], "orelse")
