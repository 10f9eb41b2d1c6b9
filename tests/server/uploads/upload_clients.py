"""Clients that upload, from addresses of their own, and sessions that use the uploads."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from repl_env.interfaces import Environment
from repl_env.models import Observation, State
from tests.server.conftest import Peer, peer
from tests.server.uploads.upload_data import name
from tests.waiting import PATIENCE

ME, OTHER = "127.0.0.1", "127.0.0.2"


class Told(Observation):
    text: str = ""


class Foreign(Environment):
    """A custom environment, which reports its arguments."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Told(text=repr(sorted(kwargs.items())))

    def step(self, action, timeout_s=None, **kwargs):
        return Told()

    @property
    def state(self):
        return State()


def send(server, data: bytes, source: str = ME) -> str:
    """Upload it; its name."""
    line = http.client.HTTPConnection(ME, server.port, timeout=PATIENCE, source_address=(source, 0))
    line.request("PUT", f"/contexts/{name(data)}", body=data)
    response = line.getresponse()
    assert response.status in (200, 201), response.read()
    response.read()
    line.close()
    return name(data)


@contextmanager
def session(server, source: str = ME) -> Iterator[Peer]:
    """A session of its own, closed after."""
    with peer(server, named=True, source_address=(source, 0)) as one:
        one.open()
        yield one
        one.send("close", id="close")


def shown(one: Peer, code: str) -> Any:
    result = one.run(code)
    assert result["success"], result["stderr"]
    return result["value"]
