"""The frames between OpenEnv's client and OpenEnv's server, as a file that fast tests can read.

`REPL_TEST_COMPAT=.venv-compat python -m tests.compat.recording` writes the file anew; a test
compares it with what the clients of each generation send and get today. Of what the server says
only the shape is kept: which fields there are, and of which kind their values are.
"""

from __future__ import annotations

import json
from typing import Any

from tests.compat.environments import HERE, NEWEST, ROOT, program, served, told

FILE = ROOT / "tests" / "server" / "transport" / "openenv_frames.json"
STORIES = ("episode", "refusals")

# Fields whose values say what a frame is, so that they belong to its shape.
_TELLING = ("type", "code")


def shape(value: Any) -> Any:
    """The fields of a JSON value, and the kind of each."""
    if isinstance(value, dict):
        return {k: v if k in _TELLING else shape(v) for k, v in sorted(value.items())}
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, list):
        return "list"
    return "text" if isinstance(value, str) else "number"


def shapes(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation: the client's frames whole, the server's by their shape."""
    return [
        {"client": frame["client"]} if "client" in frame else {"server": shape(frame["server"])}
        for frame in frames
    ]


def recorded(stories: dict[str, Any]) -> dict[str, Any]:
    """The conversations of the stories that are kept."""
    return {name: shapes(stories[name]["frames"]) for name in STORIES}


def main() -> None:
    """See the module."""
    with served(program(NEWEST, "python"), str(HERE / "hosting.py")) as url:
        stories = told(NEWEST, "official_client.py", url, *STORIES)
    FILE.write_text(json.dumps(recorded(stories), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
