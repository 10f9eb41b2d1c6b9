"""Variables of a session: changes by a cell, transfers to and from the host, `_out`, seeds."""

from __future__ import annotations

import builtins
import collections
import json
import mmap
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal, TypeAlias

from ..protocol.frames import MAX_BLOB
from ..protocol.messages import Assign, Failed, Value
from ..protocol.values import dump_json
from ..types import MORE_CHANGES, Change, Variable
from .imports import import_trusted, loaded
from .namespace import Namespace, frame_blocks, instance_dict, is_array, is_frame, read, type_name
from .preview import preview, shallow_size
from .tracebacks import describe

# Fingerprints: small values that show, at bounded cost, whether an object changed in place.
#
# Two fingerprints of an unchanged object are equal. A fingerprint refers to no object of the
# user's: it consists of small scalars, hashes of text, and identities. No code of the user's
# runs. Changes deep inside an object, or between the samples of a large one, are missed.

# A collection of at most this many items is compared item by item.
SAMPLE = 64
# Longer texts are distinguished by length and identity, because hashing them takes time.
_TEXT = 4_096
_BITS = 64
# Elements of an array that are compared: all of a small one, evenly spread ones of a large one.
_ELEMENTS = 256


def mark(value: Any, sample: int = SAMPLE) -> object:
    """Return the fingerprint of `value`, from about `sample` of its items.

    Raises:
        RuntimeError: another thread changes it meanwhile.
    """
    cls = type(value)
    make = _BY_IDENTITY.get(id(cls))
    if make is not None:
        return make(value, sample)
    if is_array(value):
        return _array(value)
    if is_frame(value):
        return [_array(block) for block in frame_blocks(value)[:sample]]
    for base in _COLLECTIONS:
        if issubclass(cls, base):
            return _MARKS[base](value, sample), _attributes(value, sample)
    return _attributes(value, sample)


def is_scalar(value: object) -> bool:
    """Return whether replacing it by an equal object is no change: a number, a text or None."""
    return id(type(value)) in _SCALAR_IDS


def is_small(value: Any) -> bool:
    """Return whether keeping the value itself costs nothing notable: a scalar of a few bytes."""
    cls = type(value)
    if cls is int:
        return bool(value.bit_length() <= _BITS)
    return value is None or cls is bool or cls is float or (cls is str and len(value) <= _BITS)


def _token(value: Any) -> object:
    """Return the token of an item: its value if it is a scalar, else its identity and length."""
    cls = type(value)
    if cls is float or cls is bool or value is None:
        return cls, value
    if cls is int:
        return value if value.bit_length() <= _BITS else (value.bit_length(), id(value))
    if cls is str or cls is bytes:
        return cls, len(value), hash(value) if len(value) <= _TEXT else id(value)
    if id(cls) in _SIZED:
        return id(value), len(value)
    return id(value)


def _scalar(value: Any, sample: int) -> object:
    return _token(value)


def _identity(value: object, sample: int) -> object:
    return None


