"""A checkpoint in the session: one record for every variable that can be pickled, and back.

Loaded only when a checkpoint is made: it needs cloudpickle, and most sessions do not.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    GeneratorType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..protocol.checkpoints import MAX_HEADER
from ..protocol.frames import MAX_NAME
from .imports import import_trusted, loaded
from .namespace import Namespace, cell_texts, keep_cell, type_name

if TYPE_CHECKING:
    from .answers import FinalAnswers

try:
    from .checkpoint_pickler import BEGINNING, Pickler, offered
except ImportError as error:
    raise CheckpointError(
        f"the session's interpreter cannot import cloudpickle ({error}); install it there: "
        "pip install 'cloudpickle>=3.1,<4'"
    ) from None

# The session's side of a checkpoint: one record for every variable that can be pickled.
#
# One pickler writes all records and one unpickler reads them (`checkpoint_pickler.py`), so an
# object that two variables share is written once and stays one object. A variable that cannot be
# pickled is removed from the file and from the pickler's memo, and reported with the reason.


_LONGEST_REASON = 300  # characters

# Reasons given before pickling, whose own messages name a class and no reason.
_REASONS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((GeneratorType, AsyncGeneratorType), "a generator is a running frame"),
    ((CoroutineType,), "a coroutine is a running frame"),
    ((FrameType, TracebackType), "a frame belongs to the process that ran it"),
    ((io.FileIO, io.BufferedIOBase, io.TextIOWrapper), "a file is open in this process only"),
    ((type(threading.Lock()), type(threading.RLock())), "a lock belongs to its process"),
    ((threading.Condition, threading.Event, threading.Semaphore), "a lock belongs to its process"),
    ((threading.Thread,), "a thread ends with its process"),
)

# Packages whose versions the manifest records, because values may depend on them.
_PACKAGES = ("cloudpickle", "numpy", "pandas", "torch")


# Removing a record visits every object in the file: half a second for a million. After so many
# removals, each record is tried separately before it is written.
_MAX_TAKEN_BACK = 4


# Nested calls, of which pickle takes up to three for each level of nesting: a list of linked nodes
# is as deep as it is long. The stack of a thread has room for this many calls of any kind. CPython
# 3.12 counts calls of C code separately, with its own limit: there some 300 nodes can be saved.
_DEEPEST = 5000


class _Full(Exception):
    """The file has no more room."""


class _Sink:
    """The file of pickles as a shared mapping: the limit of file sizes does not apply to it."""

    def __init__(self, fd: int, limit: int) -> None:
        self._map = mmap.mmap(fd, limit, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._limit = limit
        self.place = 0
        self.full = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.place + size > self._limit:
            self.full = True
            raise _Full
        self._map[self.place : self.place + size] = data
        self.place += size
        return size

    def close(self) -> None:
        self._map.close()


class _Nowhere:
    """A file object that discards pickles."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Records:
    """Writes record after record, and removes those that fail."""

    def __init__(self, sink: _Sink, namespace: Namespace) -> None:
        self._sink = sink
        self._limit = sink._limit
        self._namespace = namespace
        self._failures = 0
        self._pickler = self._new(sink)

    def _new(self, file: Any) -> Pickler:
        return Pickler(file, self._namespace.globals, self._namespace.injected)

    def add(self, name: str, value: object) -> int:
        """Write the record of `value` and return its size; raises any exception of pickling.

        Raises:
            CheckpointError: there is no more room.
        """
        start = self._sink.place
        record = [name, value]
        if self._failures >= _MAX_TAKEN_BACK:
            self._new(_Nowhere()).dump(record)
        try:
            self._pickler.dump(record)
        except KeyboardInterrupt:
            raise  # nothing follows, and the time is over
        except BaseException:
            self._check_room(name)
            self._take_back(record, start)
            raise
        self._check_room(name)
        return self._sink.place - start

    def _check_room(self, name: str) -> None:
        if self._sink.full:
            raise CheckpointError(
                f"the namespace needs more than {self._limit:,} bytes, the limit of this "
                f"checkpoint; {name!r} did not fit"
            )

    def _take_back(self, record: list[object], start: int) -> None:
        """Forget the objects written for `record`, the first of those that the failure left."""
        self._failures += 1
        self._sink.place = start
        memo = self._pickler.memo.copy()
        number, _ = memo.get(id(record), (len(memo), record))
        self._pickler.memo = {key: entry for key, entry in memo.items() if entry[0] < number}


