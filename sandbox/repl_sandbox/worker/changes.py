"""What a cell did to the session's variables: new, modified and deleted ones.

A name that is bound to another object was modified, unless both are equal numbers or texts; an
object that was changed in place is found by its mark (`marks.py`), at bounded cost, so that a
change deep inside of it may be missed. Looking at a variable runs none of the user's code and keeps
nothing alive.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from ..types import Change, Variable
from .anatomy import type_name
from .marks import SAMPLE, is_scalar, is_small, mark
from .namespace import Namespace
from .preview import preview, shallow_size

# More changes than this are counted, not listed: nobody reads them, and each costs a preview.
MOST_CHANGES = 200
# The name of the last change when there were more: no variable can be called so.
MORE = "..."

# Beyond this many variables, fewer items of each are compared, so that a cell's cost stays at a few
# microseconds for each.
_MANY = 500
_SMALL_SAMPLE = 8


_NOTHING = object()


class _Seen:
    """What was known of a variable when it was last looked at."""

    __slots__ = ("cls", "held", "identity", "mark", "preview", "sample", "size", "type")

    def __init__(self, value: object, sample: int) -> None:
        # Identities and not the objects: they belong to the user, and may go at any time. A small
        # scalar is nobody's, and while it is held nothing else has its identity.
        self.held = value if is_small(value) else _NOTHING
        self.identity = id(value)
        self.cls = id(type(value))
        self.sample = sample
        self.mark = _mark(value, sample)
        self.type = type_name(value)
        self.size = 0
        self.preview = ""

    def is_still(self, value: object) -> bool:
        """Whether `value` is what was seen, as far as a mark tells."""
        if id(value) != self.identity and not is_scalar(value):
            return False
        return id(type(value)) == self.cls and _mark(value, self.sample) == self.mark


def _mark(value: object, sample: int) -> object:
    try:
        return mark(value, sample)
    # Boundary: threads of the user may change what is being read, and memory may be short. Then the
    # variable counts as modified the next time, which is true or does no harm.
    except Exception:  # noqa: BLE001
        return None


class Changes:
    """Follows the variables of a namespace from one call of `since_last` to the next."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._seen: dict[str, _Seen] = {}
        # Names that a module has from the start, and that are never variables.
        self._constants = frozenset(vars(ModuleType("__main__"))) | {"__builtins__"}
        self.since_last()

    def since_last(self) -> list[Change]:
        """The changes since the last call, in the order of the namespace, deleted ones last.

        At most `MOST_CHANGES`; if there were more, one further Change follows, whose name is
        `MORE` and whose preview says how many. Those are not reported again.
        """
        known = 0
        seen_as, injected, constants = self._seen.get, self._namespace.injected.get, self._constants
        try:
            # The usual case first: nothing changed, and nothing is made to find that out.
            for name, value in self._namespace.globals.items():
                if type(name) is not str:
                    continue
                seen = seen_as(name)
                if seen is None:
                    if (
                        name not in constants
                        and injected(name, _NOTHING) is not value
                        and not self._namespace.hides(name, value)
                    ):
                        return self._compare()
                elif value is seen.held or (
                    seen.is_still(value) and not self._namespace.hides(name, value)
                ):
                    known += 1
                else:
                    return self._compare()
        except RuntimeError:  # a thread of the user bound a name meanwhile
            return self._compare()
        return [] if known == len(self._seen) else self._compare()

    def _compare(self) -> list[Change]:
        changes: list[Change] = []
        before = self._seen
        now: dict[str, _Seen] = {}
        sample = SAMPLE if len(self._namespace.globals) <= _MANY else _SMALL_SAMPLE
        unlisted = 0
        for name, value in self._namespace.variables():
            seen = before.get(name)
            if seen is None or not seen.is_still(value):
                kind: Literal["new", "modified"] = "new" if seen is None else "modified"
                seen = _Seen(value, sample)
                if len(changes) < MOST_CHANGES:
                    seen.size = shallow_size(value)
                    seen.preview = preview(value)
                    changes.append(Change(kind, name, seen.type, seen.size, seen.preview))
                else:
                    unlisted += 1
            now[name] = seen
        self._seen = now
        unlisted += _deleted(before, now, changes)
        if unlisted:
            changes.append(Change("modified", MORE, "", 0, f"{unlisted:,} more changes"))
        return changes

    def variables(self) -> list[Variable]:
        """All variables of the user's, modules and functions included."""
        return [
            Variable(name, type_name(value), shallow_size(value), preview(value))
            for name, value in self._namespace.variables()
        ]


def _deleted(before: dict[str, _Seen], now: dict[str, _Seen], changes: list[Change]) -> int:
    """Add the variables that are gone to `changes`; return how many did not fit."""
    unlisted = 0
    for name in sorted(before.keys() - now.keys()):
        if len(changes) < MOST_CHANGES:
            seen = before[name]
            changes.append(Change("deleted", name, seen.type, seen.size, seen.preview))
        else:
            unlisted += 1
    return unlisted
