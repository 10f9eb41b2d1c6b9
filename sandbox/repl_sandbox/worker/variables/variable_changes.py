"""Changes of the session's variables by a cell: new, modified and deleted ones.

A name bound to another object is modified, unless both are equal numbers or texts. A change of an
object in place shows in its fingerprint (`fingerprints.py`), at bounded cost, so a change deep
inside may be missed. Inspecting a variable runs none of the user's code and keeps no object alive.
"""

from __future__ import annotations

import builtins
from types import ModuleType
from typing import Literal, TypeAlias

from ...types import MORE_CHANGES, Change, Variable
from ..display.value_preview import preview, shallow_size
from ..namespace.main_namespace import Namespace
from ..namespace.safe_inspect import type_name
from .fingerprints import SAMPLE, is_scalar, is_small, mark

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
