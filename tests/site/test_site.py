"""The site of the documentation builds without a warning and asks nothing of another origin."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

# Attributes by which an element loads something; a link to click on loads nothing.
LOADING = {"src", "srcset", "data", "poster", "action", "formaction", "background"}
# Scripts of the theme load these in browsers without ResizeObserver, for diagrams and for counts of
# a repository. No page has a diagram or a repository, and the policy of each page refuses them.
NAMED_BY_THE_THEME = re.compile(
    r"https://(unpkg\.com/(mermaid@|resize-observer-polyfill)|api\.github\.com/|gitlab\.com/|\$\{)"
)


class Loads(HTMLParser):
    """Collect what a page loads, and its policy."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.loaded += [values[name] for name in LOADING & values.keys()]
        if tag == "link" and values.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(values["href"])
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]


def is_elsewhere(address: str) -> bool:
    return address.startswith("//") or re.match(r"[a-z]+:", address) is not None


def test_pages_load_nothing_from_elsewhere_and_forbid_it(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        read = Loads()
        read.feed(page.read_text(encoding="utf-8"))
        assert read.loaded and [each for each in read.loaded if is_elsewhere(each)] == [], page
        assert "default-src 'self' file:" in read.policy and "http" not in read.policy, page


def test_styles_and_scripts_load_nothing_from_elsewhere(site):
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        loaded = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)", text)
        assert [each for each in loaded if is_elsewhere(each) and each[:5] != "data:"] == [], style
    for script in site.rglob("*.js"):
        if script.name != "search_index.js":
            text = re.sub(r"/\*!.*?\*/", "", script.read_text(encoding="utf-8"), flags=re.DOTALL)
            named = re.findall(r"[\"'`](https?://[^\"'`]*)", text)
            assert [each for each in named if not NAMED_BY_THE_THEME.match(each)] == [], script


def test_the_search_has_every_page_without_a_server(site):
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    found = {
        entry["location"].partition("#")[0]
        for entry in json.loads(text.removeprefix("var __index = "))["docs"]
    }
    assert found == {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}


def test_links_to_files_without_a_page_become_text(site):
    page = (site / "containers.html").read_text(encoding="utf-8")
    assert "docker/session.lock" in page and 'session.lock"' not in page


def test_models_find_each_page_as_markdown(site):
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert listed.startswith("# repl-env\n\n> A persistent Python REPL")
    assert "\n## Use\n" in listed
    rows = re.findall(r"^- \[([^\]]+)\]\(([^)]+\.md)\): (.+)$", listed, re.MULTILINE)
    assert {path for _, path, _ in rows} == {
        str(page.relative_to(site).with_suffix(".md"))
        for page in site.rglob("*.html")
        if page.name != "404.html"
    }
    for _, path, summary in rows:
        text = (site / path).read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert summary.strip()
        for there in re.findall(r"\]\(([^)\s:#]+\.md)(?:#[^)]*)?\)", text):
            assert (site / path).parent.joinpath(there).resolve().is_file(), (path, there)
