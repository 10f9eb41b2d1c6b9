"""Code blocks of a page, and their attributes.

The words behind the language in the first line of a block say how the tests treat the block:

| first line | treatment |
| --- | --- |
| ```` ```python ```` | runs in the namespace of the page, after the blocks above it |
| ```` ```sh ```` | runs in a folder that the blocks of a page share; no command may fail |
| ```` ```text ```` right below one of these | its output; `...` stands for any text |
| ```` ```json ````, ```` ```toml ```` | is parsed |
| `until="Ctrl-C"` | runs line by line; a server is interrupted once it prints its address |
| `title="NAME"` | is the file NAME of that folder, for blocks below it |
| `title="examples/NAME"` | is that file of the repository, word for word, and runs |
| ```` ```diff ```` | its new side, the lines without `-`, runs as Python |
| `peer="NAME"` | the old side of a diff runs in `tests/peers` |
| `by="tests/FOLDER"` | runs in those tests, where its library is installed |
| `needs="REASON"` | does not run here; Python is compiled |

The site leaves `by`, `needs`, `peer` and `until` out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "reference.md"),
]  # the reference has signatures, which do not run
RUN = {"python", "diff", "sh"}
PARSED = {"json", "toml"}
_BLOCK = re.compile(
    r"^```(\w+)([^\n]*)\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_ATTRIBUTE = re.compile(r"(\w+)=\"([^\"]*)\"")


@dataclass(frozen=True)
class Block:
    """One code block: where it begins, its attributes, and the output that the page shows."""

    page: str
    line: int
    language: str
    code: str
    output: str | None
    title: str = ""
    by: str = ""
    needs: str = ""
    peer: str = ""
    until: str = ""
    before: str = ""  # the old side of a diff

    @property
    def runs(self) -> bool:
        """Whether the block runs with its page."""
        return (self.language in RUN or self.title != "") and not (self.by or self.needs)


def blocks_run_by(by: str) -> list[Block]:
    """Return the blocks of all pages that the tests in folder `by` run."""
    return [block for page in PAGES for block in blocks(page) if block.by == by]


def own_task() -> str:
    """Return the code of the task of one's own in docs/training.md, which its examples use."""
    page = blocks(ROOT / "docs" / "training.md")
    first = next(number for number, block in enumerate(page) if block.by)
    return "\n".join(block.code for block in page[:first] if block.language == "python")


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, from top to bottom.

    Raises:
        TypeError: an attribute that does not exist.
    """
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 2,
            language=found[1],
            code=side(found[3], "-") if found[1] == "diff" else found[3],
            output=found[4],
            before=side(found[3], "+") if found[1] == "diff" else "",
            **dict(_ATTRIBUTE.findall(found[2])),
        )
        for found in _BLOCK.finditer(text)
    ]


def side(diff: str, other: str) -> str:
    """Return the lines of a diff without those that begin with `other`."""
    return "".join(line[1:] for line in diff.splitlines(True) if line[0] != other)