def save(namespace: Namespace, answers: FinalAnswers | None, fd: int, limit: int) -> str:
    """Write at most `limit` bytes of pickles into the file `fd`; return the report as JSON.

    Raises:
        CheckpointError: there is more, or it has too many names.
    """
    sink = _Sink(fd, limit)
    deepest = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(deepest, _DEEPEST))
        report = _written(_Records(sink, namespace), namespace, answers)
    finally:
        sys.setrecursionlimit(deepest)
        sink.close()
    text = json.dumps({"packages": _packages(), **report})
    if len(text) > MAX_HEADER:
        raise CheckpointError(
            f"the names of its variables take {len(text):,} bytes; a checkpoint has room for "
            f"{MAX_HEADER:,}"
        )
    return text


def _written(
    records: _Records, namespace: Namespace, answers: FinalAnswers | None
) -> dict[str, list[tuple[str | int, ...]]]:
    """Write all variables; return those written, and those missing with reasons."""
    variables: list[tuple[str | int, ...]] = []
    missing: list[tuple[str | int, ...]] = []
    state: list[tuple[str | int, ...]] = []
    for name, value in list(namespace.variables()):
        kind = _printable(type_name(value))[:MAX_NAME]
        size = _tried(records, name, partial(_accepted, name, value))
        if isinstance(size, int):
            variables.append((name, kind, size))
        else:
            missing.append((_printable(name)[:MAX_NAME], kind, size))
    for name, read in _state(namespace, answers):
        size = _tried(records, name, read)
        if isinstance(size, int):
            state.append((name, size))
        elif name != "_":  # a displayed value, not a variable
            missing.append((f"({name})", "state", size))
    return {"variables": variables, "missing": missing, "state": state}


def _tried(records: _Records, name: str, read: Callable[[], Any]) -> int | str:
    """Return the size of the record, or the reason that there is none."""
    try:
        return records.add(name, read())
    except (CheckpointError, KeyboardInterrupt):
        raise
    # Boundary: pickling runs any code of the user's, which may raise anything.
    except BaseException as error:  # noqa: BLE001
        return words(error)


class _Unsaved(Exception):
    """A variable that is not tried; the text gives the reason."""


def _accepted(name: str, value: object) -> object:
    """Return the value if it can be tried."""
    if len(name) > MAX_NAME or not name.isprintable():
        raise _Unsaved(f"its name is not one of at most {MAX_NAME} printable characters")
    kind = type(value)
    if issubclass(kind, io.BytesIO):
        return value
    socket = sys.modules.get("_socket")
    if socket is not None and issubclass(kind, socket.socket):
        raise _Unsaved("a socket is open in this process only")
    for kinds, reason in _REASONS:
        if issubclass(kind, kinds):
            raise _Unsaved(reason)
    return value


def words(error: BaseException) -> str:
    """Return the description of a failure: its class and its text, cut."""
    try:
        text = str(error)
    # Boundary: the exception may be a class of the user's.
    except BaseException:  # noqa: BLE001
        text = ""
    words = text if type(error) is _Unsaved else f"{type_name(error)}: {text}"
    return _printable(words)[:_LONGEST_REASON]


def _printable(text: str) -> str:
    """Return `text` for a list that people read: invisible characters are escaped."""
    text = text[: 2 * MAX_NAME]
    return text if text.isprintable() else ascii(text)[1:-1]


def _state(
    namespace: Namespace, answers: FinalAnswers | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Return the state besides variables, under names that `protocol/checkpoints.py` bounds."""
    yield "future", lambda: namespace.future
    yield "sys.path", _own_places
    yield "sources", cell_texts
    if "_" in namespace.globals:
        yield "_", lambda: namespace.globals["_"]
    if answers is not None:
        yield "answer", answers.state
    for name, method in (("random", "getstate"), ("numpy.random", "get_state")):
        module = loaded(name)
        if module is not None:
            yield name, getattr(module, method)


def _own_places() -> list[str]:
    """Return the module folders of the session, relative to the current directory."""
    current = os.getcwd()
    return [
        os.path.relpath(place or ".", current)
        for place in sys.path
        if type(place) is str and (place in ("", ".") or f"{place}/".startswith(f"{current}/"))
    ]


def _packages() -> dict[str, str]:
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    return {name: version[:MAX_NAME] for name, version in found.items() if type(version) is str}


# Loading a checkpoint in a session: the records that are written above, one per variable.

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
        keep_cell(number, source)


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
