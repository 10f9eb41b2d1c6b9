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
_ONE_LINE = re.compile(r"[ \t]*(?P<fence>`{3,})(?P<name>\w+)[ \t]+(?P<code>[^`]+)(?P=fence)[ \t]*")


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
    lines = stripped.split("\n")
    blocks = list(_blocks(lines, PYTHON_NAMES))
    if len(blocks) == 1 and blocks[0].end == len(lines):
        return blocks[0].code
    return text


def _blocks(lines: list[str], names: frozenset[str]) -> Iterator[_Block]:
    index = 0
    while index < len(lines):
        block = _block_at(lines, index, names)
        if block is None:
            index += 1
        else:
            yield block
            index = block.end


def _block_at(lines: list[str], index: int, names: frozenset[str]) -> _Block | None:
    whole = _ONE_LINE.fullmatch(lines[index])
    if whole:
        return _Block(whole["name"].lower(), whole["code"].strip(), index + 1)
    opener = _fence(lines[index])
    if opener is None or opener.name is None:
        return None
    end, after = _end_of_block(lines, index + 1, opener, names)
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


def _end_of_block(
    lines: list[str], start: int, opener: _Fence, names: frozenset[str]
) -> tuple[int, int]:
    """The index of the line that ends the block, and of the first line after the block."""
    depth = 1
    first_closer: int | None = None
    next_opener: int | None = None
    for index in range(start, len(lines)):
        fence = _fence(lines[index])
        # A fence that could not close this block is text of the block.
        if fence is None or fence.name is None or not fence.marks.startswith(opener.marks):
            continue
        if fence.name:
            depth += 1
            if next_opener is None and first_closer is None and fence.name in names:
                next_opener = index
            continue
        depth -= 1
        if depth == 0:
            return index, index + 1
        if first_closer is None:
            first_closer = index
    # The fences do not pair up: the block was left open before the next block of code, or the
    # fence that seemed to open inside it is text.
    if next_opener is not None:
        return next_opener, next_opener
    if first_closer is not None:
        return first_closer, first_closer + 1
    return len(lines), len(lines)


def _outdent(line: str, indent: int) -> str:
    margin = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, margin) :]
