"""Code blocks in the reply of a model: fenced, tagged, quoted or bare, outside its thoughts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from typing import Literal, TypeAlias

from repl_env.common.display import set_module
from repl_env.parsing.fences import (
    MAX_CODE,
    Fence,
    FenceEnd,
    Fences,
    NameKind,
    PythonParser,
    fence_at,
    is_tag,
    kind_of,
    plain_name,
    tidied,
    without_end_tokens,
)

# Code in the text of a model without a fence or a tag.

_TARGET = r"\*?[A-Za-z_][\w.]*+(?>(?:\[[^\]\n]{0,200}\]){0,9})"
_CODE_LINE = re.compile(
    r"[ \t]++\S|[ \t]*+$|[@#)\]}\"']|>>>|\.\.\.|(?:import|from|def|class|for|while|if|elif|else|try"
    r"|except|finally|with|async|await|return|raise|assert|del|global|pass|break|continue|match"
    rf"|case)\b|{_TARGET}(?>(?:[ \t]*+,[ \t]*+{_TARGET}){{0,99}})(?:[ \t]*+:[^=\n]{{1,100}})?"
    r"[ \t]*+(?:[-+*%@&|^]|//?|\*\*|<<|>>)?=(?!=)|[\w.]++(?:\[[^\]\n]{0,200}\])?\("
)
_GIVES_ANSWER = re.compile(
    r"[ \t]*+(?:>>> )?(?:print\()?(?:FINAL|FINAL_VAR|SUBMIT|final_answer)[ \t]?\("
)


def bare_code(text: str, parser: PythonParser, known: Collection[str] = ()) -> str | None:
    """Return the code that is all of `text`, or a part that gives an answer; None for neither.

    Code must be plainly Python. `known` are the names in the session.
    """
    whole = tidied(text.strip("\n"))
    if parser.is_plainly_python(whole, known):
        return whole
    for part in _with_answers(text.split("\n")):
        code = tidied(part)
        if parser.is_plainly_python(code, known):
            return code
    return None


def is_code(code: str, parser: PythonParser, known: Collection[str] = ()) -> bool:
    """Return whether code marked with an unspecific name is Python to be run."""
    if gives_answer(code):
        return parser.is_python(code)
    return parser.is_plainly_python(code, known)


def gives_answer(code: str) -> bool:
    """Return whether a line of `code` calls one of the answer functions."""
    return any(_GIVES_ANSWER.match(line) for line in code.split("\n"))


def _with_answers(lines: list[str]) -> Iterator[str]:
    """Return the runs of code-like lines that contain one that gives an answer."""
    begin = 0
    for index in range(len(lines) + 1):
        if index < len(lines) and _CODE_LINE.match(lines[index]):
            continue
        part = lines[begin:index]
        if any(_GIVES_ANSWER.match(line) for line in part):
            yield "\n".join(part).strip("\n")
        begin = index + 1


# Blocks in the text of a model: fenced, tagged, in quoted lines.
#
# A block ends at the first closing fence that makes it valid Python, since code may contain
# fences in strings. If none of the next few does, fences are paired by depth.

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
    tag ends it, rather than the next block or the end of the text.
    """

    name: str
    kind: NameKind
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


# A reasoning model's thoughts before its reply, and the reply without them.
#
# Endpoints that know such a model return its reasoning separately. Others, and local models,
# return one text as the model wrote it: with both tags, or with the closing one only, if the chat
# template puts the opening tag into the prompt.

_THOUGHT_OPENER, _THOUGHT_CLOSER = "<think>", "</think>"
_WHITE_SPACE = re.compile(r"\s*+")
# Reasoning between tags that prompts ask for, and between tokens that endpoints leave in a text.
_TAGGED = re.compile(
    r"\s*+(?:<(?P<tag>think|thinking|thoughts?|reasoning|scratchpad|seed:think)>"
    r"|(?P<brackets>\[THINK\])|<\|(?P<token>start_thinking|begin_of_thought)\|>)",
    re.IGNORECASE,
)
_ENDS = {"start_thinking": "<|end_thinking|>", "begin_of_thought": "<|end_of_thought|>"}
# The tags of `_TAGGED` in small letters, for reasoning whose opening tag was in the prompt.
_PAIRS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "thoughts")),
    *((f"<{name}>", f"</{name}>") for name in ("reasoning", "scratchpad", "seed:think")),
    ("[think]", "[/think]"),
    *((f"<|{token}|>", end) for token, end in _ENDS.items()),
)
_ENDS_OF_SENTENCES = tuple(".!?\u2026)]")


