"""Sandboxes that environments share: one for equal settings in a process, started on demand.

Blocking and asynchronous episodes share them, on any threads and event loops. They close at the
exit of the process. After a fork, the child starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from repl_env.common.values import of_public_kind
from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox, options
from repl_sandbox.errors import SandboxClosed
from repl_sandbox.host import container
from repl_sandbox.options import RecoveryMode

T = TypeVar("T")
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The settings that identify a sandbox. None means the engine's default."""

    isolation: str = "auto"
    require: str | None = None
    limits: Limits | None = None
    preload: tuple[str, ...] = ()
    policy: Policy | None = None
    recovery: RecoveryMode = "snapshot"
    ready: int = 0
    history: int = 0  # few episodes roll a cell back, and each kept snapshot is another process
    fair_share: bool = False
    mounts: tuple[tuple[str, str], ...] = ()  # pairs of a path inside and a path on the host
    image: str | None = None
    runtime: str | None = None
    python: str | None = None

    @classmethod
    def of(
        cls,
        isolation: str,
        require: str | None,
        limits: Limits | None,
        preload: Sequence[str],
        policy: Policy | None = None,
        image: str | None = None,
        runtime: str | None = None,
        history: int = 0,
    ) -> SandboxSettings:
        """Return settings from the arguments of a caller.

        Raises:
            TypeError, ValueError: naming the invalid argument.
        """
        options.named_tier(isolation, require)
        container.check_container(isolation, image, runtime)
        modules = tuple(options.check_preload(preload))
        if limits is not None:
            of_public_kind(limits, Limits, "limits")
        if policy is not None:
            of_public_kind(policy, Policy, "policy")
        options.check_policy(policy)
        options.check_snapshots("snapshot", history)
        return cls(
            *(isolation, require, limits, modules, policy),
            image=image,
            runtime=runtime,
            history=history,
        )

    def arguments(self) -> dict[str, Any]:
        """The arguments for a new sandbox."""
        return {
            "isolation": self.isolation,
            "require": self.require,
            "limits": self.limits or Limits(),
            "preload": self.preload,
            "policy": self.policy,
            "recovery": self.recovery,
            "ready": self.ready,
            "history": self.history,
            "fair_share": self.fair_share,
            "mounts": dict(self.mounts),
            "image": self.image,
            "runtime": self.runtime,
            "python": self.python,
        }


class SandboxRegistry:
    """Sandboxes by their settings: each starts on first use, and again if it died.

    Threads and event loops share them. The creator of the registry closes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[SandboxSettings, Sandbox] = {}

    def get(self, settings: SandboxSettings) -> Sandbox:
        """Return the sandbox with these settings, starting it if necessary."""
        with self._lock:
            if settings not in self._running:
                self._running[settings] = Sandbox(**settings.arguments())
            return self._running[settings]

    def running(self, settings: SandboxSettings) -> Sandbox | None:
        """Return the sandbox with these settings if it runs already, without waiting."""
        return self._running.get(settings)

    def drop(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that ended, and release its resources."""
        with self._lock:
            known = sandbox in self._running.values()
            self._running = {k: v for k, v in self._running.items() if v is not sandbox}
        if known:
            # Closing waits for processes to end, and this may be an event loop's thread.
            threading.Thread(target=sandbox.close, name="repl-close").start()

    def close(self) -> None:
        """Close all sandboxes; later requests start new ones."""
        with self._lock:
            for sandbox in self._running.values():
                sandbox.close()
            self._running = {}


@dataclass(frozen=True, slots=True)
class SandboxProvider:
    """Provides an environment's sandbox: a given one, or one of `registry`.

    `registry`: None means the registry that the whole process shares.

    Raises:
        TypeError: both were given, or `given` is not a sandbox.
    """

    given: Sandbox | AsyncSandbox | None
    settings: SandboxSettings
    registry: SandboxRegistry | None = None

    def __post_init__(self) -> None:
        if self.given is None:
            return
        if not isinstance(self.given, (Sandbox, AsyncSandbox)):
            of_public_kind(self.given, Sandbox, "sandbox")
        if self.settings != SandboxSettings():
            raise TypeError(
                "sandbox goes without isolation, require, image, limits, policy, preload and "
                "history: it has its own"
            )

    @property
    def shared(self) -> Mapping[str, Any]:
        """The objects that sessions of the given sandbox begin with."""
        return {} if self.given is None else self.given.shared

    @property
    def limits(self) -> Limits:
        """The limits of sessions."""
        if self.given is not None:
            return self.given.limits
        return self.settings.limits or _DEFAULT_LIMITS

    def blocking_sandbox(self) -> Sandbox:
        """The sandbox for blocking episodes; RuntimeError if an asynchronous one was given."""
        if self.given is None:
            return self._registry.get(self.settings)
        if not isinstance(self.given, Sandbox):
            raise RuntimeError("the sandbox is an AsyncSandbox; its episodes must be awaited")
        return self.given

    async def async_sandbox(self) -> AsyncSandbox:
        """Return the sandbox for asynchronous episodes: a view of a blocking one, or the given
        one.
        """
        if isinstance(self.given, AsyncSandbox):
            return self.given
        if self.given is not None:
            return AsyncSandbox.of(self.given)
        registry = self._registry
        sandbox = registry.running(self.settings)
        if sandbox is None:
            # A caller cancelled meanwhile leaves the sandbox to the next one.
            sandbox = await asyncio.to_thread(registry.get, self.settings)
        return AsyncSandbox.of(sandbox)

    def make(self, operation: Callable[[Sandbox], T]) -> T:
        """Return the result of `operation` on the sandbox for blocking episodes.

        A shared sandbox that died since its last use is replaced; a given one is not.
        """
        sandbox = self.blocking_sandbox()
        try:
            return operation(sandbox)
        except SandboxClosed:
            if not self._replaces(sandbox):
                raise
        return operation(self.blocking_sandbox())

    async def make_async(self, operation: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Return the result of `operation` on the sandbox for asynchronous episodes; see `make`."""
        sandbox = await self.async_sandbox()
        try:
            return await operation(sandbox)
        except SandboxClosed:
            if not self._replaces(sandbox):
                raise
        return await operation(await self.async_sandbox())

    def _replaces(self, sandbox: Sandbox | AsyncSandbox) -> bool:
        """Return whether a new sandbox replaces this closed one."""
        if self.given is not None:
            return False
        plain = sandbox.plain if isinstance(sandbox, AsyncSandbox) else sandbox
        if plain is not None:
            self._registry.drop(plain)
        return True

    @property
    def _registry(self) -> SandboxRegistry:
        return _of_process() if self.registry is None else self.registry


class _OfProcess:
    """The sandboxes that a process shares, closed at its exit."""

    def __init__(self) -> None:
        self._process = 0
        self._sandboxes = SandboxRegistry()

    def get(self) -> SandboxRegistry:
        if self._process != os.getpid():
            # First use here, or after a fork: the handles, and perhaps a held lock, then belong to
            # the parent, and this process starts its own.
            self._sandboxes, self._process = SandboxRegistry(), os.getpid()
            atexit.register(self._close)
        return self._sandboxes

    def _close(self) -> None:
        if self._process == os.getpid():
            self._sandboxes.close()


_of_process = _OfProcess().get
