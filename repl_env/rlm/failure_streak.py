"""The last steps of a run without an answer: cells that failed, or turns without code."""

from __future__ import annotations

from repl_env.common.json_values import visible
from repl_env.rlm.events import AnyEvent, CellRan, ModelReplied, RunStarted

_MAX_MESSAGE = 200


class FailureStreak:
    """The cells of the root run that failed in a row, up to now, and its turns without code."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._failed: list[str] = []  # the kinds of the exceptions
        self._last = ""
        self._without_code = 0
        self._ran_code = True

    def feed(self, event: AnyEvent) -> None:
        """Take in an event; those of child runs are ignored."""
        if "." in event.run:
            return
        match event:
            case RunStarted():
                self._begin()
            case ModelReplied():
                self._without_code = 0 if self._ran_code else self._without_code + 1
                self._ran_code = False
            case CellRan():
                self._ran_code, self._without_code = True, 0
                self._cell_ran(event)

    def _cell_ran(self, event: CellRan) -> None:
        result = event.observation.result
        if result.success:
            self._failed.clear()
            return
        error = result.exception or event.observation.error_kind or "an error"
        self._last = visible(error.splitlines()[0])[:_MAX_MESSAGE]  # the traceback follows
        self._failed.append(self._last.partition(":")[0])

    def __str__(self) -> str:
        """A phrase, such as "the last 3 cells raised NameError: …"; "" if the last cell worked."""
        without_code = self._without_code + (not self._ran_code)
        if without_code:
            return f"the last {_several(without_code, 'turn')} ran no code"
        if not self._failed:
            return ""
        cells = _several(len(self._failed), "cell")
        if len(set(self._failed)) == 1:
            return f"the last {cells} raised {self._last}"
        return f"the last {cells} failed, the last of them with {self._last}"


def _several(count: int, noun: str) -> str:
    return noun if count == 1 else f"{count:,} {noun}s"
