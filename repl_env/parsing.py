"""Code blocks in the text of a model, and code that came with a fence around it."""

from __future__ import annotations

from repl_env.fences import PYTHON_NAMES, blocks_of, fence_at
from repl_env.thoughts import without_thoughts

# Line breaks, and marks of fences, up to which a text is looked at line by line, in some
# milliseconds. A client may send eight megabytes of fences, and a server would stand still for
# seconds. Of a text with more, the first and the last line are looked at.
_MOST_LINES, _MOST_MARKS = 10_000, 1_000
_PAIR = 2


def extract_code_blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks of `text` that are meant to be run, in the order they stand there.

    Blocks marked `repl`, as Python or as `language` count. Blocks without a mark count only if
    there is no marked one: beside marked code they are quoted output. Empty blocks are left out,
    and so is what the model thought before its reply (`without_thoughts`).
    """
    names = PYTHON_NAMES | {language.lower()}
    blocks = list(blocks_of(without_thoughts(text).split("\n"), names))
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
    first = next(blocks_of(lines), None)
    return first.code if first is not None and first.end == len(lines) else text


def _between_fences(text: str) -> str | None:
    """What stands between the first and the last line if these are the fences of a block."""
    first, _, rest = text.partition("\n")
    code, _, last = rest.rpartition("\n")
    opener, closer = fence_at(first), fence_at(last)
    if opener is None or opener.name is None or closer is None or closer.name != "":
        return None
    return code.strip("\n") if closer.marks.startswith(opener.marks) else None