@set_module("repl_env")
def without_thoughts(text: str) -> str:
    """Return `text` after the model's reasoning; all of it if there is none.

    In a text that begins with `<think>`, reasoning ends at the first `</think>`; without that tag
    the text was cut inside the reasoning, and nothing is left. Otherwise reasoning ends at the
    first `</think>` that begins a line, ends one, or follows the end of a sentence directly, if no
    earlier line begins with `<think>`. A line with both tags does not count, nor do lines in fenced
    blocks, because prose and code may mention these tags.

    A text that was cut inside reasoning whose opening tag was in the prompt has no mark of it.
    """
    return text[_after_marked(text) or _after_unmarked(text, _THOUGHT_OPENER, _THOUGHT_CLOSER) :]


def without_reasoning(text: str) -> str:
    """Return the part of a reply that is searched for code and answers, without any reasoning.

    Reasoning in other tags, such as `<thinking>` and `[THINK]`, is left out too, if the reply
    begins with them, closes them and continues, or begins inside of them. `without_thoughts` keeps
    these: a caller that asked a model for such tags may want to read them.
    """
    visible_text = without_thoughts(text)
    reply = 0
    while opener := _TAGGED.match(visible_text, reply):
        closer = re.compile(re.escape(_end_of(opener)), re.IGNORECASE).search(
            visible_text, opener.end()
        )
        if closer is None:
            break
        reply = _after_blank(visible_text, closer.end())
    if not reply:
        folded = _folded(visible_text)
        ends = (_after_unmarked(folded, *pair) for pair in _PAIRS if pair[1] in folded)
        reply = next((end for end in ends if end and visible_text[end:].strip()), 0)
    return visible_text[reply:] or visible_text


def _end_of(opener: re.Match[str]) -> str:
    if opener["brackets"]:
        return "[/THINK]"
    return f"</{opener['tag']}>" if opener["tag"] else _ENDS[opener["token"].lower()]


def _after_marked(text: str) -> int:
    """Return the start of the reply after reasoning between tags; 0 without such reasoning."""
    reply, nested = 0, False
    # Some models think again before they reply.
    while text.startswith(_THOUGHT_OPENER, begin := _after_white_space(text, reply)):
        closer = text.find(_THOUGHT_CLOSER, begin)
        if closer < 0:
            return len(text)
        nested = nested or text.find(_THOUGHT_OPENER, begin + len(_THOUGHT_OPENER), closer) >= 0
        reply = _after_blank(text, closer + len(_THOUGHT_CLOSER))
    return reply + (
        _after_unmarked(text[reply:], _THOUGHT_OPENER, _THOUGHT_CLOSER) if nested else 0
    )


def _after_unmarked(text: str, opener: str, closer: str) -> int:
    """Return the start of the reply after reasoning without an opening tag; 0 without reasoning."""
    if closer not in text:
        return 0
    lines = text.split("\n")
    quoted = _in_blocks(lines)
    place = 0
    for number, line in enumerate(lines):
        if number not in quoted and line.startswith(opener):
            return 0
        if number not in quoted and (end := _closed(line, opener, closer)):
            return _after_blank(text, place + end)
        place += len(line) + 1
    return 0


def _closed(line: str, opener: str, closer: str) -> int:
    """Return the position after a closing tag in `line` that ends reasoning; 0 if there is none."""
    if line.startswith(closer):
        return len(closer)
    begin = line.find(closer)
    if begin < 0 or opener in line:
        return 0
    ends_line = not line[begin + len(closer) :].strip()
    return begin + len(closer) if ends_line or line[:begin].endswith(_ENDS_OF_SENTENCES) else 0


def _folded(text: str) -> str:
    """Return `text` in small letters, each character in its place."""
    small = text.lower()
    return small if len(small) == len(text) else text


def _in_blocks(lines: list[str]) -> set[int]:
    """Return the lines of fenced blocks; an open block may end with the reasoning."""
    blocks = (block for block in blocks_of(lines) if block.closed)
    return {number for block in blocks for number in range(block.begin, block.end)}


def _after_blank(text: str, begin: int) -> int:
    """Return the position after blanks, with the indent of its line if that is a later line."""
    end = _after_white_space(text, begin)
    return text.rfind("\n", begin, end) + 1 or end


def _after_white_space(text: str, begin: int) -> int:
    space = _WHITE_SPACE.match(text, begin)
    return space.end() if space else begin


# Code in the text of a model, and code in an action with a fence around it.

