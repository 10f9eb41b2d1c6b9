"""Frames of OpenEnv's clients, answered as OpenEnv's server answers them.

`openenv_frames.json` is a conversation of OpenEnv's 0.10.0 client with OpenEnv's server, in which
our environment was: the client's frames whole, of the server's the fields and kinds of values.
`make test-compat` drives the server by the clients themselves, and checks the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.recording import shape
from tests.server.conftest import peer

FILE = Path(__file__).parent / "openenv_frames.json"
CONVERSATIONS = json.loads(FILE.read_text(encoding="utf-8"))

# Error codes of this server for each code of OpenEnv's server that covers several of them.
FINER = {"EXECUTION_ERROR": {"NOT_RESET", "EPISODE_DONE", "EXECUTION_ERROR"}}


def assert_answers(there: dict, here: dict) -> None:
    """Every field of OpenEnv's reply is in this server's, with a value of the same kind."""
    if there["type"] == "error":
        codes = FINER.get(there["data"]["code"], {there["data"]["code"]})
        assert here["data"]["code"] in codes
        assert there["data"].keys() <= here["data"].keys()
    else:
        assert shape(here) == there


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_frames_equal_those_of_openenv_s_server(name: str, server) -> None:
    frames = CONVERSATIONS[name]
    assert len(frames) > 8

    with peer(server) as client:
        for asked, answered in zip(frames[::2], frames[1::2], strict=True):
            client.socket.send(json.dumps(asked["client"]))
            assert_answers(answered["server"], client.take())
