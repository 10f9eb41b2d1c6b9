"""Blocks in the text of a model: fenced, tagged, in quoted lines.

A block ends at the first closing fence that makes it valid Python, since code may contain fences in
strings. If none of the next few does, fences are paired by depth.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice

from repl_env.parsing.block_names import Kind, is_tag, kind_of, plain_name
from repl_env.parsing.markdown_fences import Fence, FenceEnd, Fences
from repl_env.parsing.python_source import MAX_CODE, PythonParser, tidied

# Ends of a block that are tried.
_MAX_ENDS = 8

# Possessive, since a line may be long: backtracking at each of its spaces would take forever.
_ONE_LINE = re.compile(
    r"[ \t]*+(?P<fence>`{3,}+)(?P<name>[\w.:+-]++)[ \t](?P<code>[^`]++)(?P=fence)[ \t]*+"
)
# The marks of all quotation levels.
_QUOTED = re.compile(r"(?>(?: {0,3}>(?!>>)[ \t]?){1,9999})")
_TAG = re.compile(r"<\|?(?P<name>[A-Za-z]\w{0,30})(?:\s[^<>]{0,200})?\|?>")
# `</code>`, `<|/code|>`, and `<|python_end|>` for `<|python_start|>`.
_CLOSER = re.compile(r"<\|?/(?P<name>[A-Za-z]\w{0,30})|<\|(?P<begun>[A-Za-z]\w{0,20}_)end\|>")
_ITEM = re.compile(r"[ \t]*+(?>(?:(?:[-*+]|\d{1,9}[.)])[ \t]++){0,99})")
# Code on the line of the opening fence, after the name: attributes have no such form.
_HEAD = re.compile(
    r"(?:import|from|def|class|for|if|while|with)[ \t]|[\w.]++(?:\[[^\]]*+\])?(?:\(|[ \t]+=[ \t])"
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block: its name, its content, and its lines.

    `begin` is the index of its first line, `end` that of the line after it; `closed`: a fence or a
    tag
    ends it, rather than the next block or the end of the text.
    """

    name: str
    kind: Kind
    code: str
    begin: int
    end: int
    closed: bool


def blocks_of(
    lines: list[str], language: str = "python", parser: PythonParser | None = None
) -> Iterator[Block]:
    """Yield the blocks of a text, given by its lines; without a parser, fences alone end them."""
    return _Blocks(lines, language, parser).blocks()


