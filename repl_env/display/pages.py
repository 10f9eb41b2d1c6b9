"""Pages: one file that works from disk, and the local server of the viewer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import posixpath
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from repl_env.common.files import replace_target
from repl_env.display.files import GrowingLines, NamedFile, NamedFiles
from repl_env.display.viewer import TrajectorySummary, ViewData, evaluation_data, event_row, kind_of
from repl_env.evaluation.evaluator import Result

# `link`: ES modules as one script without imports, because browsers load no module from disk.
#
# Each module becomes a function that returns its exports, after the modules that it imports. The
# forms are those of our modules and of the vendored ones; another form is refused.

_IMPORT: Final = re.compile(
    r'^import \{(?P<names>[^}]*)\} from "(?P<path>\.[^"]+)";$', re.MULTILINE
)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async function|function\*?|class|const|let) (?P<name>\w+))", re.MULTILINE
)
# At the end of a vendored module, perhaps before the address of its source map.
_LIST: Final = re.compile(r"export\{(?P<names>[^}]*)\};?\s*(?://# sourceMappingURL=\S+)?\s*\Z")
_OTHER: Final = re.compile(r"^\s*(?:import|export)\b|\bimport\(", re.MULTILINE)


def link(entry: str, source_of: Callable[[str], str]) -> str:
    """Return the script that does what the module `entry` does.

    Args:
        source_of: returns the text of a module by its path.

    Raises:
        ValueError: modules import each other in a circle, or have a form that is not known.
    """
    functions: dict[str, str] = {}
    _add(entry, source_of, functions, ())
    return '"use strict";\n(() => {\n' + "".join(functions.values()) + "})();\n"


def _add(
    path: str,
    source_of: Callable[[str], str],
    functions: dict[str, str],
    importing: tuple[str, ...],
) -> None:
    if path in importing:
        raise ValueError(f"{path} imports itself by {', '.join(importing)}")
    text, names = source_of(path), []
    for found in _IMPORT.finditer(text):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["path"]))
        if other not in functions:
            _add(other, source_of, functions, (*importing, path))
        names.append(f"const {{{_renamed(found['names'])}}} = {_identifier(other)};\n")
    body = _IMPORT.sub("", text)
    exported = [found["name"] for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    if (listed := _LIST.search(body)) is not None:
        body = body[: listed.start()]
        # `local as exported` there is `exported: local` in an object.
        pairs = (pair.split(" as ") for pair in listed["names"].split(","))
        exported += [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
    if _OTHER.search(body) is not None:
        raise ValueError(f"{path} has an import or an export of another form")
    head = f"const {_identifier(path)} = (() => {{\n{''.join(names)}"
    functions[path] = f"{head}{body.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _renamed(names: str) -> str:
    return names.replace(" as ", ": ").strip()


def _identifier(path: str) -> str:
    return "module_" + re.sub(r"\W", "_", path)


# `fitted`: data of an exported page that keeps to a size, without its longest outputs.

# Characters that a text keeps, tried in this order: first outputs are cut, then all texts.
_LEVELS: Final = (65_536, 16_384, 4_096, 1_024, 256)


def fitted(data: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return `data` with texts cut, and with a note that says so, as JSON of at most `limit` bytes.

    Raises:
        ValueError: even short texts are too many.
    """
    if size_of(data) <= limit:
        return data
    for outputs, texts in _steps():
        files = [_cut_file(file, outputs, texts) for file in data["files"]]
        longest = texts or outputs
        what = "Outputs" if texts is None else "Texts"
        note = f"{what} of more than {longest:,} characters, and larger figures, are cut here."
        smaller = data | {"files": files, "notes": [*data["notes"], note]}
        if size_of(smaller) <= limit:
            return smaller
    raise ValueError(f"the page has {size_of(smaller):,} bytes even without long texts")


def size_of(data: Any) -> int:
    """Return the number of bytes of `data` in a page."""
    return len(as_script_data(data).encode("utf-8"))


