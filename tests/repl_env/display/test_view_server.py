"""The viewer's server: the requests that get data, and the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repl_env.display.files import NamedFiles
from repl_env.rlm import TrajectoryWriter
from tests.repl_env.rlm.trajectory.account import account


@pytest.fixture
def trajectory(tmp_path: Path) -> Path:
    return write(tmp_path / "runs" / "run.jsonl")


def write(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    with TrajectoryWriter(path) as writer:
        for event in account():
            writer(event)
    return path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://HOST"}, 200),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Bearer \xe9"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": None}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_data_is_for_the_page_with_the_token_alone(client, trajectory, headers, status):
    server = client(trajectory)
    host = server.server.origin.removeprefix("http://")
    given = {name: value and value.replace("HOST", host) for name, value in headers.items()}

    reply = server.get("/api/files", **given)

    assert reply.status == status
    assert b"run.jsonl" in reply.body or status != 200


def test_pages_come_with_a_strict_policy_and_no_token(client, trajectory):
    server = client(trajectory)
    for path in ("/", "/web/viewer/app.js", "/web/shared/style.css"):
        reply = server.get(path, Authorization=None)
        policy = reply.headers["Content-Security-Policy"]

        assert reply.status == 200
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert server.server.token.encode() not in reply.body


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "/web/../../../pyproject.toml", "/web/%2e%2e/web_files.py", "/web/",
        "/web/vendor/vendor.toml", "/api/files/../../etc/passwd/rows", "/api/files/99/rows",
        "/api/files/99/evaluation", "/api/comparisons/0/99", "/api/", "//evil.example/",
    ],
)  # fmt: skip
def test_no_other_file_is_served(client, trajectory, path):
    assert client(trajectory).get(path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_changed(client, trajectory, method):
    assert client(trajectory).get("/api/files", method=method).status == 501


def test_events_are_read_by_ranges(client, trajectory):
    server = client(trajectory)
    data = trajectory.read_bytes()
    rows = server.get("/api/files/0/rows").json["rows"]

    for row in rows:
        last = row["at"] + row["size"] - 1
        reply = server.get("/api/files/0/bytes", Range=f"bytes={row['at']}-{last}")
        assert (reply.status, reply.body) == (206, data[row["at"] : last + 1])
    for wrong in (None, "bytes=5-1", "bytes=0-", "bytes=-5", "bytes=0-1,4-5", "lines=0-1"):
        assert server.get("/api/files/0/bytes", Range=wrong).status == 416
    assert server.get("/api/files/0/rows?from=x").status == 400


def test_links_are_followed_nowhere(client, tmp_path, trajectory):
    secret = write(tmp_path / "other" / "secret.jsonl")
    folder = trajectory.parent
    (folder / "link.jsonl").symlink_to(secret)
    (folder / "more").symlink_to(secret.parent)
    os.mkfifo(folder / "pipe.jsonl")
    server = client(folder)

    names = [file["name"] for file in server.get("/api/files").json["files"]]
    assert names == ["run.jsonl"]
    with pytest.raises(OSError, match="symbolic link"):
        NamedFiles([folder / "link.jsonl"])

    # A file or a folder that is replaced by a link while the page is open.
    inner = write(folder / "below" / "inner.jsonl")
    files = {file["name"]: file["id"] for file in server.get("/api/files").json["files"]}
    identifier = files["below/inner.jsonl"]
    inner.unlink()
    inner.symlink_to(secret)
    assert server.get(f"/api/files/{identifier}/rows").status == 422
    inner.unlink()
    inner.parent.rmdir()
    inner.parent.symlink_to(secret.parent)
    secret.rename(secret.parent / inner.name)
    assert server.get(f"/api/files/{identifier}/rows").status == 422


def test_each_start_has_another_token(client, trajectory):
    first, second = client(trajectory), client(trajectory)

    assert first.server.token != second.server.token
    assert second.get("/api/files", Authorization=f"Bearer {first.server.token}").status == 401
    assert first.server.token in first.server.url.partition("#")[2]