# Limits on line breaks and fence marks for a scan line by line, which takes some milliseconds. A
# client may send eight megabytes of fences, which would stop a server for seconds. Of longer texts
# only the first and the last line are examined.
_MAX_LINES, _MAX_MARKS = 10_000, 1_000
_PAIR = 2
# Characters of an action that are parsed to find its closing fence, for the same reason.
_MAX_PARSED = 16 * 1024

Origin: TypeAlias = Literal["named", "unnamed", "bare", "none"]


@dataclass(frozen=True, slots=True)
class FoundCode:
    """The code in a text, and the rest of it.

    `origin` says how the code is marked: by the name of a fence or tag, by a fence alone, or not at
    all.
    `prose` is the text outside all blocks, `quoted` the contents of blocks that may hold an answer.
    """

    codes: list[str]
    origin: Origin
    prose: str
    quoted: list[str]


@set_module("repl_env")
def extract_code_blocks(text: str, language: str = "python") -> list[str]:
    """Return the code blocks of `text` that are meant to be run, in order.

    Blocks named `repl`, as Python or as `language` count, and those named as unspecific code if
    they are
    plainly Python (`repl_env.parsing.fences`). Unnamed blocks count only without named ones: next
    to named code they are quoted output. Empty blocks are left out, and so is the model's reasoning
    (`without_reasoning`).
    """
    parser = PythonParser()
    named, unnamed = _runnable(_blocks(_lines(text), language, parser), parser, ())
    return named or unnamed


def find_code(
    text: str, known: Collection[str] = (), parser: PythonParser | None = None
) -> FoundCode:
    """Return the code of `text`: its blocks, or unfenced code that is plainly Python.

    `known` are the names in the session.
    """
    parser = parser or PythonParser()
    lines = _lines(text)
    blocks = _blocks(lines, "python", parser)
    prose = "\n".join(_outside(lines, blocks))
    quoted = [block.code for block in blocks if block.kind in ("text", "unnamed")]
    named, unnamed = _runnable(blocks, parser, known)
    if named:
        return FoundCode(named, "named", prose, quoted)
    if unnamed:
        return FoundCode(unnamed, "unnamed", prose, quoted)
    code = bare_code(prose, parser, known)
    if code is not None:
        return FoundCode([code], "bare", prose, quoted)
    return FoundCode([], "none", prose, quoted)


def strip_fence(text: str) -> str:
    """Return `text` without its Markdown fence, if it is one fenced block and nothing else.

    Code tags, console prompts, and a common indent are removed likewise.
    """
    stripped = text.strip()
    if not stripped.startswith(("```", "~~~", "<")):
        return tidied(text)
    marks = stripped.count("```") + stripped.count("~~~")
    if marks > _MAX_MARKS or stripped.count("\n") > _MAX_LINES:
        code = _between_fences(stripped) if marks == _PAIR else None
        return text if code is None else code
    lines = without_end_tokens(stripped).split("\n")
    first = next(blocks_of(lines, parser=PythonParser(_MAX_PARSED)), None)
    whole = first is not None and first.begin == 0 and first.end == len(lines)
    return first.code if first is not None and whole else text


def _lines(text: str) -> list[str]:
    return without_end_tokens(without_reasoning(text.replace("\r\n", "\n"))).split("\n")


def _blocks(lines: list[str], language: str, parser: PythonParser) -> list[Block]:
    return [block for block in blocks_of(lines, language, parser) if block.code.strip()]


def _runnable(
    blocks: Iterable[Block], parser: PythonParser, known: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the code of blocks whose name means that they run, and of unnamed blocks."""
    named, unnamed = [], []
    for block in blocks:
        if block.kind == "python" or (block.kind == "code" and is_code(block.code, parser, known)):
            named.append(block.code)
        # Among unpaired fences, the last one may have closed a block.
        elif block.kind == "unnamed" and (block.closed or is_code(block.code, parser, known)):
            unnamed.append(block.code)
    return named, unnamed


def _outside(lines: list[str], blocks: Iterable[Block]) -> Iterable[str]:
    end = 0
    for block in blocks:
        yield from lines[end : block.begin]
        yield ""
        end = block.end
    yield from lines[end:]


def _between_fences(text: str) -> str | None:
    """Return the text between the first and the last line if these are the fences of a block."""
    first, _, rest = text.partition("\n")
    code, _, last = rest.rpartition("\n")
    opener, closer = fence_at(first), fence_at(last)
    if opener is None or not opener.opens or closer is None or not closer.closes or closer.behind:
        return None
    return tidied(code).strip("\n") if closer.may_end(opener.kind) else None
