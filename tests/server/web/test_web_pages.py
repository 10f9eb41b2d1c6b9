"""The pages for browsers, without a browser: routes, headers, keys, and files."""

from __future__ import annotations

import base64
import http.client
import re

import pytest
from websockets.exceptions import InvalidStatus

from repl_server.app import create_app
from repl_server.auth import new_key
from repl_server.settings import Settings
from tests.server.conftest import ask, peer, serving
from tests.server.toy_environments import Adder

KEY, LINE = new_key("alice")
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
REFERENCE = re.compile(r"""(?:src|href)="([^"#:]+)"|from "([^"]+)\"""")


@pytest.fixture(scope="module")
def keyed():
    with serving({"hashed_keys": (LINE,)}) as running:
        yield running


def encoded(key: str) -> str:
    """The subprotocol that carries a key."""
    return f"repl-env.key.{base64.urlsafe_b64encode(key.encode()).decode().rstrip('=')}"


def policy_of(headers) -> dict[str, str]:
    """The directives of a response, of all its policies together."""
    directives = "; ".join(headers.get_all("Content-Security-Policy")).split(";")
    return dict(each.strip().partition(" ")[::2] for each in directives)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_has_a_strict_policy(server, path) -> None:
    status, headers, text = ask(server, "GET", path, **HTML)

    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = policy_of(headers)
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.search(rb"<script(?![^>]* src=)|<style| style=| on\w+=|://", text)


def test_all_files_of_the_pages_are_served_by_this_server(server) -> None:
    seen, places = set(), ["/", "/docs"]
    while places:
        place = places.pop()
        status, headers, text = ask(server, "GET", place, **HTML)
        assert status == 200, place
        assert headers["X-Content-Type-Options"] == "nosniff"
        if tag := headers["ETag"]:
            assert ask(server, "GET", place, If_None_Match=tag, **HTML)[::2] == (304, b"")
        assert headers["Content-Type"].partition(";")[0] != "application/octet-stream", place
        seen.add(place)
        if place.endswith((".css", ".svg", ".json")) or "/vendor/" in place:
            continue
        for found in REFERENCE.finditer(text.decode()):
            path = found[1] or found[2]
            assert path.startswith((".", "web/", "openapi.json", "docs")), path
            near = place.rpartition("/")[0] if found[2] else ""
            whole = "/" + "/".join(_joined(f"{near}/{path}"))
            if whole not in seen:
                places.append(whole)
    assert {"/web/shared/style.css", "/web/vendor/preact-htm.module.js"} <= seen


def _joined(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    "path",
    [
        "/web/docs/../../pages.py", "/web/docs/..%2f..%2fpages.py", "/web/docs/%2e%2e/%2e%2e/x.py",
        "/web/docs//etc/passwd", "/web/docs/%2fetc/passwd", "/web/docs/..%5cpages.py",
        "/web/docs/%00", "/web/docs/", "/web/docs", "/web/nothing/x.js", "/web/docs/none.js",
        "/web/docs/" + "a" * 5000, "/web/shared/../vendor/vendor.toml%00.js", "/web/",
    ],
)  # fmt: skip
def test_a_path_out_of_the_folder_is_unknown(server, path) -> None:
    line = http.client.HTTPConnection("127.0.0.1", server.port)
    line.request("GET", path, headers=HTML)
    answer = line.getresponse()
    told = answer.read()
    line.close()

    assert answer.status == 404, told
    assert b"UNKNOWN_PATH" in told


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "accept",
    [
        None, "", " ", "*/*", "text/*", "TEXT/HTML", "*/*;q=0.1", "text/*;q=0, text/html",
        "application/json, */*;q=0.5", "text/html;level=1;q=0.4", "text/html; q=1.000",
    ],
)  # fmt: skip
def test_a_client_that_takes_html_gets_the_page(server, accept, method) -> None:
    fields = {} if accept is None else {"Accept": accept}
    status, headers, text = ask(server, method, "/", **fields)

    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert (b"<title>" in text) == (method == "GET")
    assert ask(server, "POST", "/", **fields)[0] == 405