def _list(value: list[Any], sample: int) -> object:
    count = list.__len__(value)
    if count <= sample:
        return count, [_token(item) for item in list.__iter__(value)]
    take = list.__getitem__
    end = sample // 4
    middle = slice(end, count - end, (count - 2 * end) // (sample - 2 * end) + 1)
    items = [*take(value, slice(end)), *take(value, middle), *take(value, slice(-end, None))]
    return count, [_token(item) for item in items]


def _tuple(value: tuple[Any, ...], sample: int) -> object:
    """Return the tokens of mutable items: a tuple itself stays the same."""
    return [_token(item) for item in islice(tuple.__iter__(value), sample)]


def _first(base: Any) -> Callable[[Any, int], object]:
    """Return the length and the first items of a value that can only be iterated."""

    def make(value: Any, sample: int) -> object:
        return base.__len__(value), [_token(item) for item in islice(base.__iter__(value), sample)]

    return make


def _dict(value: dict[Any, Any], sample: int) -> object:
    count = dict.__len__(value)
    items = islice(dict.items(value), sample)
    tokens = [(_token(key), _token(item)) for key, item in items]
    if count > sample:
        last = islice(reversed(dict.items(value)), sample // 2)
        tokens += [(_token(key), _token(item)) for key, item in last]
    return count, tokens


def _bytearray(value: bytearray, sample: int) -> object:
    take = bytearray.__getitem__
    head, tail = bytes(take(value, slice(_TEXT))), bytes(take(value, slice(-_TEXT, None)))
    return bytearray.__len__(value), hash(head), hash(tail)


def _attributes(value: object, sample: int) -> object:
    attributes = instance_dict(value)
    return None if attributes is None else _dict(attributes, sample)


def _array(value: Any) -> object:
    """Return the shape of a numpy array and some elements; of another kind, its identity."""
    if not is_array(value):
        return id(value)
    elements = read(value, "flat")[:: read(value, "size") // _ELEMENTS + 1]
    return read(value, "shape"), id(read(value, "dtype")), hash(elements.tobytes())


_SCALARS = (int, float, bool, str, bytes, type(None))
_FIXED = (complex, range, frozenset, FunctionType, BuiltinFunctionType, ModuleType, type)

# Fingerprint by class. Values that cannot change in place need only their identity.
_MARKS: dict[type, Callable[[Any, int], object]] = {
    **dict.fromkeys(_SCALARS, _scalar),
    **dict.fromkeys(_FIXED, _identity),
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _first(set),
    collections.deque: _first(collections.deque),
    bytearray: _bytearray,
}
_COLLECTIONS = (dict, list, set, collections.deque, bytearray, tuple)

# By identity, because a class may have a user's metaclass with its own hash.
_SCALAR_IDS = frozenset(map(id, _SCALARS))
_BY_IDENTITY = {id(cls): make for cls, make in _MARKS.items()}
_SIZED = frozenset(map(id, (list, dict, set, bytearray, collections.deque)))


# Random numbers of each session: without seeding, all sessions share the template's state.

_NUMPY = "numpy.random"


def seed(number: int | None) -> None:
    """Seed `random` and NumPy with `number`; None: with entropy of the system.

    NumPy is seeded also if a cell imports it later.
    """
    if number is not None or loaded("random") is not None:
        import_trusted("random").seed(number)  # a fork is cheaper with a smaller template
    _Seeder.leave()
    numpy = loaded("numpy")
    if numpy is not None:
        _start(numpy.random, number)
    elif number is not None:
        sys.meta_path.insert(0, _Seeder(number))


def _start(generator: Any, number: int | None) -> None:
    # NumPy takes 32 bits.
    generator.seed(None if number is None else number & 0xFFFF_FFFF)


class _Seeder:
    """Finds NumPy's random module like other finders, and seeds it when it is loaded."""

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def leave(cls) -> None:
        """Remove seeding finders from the list, which session code may change."""
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, cls)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Implement a finder; None for all other modules."""
        if name != _NUMPY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # an ordinary loader again, for code that asks it for sources
            self.leave()
            load(module)
            _start(module, self._number)

        loader.exec_module = exec_module
        return spec


# Values of variables that the host sets or gets, as text, bytes, JSON or tables.


def read_table(data: bytes | mmap.mmap) -> Any:
    """Return the table that the host has written; ValueError if it cannot be read here."""
    return import_trusted("repl_sandbox.tables").read(data)


def read_value(assign: Assign, memfd: Callable[[], int]) -> object:
    """Return the value in `assign`, from a separate file if it is large.

    Raises:
        MemoryError, RecursionError, ValueError, OSError: the value is more than this process can
            hold.
    """
    if assign.size is None:
        return _CONVERT[assign.kind](assign.data)
    fd = memfd()
    try:
        data = mmap.mmap(fd, assign.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
    finally:
        os.close(fd)
    with data:
        return _CONVERT[assign.kind](data)


def unbound(assign: Assign, error: BaseException) -> Failed:
    """Return the reply to a request to bind a value that `read_value` did not return."""
    if assign.kind == "table" and isinstance(error, ValueError):
        return Failed("unreadable", str(error))
    reason = ": ".join(filter(None, (type(error).__name__, str(error))))
    return Failed("too large", reason)


def write_value(value: object) -> Value | Failed:
    """Return the reply to a request for `value`."""
    try:
        data = dump_json(value)
    except (TypeError, ValueError) as error:
        return Failed("not json", str(error))
    except MemoryError:
        return Failed("too large", "the session has no room for it as JSON")
    # Boundary: classes of the user's may raise anything when they are read.
    except Exception as error:  # noqa: BLE001
        problem = describe(error, 0)
        return Failed("not json", f"{problem.type}: {problem.message}")
    if len(data) > MAX_BLOB:
        return Failed("too large", f"{len(data):,} bytes of JSON; the limit is {MAX_BLOB:,}")
    return Value(data)


def unknown_name(name: str) -> Failed:
    """Return the reply to a request for a missing variable."""
    return Failed("unknown", f"no variable {name!r}")


def _to_text(data: bytes | mmap.mmap) -> str:
    return str(memoryview(data), "utf-8", "surrogatepass")


_CONVERT: dict[str, Callable[[Any], object]] = {
    "str": _to_text,
    "bytes": bytes,
    "json": lambda data: json.loads(_to_text(data)),
    "table": read_table,
}


# Changes of the session's variables by a cell: new, modified and deleted ones.
#
# A name bound to another object is modified, unless both are equal numbers or texts. A change of
# an object in place shows in its fingerprint (`mark`), at bounded cost, so a change
# deep inside may be missed. Inspecting a variable runs none of the user's code and keeps no
# object alive.

# More changes than this are counted, not listed: each costs a preview.
MAX_CHANGES = 200

# Beyond this many variables, fewer items of each are compared, so that each variable costs a few
# microseconds.
_MANY = 500
_SMALL_SAMPLE = 8


_NOTHING = object()

# Name, value, and whether it is known.
_Changed: TypeAlias = tuple[str, object, Literal["new", "modified"]]


class _Seen:
    """Facts about a variable at the last inspection."""

    __slots__ = ("cls", "identity", "mark", "preview", "sample", "size", "type", "value")

    def __init__(self, value: object, sample: int) -> None:
        # Identities and not the objects: they belong to the user, and may be freed at any time. A
        # small scalar may be kept, and while it is kept no other object has its identity.
        self.value = value if is_small(value) else _NOTHING
        self.identity = id(value)
        self.cls = id(type(value))
        self.sample = sample
        self.mark = _mark(value, sample) if self.value is _NOTHING else None
        self.type = type_name(value)
        self.size = 0
        self.preview = ""

    def is_still(self, value: object) -> bool:
        """Return whether `value` is unchanged, as far as a fingerprint shows."""
        if self.value is not _NOTHING:
            return type(value) is type(self.value) and value == self.value
        if id(value) != self.identity and not is_scalar(value):
            return False
        return id(type(value)) == self.cls and _mark(value, self.sample) == self.mark


def _mark(value: object, sample: int) -> object:
    try:
        return mark(value, sample)
    # Boundary: threads of the user may change the value meanwhile, and memory may be short. Then
    # the variable counts as modified the next time, which is true or harmless.
    except Exception:  # noqa: BLE001
        return None


class VariableChanges:
    """Follows the variables of a namespace from one call of `since_last` to the next."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._seen: dict[str, _Seen] = {}
        # Names that a module has from the start, and that are never variables.
        self._constants = frozenset(vars(ModuleType("__main__"))) | {"__builtins__"}
        # Bindings for which only another object counts as a change: small scalars, as in
        # `_Seen.held`, and objects of the engine. If a namespace holds nothing else, one comparison
        # shows no change.
        self._settled: dict[str, object] = {}
        self._loose: set[str] = set()  # names of all other known variables
        self._injected_count = 0  # number of injected names at the last update
        self._shown = 0  # identity of the last displayed value
        self.since_last()
        self._settle()

    def since_last(self) -> list[Change]:
        """Return the changes since the last call, in the order of the namespace, deleted ones last.

        At most `MAX_CHANGES`; if there are more, one further Change follows, whose name is
        `MORE_CHANGES` and whose preview gives the number. Those are not reported again.
        """
        everything = self._namespace.globals
        try:
            if not self._loose and len(self._settled) == len(everything):
                bound = self._settled.get
                for name, value in everything.items():
                    if value is not bound(name, _NOTHING):
                        break
                else:
                    return []
            changed, deleted = self._compare(everything)
        except RuntimeError:  # a thread of the user bound a name meanwhile
            changed, deleted = self._compare(everything.copy())
        if changed or deleted:
            return self._recorded(changed, deleted)
        if id(everything.get("_")) != self._shown:
            self._settle()
        return []

    def _settle(self) -> None:
        """Record the engine's objects."""
        everything, injected = self._namespace.globals.copy(), self._namespace.injected
        self._injected_count, self._shown = len(injected), id(everything.get("_"))
        for name, value in everything.items():
            # Objects of the engine, and values of the user that are no variables and cost nothing
            # to keep.
            if type(name) is not str or not self._namespace.hides(name, value):
                continue
            if value is builtins or is_small(value) or injected.get(name) is value:
                self._settled[name] = value

    def _compare(self, everything: dict[str, object]) -> tuple[list[_Changed], bool]:
        """Return the bindings that differ from the last inspection, and whether any are missing."""
        changed: list[_Changed] = []
        unseen = len(self._seen)
        seen_as, injected, constants = self._seen.get, self._namespace.injected.get, self._constants
        hides = self._namespace.hides
        # The usual case first: no change, found without allocating an object.
        for name, value in everything.items():
            if type(name) is not str:
                continue
            seen = seen_as(name)
            if seen is None:
                if (
                    name not in constants
                    and injected(name, _NOTHING) is not value
                    and not hides(name, value)
                ):
                    changed.append((name, value, "new"))
            elif value is seen.value:
                unseen -= 1
            elif not hides(name, value):
                unseen -= 1
                if not seen.is_still(value):
                    changed.append((name, value, "modified"))
        return changed, unseen > 0

    def _recorded(self, changed: list[_Changed], deleted: bool) -> list[Change]:
        changes: list[Change] = []
        sample = SAMPLE if len(self._namespace.globals) <= _MANY else _SMALL_SAMPLE
        for name, value, kind in changed:
            seen = self._seen[name] = _Seen(value, sample)
            if seen.value is _NOTHING:
                self._loose.add(name)
                self._settled.pop(name, None)
            else:
                self._loose.discard(name)
                self._settled[name] = value
            if len(changes) < MAX_CHANGES:
                seen.size = shallow_size(value)
                seen.preview = preview(value)
                changes.append(Change(kind, name, seen.type, seen.size, seen.preview))
        unlisted = len(changed) - len(changes)
        if deleted:
            unlisted += self._forget(changes)
        if unlisted:
            changes.append(Change("modified", MORE_CHANGES, "", 0, f"{unlisted:,} more changes"))
        if deleted or self._injected_count != len(self._namespace.injected):
            self._settle()
        return changes

    def _forget(self, changes: list[Change]) -> int:
        """Add the deleted variables to `changes`; return how many did not fit."""
        present = {name for name, _ in self._namespace.variables()}
        unlisted = 0
        for name in sorted(self._seen.keys() - present):
            seen = self._seen.pop(name)
            self._settled.pop(name, None)
            self._loose.discard(name)
            if len(changes) < MAX_CHANGES:
                changes.append(Change("deleted", name, seen.type, seen.size, seen.preview))
            else:
                unlisted += 1
        return unlisted

    def variables(self) -> list[Variable]:
        """Return all variables of the user, modules and functions included."""
        return [
            Variable(name, type_name(value), shallow_size(value), preview(value))
            for name, value in self._namespace.variables()
        ]
