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


def cells(lines: Iterable[str], paused: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """The cells of a text: its statements at the top level, each as soon as it is known to end.

    A statement of one line, or in brackets or quotes, ends there. A block ends before the next line
    that is not indented, or with the text; after two empty lines also where `paused` says that
    nothing more comes for now. A line that begins with `:` is a cell of its own.
    """
    held: list[str] = []
    blanks = 0
    literal = _Literal()
    for line in lines:
        blank = not line.strip()
        if held and not blank and _begins(line) and _ends(held, literal):
            yield "".join(held)
            held, literal = [], _Literal()
        if blank and not held:
            continue
        was_open = literal.is_open
        held.append(line)
        literal.feed(line)
        blanks = blanks + 1 if blank else 0
        if len(held) == 1 and line.startswith(":"):
            yield line
            held, literal = [], _Literal()
        if literal.is_open or not held:
            continue
        closes = len(held) == 1 or (was_open and not _COMPOUND.match(held[0]))
        if (closes and _closes("".join(held))) or (
            blanks >= _BLANKS_THAT_END and paused() and is_whole("".join(held))
        ):
            yield "".join(held)
            held, literal = [], _Literal()
    if held:
        yield "".join(held)


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
    """Whether a line is one of a new statement, if none is open."""
    line = line.lstrip("\f")  # which has no column
    return not line[:1].isspace() and not _CONTINUES.match(line)


def _ends(held: list[str], literal: _Literal) -> bool:
    """Whether what is held is whole, or wrong however it goes on, before a line that begins.

    Open quotes are neither. Open brackets are seldom wrong: they are parsed each time that they
    have twice as many lines, so that the work grows with the text.
    """
    if literal.is_quoted or (literal.is_open and len(held) & (len(held) - 1)):
        return False
    return is_whole("".join(held))


def _closes(text: str) -> bool:
    """Whether a statement ends with what is its first line, or closed what was open."""
    return not text.startswith("#") and is_whole(text) and not _may_go_on(text)


def _may_go_on(text: str) -> bool:
    """Whether a whole compound statement may be followed by an `else`, as `if x: y`."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return bool(statements) and hasattr(statements[-1], "orelse")
