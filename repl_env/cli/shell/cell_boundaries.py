"""Find the end of a cell in typed and in piped input.

The text is parsed here, never run; what is wrong with it the session says.
"""

from __future__ import annotations

import ast
import codeop
import re
import warnings
from collections.abc import Callable, Iterable, Iterator

_compile = codeop.CommandCompiler()
_compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

# Beginnings of lines that continue a compound statement at its own indentation.
_CONTINUES = re.compile(r"(elif|else|except|finally)\b|[)\]}]|#")
_COMPOUND = re.compile(r"@|(async|class|def|for|if|match|try|while|with)\b")
# Empty lines after which a writer that pauses is taken to wait for the block that stands open.
_BLANKS_THAT_END = 2

# An escaped character, or the end of the string, by the quotes that opened it.
_IN_QUOTES = {
    quotes: re.compile(rf"\\.|{quotes}", re.DOTALL) for quotes in ("'''", '"""', "'", '"')
}
_MARK = re.compile(r"""#|'{3}|"{3}|['"()\[\]{}]|\\\n?\Z""")


def is_whole(text: str) -> bool:
    """Return whether `text` can run: no construct is open, or no continuation is valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the session warns
        try:
            # Behind a backslash the end of a line would be taken for that of the statement.
            return _compile(text.rstrip("\n"), "<cell>", "exec") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True


def is_block(text: str) -> bool:
    """Return whether `text` ends in a compound statement that may have further lines."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if not statements:
        return False
    last = statements[-1]
    return hasattr(last, "body") and last.end_lineno != last.lineno


def cells(lines: Iterable[str], paused: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield the cells of a text: each top-level statement as soon as its end is known.

    A statement of one line, or in brackets or quotes, ends there. A block ends before the next line
    that is not indented, or with the text; after two empty lines also where `paused` says that
    nothing more comes for now. A line that begins with `:` is a cell of its own.
    """
    pending: list[str] = []
    blanks = 0
    literal = _Literal()
    for line in lines:
        blank = not line.strip()
        if pending and not blank and _begins(line) and _ends(pending, literal):
            yield "".join(pending)
            pending, literal = [], _Literal()
        if blank and not pending:
            continue
        was_open = literal.is_open
        pending.append(line)
        literal.feed(line)
        blanks = blanks + 1 if blank else 0
        if len(pending) == 1 and line.startswith(":"):
            yield line
            pending, literal = [], _Literal()
        if literal.is_open or not pending:
            continue
        closes = len(pending) == 1 or (was_open and not _COMPOUND.match(pending[0]))
        if (closes and _closes("".join(pending))) or (
            blanks >= _BLANKS_THAT_END and paused() and is_whole("".join(pending))
        ):
            yield "".join(pending)
            pending, literal = [], _Literal()
    if pending:
        yield "".join(pending)


class _Literal:
    """The constructs left open by the lines so far: brackets, quotes, a final backslash."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0
        self._continued = False

    @property
    def is_open(self) -> bool:
        return bool(self._quote or self._depth or self._continued)

    @property
    def is_quoted(self) -> bool:
        return bool(self._quote)

    def feed(self, line: str) -> None:
        """Go through one more line."""
        self._continued = False
        position: int | None = 0
        while position is not None:
            position = (
                self._past_quote(line, position) if self._quote else self._mark(line, position)
            )

    def _mark(self, line: str, position: int) -> int | None:
        """Find the next mark and go past it; None at the end of the line."""
        found = _MARK.search(line, position)
        if found is None or found[0] == "#":
            return None
        mark = found[0]
        if mark in _IN_QUOTES:
            self._quote = mark
        elif mark[0] == "\\":
            self._continued = True
        else:
            self._depth = max(0, self._depth + (1 if mark in "([{" else -1))
        return found.end()

    def _past_quote(self, line: str, position: int) -> int | None:
        for mark in _IN_QUOTES[self._quote].finditer(line, position):
            if mark[0] == self._quote:
                self._quote = ""
                return mark.end()
        if len(self._quote) == 1 and not line.endswith("\\\n"):
            self._quote = ""  # it is wrong, and ends with its line
        return None


def _begins(line: str) -> bool:
    """Return whether a line begins a new statement, if none is open."""
    line = line.lstrip("\f")  # which has no column
    return not line[:1].isspace() and not _CONTINUES.match(line)


def _ends(pending: list[str], literal: _Literal) -> bool:
    """Return whether the pending lines are a cell, before a line that begins a statement.

    Open quotes are neither. Open brackets are seldom wrong: they are parsed each time that they
    have twice as many lines, so that the work grows with the text.
    """
    if literal.is_quoted or (literal.is_open and len(pending) & (len(pending) - 1)):
        return False
    return is_whole("".join(pending))


def _closes(text: str) -> bool:
    """Return whether a statement ends with its first line, or with the last open bracket."""
    return not text.startswith("#") and is_whole(text) and not _may_go_on(text)


def _may_go_on(text: str) -> bool:
    """Return whether an `else` may follow a whole compound statement, such as `if x: y`."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return bool(statements) and hasattr(statements[-1], "orelse")
