"""`EnvironmentFactory`: environments of others, and how many at once they bear, as they say
themselves.

What makes them is a class, which says it, or a function: then what it has made first says it.
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
        alone: whether an environment bears no other in its process; None: that is not known before
            one was made.
        admission: of as many as they bear; of one until that is known.
    """

    def __init__(self, factory: Callable[[], Any], settings: Settings) -> None:
        self._factory = factory
        self._settings = settings
        self.alone = _makes_alone(factory)
        most, waiting = settings.max_sessions, settings.max_waiting
        if self.alone is None:
            # Who would have room has to stand in line beside those who would have none.
            waiting += most - 1
        self.admission = AdmissionControl(
            most if self.alone is False else 1, waiting, settings.wait_s
        )

    async def make(self) -> tuple[Any, DedicatedThread]:
        """An environment, and the thread that it was made in.

        Raises:
            Exception: what the factory raises; TypeError, what it made is no environment.
        """
        thread = DedicatedThread("repl-environment")
        making = thread.do(self._factory)
        try:
            made = await asyncio.shield(making)
            _check(made)
        except asyncio.CancelledError:
            # The thread goes on: nobody else closes what it makes, whose place is taken till then.
            await asyncio.wait([asyncio.ensure_future(_discarded(making, thread))])
            raise
        except BaseException:
            thread.end()
            raise
        self._learn(made)
        return made, thread

    async def make_or_refuse(self) -> tuple[Any, DedicatedThread]:
        """As `make`, but raises Refusal FACTORY_ERROR."""
        try:
            return await self.make()
        # Boundary: whatever a factory raises is the operator's to read, in the log.
        except Exception as error:  # noqa: BLE001
            raise not_made(error) from None

    def _learn(self, made: Any) -> None:
        if self.alone is None:
            self.alone = _is_alone(made)
            most = 1 if self.alone else self._settings.max_sessions
            self.admission.settle(most, self._settings.max_waiting)


def _check(made: Any) -> None:
    lacks = [
        name
        for name in ("reset", "step", "close")
        if not (hasattr(made, name) or hasattr(made, f"{name}_async"))
    ]
    if lacks:
        kind = type(made).__name__
        raise TypeError(f"a {kind} was made, which is no environment: it has no {', '.join(lacks)}")


def not_made(error: Exception) -> RequestError:
    """The refusal where no environment could be made."""
    return server_fault("FACTORY_ERROR", "no environment could be made", error)


def _makes_alone(factory: Callable[[], Any]) -> bool | None:
    while isinstance(factory, partial):
        factory = factory.func
    known = isinstance(factory, type) or hasattr(factory, _ATTRIBUTE)
    return _is_alone(factory) if known else None


def _is_alone(environment: Any) -> bool:
    return not getattr(environment, _ATTRIBUTE, True)


async def _discarded(making: asyncio.Future[Any], thread: DedicatedThread) -> None:
    # What it raises is nobody's any more.
    with suppress(Exception):
        await thread.do((await making).close)
    thread.end()