@pytest.mark.parametrize(
    "accept",
    [
        "application/json", "text/html;q=0", "text/html;q=0.000, */*", "text/*;q=0, */*",
        "*/*;Q=0", "text/plain", "application/xhtml+xml", "image/*;x=text/html",
    ],
)  # fmt: skip
def test_a_client_that_takes_no_html_finds_no_page(server, accept) -> None:
    status, _, told = ask(server, "GET", "/", Accept=accept)

    assert (status, told["code"]) == (404, "UNKNOWN_PATH")


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 200),
        ({"web": False}, 404),
        ({"host": "0.0.0.0", "no_auth": True}, 404),
        ({"host": "0.0.0.0", "no_auth": True, "web": True}, 200),
    ],
)
def test_the_playground_is_there_on_loopback_or_by_choice(settings, status) -> None:
    with serving({**settings, "pool": 0}) as one:
        one.url = f"http://127.0.0.1:{one.port}"
        assert ask(one, "GET", "/", **HTML)[0] == status
        assert ask(one, "GET", "/docs", **HTML)[0] == 200


def test_a_server_with_another_environment_has_no_playground() -> None:
    with serving(environment=Adder) as one:
        assert ask(one, "GET", "/", **HTML)[0] == 404
        assert ask(one, "GET", "/docs", **HTML)[0] == 200


def test_one_undo_comes_with_the_playground() -> None:
    assert [Settings().undoable, Settings(host="0.0.0.0").undoable] == [1, 0]
    assert Settings(history=3).undoable == 3
    with pytest.raises(ValueError, match="history"):
        Settings(history=1000)


def test_pages_need_no_key_and_all_else_does(keyed) -> None:
    for path in ("/", "/docs", "/web/shared/style.css"):
        assert ask(keyed, "GET", path, **HTML)[0] == 200, path
        wrong = {"X_API_Key": "repl_wrong", "Authorization": "Basic eDp5"}
        assert ask(keyed, "GET", path, **HTML, **wrong)[0] == 200, path
    for path in ("/openapi.json", "/ready"):
        assert ask(keyed, "GET", path, **HTML)[0] == 401, path
        assert ask(keyed, "GET", path, X_API_Key=KEY)[0] == 200, path
    assert ask(keyed, "GET", "/")[0] == 200
    assert ask(keyed, "GET", "/", Accept="application/json")[0] == 401
    assert ask(keyed, "POST", "/docs", **HTML)[0] == 401


def test_without_the_playground_pages_need_a_key_too() -> None:
    with serving({"hashed_keys": (LINE,), "web": False, "pool": 0}) as one:
        assert ask(one, "GET", "/docs", **HTML)[0] == 401
        assert ask(one, "GET", "/docs", X_API_Key=KEY, **HTML)[0] == 200


def test_a_page_of_another_site_may_neither_load_nor_frame_them(server, keyed) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ):
        assert ask(server, "GET", "/", **HTML, **headers)[0] == 403
        assert ask(keyed, "GET", "/web/shared/style.css", **headers)[0] == 403
    assert ask(server, "GET", "/", **HTML, Host="evil.example")[0] == 403
    assert ask(keyed, "GET", "/", **HTML, Host="name.example")[0] == 200


def test_a_key_in_a_subprotocol_opens_a_socket(keyed, caplog) -> None:
    caplog.set_level("DEBUG")
    with peer(keyed, subprotocols=["repl-env.v1", encoded(KEY)]) as alice:
        assert alice.socket.subprotocol == "repl-env.v1"
        assert alice.open()["resumed"] is False
    assert KEY not in caplog.text
    lines = [line for line in caplog.text.splitlines() if "websockets.client" not in line]
    assert encoded(KEY) not in "\n".join(lines)


@pytest.mark.parametrize(
    "names",
    [
        ["repl-env.v1"],
        ["repl-env.v1", encoded("repl_wrong")],
        ["repl-env.v1", "repl-env.key."],
        ["repl-env.v1", "repl-env.key.!!"],
        ["repl-env.v1", "repl-env.key._w"],
        ["repl-env.v1", encoded(KEY), encoded(KEY)],
    ],
)
def test_any_other_subprotocol_does_not(keyed, names) -> None:
    with pytest.raises(InvalidStatus) as refused, peer(keyed, subprotocols=names):
        pass
    assert refused.value.response.status_code == 401


def test_the_document_has_no_pages() -> None:
    assert not [path for path in create_app().openapi()["paths"] if path in ("/", "/docs")]
