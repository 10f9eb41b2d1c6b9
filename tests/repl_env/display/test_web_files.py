"""Static files of pages: what they are made of, and what a strict policy allows."""

from __future__ import annotations

import hashlib
import re
import tomllib

import pytest

from repl_env.display.pages import WEB, web_files

FILES = web_files()
OURS = sorted(name for name in FILES if not name.startswith("vendor/"))


def test_vendored_files_have_their_listed_sums_and_there_are_no_others():
    rows = tomllib.loads((WEB / "vendor" / "vendor.toml").read_text())["file"]

    for row in rows:
        content = (WEB / "vendor" / row["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["name"]
        assert row["licence"]
    there = {path.name for path in (WEB / "vendor").iterdir()}
    assert there == {row["name"] for row in rows} | {"vendor.toml"}


@pytest.mark.parametrize("name", [name for name in OURS if name.endswith(".js")])
def test_modules_import_by_relative_paths_that_exist(name: str):
    text = FILES[name].content.decode()
    found = re.findall(r"""^import .*?["'](.+?)["'];$""", text, re.MULTILINE | re.DOTALL)

    assert len(found) == len(re.findall(r"^import\b", text, re.MULTILINE))
    for target in found:
        assert target.startswith(("./", "../")), target
        assert (WEB / name).parent.joinpath(target).resolve().is_relative_to(WEB)
        assert (WEB / name).parent.joinpath(target).is_file(), target


@pytest.mark.parametrize("name", OURS)
def test_nothing_is_made_of_text_and_nothing_comes_from_elsewhere(name: str):
    text = FILES[name].content.decode()

    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "dangerouslySet",
        "eval(",
        "new Function",
    ):
        assert word not in text
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?(https?:)?//""", text)
    if name.endswith(".html"):
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", text)


# ── colours ──────────────────────────────────────────────────────────────────────────────────────

PAIR = re.compile(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);")
SURFACES = ("page", "surface", "raised")
TEXTS = ("text", "muted", "accent", "sampled", "injected", "good", "bad", "warn")
CODE = ("code", "code-keyword", "code-string", "code-number", "code-comment", "code-name")


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_a_contrast_of_4_5_on_each_surface(scheme: int):
    style = FILES["shared/style.css"].content.decode()
    colours = {name: pair[scheme] for name, *pair in PAIR.findall(style)}
    own = [(name, f"{name}-surface") for name in ("accent", "sampled", "good", "bad", "warn")]
    own += [("text", surface) for _, surface in own] + [("muted", surface) for _, surface in own]
    everywhere = [(text, surface) for text in (*TEXTS, *CODE) for surface in SURFACES]

    weak = {
        pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2)
        for pair in (*own, *everywhere, ("surface", "accent"))
        if contrast(colours[pair[0]], colours[pair[1]]) < 4.5
    }
    assert weak == {}
