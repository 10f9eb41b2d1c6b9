"""The lines of a Markdown text that begin or end fenced blocks, as models really write them.

The rules are CommonMark's for fenced code (https://spec.commonmark.org/0.31.2/#fenced-code-blocks)
with additions: a fence may follow other text on its line, for example in a list item, or end the
last line of the code; text or a chat template token may follow a closing fence; such a token closes
a block by itself; and a fence that opens inside a block is expected to close inside it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from repl_env.parsing.block_names import is_known, kind_of, plain_name

_SHORTEST_FENCE = 3
# Longer fences count as this long. Each length is scanned separately.
_LONGEST_FENCE = 8

# Tokens that end a message in chat templates, and others that models end code with.
_ENDS_IN_TOKEN = re.compile(
    r"(?:<\|[a-z_]{1,30}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|<end_code>|<end_of_turn>|</s>"
    r"|</(?:code|python|execute|tool_code|repl)>)\s*+$"
)
_LONGEST_TOKEN = 60
# Tokens at the end of a text that are left out.
_MAX_TOKENS = 4

_AT_START = re.compile(
    r"(?P<before>[ \t]*+(?>(?P<marker>(?:[-*+]|\d{1,9}[.)])[ \t]++){0,99}))"
    r"(?P<marks>`{3,}+|~{3,}+)(?P<info>.*+)"
)
_BEHIND_TEXT = re.compile(r"(?>(?P<before>(?s:.*?))(?P<marks>`{3,}+))(?P<info>[^`]*+)")
_WORD = re.compile(
    r"\s*+[\ufeff{.\[(\"'*=#!%@/]*+(?:(?:lang|language|type)[ ]*+[=:][ ]*+)?"
    r"(?P<word>[\w+#.:-]*+)(?P<rest>.*+)"
)


# The character of a fence's marks, and their number.
Kind: TypeAlias = tuple[str, int]


class Fence(NamedTuple):
    """A fence on a line, of a kind.

    `before` is the text before it on the line, `name` and `rest` its info string, `behind` whether
    `before` is text. A fence without an info string may both open and close a block.
    """

    before: str
    kind: Kind
    name: str = ""
    rest: str = ""
    opens: bool = True
    closes: bool = True
    behind: bool = False

    def may_end(self, kind: Kind) -> bool:
        """Return whether a block that a fence of this kind began may end here."""
        return self.kind[0] == kind[0] and self.kind[1] >= kind[1]


class FenceEnd(NamedTuple):
    """A position at which a block may end.

    `line` is the index of the line after its last whole one, `before` the part of that line inside
    the
    block, `after` the first line after the block. `closes`: by a closing fence.
    """

    line: int
    after: int
    before: str | None = None
    closes: bool = False


def fence_at(line: str, language: str = "python") -> Fence | None:
    """Return the fence on `line`, or None."""
    match = _AT_START.fullmatch(line)
    if match is not None:
        return _fence(match, language, behind=False)
    if "```" in line and (match := _BEHIND_TEXT.fullmatch(line)) is not None:
        return _fence(match, language, behind=True)
    return None


def _fence(match: re.Match[str], language: str, *, behind: bool) -> Fence | None:
    before, marks, info = match["before"], match["marks"], match["info"]
    kind = (marks[0], min(len(marks), _LONGEST_FENCE))
    if not info.strip():
        closes = behind or not match["marker"]
        return Fence(before, kind, closes=closes, behind=behind)
    closer = Fence(before, kind, opens=False, behind=behind)
    apart = info[0] not in "{." and not info[0].isalnum()
    if "`" in info:  # inline code, or a closing fence with inline code in the text after it
        return closer if apart else None
    word = _WORD.fullmatch(info)
    name = plain_name(word["word"]) if word else ""
    rest = word["rest"].strip() if word else ""
    if name and is_known(name, language) and not (apart and _is_prose(rest, language)):
        return Fence(before, kind, name, rest, closes=False, behind=behind)
    if apart or not name or (" " in rest and not {"=", "{"} & set(rest)):
        return closer
    return closer if behind else Fence(before, kind, name, rest, closes=False)


def _is_prose(rest: str, language: str) -> bool:
    """Return whether the words after a name continue a sentence, as in "``` python prints it"."""
    if not rest[:1].isalpha() or {"=", "{", "("} & set(rest):
        return False
    return " " in rest or not is_known(plain_name(rest), language)


class Fences:
    """The fences of a text, and the possible ends of blocks that begin at them.

    One pass handles each kind of marks. A model that repeats itself, or a client, may write
    thousands of
    fences; a search from each fence for its end would take minutes.
    """

    def __init__(self, lines: list[str], language: str) -> None:
        marked = [(n, line) for n, line in enumerate(lines) if "```" in line or "~~~" in line]
        known = {line: fence_at(line, language) for line in {line for _, line in marked}}
        self.at = {n: fence for n, line in marked if (fence := known[line]) is not None}
        self._lines = lines
        self._language = language
        self._tokens = {
            index: line[:token]
            for index, line in enumerate(lines)
            if index not in self.at and (token := _end_token(line)) is not None
        }
        self._stops: dict[Kind, tuple[list[int], list[FenceEnd]]] = {}
        self._ends: dict[Kind, dict[int, FenceEnd]] = {}

    def stops(self, index: int) -> Iterator[FenceEnd]:
        """Yield the positions, before the end of the text, at which this line's block may end."""
        return self._stops_behind(index, self.at[index].kind)

    def short_stops(self, index: int) -> Iterator[FenceEnd]:
        """`stops` under the assumption that shorter fences close the block of this line."""
        character, length = self.at[index].kind
        return (
            self._stops_behind(index, (character, _SHORTEST_FENCE))
            if length > _SHORTEST_FENCE
            else iter(())
        )

    def _stops_behind(self, index: int, kind: Kind) -> Iterator[FenceEnd]:
        if kind not in self._stops:
            stops = list(self._stops_of(kind))
            self._stops[kind] = [stop.line for stop in stops], stops
        lines, stops = self._stops[kind]
        return map(stops.__getitem__, range(bisect_right(lines, index), len(stops)))

    def end(self, index: int) -> FenceEnd:
        """Return the position at which the block of this line's fence ends, whatever it
        contains.
        """
        kind = self.at[index].kind
        if kind not in self._ends:
            self._ends[kind] = self._ends_of(kind)
        end = self._ends[kind].get(index) or FenceEnd(len(self._lines), len(self._lines))
        # Left open, unless it closes on a line that also has text.
        first = None if end.closes else next(self.stops(index), None)
        return first if first is not None and first.closes and first.line < end.line else end

    def _stops_of(self, kind: Kind) -> Iterator[FenceEnd]:
        for index in sorted((*self.at, *self._tokens)):
            fence = self.at.get(index)
            if fence is None:
                yield _with_text(index, self._tokens[index])
            elif not fence.may_end(kind):
                continue
            elif fence.behind:
                yield _with_text(index, fence.before)
            elif not fence.closes:
                yield FenceEnd(index, index)
            else:
                yield FenceEnd(index, index + 1, closes=True)

    def _ends_of(self, kind: Kind) -> dict[int, FenceEnd]:
        """Return `end` of each fence that could end a block which a fence of this kind began."""
        found, depth = [], 0
        for index, fence in self.at.items():
            # A fence that could not close such a block is text of the block.
            if not fence.behind and fence.may_end(kind):
                depth += -1 if fence.closes else 1
                found.append((index, fence, depth))
        ends: dict[int, FenceEnd] = {}
        by_depth: dict[int, int] = {}  # of the following ones, the nearest
        closer = opener = last = len(self._lines)
        for index, fence, depth in reversed(found):
            pair = by_depth.get(depth - 1)
            # Otherwise the fences do not pair up: the block was left open before the next code
            # block, or the fence that seemed to open inside it is text.
            if pair is not None:
                ends[index] = FenceEnd(pair, pair + 1, closes=True)
            elif opener < closer:
                ends[index] = FenceEnd(opener, opener)
            else:
                ends[index] = FenceEnd(closer, min(closer + 1, last), closes=closer < last)
            by_depth[depth] = index
            if fence.closes:
                closer = index
            elif kind_of(fence.name, self._language) == "python":
                opener = index
        return ends


def _with_text(index: int, before: str) -> FenceEnd:
    return FenceEnd(index, index + 1, before if before.strip() else None, closes=True)


def _end_token(text: str) -> int | None:
    """Return the position of the token that ends `text`."""
    if ">" not in text[-_LONGEST_TOKEN:]:
        return None
    token = _ENDS_IN_TOKEN.search(text, max(0, len(text) - _LONGEST_TOKEN))
    return None if token is None else token.start()


def without_end_tokens(text: str) -> str:
    """Return `text` without final chat template tokens."""
    for _ in range(_MAX_TOKENS):
        token = _end_token(text)
        if token is None:
            break
        text = text[:token]
    return text
