"""Loading a checkpoint in a session: the records of `checkpoint_writer.py`, one per variable."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError
from ..namespace import cell_sources
from ..namespace.main_namespace import Namespace
from ..namespace.trusted_imports import import_trusted
from .checkpoint_writer import words

# After the check above, which reports a missing cloudpickle.
from .variable_pickler import BEGINNING, offered  # isort: skip

if TYPE_CHECKING:
    from ..variables.final_answers import FinalAnswers


# Message of pickle about an object of an earlier record that could not be loaded.
_NOT_FOUND = "Memo value not found"
_TORN = "it shares an object with a variable before it that did not load"


def load(
    namespace: Namespace, answers: FinalAnswers | None, fd: int, manifest: dict[str, Any]
) -> str:
    """Bind the variables pickled in the file `fd`; return failures as JSON rows.

    A value may need a variable that was bound after it, as a class whose `__hash__` calls a
    function; so failed records are tried again as long as that helps.
    """
    records = _Reader(fd, namespace)
    waiting = records.of(manifest)
    failed: list[_Failure] = []
    offered(namespace.injected)
    try:
        while waiting:
            failed = [failure for record in waiting if (failure := records.load(record, answers))]
            if len(failed) == len(waiting):
                break
            waiting = [failure.record for failure in failed]
    finally:
        offered({})
        records.close()
    return json.dumps([failure.row for failure in failed])


class _Record:
    """One pickle: its name and position."""

    __slots__ = ("kind", "name", "start", "variable")

    def __init__(self, name: str, kind: str, start: int, variable: bool) -> None:
        self.name, self.kind, self.start, self.variable = name, kind, start, variable


class _Failure:
    """A record that could not be loaded."""

    __slots__ = ("record", "row")

    def __init__(self, record: _Record, error: BaseException) -> None:
        self.record = record
        name = record.name if record.variable else f"({record.name})"
        torn = isinstance(error, pickle.UnpicklingError) and str(error).startswith(_NOT_FOUND)
        self.row = name, record.kind, _TORN if torn else words(error)


class _Reader:
    """Reads records, in order or again."""

    def __init__(self, fd: int, namespace: Namespace) -> None:
        self._namespace = namespace
        self._file = open(fd, "rb", closefd=False)  # noqa: SIM115 - closed by `close`
        before = pickle.Unpickler(io.BytesIO(BEGINNING))
        before.load()
        self._unpickler = self._after(before)
        self._place = self._file.seek(0)  # the position of the file is shared with its writer

    def _after(self, before: Any) -> Any:
        """Return an unpickler of the file with the memo of another one."""
        unpickler: Any = pickle.Unpickler(self._file)
        unpickler.memo = before.memo
        return unpickler

    def of(self, manifest: dict[str, Any]) -> list[_Record]:
        """Return the records listed in `manifest`."""
        records, start = [], 0
        for name, kind, size in manifest["variables"]:
            records.append(_Record(name, kind, start, True))
            start += size
        for name, size in manifest["state"]:
            records.append(_Record(name, "state", start, False))
            start += size
        return records

    def load(self, record: _Record, answers: FinalAnswers | None) -> _Failure | None:
        """Load one record and bind it; return the failure if it cannot be loaded."""
        try:
            if record.start != self._place:
                # Another unpickler, because this one has read ahead.
                self._file.seek(record.start)
                self._unpickler = self._after(self._unpickler)
                self._place = record.start
            name, value = self._unpickler.load()
            self._place = self._file.tell()
            self._bind(record, name, value, answers)
        except KeyboardInterrupt:
            raise
        # Boundary: a pickle may run, and so raise, anything.
        except BaseException as error:  # noqa: BLE001
            self._place = -1
            return _Failure(record, error)
        return None

    def _bind(
        self, record: _Record, name: object, value: Any, answers: FinalAnswers | None
    ) -> None:
        if name != record.name:
            raise CheckpointError(f"the record is one of {name!r:.50}")
        if not record.variable:
            _RESTORE[record.name](self._namespace, answers, value)
        elif record.name in self._namespace.protected:
            raise CheckpointError("the name belongs to a function of this session")
        else:
            self._namespace.globals[record.name] = value

    def close(self) -> None:
        self._file.close()


def _restore_future(namespace: Namespace, answers: FinalAnswers | None, value: int) -> None:
    namespace.future = value


def _restore_places(namespace: Namespace, answers: FinalAnswers | None, value: list[str]) -> None:
    current = os.getcwd()
    found = [os.path.normpath(f"{current}/{place}") for place in value]
    sys.path[:0] = [place for place in found if place not in sys.path]


def _restore_sources(
    namespace: Namespace, answers: FinalAnswers | None, value: list[tuple[int, str]]
) -> None:
    for number, source in value:
        cell_sources.keep(number, source)


def _restore_shown(namespace: Namespace, answers: FinalAnswers | None, value: object) -> None:
    namespace.show(value)


def _restore_answer(namespace: Namespace, answers: FinalAnswers | None, value: Any) -> None:
    if answers is not None:
        answers.restore(value)


def _restore_random(namespace: Namespace, answers: FinalAnswers | None, value: Any) -> None:
    import_trusted("random").setstate(value)


def _restore_numpy(namespace: Namespace, answers: FinalAnswers | None, value: Any) -> None:
    import_trusted("numpy").random.set_state(value)


_RESTORE: dict[str, Callable[[Namespace, FinalAnswers | None, Any], None]] = {
    "future": _restore_future,
    "sys.path": _restore_places,
    "sources": _restore_sources,
    "_": _restore_shown,
    "answer": _restore_answer,
    "random": _restore_random,
    "numpy.random": _restore_numpy,
}
