"""A server whose environment hangs in its step or during its creation.

python -m tests.server.cli.hanging_server step | loop | make
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

from repl_env.interfaces import Environment
from repl_env.models import Action, Observation, State
from repl_server import manager
from repl_server.app import create_app
from repl_server.serving import server
from repl_server.settings import Settings
from repl_server.telemetry import written_to


class Hanging(Environment):
    """Hangs in its step, in a thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: object = None, episode_id: object = None, **_: object) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: object = None, **_: object) -> Observation:
        hang()
        return Observation()

    @property
    def state(self) -> State:
        return State()


class Heedless(Hanging):
    """Hangs in its step, on the event loop, despite cancellation."""

    async def step_async(
        self, action: Action, timeout_s: object = None, **_: object
    ) -> Observation:
        print("hangs", flush=True)
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


def hang() -> None:
    """For ever."""
    print("hangs", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    manager.CLOSE_S = 0.05
    made = {"step": Hanging, "loop": Heedless, "make": hang}[sys.argv[1]]
    settings = Settings(port=0, drain_s=0.05)
    app = create_app(settings, environment=made, action=Action, observation=Observation)
    with written_to(sys.stderr):
        server(app, lambda url: print("serves on", url, flush=True)).run()