def as_script_data(data: Any) -> str:
    """Return JSON that ends no `<script>`, begins no comment, and is valid UTF-8."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as a model may return: exact as an escape
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


# These characters occur inside of JSON texts alone, where an escape means the same. A carriage
# return is an escape already.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def _steps() -> Iterator[tuple[int, int | None]]:
    yield from ((level, None) for level in _LEVELS)
    yield from ((_LEVELS[-1], level) for level in _LEVELS)


def _cut_file(file: dict[str, Any], outputs: int, texts: int | None) -> dict[str, Any]:
    if "events" not in file:
        return file
    return file | {"events": [_cut_event(event, outputs, texts) for event in file["events"]]}


def _cut_event(event: Any, outputs: int, texts: int | None) -> Any:
    if not isinstance(event, dict):
        return event
    observation = event.get("observation")
    if isinstance(observation, dict) and isinstance(observation.get("result"), dict):
        result = _cut_result(observation["result"], outputs)
        event = event | {"observation": observation | {"result": result}}
    return event if texts is None else _cut(event, texts)


def _cut_result(result: dict[str, Any], longest: int) -> dict[str, Any]:
    """Cut the texts of a result; figures and displays are kept whole, or left out."""
    kept: dict[str, Any] = {}
    for name in ("figures", "displays"):
        if isinstance(shown := result.get(name), list):
            kept[name] = [each for each in shown if len(str(each)) <= longest]
            kept[f"{name}_left_out"] = len(shown) - len(kept[name])
    smaller: dict[str, Any] = _cut({**result, **dict.fromkeys(kept, None)}, longest)
    return smaller | kept


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}\n[{len(value) - longest:,} characters left out]"
    if isinstance(value, dict):
        return {name: _cut(item, longest) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    return value


# Static files of pages: vendored modules, the shared style and components, and the viewer.

WEB: Final = Path(__file__).parent / "web"

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

# Scripts and styles come from this origin, as files; pictures also from blobs that a script makes.
# Trusted types refuse markup that is made of text. Each server adds frame-ancestors.
PAGE_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data: blob:",
    "frame-src blob:",  # what a session displays, in a frame without rights
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

# Headers of each response with a page or a file of one.
HEADERS: Final = {
    "Content-Security-Policy": "; ".join([*PAGE_POLICY, "frame-ancestors 'none'"]),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """A static file and its media type."""

    content: bytes
    media_type: str


@cache
def web_files(folder: Path = WEB) -> dict[str, WebFile]:
    """Return the static files below `folder` by path, such as "shared/style.css".

    Only these names exist for a server, so no request names another file.
    """
    return {
        path.relative_to(folder).as_posix(): WebFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES
    }


# Pages that are one file: the viewer's modules, style and data, which work from disk.
#
# The policy in the page allows its one script by hash, pictures from blobs, and nothing else: no
# request leaves it.

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
        "connect-src 'none'; img-src data: blob:; frame-src blob:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
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


# `ViewServer`: the pages of the viewer on loopback, for one person, until it is closed.
#
# Data is given to requests with the token of this start alone. Host and Origin are checked, so
# that no page of another site reads it, by whatever name the site reaches this machine.

HOST: Final = "127.0.0.1"
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_IDLE: Final = 60  # seconds after which a connection without requests is closed


class ViewServer(ThreadingHTTPServer):
    """A server of the pages about `data`, on a port of its own unless `port` is given.

    Attributes:
        token: what requests for data need; made anew for each server.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, data: ViewData, port: int = 0) -> None:
        self.data = data
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)

    @property
    def origin(self) -> str:
        """The address without the token, such as "http://127.0.0.1:8123"."""
        return f"http://{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The address to open. The token is in the fragment, which no browser sends or logs."""
        return f"{self.origin}/#token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but for those of a browser that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Refused(Exception):
    """A request that gets a status and a text instead of data."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "repl-env", ""
    timeout = _IDLE

    def do_GET(self) -> None:
        try:
            self._check_origin()
            path = urlsplit(self.path).path
            if path.startswith("/api/"):
                self._check_token()
                self._answer_data(path)
            else:
                self._answer_file(path)
        except _Refused as refused:
            self._send(refused.status, json.dumps({"error": str(refused)}).encode(), _JSON)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: a person looks at files of their own."""

    def _check_origin(self) -> None:
        port = self.server.server_address[1]
        hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        if host not in hosts:
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server is asked by another name")
        data = self.path.startswith("/api/")
        if (origin is not None and origin != f"http://{host}") or (
            data and site not in {"same-origin", "none"}
        ):
            raise _Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            text = "the token is missing or of an earlier start: open the address that was printed"
            raise _Refused(HTTPStatus.UNAUTHORIZED, text)

    def _answer_file(self, path: str) -> None:
        name = "viewer/index.html" if path == "/" else path.removeprefix("/web/")
        file = web_files().get(name)
        if file is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such file")
        self._send(HTTPStatus.OK, file.content, file.media_type)

    def _answer_data(self, path: str) -> None:
        found = [
            (answer, match.groups())
            for pattern, answer in _ROUTES
            if (match := pattern.fullmatch(path)) is not None
        ]
        if not found:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        ((answer, arguments),) = found
        try:
            status, content = answer(self, *arguments)
        except KeyError:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such file") from None
        except (OSError, ValueError) as error:
            raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        media_type = _JSON if status is HTTPStatus.OK else "application/octet-stream"
        self._send(status, content, media_type)

    def _listing(self) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.listing())

    def _rows(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        start, generation = self._number("from"), self._number("generation")
        return _as_json(self.server.data.rows(identifier, start, generation))

    def _part(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None or int(found[1]) > int(found[2]):
            raise _Refused(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "a range is needed")
        content = self.server.data.part(identifier, int(found[1]), int(found[2]) + 1)
        return HTTPStatus.PARTIAL_CONTENT, content

    def _evaluation(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.evaluation(identifier))

    def _comparison(self, before: str, after: str) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.comparison(before, after))

    def _number(self, name: str) -> int:
        """The number of the query, by default 0."""
        text = parse_qs(urlsplit(self.path).query).get(name, ["0"])[0]
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise _Refused(HTTPStatus.BAD_REQUEST, f"{name} is no number")
        return int(text)

    def _send(self, status: HTTPStatus, content: bytes, media_type: str) -> None:
        self.send_response(status)
        headers: Mapping[str, str] = {
            **HEADERS,
            "Content-Type": media_type,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


_JSON: Final = "application/json; charset=utf-8"
_ID: Final = r"([0-9]{1,9})"
_Answer = Callable[..., tuple[HTTPStatus, bytes]]

_ROUTES: Final[tuple[tuple[re.Pattern[str], _Answer], ...]] = (
    (re.compile(r"/api/files"), _Handler._listing),
    (re.compile(rf"/api/files/{_ID}/rows"), _Handler._rows),
    (re.compile(rf"/api/files/{_ID}/bytes"), _Handler._part),
    (re.compile(rf"/api/files/{_ID}/evaluation"), _Handler._evaluation),
    (re.compile(rf"/api/comparisons/{_ID}/{_ID}"), _Handler._comparison),
)


def _as_json(value: dict[str, Any]) -> tuple[HTTPStatus, bytes]:
    # Half characters of UTF-16, which a model may return, are escapes in ASCII alone.
    return HTTPStatus.OK, json.dumps(value, allow_nan=False).encode("ascii")
