"""`ZygotePerSession`: a zygote for each session, for example in a container of its own.

To a sandbox it is one zygote, which starts another for each requested session, and ends it with the
session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ...errors import SandboxClosed
from ...limits.cgroups.session_cgroup import SessionCgroup
from .nested_zygote import NestedZygote
from .session_links import SessionFamily, SessionLinks
from .zygote_handle import ZygoteHandle


class ZygotePerSession:
    """`start` starts a zygote; the first is started now, and serves the first session.

    Raises:
        SandboxError: as `ZygoteHandle`.
    """

    def __init__(self, start: Callable[[], ZygoteHandle]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._closed = False
        # Keyed by the object that a session and its branches share.
        self._serving: dict[SessionFamily, ZygoteHandle] = {}
        self._closing = ExitStack()
        first = self._spare = start()
        self._spares = [first]
        self.supports_snapshots = first.supports_snapshots
        self.tier, self.pid, self.interpreter = first.tier, first.pid, first.interpreter
        self.data_segment, self.privileged, self.process_limit = (
            first.data_segment,
            first.privileged,
            first.process_limit,
        )

    def private_memory(self) -> int:
        """As of `ZygoteHandle`."""
        return self._spare.private_memory()

    def begin(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: SessionCgroup | None = None,
        snapshots: int = -1,
        processes: int = 0,
    ) -> SessionLinks:
        """As of `ZygoteHandle`, when its zygote has started."""
        handle = self._next()
        try:
            links = handle.begin(slot, workspace, rlimits, group, snapshots, processes)
        except BaseException:
            handle.close()
            raise
        with self._lock:
            if not self._closed:
                self._serving[links.family] = handle
                return links
        handle.abandon(links)
        handle.close()
        raise SandboxClosed("the sandbox was closed meanwhile")

    def finish(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        try:
            self._zygote_of(links).finish(links)
        except BaseException:
            self._end(links)
            raise

    def end(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        try:
            self.kill(links)
        finally:
            links.close()

    def kill(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`; its zygote ends, and the container with it."""
        self._end(links)

    def request_end(self, links: SessionLinks) -> int | None:
        """As of `ZygoteHandle`: never, because ending a container takes its time."""
        return None

    @property
    def accepts_requests(self) -> bool:
        """As of `ZygoteHandle`: never, because starting a session starts a container."""
        return False

    @property
    def seconds(self) -> float:
        """As of `ZygoteHandle`."""
        return self._spare.seconds

    def abandon(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        links.close()
        self._end(links)

    def check_alive(self) -> None:
        """As of `ZygoteHandle`: others can be started as long as this is open."""
        if self._closed:
            raise SandboxClosed("the sandbox is closed")

    def nest(self, parcel: int, manifest: tuple[int, int]) -> ZygotePerSession:
        """Return one whose zygotes have the objects in file `parcel`, which the caller closes."""
        copy = os.dup(parcel)

        def start() -> ZygoteHandle:
            base = self._start()
            try:
                return _OwnedNestedZygote(base, copy, manifest)
            except BaseException:
                base.close()
                raise

        try:
            nest = ZygotePerSession(start)
        except BaseException:
            os.close(copy)
            raise
        nest._closing.callback(os.close, copy)
        return nest

    def close(self) -> None:
        """End all zygotes."""
        with self._lock:
            self._closed = True
            handles = [*self._spares, *self._serving.values()]
            self._spares, self._serving = [], {}
        with self._closing as closing:
            for handle in handles:
                closing.callback(handle.close)

    def _next(self) -> ZygoteHandle:
        with self._lock:
            if self._closed:
                raise SandboxClosed("the sandbox is closed")
            if self._spares:
                return self._spares.pop()
        return self._start()

    def _zygote_of(self, links: SessionLinks) -> ZygoteHandle:
        with self._lock:
            handle = self._serving.get(links.family)
        if handle is None:
            raise SandboxClosed("the session was ended meanwhile")
        return handle

    def _end(self, links: SessionLinks) -> None:
        with self._lock:
            handle = self._serving.pop(links.family, None)
        if handle is not None:
            handle.close()


class _OwnedNestedZygote(NestedZygote):
    """A fork of `base`'s zygote, which ends with it."""

    def __init__(self, base: ZygoteHandle, parcel: int, manifest: tuple[int, int]) -> None:
        super().__init__(base, parcel, manifest)
        self._base_handle = base

    def close(self) -> None:
        """End both."""
        try:
            super().close()
        finally:
            if hasattr(self, "_base_handle"):
                self._base_handle.close()
