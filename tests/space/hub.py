"""A stand-in of the hub on loopback: the part of its API that an upload of a Space uses.

```python
with Hub() as hub:
    hub.owners[TOKEN] = {"ann"}           # who may write where
    ...                                   # HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET=1
    hub.spaces["ann/repl"].files          # what arrived, by path
```
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "w" * 34
_NO_SPACE = "Repository not found"


@dataclass
class Space:
    """One Space: its files, its commits as requested, its secrets."""

    created_with: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b""})
    commits: list[list[dict[str, Any]]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((self.files, len(self.commits))).encode()).hexdigest()


class Refused(Exception):
    """An answer other than success."""


class Hub(ThreadingHTTPServer):
    """The hub. `failing`: answers by a part of the path, instead of what would be done.

    An answer is a status and an error's message; of status 200, the text that is answered.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.owners: dict[str, set[str]] = {TOKEN: {"ann"}}
        self.spaces: dict[str, Space] = {}
        self.objects: dict[str, bytes] = {}
        self.failing: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []
        self.lock = threading.Lock()

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        hub = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        with hub.lock:
            hub.asked.append(f"{self.command} {path}")
            status, told = self.outcome(path, body)
        data = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if told == {"error": _NO_SPACE}:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 (the base class names them)

    def outcome(self, path: str, body: bytes) -> tuple[int, Any]:
        for part, (status, message) in self.server.failing.items():
            if part in path:
                told = {"error": message, "errors": [{"message": message}]}
                return status, message if status == 200 else told
        try:
            for pattern, method, handle in ROUTES:
                if self.command == method and (found := re.fullmatch(pattern, path)):
                    return 200, handle(self, body, *found.groups())
        except Refused as refused:
            return refused.args[0], {"error": refused.args[1]}
        return 404, {"error": f"the stand-in has no {self.command} {path}"}

    def token(self) -> str:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.owners:
            raise Refused(401, "Invalid username or password.")
        return token

    def space(self, repo: str, *, writing: bool = False) -> Space:
        owners = self.server.owners[self.token()]
        if repo not in self.server.spaces:
            raise Refused(404, _NO_SPACE)
        if writing and repo.partition("/")[0] not in owners:
            raise Refused(403, "You don't have the rights")
        return self.server.spaces[repo]

    def whoami(self, body: bytes) -> Any:
        self.token()
        return {"type": "user", "name": "ann", "auth": {}}

    def create(self, body: bytes) -> Any:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] not in self.server.owners[self.token()]:
            raise Refused(403, "You don't have the rights to create a space under this namespace")
        if repo in self.server.spaces:
            raise Refused(409, "You already created this space repo")
        self.server.spaces[repo] = Space(asked)
        return {"url": f"{self.server.url}/spaces/{repo}"}

    def info(self, body: bytes, repo: str) -> Any:
        return {"id": repo, "sha": self.space(repo).sha}

    def tree(self, body: bytes, repo: str) -> Any:
        return [
            {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
            for path, data in self.space(repo).files.items()
        ]

    def secret(self, body: bytes, repo: str) -> Any:
        asked = json.loads(body)
        self.space(repo, writing=True).secrets[asked["key"]] = asked["value"]
        return {}

    def validate(self, body: bytes) -> Any:
        if not json.loads(body)["content"].startswith("---\n"):
            raise Refused(400, "no front matter")
        return {"errors": [], "warnings": []}

    def preupload(self, body: bytes, repo: str) -> Any:
        files = self.space(repo, writing=True).files
        return {"files": [self.mode(each, files) for each in json.loads(body)["files"]]}

    def mode(self, asked: dict[str, Any], there: dict[str, bytes]) -> dict[str, Any]:
        large = b"\0" in base64.b64decode(asked["sample"])
        data, mode = there.get(asked["path"]), "lfs" if large else "regular"
        oid = (
            None if data is None else hashlib.sha256(data).hexdigest() if large else git_hash(data)
        )
        return {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def batch(self, body: bytes, repo: str) -> Any:
        self.space(repo, writing=True)
        objects = []
        for each in json.loads(body)["objects"]:
            told = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.server.objects:
                told["actions"] = {"upload": {"href": f"{self.server.url}/store/{each['oid']}"}}
            objects.append(told)
        return {"transfer": "basic", "objects": objects}

    def store(self, body: bytes, oid: str) -> Any:
        assert hashlib.sha256(body).hexdigest() == oid
        assert "Authorization" not in self.headers, "the store is somebody else's"
        self.server.objects[oid] = body
        return {}

    def commit(self, body: bytes, repo: str) -> Any:
        space = self.space(repo, writing=True)
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                space.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                space.files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del space.files[value["path"]]
        space.commits.append(lines)
        return {"commitUrl": f"{self.server.url}/spaces/{repo}/commit/1", "commitOid": space.sha}


_REPO = r"([\w.-]+/[\w.-]+)"
ROUTES: list[tuple[str, str, Any]] = [
    (r"/api/whoami-v2", "GET", Handler.whoami),
    (r"/api/repos/create", "POST", Handler.create),
    (r"/api/validate-yaml", "POST", Handler.validate),
    (rf"/api/spaces/{_REPO}(?:/revision/main)?", "GET", Handler.info),
    (rf"/api/spaces/{_REPO}/tree/main", "GET", Handler.tree),
    (rf"/api/spaces/{_REPO}/secrets", "POST", Handler.secret),
    (rf"/api/spaces/{_REPO}/preupload/main", "POST", Handler.preupload),
    (rf"/api/spaces/{_REPO}/commit/main", "POST", Handler.commit),
    (rf"/spaces/{_REPO}\.git/info/lfs/objects/batch", "POST", Handler.batch),
    (r"/store/([0-9a-f]{64})", "PUT", Handler.store),
]


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
