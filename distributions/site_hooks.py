"""Hooks of mkdocs: pages of the repository's root join the site; links lead where it has pages.

For models, the site has each page as Markdown beside its HTML, and `llms.txt`, which lists these
(https://llmstxt.org).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages that stand in the root, where readers of the repository look, by their name on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
_BLOCKS = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s:#]+)\)")
# tests/pages/blocks.py describes these; they say nothing to a reader of the site.
_TEST_ATTRIBUTES = re.compile(r"^(```\w+.*?) (?:needs|by|peer|until)=\"[^\"]*\"", re.MULTILINE)


# Of the build that runs: the Markdown of its pages by path, and its navigation.
_markdown: dict[str, str] = {}
_navigation: list[Navigation] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    for name, on_site in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, on_site, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, whose paths are those of the repository, and drop attributes for tests."""
    on_site = page.file.src_uri
    if on_site == "index.md":  # a section of one page needs no list of its pages
        page.meta["hide"] = ["navigation"]
    source = {there: name for name, there in ROOT_PAGES.items()}.get(on_site, f"docs/{on_site}")
    parts = _BLOCKS.split(markdown)
    parts[::2] = [_with_site_links(text, source, on_site) for text in parts[::2]]
    _markdown[on_site] = text = _TEST_ATTRIBUTES.sub(r"\1", "".join(parts))
    return text


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation, whose sections are those of `llms.txt`."""
    _navigation[:] = [nav]
    return nav


# An empty cell heads no column, and a dialog has a name (for screen readers).
_EMPTY_HEAD = re.compile(r"<th( [^>]*)?></th>")
_NAMELESS_SEARCH = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mend what the theme and Markdown leave out for people who use a screen reader."""
    output = output.replace(_NAMELESS_SEARCH, f'{_NAMELESS_SEARCH} aria-label="Search"')
    return _EMPTY_HEAD.sub(r"<td\1></td>", output)


def on_post_build(config: MkDocsConfig) -> None:
    """Write each page as Markdown, and `llms.txt`."""
    site = Path(config.site_dir)
    for path, text in _markdown.items():
        (site / path).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(_llms_text(config), encoding="utf-8")


def _llms_text(config: MkDocsConfig) -> str:
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for item in _navigation[0].items:
        pages = item.children if isinstance(item, Section) else [item]
        lines += ["", f"## {item.title}", ""]
        for page in pages:
            assert isinstance(page, Page)
            path = page.file.src_uri
            lines.append(f"- [{page.title}]({path}): {_summary(_markdown[path])}")
    return "\n".join(lines) + "\n"


def _summary(markdown: str) -> str:
    """Return the first sentence of a page, without links."""
    paragraphs = (" ".join(each.split()) for each in _BLOCKS.sub("", markdown).split("\n\n"))
    first = next((each for each in paragraphs if re.match(r"[\w*`\[]", each)), "")
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", first)
    return re.sub(r":$", ".", re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0])


def _with_site_links(text: str, source: str, on_site: str) -> str:
    folder = PurePosixPath(source).parent

    def target(path: str) -> str | None:
        """Return the path on the site of a path that is relative to the source, if it has one."""
        wanted = normpath(str(folder / path))
        there = ROOT_PAGES.get(wanted, wanted.removeprefix("docs/"))
        if there == wanted and wanted not in ROOT_PAGES:
            return None
        return relpath(there, str(PurePosixPath(on_site).parent))

    def link(found: re.Match[str]) -> str:
        path = target(found[2])
        return f"[{found[1]}]({path}{found[3] or ''})" if path else found[1]

    def image(found: re.Match[str]) -> str:
        return f"![{found[1]}]({target(found[2])})"

    return _LINK.sub(link, _IMAGE.sub(image, text))
