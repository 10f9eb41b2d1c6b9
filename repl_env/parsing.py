"""Code blocks in the text of a model: Markdown fences as models really write them.

The rules are CommonMark's for fenced code (https://spec.commonmark.org/0.31.2/#fenced-code-blocks)
with three additions: a fence that opens inside a block is expected to close inside it, a block that
the text never closes ends with the text, and a whole block may stand on one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The names under which models write code for a Python REPL, beside the language asked for.
PYTHON_NAMES = frozenset({"repl", "python", "python3", "py", "py3", "ipython"})

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
# Possessive, since a line may be long: tried again at each of its spaces, it would take for ever.
_ONE_LINE = re.compile(r"[ \t]*(?P<fence>`{3,})(?P<name>\w++)[ \t](?P<code>[^`]++)(?P=fence)[ \t]*")


# Line breaks, and marks of fences, up to which a text is looked at line by line, in some
# milliseconds. A client may send eight megabytes of fences, and a server would stand still for
# seconds. Of a text with more, the first and the last line are looked at.
_MOST_LINES, _MOST_MARKS = 10_000, 1_000
_PAIR = 2


@dataclass(frozen=True, slots=True)
class _Fence:
    indent: int
    marks: str
    name: str | None  # None: the info string has backticks, so this is inline code, not a fence


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    code: str
    end: int  # index of the line after the block


def extract_code_blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks of `text` that are meant to be run, in the order they stand there.

    Blocks marked `repl`, as Python or as `language` count. Blocks without a mark count only if
    there is no marked one: beside marked code they are quoted output. Empty blocks are left out.
    """
    names = PYTHON_NAMES | {language.lower()}
    blocks = list(_blocks(text.split("\n"), names))
    marked = [block for block in blocks if block.name in names]
    chosen = marked or [block for block in blocks if not block.name]
    return [block.code for block in chosen if block.code.strip()]


def strip_fence(text: str) -> str:
    """`text` without the Markdown fence around it, if it is one fenced block and nothing else."""
    stripped = text.strip()
    if not stripped.startswith(("```", "~~~")):
        return text
    marks = stripped.count("```") + stripped.count("~~~")
    if marks > _MOST_MARKS or stripped.count("\n") > _MOST_LINES:
        code = _between_fences(stripped) if marks == _PAIR else None
        return text if code is None else code
    lines = stripped.split("\n")
    first = next(_blocks(lines, PYTHON_NAMES), None)
    return first.code if first is not None and first.end == len(lines) else text


def _between_fences(text: str) -> str | None:
    """What stands between the first and the last line if these are the fences of a block."""
    first, _, rest = text.partition("\n")
    code, _, last = rest.rpartition("\n")
    opener, closer = _fence(first), _fence(last)
    if opener is None or opener.name is None or closer is None or closer.name != "":
        return None
    return code.strip("\n") if closer.marks.startswith(opener.marks) else None


def _blocks(lines: list[str], names: frozenset[str]) -> Iterator[_Block]:
    fences = _Fences(lines, names)
    index = 0
    while index < len(lines):
        block = _block_at(lines, index, fences)
        if block is None:
            index += 1
        else:
            yield block
            index = block.end


def _block_at(lines: list[str], index: int, fences: _Fences) -> _Block | None:
    whole = _ONE_LINE.fullmatch(lines[index])
    if whole:
        return _Block(whole["name"].lower(), whole["code"].strip(), index + 1)
    opener = fences.at[index]
    if opener is None or opener.name is None:
        return None
    end, after = fences.end(index)
    inside = (_outdent(line, opener.indent) for line in lines[index + 1 : end])
    return _Block(opener.name, "\n".join(inside).strip("\n"), after)


def _fence(line: str) -> _Fence | None:
    match = _FENCE.fullmatch(line)
    if match is None:
        return None
    info = match["info"].strip()
    words = info.strip("{}.").split(None, 1)
    name = None if "`" in info else words[0].lower() if words else ""
    return _Fence(len(match["indent"]), match["fence"], name)


class _Fences:
    """The fences of a text, and which of them end a block that begins at another.

    All ends for one kind of marks are found in one walk. A model that repeats itself may write
    thousands of fences, and a client may send as many; to look from each for its end would hold up
    the process for minutes.
    """

    def __init__(self, lines: list[str], names: frozenset[str]) -> None:
        self.at = [_fence(line) for line in lines]
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
