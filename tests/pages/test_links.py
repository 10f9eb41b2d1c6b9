"""References of pages and comments exist: files, headings, sections by their titles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "server/*.md", "docker/*.md")
    for page in ROOT.glob(pattern)
)
SOURCES = sorted(
    file
    for folder in ("repl_env", "sandbox", "server", "tests", "benchmarks", "examples")
    for file in (ROOT / folder).rglob("*.py")
    if ".venv" not in str(file)
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
# docs/design.md, "Words" and `docs/design.md`, "Words", also across lines of a comment.
QUOTED = re.compile(r'([\w./-]+\.md)`?,[\s#]+"([^"]+)"')
# "Words" in [the design](docs/design.md)
QUOTED_BEFORE = re.compile(r'"([^"]+)"\s+in\s+\[[^\]]+\]\(([^)\s#]+)\)')
NAMED = re.compile(r"\bdocs/[\w/-]+\.md\b")


def headings(page: Path) -> list[str]:
    """The headings of a page, without those in its examples."""
    return HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(page: Path, text: str) -> list[str]:
    """Links of `text`, which stands in `page`, to files and headings that are not there."""
    broken = []
    for target in LINK.findall(FENCED.sub("", text)):
        path, _, wanted = target.partition("#")
        if ":" in path:  # of the web
            continue
        file = page.parent / path if path else page
        if not file.exists() or (wanted and wanted not in map(anchor, headings(file))):
            broken.append(target)
    return broken


def found(page: Path, path: str) -> Path:
    """The page that `path` in `page` means: from the root, as code has it, or beside the page."""
    return ROOT / path if (ROOT / path).exists() else page.parent / path


def broken_quotes(page: Path, text: str) -> list[str]:
    """Sections that `text` names by page and title, and that are not there."""
    quotes = QUOTED.findall(text) + [(path, title) for title, path in QUOTED_BEFORE.findall(text)]
    return [
        f"{path}, {title}"
        for path, title in quotes
        if not found(page, path).exists() or title not in headings(found(page, path))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_every_section_named_by_its_title_exists() -> None:
    files = [*PAGES, *SOURCES, ROOT / "pyproject.toml", ROOT / "Makefile"]
    own = Path(__file__)
    broken = {
        file: broken_quotes(file, file.read_text(encoding="utf-8")) for file in files if file != own
    }
    assert {file: quotes for file, quotes in broken.items() if quotes} == {}


def test_the_readme_leads_to_every_page_of_the_documentation() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Documentation")[2]

    assert set(LINK.findall(table)) >= {f"docs/{page.name}" for page in ROOT.glob("docs/*.md")}


def test_every_named_page_exists() -> None:
    files = [*PAGES, *SOURCES, ROOT / "pyproject.toml", ROOT / "Makefile"]
    named = {name: file for file in files for name in NAMED.findall(file.read_text("utf-8"))}

    assert "docs/design.md" in named
    assert {name: file for name, file in named.items() if not (ROOT / name).is_file()} == {}


def test_headings_of_a_page_are_unique() -> None:
    """A second one of the same name has another anchor, which a link does not reach."""
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            anchors = [anchor(heading) for heading in headings(page)]
            assert len(anchors) == len(set(anchors)), page


def test_broken_links_are_found() -> None:
    page = ROOT / "docs" / "design.md"
    links = "[a](#nowhere) [b](nothing.md) [c](protocol.md#nowhere) [d](protocol.md) [e](#words)"
    assert broken_links(page, links) == ["#nowhere", "nothing.md", "protocol.md#nowhere"]

    quotes = 'docs/design.md,\n    # "Words"; `design.md`, "Nowhere"; "Nowhere" in [x](design.md)'
    assert broken_quotes(page, quotes) == ["design.md, Nowhere", "design.md, Nowhere"]
