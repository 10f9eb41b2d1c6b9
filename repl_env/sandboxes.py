"""Sandboxes that environments share: one per equal settings in a process, started when needed.

A plain one is closed at the exit of the process. An asynchronous one belongs to its event loop and
is closed with it. After a fork, the child starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox
from repl_sandbox.policies import modules


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What makes two sandboxes the same. None stands for the engine's defaults."""

    isolation: str = "auto"
    require: str | None = None
    limits: Limits | None = None
    preload: tuple[str, ...] = ()
    policy: Policy | None = None

    @classmethod
    def of(
        cls,
        isolation: str,
        require: str | None,
        limits: Limits | None,
        preload: Sequence[str],
        policy: Policy | None = None,
    ) -> SandboxSettings:
        """Settings from arguments as they are given.

        Raises:
            TypeError, ValueError: naming the one that is not what it must be.
        """
        if isinstance(preload, str):
            raise TypeError("preload must be a list of module names, not a str")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be a Limits, not {type(limits).__name__}")
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {type(policy).__name__}")
        if policy is not None and policy.language == "restricted":
            modules.check(policy.imports)
        return cls(isolation, require, limits, tuple(preload), policy)

    def arguments(self) -> dict[str, Any]:
        """The arguments for a new sandbox."""
        return {
            "isolation": self.isolation,
            "require": self.require,
            "limits": self.limits or Limits(),
            "preload": self.preload,
            "policy": self.policy,
        }


@dataclass(frozen=True, slots=True)
class Source:
    """Where an environment takes its sandbox from: one it was given, or a shared one.

    Raises:
        TypeError: both were asked for, or `given` is no sandbox.
    """

    given: Sandbox | AsyncSandbox | None
    settings: SandboxSettings

    def __post_init__(self) -> None:
        if self.given is None:
            return
        if not isinstance(self.given, (Sandbox, AsyncSandbox)):
            raise TypeError(f"sandbox must be a Sandbox, not {type(self.given).__name__}")
        if self.settings != SandboxSettings():
            raise TypeError(
                "sandbox goes without isolation, require, limits, policy and preload: "
                "it has its own"
            )

    @property
    def shared(self) -> Mapping[str, Any]:
        """The objects that sessions of the sandbox that was given begin with."""
        return {} if self.given is None else self.given.shared

    def plain(self) -> Sandbox:
        """The sandbox for plain episodes; RuntimeError if an asynchronous one was given."""
        if self.given is None:
            return _PROCESS.get(self.settings)
        if not isinstance(self.given, Sandbox):
            raise RuntimeError("the sandbox is an AsyncSandbox; its episodes must be awaited")
        return self.given

    async def of_loop(self) -> AsyncSandbox:
        """The sandbox for episodes of the running loop; RuntimeError if a plain one was given."""
        if self.given is None:
            loop = asyncio.get_running_loop()
            return await _BY_LOOP.setdefault(loop, _OfLoop()).get(self.settings)
        return AsyncSandbox.of(self.given) if isinstance(self.given, Sandbox) else self.given

    def replaces(self, sandbox: Sandbox | AsyncSandbox) -> bool:
        """Whether there will be another in place of this one, which turned out to be closed."""
        if self.given is not None:
            return False
        if isinstance(sandbox, Sandbox):
            _PROCESS.drop(sandbox)
        else:
            _BY_LOOP[asyncio.get_running_loop()].drop(sandbox)
        return True


class _OfProcess:
    """The plain sandboxes of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandboxes: dict[SandboxSettings, Sandbox] = {}
        self._process = 0

    def get(self, settings: SandboxSettings) -> Sandbox:
        if self._process != os.getpid():
            # First use here, or after a fork: then the handles, and perhaps a held lock, are the
            # parent's, and this process begins with its own.
            self._lock, self._sandboxes, self._process = threading.Lock(), {}, os.getpid()
            atexit.register(self.close)
        with self._lock:
            if settings not in self._sandboxes:
                self._sandboxes[settings] = Sandbox(**settings.arguments())
            return self._sandboxes[settings]

    def drop(self, sandbox: Sandbox) -> None:
        with self._lock:
            self._sandboxes = {k: v for k, v in self._sandboxes.items() if v is not sandbox}

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                for sandbox in self._sandboxes.values():
                    sandbox.close()
            self._sandboxes = {}


_PROCESS = _OfProcess()


class _OfLoop:
    """The asynchronous sandboxes of one event loop.

    Each is held open by an asynchronous generator that waits inside `async with`. Loops end such
    generators when they shut down (`loop.shutdown_asyncgens`, which `asyncio.run` calls), and that
    closes the sandbox while the loop can still run.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._held: dict[
            SandboxSettings, tuple[AsyncSandbox, AsyncGenerator[AsyncSandbox, None]]
        ] = {}

    async def get(self, settings: SandboxSettings) -> AsyncSandbox:
        async with self._lock:
            if settings not in self._held:
                holder = self._hold(settings)
                self._held[settings] = (await anext(holder), holder)
            return self._held[settings][0]

    def drop(self, sandbox: AsyncSandbox) -> None:
        self._held = {k: held for k, held in self._held.items() if held[0] is not sandbox}

    async def _hold(self, settings: SandboxSettings) -> AsyncGenerator[AsyncSandbox, None]:
        loop = asyncio.get_running_loop()
        try:
            async with AsyncSandbox(**settings.arguments()) as sandbox:
                yield sandbox
        finally:
            self._held.pop(settings, None)
            if not self._held:
                _BY_LOOP.pop(loop, None)


_BY_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()
