"""Builtins of cells under `Policy(language="restricted")`: the allowed ones, and reasons.

RestrictedPython's own list (`safe_builtins`) is the base. All exceptions are allowed.
"""

from __future__ import annotations

# Added to RestrictedPython's list, which leaves them out for hosts whose guards decide about each
# item of an iteration. These guards do not: a cell may iterate over any object that it holds.
ITERATION = """
    all any bytearray bytes dict enumerate filter frozenset iter list map max min next reversed set
    sorted sum tuple zip
"""

# Added: these make values and read nothing.
VALUES = "NotImplemented ascii bin classmethod format object property staticmethod super"

_CODE = "it would run code that the policy has not read"
_NAMESPACES = "it hands out namespaces past the guards"
_FILES = "the policy offers no files"

# Builtins that are refused when called.
REFUSED: dict[str, str] = {
    "breakpoint": "there is no terminal",
    "compile": _CODE,
    "dir": "it lists the insides of objects",
    "eval": _CODE,
    "exec": _CODE,
    "globals": _NAMESPACES,
    "help": "there is no terminal",
    "input": "there is no terminal",
    "locals": _NAMESPACES,
    "memoryview": "it writes past the guards",
    "open": _FILES,
    "vars": _NAMESPACES,
}

# Names with a leading underscore that a cell may read; RestrictedPython refuses all of them.
READABLE = {
    "__name__": "the idiom `if __name__ == '__main__'`; it is a plain text",
    "_out": "the pages of earlier output",
}

# Set in each class that a cell makes, under the name by which RestrictedPython recognises them.
OWN = "_guarded_writes"


def is_private(name: str) -> bool:
    """Return whether objects of a cell's own classes may have `name`: `_x`, not `__x`.

    No guard has such a name: the names of guards end with an underscore too.
    """
    return name[:1] == "_" and name[1:2].isalpha() and name[-1] != "_" and name != OWN


# Methods with double underscores that a class may define, besides RestrictedPython's `__init__` and
# comparisons. Each is called with values of the cell's own; an `__exit__` gets a traceback, whose
# frames the guards refuse. Methods that change attribute access, classes, copies or formats are
# left out.
METHODS = frozenset(
    """
    __abs__ __add__ __and__ __bool__ __call__ __delitem__ __divmod__ __enter__ __exit__ __float__
    __floordiv__ __getitem__ __hash__ __iadd__ __int__ __invert__ __isub__ __iter__ __len__
    __lshift__ __matmul__ __mod__ __mul__ __neg__ __next__ __or__ __pos__ __pow__ __radd__ __repr__
    __reversed__ __rmul__ __rshift__ __rsub__ __rtruediv__ __setitem__ __str__ __sub__ __truediv__
    __xor__
    """.split()
)
