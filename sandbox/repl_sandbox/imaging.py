"""Imaging: what sessions of a template touch is found out beside it, and the rest let go.

See `zygote.image` for what it is good for. It takes a tenth of a second, of a thread and of a fork
of the template, and nobody waits for it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from .errors import SandboxClosed, SandboxError
from .shared import empty, fill
from .types import Limits
from .zygote import copied

if TYPE_CHECKING:
    from .template import Template

# Sessions that were begun. What it costs is what some 150 sessions save by it, and who has begun as
# many as that is the likeliest to begin as many more.
WORTH_IT = 128
# What most cells do: nothing, and showing and printing something.
_CELLS = (copied.NOTHING, b"print(0)\n0")
_SECONDS = 3.0  # for each of them


class Imaging:
    """Of one template, when `WORTH_IT` of its sessions, which have `limits`, were begun.

    Attributes:
        done: whether sessions have it from here on.
    """

    def __init__(self, template: Template, limits: Limits) -> None:
        self._template, self.limits = template, limits
        self._lock = threading.Lock()
        self._begun = 0
        self._thread: threading.Thread | None = None
        self._over = False
        self.done = False

    def count(self) -> None:
        """One more session is begun."""
        if self._begun >= WORTH_IT:
            return
        with self._lock:
            self._begun += 1
            if self._begun == WORTH_IT:
                thread = threading.Thread(target=self._run, name="repl-imaging", daemon=True)
                with suppress(RuntimeError):  # there is no room for one more
                    thread.start()
                    self._thread = thread

    def wait(self) -> None:
        """Wait for its end, if it has begun."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Have it end soon, or not begin any more, and wait for that."""
        with self._lock:
            self._begun, self._over = WORTH_IT, True
        self.wait()

    def _run(self) -> None:
        # Sessions do without where there is no room for it, the kernel lacks what it takes, this
        # process may not look, or the sandbox is closed meanwhile.
        with suppress(SandboxError, OSError):
            self._template.zygote.keep(self._touched())
            self.done = True

    def _touched(self) -> bytes:
        parcel = empty()
        try:
            fill(parcel, {})
            other = self._template.fork(parcel)
        finally:
            os.close(parcel.fd)
        try:
            self._check_open()
            spans = other.zygote.part()
            pages = set[int]()
            for kept in {False, self._template.allowance.states >= 0}:
                self._check_open()
                with other.trial(self.limits, kept=kept) as links:
                    copied.rehearse(links, _SECONDS, _CELLS)
                    for pid in (links.pid, links.worker_pid):
                        pages |= copied.present(spans, pid)
            self._check_open()
            # After their ends, which are its work as well.
            pages |= copied.present(spans, other.zygote.pid)
            return copied.runs(sorted(pages))
        finally:
            other.close()

    def _check_open(self) -> None:
        if self._over:
            raise SandboxClosed("the sandbox is closed")
