"""`RunReporter`: the events of one run, with its path and the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from repl_env.rlm.events import AnyEvent, EventHandler


@dataclass(frozen=True, slots=True)
class RunReporter:
    """Makes the events of the run `path` and gives them to `on_event`, if there is a handler."""

    path: str
    on_event: EventHandler | None

    def report(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        """Report an event of the class `kind` that happens now."""
        if self.on_event is not None:
            self.on_event(kind(run=self.path, time=time.time(), **fields))
