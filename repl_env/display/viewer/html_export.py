"""Pages that are one file: the viewer's modules, style and data, which work from disk.

The policy in the page allows its one script by hash, pictures from blobs, and nothing else: no
request leaves it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from repl_env.common.replace_target import replace_target
from repl_env.display.viewer.evaluation_data import evaluation_data
from repl_env.display.viewer.event_rows import event_row
from repl_env.display.viewer.growing_lines import GrowingLines
from repl_env.display.viewer.module_linker import link
from repl_env.display.viewer.named_files import NamedFile, NamedFiles
from repl_env.display.viewer.size_limit import as_script_data, fitted, size_of
from repl_env.display.viewer.trajectory_summary import TrajectorySummary
from repl_env.display.viewer.view_data import ViewData, kind_of
from repl_env.display.web_files import web_files
from repl_env.evaluation.results_file import Result

# Browsers open this at once, and mail and issue trackers take it.
MAX_PAGE_BYTES: Final = 20_000_000
MAX_COMPARED: Final = 6  # evaluations of a page that are compared, each with each
_MARK: Final = b"<!doctype html>\n<!-- repl-env viewer -->\n"
_FOREVER: Final = 1e9  # seconds


class PageTooLarge(ValueError):
    """A page would have more than `MAX_PAGE_BYTES`, and no other limit was given."""


def trajectory_data(path: Path) -> dict[str, Any]:
    """Return the data of a page about one trajectory.

    Raises:
        OSError: the file cannot be read.
    """
    (file,) = NamedFiles([path]).files()
    return {"start": "#/run/0", "notes": [], "files": [_trajectory(file, "0")]}


def evaluation_page_data(
    name: str, results: Sequence[Result], trajectories: Path | None
) -> dict[str, Any]:
    """Return the data of a page about an evaluation, with the trajectories in a folder.

    Raises:
        OSError: a file cannot be read.
    """
    first = _evaluation("0", name, evaluation_data(results))
    found = [] if trajectories is None else NamedFiles([trajectories]).files()
    runs = [file for file in found if kind_of(file) == "trajectory"]
    files = [first, *(_trajectory(file, str(number)) for number, file in enumerate(runs, 1))]
    return {"start": "#/evaluation/0", "notes": [], "files": files}


def files_data(files: NamedFiles) -> dict[str, Any]:
    """Return the data of a page about all `files`, with the comparisons of evaluations.

    Raises:
        OSError: a file cannot be read.
        ValueError: a results file is damaged.
    """
    data = ViewData(files)
    kinds = {file: kind_of(file) for file in files.files()}
    results = [file.id for file, kind in kinds.items() if kind == "results"]
    pages = [
        _trajectory(file, file.id)
        if kind == "trajectory"
        else _evaluation(file.id, file.name, data.evaluation(file.id))
        for file, kind in kinds.items()
        if kind != "other"
    ]
    # A page without a server cannot compare: it has the comparisons that its links lead to.
    pairs = permutations(results[:MAX_COMPARED], 2)
    return {
        "start": _start(pages),
        "notes": [],
        "files": pages,
        "comparisons": {f"{one}/{other}": data.comparison(one, other) for one, other in pairs},
    }


def _start(pages: Sequence[dict[str, Any]]) -> str:
    """Return the place where a page opens: its only file, else the list."""
    if len(pages) != 1:
        return "#/"
    kind = "run" if pages[0]["kind"] == "trajectory" else "evaluation"
    return f"#/{kind}/{pages[0]['id']}"


def write_page(data: dict[str, Any], out: Path, limit: int | None = None) -> None:
    """Write the page with `data`, which only its owner may read. A page that is there is replaced.

    Raises:
        PageTooLarge: it has more than `MAX_PAGE_BYTES`, and `limit` is None.
        ValueError: it cannot be made smaller than `limit`.
        OSError: it cannot be written, or another file than such a page is there.
    """
    room = (MAX_PAGE_BYTES if limit is None else limit) - len(_page(b""))
    if limit is None and (size := size_of(data)) > room:
        raise PageTooLarge(f"the page would have {(size + len(_page(b''))) / 1e6:.0f} MB")
    content = _page(as_script_data(fitted(data, room)).encode("utf-8"))
    target = check_target(out)
    # A page that is half written is never at its place; mkstemp makes private files.
    file, name = tempfile.mkstemp(dir=target.parent, prefix=".repl-env-page-")
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)  # of a page that is not at its place


def check_target(out: Path) -> Path:
    """Return the path of the page to write; for a link, its target.

    Raises:
        OSError: another file than a page of the viewer is there, or the folder is not.
    """
    target = replace_target(out)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is no folder")
    if target.exists():
        with target.open("rb") as file:
            if file.read(len(_MARK)) not in {_MARK, b""}:
                raise FileExistsError(f"{out} exists, and is not a page of the viewer")
    return target


def _evaluation(identifier: str, name: str, evaluation: dict[str, Any]) -> dict[str, Any]:
    known = {"id": identifier, "name": name, "kind": "results"}
    return known | {"scores": evaluation["scores"], "evaluation": evaluation}


def _trajectory(file: NamedFile, identifier: str) -> dict[str, Any]:
    """Return a file with its rows and events; `index` of a row is the place of its event."""
    summary = TrajectorySummary(file).read(_FOREVER)
    rows, events = [], []
    for at, line in GrowingLines(file).read(_FOREVER):
        row = {"event": "header"} if at == 0 else event_row(line)
        rows.append(row | {"at": at, "size": len(line)})
        events.append(None if row["event"] == "broken" else _finite(line))
    known = {"id": identifier, "name": file.name, "kind": "trajectory"}
    return known | summary | {"rows": rows, "events": events}


def _finite(line: bytes) -> Any:
    """Return the JSON of a line; NaN and the infinities, which JSON has not, as text."""
    try:
        return json.loads(line, parse_constant=str)
    except (ValueError, RecursionError):  # a header that is none; other lines were parsed before
        return None


def _page(data: bytes) -> bytes:
    head, tail = _shell()
    return head + data + tail


@cache
def _shell() -> tuple[bytes, bytes]:
    """Return what is before and behind the data."""
    files = web_files()
    text = {name: file.content.decode("utf-8") for name, file in files.items()}
    style = text["shared/style.css"] + text["viewer/viewer.css"]
    script = link("viewer/exported_page.js", text.__getitem__)
    for inner in (style, script):
        if any(end in inner.lower() for end in ("</style", "</script", "<!--")):
            raise ValueError("a file of the page would end its element")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "connect-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    head = f"""<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>repl-env viewer</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="page"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="data">"""
    tail = f"</script>\n<script>{script}</script>\n</body>\n</html>\n"
    return _MARK + head.encode(), tail.encode()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