class _Blocks:
    def __init__(self, lines: list[str], language: str, parser: PythonParser | None) -> None:
        self._lines = lines
        self._language = language
        self._parser = parser
        self._fences = Fences(lines, language)
        self._begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
        self._closers = _closers(lines)
        self._last = FenceEnd(len(lines), len(lines))

    def blocks(self) -> Iterator[Block]:
        index = 0
        while index < len(self._lines):
            if _QUOTED.match(self._lines[index]):
                end = self._quoted_end(index)
                yield from self._quoted(index, end)
                index = end
            elif (block := self._at(index)) is not None:
                yield block
                index = block.end
            else:
                index += 1

    # ── quoted lines ─────────────────────────────────────────────────────────────────────────────

    def _quoted_end(self, index: int) -> int:
        while index < len(self._lines) and _QUOTED.match(self._lines[index]):
            index += 1
        return index

    def _quoted(self, begin: int, end: int) -> Iterator[Block]:
        lines = [_QUOTED.sub("", line, count=1) for line in self._lines[begin:end]]
        for block in _Blocks(lines, self._language, self._parser).blocks():
            yield replace(block, begin=begin + block.begin, end=begin + block.end)

    # ── one block ────────────────────────────────────────────────────────────────────────────────

    def _at(self, index: int) -> Block | None:
        """Return the block that begins on this line."""
        line = self._lines[index]
        whole = _ONE_LINE.fullmatch(line)
        if whole is not None:
            name = plain_name(whole["name"])
            kind = kind_of(name, self._language)
            return Block(name, kind, whole["code"].strip(), index, index + 1, closed=True)
        fence = self._fences.at.get(index)
        if fence is not None and fence.opens:
            return self._behind_text(index, fence) if fence.behind else self._fenced(index, fence)
        return self._tagged(index) if "<" in line else None

    def _fenced(self, index: int, fence: Fence) -> Block:
        head = fence.rest if _HEAD.match(fence.rest) else ""
        stop = None
        if kind_of(fence.name, self._language) in ("python", "code", "unnamed"):
            ends = chain(self._fences.stops(index), [self._last], self._fences.short_stops(index))
            stop = self._python_end(index, ends, head)
        return self._block(fence.name, index, stop or self._fences.end(index), head)

    def _behind_text(self, index: int, fence: Fence) -> Block | None:
        """Return a block whose fence follows text; prose that mentions a fence begins none."""
        stops = list(islice(self._fences.stops(index), _MAX_ENDS))
        if kind_of(fence.name, self._language) in ("python", "code"):
            end = self._python_end(index, (stop for stop in stops if stop.closes))
            if end is None and not stops and self._is_plain(index, self._last):
                end = self._last
            if end is not None:
                return self._block(fence.name, index, end)
        return self._block(fence.name, index, stops[0]) if stops and stops[0].closes else None

    def _tagged(self, index: int) -> Block | None:
        """Return a block between tags that contain no fenced block."""
        line = self._lines[index]
        named = ((tag, plain_name(tag["name"])) for tag in _TAG.finditer(line))
        tag, name = next((t for t in named if is_tag(t[1], self._language)), (None, ""))
        if tag is None:
            return None
        alone = _ITEM.fullmatch(line, 0, tag.start()) is not None
        head, closer = line[tag.end() :], f"</{tag['name']}"
        if closer in head:
            return self._between_tags(index, name, *head.split(closer, 1)) if alone else None
        if not head.strip() and self._fence_follows(index):
            return None
        first = next(self._tag_ends(index, tag["name"]), None)
        if kind_of(name, self._language) not in ("python", "code"):
            return self._block(name, index, first) if alone and first else None
        ends = chain(self._tag_ends(index, tag["name"]), [self._last])
        end = self._python_end(index, ends, head)
        if end is None and not alone:
            return None
        return self._block(name, index, end or first or self._last, head)

    def _between_tags(self, index: int, name: str, code: str, behind: str) -> Block | None:
        """Return the block of a line that consists of both tags and the code between them."""
        stop = FenceEnd(index + 1, index + 1, closes=True)
        return None if behind.partition(">")[2].strip() else self._block(name, index, stop, code)

    def _fence_follows(self, index: int) -> bool:
        """Return whether the next line that is not empty is a fence."""
        following = range(index + 1, len(self._lines))
        line = next((n for n in following if self._lines[n].strip()), -1)
        return line in self._fences.at and not self._fences.at[line].behind

    def _tag_ends(self, index: int, name: str) -> Iterator[FenceEnd]:
        closers = self._closers.get(name, [])
        for place in range(bisect_left(closers, (index + 1, 0)), len(closers)):
            number, column = closers[place]
            before = self._lines[number][:column]
            yield FenceEnd(number, number + 1, before if before.strip() else None, closes=True)

    # ── where it ends ────────────────────────────────────────────────────────────────────────────

    def _python_end(self, index: int, ends: Iterable[FenceEnd], head: str = "") -> FenceEnd | None:
        """Return the first of the next ends that makes the block valid Python."""
        if self._parser is None or self._parser.used_up:
            return None
        # A comment may mention a fence: fences after one on their line come last.
        candidates = sorted(islice(ends, _MAX_ENDS), key=lambda stop: "#" in (stop.before or ""))
        for stop in candidates:
            short = self._begins[stop.line] - self._begins[index] <= MAX_CODE
            if short and self._parser.is_python(self._code(index, stop, head)):
                return stop
        return None

    def _is_plain(self, index: int, stop: FenceEnd) -> bool:
        short = self._begins[stop.line] - self._begins[index] <= MAX_CODE
        return (
            self._parser is not None
            and short
            and self._parser.is_plainly_python(self._code(index, stop))
        )

    def _block(self, name: str, index: int, stop: FenceEnd, head: str = "") -> Block:
        code = self._code(index, stop, head)
        kind = kind_of(name, self._language)
        return Block(name, kind, code, index, stop.after, closed=stop.closes)

    def _code(self, index: int, stop: FenceEnd, head: str = "") -> str:
        """Return the text from the line of the opener to `stop`.

        `head` is the code on that line.
        """
        lines = self._lines[index + 1 : stop.line]
        if head.strip():
            lines = [head.strip(), *lines]
        if stop.before is not None:
            lines.append(stop.before)
        return tidied("\n".join(lines)).strip("\n")


def _closers(lines: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Return, by the name in a closing tag, the lines with such a tag and its first position on
    each.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines):
        if "<" not in line:
            continue
        for tag in _CLOSER.finditer(line):
            places = found.setdefault(tag["name"] or f"{tag['begun']}start", [])
            if not places or places[-1][0] != number:
                places.append((number, tag.start()))
    return found
