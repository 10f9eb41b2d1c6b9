"""Code in the text of a model, and code in an action with a fence around it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from repl_env.common.set_module import set_module
from repl_env.parsing.bare_code import bare_code, is_code
from repl_env.parsing.block_scanner import Block, blocks_of
from repl_env.parsing.markdown_fences import fence_at, without_end_tokens
from repl_env.parsing.python_source import PythonParser, tidied
from repl_env.parsing.reasoning import without_reasoning

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
    plainly Python (`repl_env.parsing.block_names`). Unnamed blocks count only without named ones:
    next
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
