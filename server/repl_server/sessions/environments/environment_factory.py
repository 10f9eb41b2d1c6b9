"""`EnvironmentFactory`: creates custom environments, within the number that they declare.

A class declares whether several of its environments can exist at once. For a function, the first
environment that it returns declares it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ...limits.admission import AdmissionControl
from ...protocol.error_mapping import server_fault
from ...protocol.request_error import RequestError
from ...settings import Settings
from .dedicated_thread import DedicatedThread

_ATTRIBUTE = "SUPPORTS_CONCURRENT_SESSIONS"


class EnvironmentFactory:
    """Creates environments with `factory`, on a server with these settings.

    Attributes:
        exclusive: the process can have only one environment at a time; None before the first one
            has declared it.
        admission: admits one session at a time while `exclusive` is not False.
    """

    def __init__(self, factory: Callable[[], Any], settings: Settings) -> None:
        self._factory = factory
        self._settings = settings
        self.exclusive = _is_exclusive_factory(factory)
        max_open, waiting = settings.max_sessions, settings.max_waiting
        if self.exclusive is None:
            # Sessions that a non-exclusive factory would admit at once must be able to queue, too.
            waiting += max_open - 1
        self.admission = AdmissionControl(
            max_open if self.exclusive is False else 1, waiting, settings.wait_s
        )

    async def make(self) -> tuple[Any, DedicatedThread]:
        """Create an environment, and the thread it belongs to.

        Raises:
            Exception: any error of the factory; TypeError, it returned no environment.
        """
        thread = DedicatedThread("repl-environment")
        making = thread.run(self._factory)
        try:
            environment = await asyncio.shield(making)
            _check(environment)
        except asyncio.CancelledError:
            # The thread goes on; its environment must be closed before the capacity is released.
            await asyncio.wait([asyncio.ensure_future(_discarded(making, thread))])
            raise
        except BaseException:
            thread.end()
            raise
        self._learn(environment)
        return environment, thread

    async def make_or_refuse(self) -> tuple[Any, DedicatedThread]:
        """As `make`, but raises RequestError FACTORY_ERROR."""
        try:
            return await self.make()
        # Boundary: only the operator, in the log, sees the error of a factory.
        except Exception as error:  # noqa: BLE001
            raise factory_error(error) from None

    def _learn(self, environment: Any) -> None:
        if self.exclusive is None:
            self.exclusive = _is_exclusive(environment)
            max_open = 1 if self.exclusive else self._settings.max_sessions
            self.admission.resize(max_open, self._settings.max_waiting)


def _check(environment: Any) -> None:
    lacks = [
        name
        for name in ("reset", "step", "close")
        if not (hasattr(environment, name) or hasattr(environment, f"{name}_async"))
    ]
    if lacks:
        kind = type(environment).__name__
        raise TypeError(
            f"the factory returned a {kind}, which is not an environment:"
            f" it lacks {', '.join(lacks)}"
        )


def factory_error(error: Exception) -> RequestError:
    """The error for a factory that failed."""
    return server_fault("FACTORY_ERROR", "the environment could not be created", error)


def _is_exclusive_factory(factory: Callable[[], Any]) -> bool | None:
    while isinstance(factory, partial):
        factory = factory.func
    known = isinstance(factory, type) or hasattr(factory, _ATTRIBUTE)
    return _is_exclusive(factory) if known else None


def _is_exclusive(environment: Any) -> bool:
    return not getattr(environment, _ATTRIBUTE, True)


async def _discarded(making: asyncio.Future[Any], thread: DedicatedThread) -> None:
    # Its request was cancelled, so its errors have no recipient.
    with suppress(Exception):
        await thread.run((await making).close)
    thread.end()
