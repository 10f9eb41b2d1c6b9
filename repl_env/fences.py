"""Fenced blocks in a Markdown text, as models really write them.

The rules are CommonMark's for fenced code (https://spec.commonmark.org/0.31.2/#fenced-code-blocks)
with three additions: a fence that opens inside a block is expected to close inside it, a block that
the text never closes ends with the text, and a whole block may stand on one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The names under which models write code for a Python REPL.
PYTHON_NAMES = frozenset({"repl", "python", "python3", "py", "py3", "ipython"})

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
# Possessive, since a line may be long: tried again at each of its spaces, it would take for ever.
_ONE_LINE = re.compile(r"[ \t]*(?P<fence>`{3,})(?P<name>\w++)[ \t](?P<code>[^`]++)(?P=fence)[ \t]*")


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that may begin or end a block; one with an empty name may do both."""

    indent: int
    marks: str
    name: str | None  # None: the info string has backticks, so this is inline code, not a fence


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the name in its mark, what stands in it, and its lines.

    `begin` is the index of its first line, `end` that of the line after it; `closed`: a fence ends
    it, and not the next block or the end of the text.
    """

    name: str
    code: str
    begin: int
    end: int
    closed: bool


def blocks_of(lines: list[str], names: frozenset[str] = PYTHON_NAMES) -> Iterator[Block]:
    """The blocks of a text, given by its lines; in those of `names` there is code to run."""
    fences = _Fences(lines, names)
    index = 0
    while index < len(lines):
        block = _block_at(lines, index, fences)
        if block is None:
            index += 1
        else:
            yield block
            index = block.end


def _block_at(lines: list[str], index: int, fences: _Fences) -> Block | None:
    whole = _ONE_LINE.fullmatch(lines[index])
    if whole:
        return Block(whole["name"].lower(), whole["code"].strip(), index, index + 1, closed=True)
    opener = fences.at[index]
    if opener is None or opener.name is None:
        return None
    end, after = fences.end(index)
    inside = (_outdent(line, opener.indent) for line in lines[index + 1 : end])
    code = "\n".join(inside).strip("\n")
    return Block(opener.name, code, index, after, closed=after > end)


def fence_at(line: str) -> Fence | None:
    """The fence that a line is, if it is one."""
    match = _FENCE.fullmatch(line)
    if match is None:
        return None
    info = match["info"].strip()
    words = info.strip("{}.").split(None, 1)
    name = None if "`" in info else words[0].lower() if words else ""
    return Fence(len(match["indent"]), match["fence"], name)


class _Fences:
    """The fences of a text, and which of them end a block that begins at another.

    All ends for one kind of marks are found in one walk. A model that repeats itself may write
    thousands of fences, and a client may send as many; to look from each for its end would hold up
    the process for minutes.
    """

    def __init__(self, lines: list[str], names: frozenset[str]) -> None:
        self.at = [fence_at(line) for line in lines]
        self._names = names
        self._ends: dict[str, dict[int, tuple[int, int]]] = {}

    def end(self, index: int) -> tuple[int, int]:
        """The index of the line that ends the block, and of the first line after the block."""
        opener = self.at[index]
        assert opener is not None
        if opener.marks not in self._ends:
            self._ends[opener.marks] = self._ends_of(opener.marks)
        return self._ends[opener.marks][index]

    def _ends_of(self, marks: str) -> dict[int, tuple[int, int]]:
        """`end` of each fence that could end a block which these marks began."""
        found, depth = [], 0
        for index, fence in enumerate(self.at):
            # A fence that could not close such a block is text of the block.
            if fence is not None and fence.name is not None and fence.marks.startswith(marks):
                depth += 1 if fence.name else -1
                found.append((index, fence.name, depth))
        ends: dict[int, tuple[int, int]] = {}
        by_depth: dict[int, int] = {}  # of what lies behind, the nearest
        closer = opener = last = len(self.at)
        for index, name, depth in reversed(found):
            pair = by_depth.get(depth - 1)
            # Without one the fences do not pair up: the block was left open before the next block
            # of code, or the fence that seemed to open inside it is text.
            if pair is not None:
                ends[index] = pair, pair + 1
            elif opener < closer:
                ends[index] = opener, opener
            else:
                ends[index] = closer, min(closer + 1, last)
            by_depth[depth] = index
            if not name:
                closer = index
            elif name in self._names:
                opener = index
        return ends


def _outdent(line: str, indent: int) -> str:
    margin = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, margin) :]
