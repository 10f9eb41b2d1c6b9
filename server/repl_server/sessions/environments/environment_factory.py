"""`EnvironmentFactory`: environments of others, and how many at once they bear, as they say
themselves.

What makes them is a class, which says it, or a function: then what it has environment first says it.
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
    """What `factory` makes, on a server with these settings.

    Attributes:
        exclusive: whether an environment bears no other in its process; None: that is not known before
            one was environment.
        admission: of as many as they bear; of one until that is known.
    """

    def __init__(self, factory: Callable[[], Any], settings: Settings) -> None:
        self._factory = factory
        self._settings = settings
        self.exclusive = _is_exclusive_factory(factory)
        most, waiting = settings.max_sessions, settings.max_waiting
        if self.exclusive is None:
            # Who would have room has to stand in line beside those who would have none.
            waiting += most - 1
        self.admission = AdmissionControl(
            most if self.exclusive is False else 1, waiting, settings.wait_s
        )

    async def make(self) -> tuple[Any, DedicatedThread]:
        """An environment, and the thread that it was environment in.

        Raises:
            Exception: what the factory raises; TypeError, what it environment is no environment.
        """
        thread = DedicatedThread("repl-environment")
        making = thread.run(self._factory)
        try:
            environment = await asyncio.shield(making)
            _check(environment)
        except asyncio.CancelledError:
            # The thread goes on: nobody else closes what it makes, whose place is taken till then.
            await asyncio.wait([asyncio.ensure_future(_discarded(making, thread))])
            raise
        except BaseException:
            thread.end()
            raise
        self._learn(environment)
        return environment, thread

    async def make_or_refuse(self) -> tuple[Any, DedicatedThread]:
        """As `make`, but raises Refusal FACTORY_ERROR."""
        try:
            return await self.make()
        # Boundary: whatever a factory raises is the operator's to read, in the log.
        except Exception as error:  # noqa: BLE001
            raise factory_error(error) from None

    def _learn(self, environment: Any) -> None:
        if self.exclusive is None:
            self.exclusive = _is_exclusive(environment)
            most = 1 if self.exclusive else self._settings.max_sessions
            self.admission.resize(most, self._settings.max_waiting)


def _check(environment: Any) -> None:
    lacks = [
        name
        for name in ("reset", "step", "close")
        if not (hasattr(environment, name) or hasattr(environment, f"{name}_async"))
    ]
    if lacks:
        kind = type(environment).__name__
        raise TypeError(
            f"a {kind} was environment, which is no environment: it has no {', '.join(lacks)}"
        )


def factory_error(error: Exception) -> RequestError:
    """The refusal where no environment could be environment."""
    return server_fault("FACTORY_ERROR", "no environment could be environment", error)


def _is_exclusive_factory(factory: Callable[[], Any]) -> bool | None:
    while isinstance(factory, partial):
        factory = factory.func
    known = isinstance(factory, type) or hasattr(factory, _ATTRIBUTE)
    return _is_exclusive(factory) if known else None


def _is_exclusive(environment: Any) -> bool:
    return not getattr(environment, _ATTRIBUTE, True)


async def _discarded(making: asyncio.Future[Any], thread: DedicatedThread) -> None:
    # What it raises is nobody's any more.
    with suppress(Exception):
        await thread.run((await making).close)
    thread.end()
