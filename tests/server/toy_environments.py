"""Small environments that tests serve: no sandbox is needed to see how a server behaves."""

# The environments of OpenEnv that these stand for name the arguments that they know.
# mypy: disable-error-code="override"

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from pydantic import field_validator

from repl_env.interfaces import Environment
from repl_env.models import Action, Observation, State


class Add(Action):
    number: int
    note: str = ""

    @field_validator("note")
    @classmethod
    def _no_secrets(cls, note):
        if note == "bad":
            raise ValueError("a bad note")
        return note


class Sum(Observation):
    total: int = 0
    text: str = ""


class Adder(Environment):
    """Adds numbers; some numbers have side effects. One gate holds all that wait."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate: ClassVar[threading.Event] = threading.Event()
    waiting: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    closed: ClassVar[list[Adder]] = []
    steps: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.total = None

    def reset(self, seed=None, episode_id=None, start=0):
        self.total = start
        return Sum(total=start)

    def step(self, action, timeout_s=None):
        Adder.steps.append(action.number)
        match action.note:
            case "wait":
                Adder.waiting.release()
                assert self.gate.wait(60)
            case "raise":
                raise LookupError("/etc/passwd has no such line")
            case "nan":
                return Sum.model_construct(reward=float("nan"), done=False, metadata={}, total=0)
            case "surrogate":
                return Sum(text="a\ud800b")
        self.total += action.number
        return Sum(total=self.total, reward=1.0, metadata={"usage": 1})

    @property
    def state(self):
        return State(episode_id="e", step_count=0, total=self.total)  # type: ignore[call-arg]

    def close(self):
        Adder.closed.append(self)


class AsyncAdder(Adder):
    """The same on the event loop."""

    async def reset_async(self, seed=None, episode_id=None, start=0):
        self.loop = asyncio.get_running_loop()
        return self.reset(start=start)

    async def step_async(self, action, timeout_s=None):
        assert asyncio.get_running_loop() is self.loop
        return self.step(action)


class BoundAdder(Adder):
    """The same, all in one thread."""

    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def step(self, action, timeout_s=None):
        assert threading.get_ident() == self.thread
        return super().step(action)

    def close(self):
        assert threading.get_ident() == self.thread
        super().close()


class LonelyAdder(Adder):
    """The same, which does not bear another in the process."""

    SUPPORTS_CONCURRENT_SESSIONS = False
