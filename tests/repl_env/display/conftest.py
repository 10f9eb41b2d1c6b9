"""A viewer's server on files of a test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from repl_env.display.files import NamedFiles
from repl_env.display.pages import ViewServer
from repl_env.display.viewer import ViewData


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Requests to a server, by default as its own page makes them."""

    def __init__(self, server: ViewServer) -> None:
        self.server = server

    def get(self, path: str, method: str = "GET", **headers: str | None) -> Reply:
        """A header of None is not sent."""
        host = self.server.origin.removeprefix("http://")
        given = {"Host": host, "Authorization": f"Bearer {self.server.token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.putrequest(method, path, skip_host=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        reply = Reply(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return reply


@pytest.fixture
def client() -> Iterator[Any]:
    """A function from paths to a client of a server on them."""
    with ExitStack() as stack:

        def made(*paths: Path) -> Client:
            server = stack.enter_context(ViewServer(ViewData(NamedFiles(paths))))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return Client(server)

        yield made
