"""A server whose environment leaves fragmented memory behind.

python -m tests.server.cli.fragmenting_server
"""

from __future__ import annotations

from typing import ClassVar

from repl_env.interfaces import Environment
from repl_env.models import Action, Observation, State
from repl_server.app import create_app
from repl_server.serving import server

# Blocks that glibc takes from its heap, and as many that 100 MB are free in front of its end.
_SIZE, _MANY, _KEPT = 50_000, 2_000, 50


class Scattering(Environment):
    """A step allocates memory, and frees all but each fiftieth block of it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    kept: ClassVar[list[bytearray]] = []

    def reset(self, seed: object = None, episode_id: object = None, **_: object) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: object = None, **_: object) -> Observation:
        self.kept += [bytearray(_SIZE) for _ in range(_MANY)][::_KEPT]
        return Observation()

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_app(environment=Scattering, action=Action, observation=Observation)
    server(app, lambda url: print("serves on", url, flush=True)).run()
