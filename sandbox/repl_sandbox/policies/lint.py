"""The lint of a cell: its imports and calls; and the names that "restricted" allows."""

from __future__ import annotations

from ast import (
    AST,
    AnnAssign,
    Assign,
    AsyncFunctionDef,
    Attribute,
    Call,
    ClassDef,
    Constant,
    FunctionDef,
    Import,
    ImportFrom,
    Module,
    Name,
    NamedExpr,
    Store,
    expr,
    walk,
)
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..errors import PolicyError

# Origins of the names in a cell: the modules and functions that they are bound to.
#
# Read from the syntax tree without following control flow: a name bound twice has both origins.

IMPORTERS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
_BUILTINS = ("builtins.", "__builtins__.")

# Steps from alias to alias: more than people write, and a bound for `a = b; b = a`.
_STEPS = 8


class NameOrigins:
    """Dotted origins of each name, no longer than `depth` parts; kept from cell to cell."""

    def __init__(self, depth: int) -> None:
        self._depth = max(depth, 2)  # the name of an importer has two parts
        self._known: dict[str, frozenset[str]] = {}
        self._stars: frozenset[str] = frozenset()

    def learn(self, tree: Module) -> NameOrigins:
        """Record the origins of names after the cell `tree` has run."""
        origins = NameOrigins(self._depth)
        bound = _bound(tree)
        origins._known = {name: found for name, found in self._known.items() if name not in bound}
        origins._stars = self._stars
        aliases: list[tuple[str, expr]] = []
        for node in walk(tree):
            origins._imports(node)
            aliases += _aliases(node)
        for _ in range(_STEPS):
            if not sum([origins._bind(name, origins._of_alias(value)) for name, value in aliases]):
                break
        return origins

    def of(self, node: expr) -> frozenset[str]:
        """Return the dotted names that an expression may stand for; none for a complex one."""
        match node:
            case Name(id=name):
                stars = {f"{star}.{name}" for star in self._stars}
                return self._cut(self._known.get(name, frozenset({name, *stars})))
            case Attribute(value=value, attr=attr):
                return self._below(value, attr)
            case Call(func=Name(id="getattr"), args=[value, Constant(value=str(attr)), *_]):
                return self._below(value, attr)
            case Call():
                return self.imported(node) or frozenset()
            case _:
                return frozenset()

    def imported(self, call: Call) -> frozenset[str] | None:
        """Return the modules that a call imports: None for no import, empty if they are unknown."""
        importers = self.of(call.func) & IMPORTERS
        if not importers:
            return None
        arguments = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
        match arguments:
            case [Constant(value=str(module))]:
                top = "importlib.import_module" not in importers
                return frozenset({module.partition(".")[0] if top else module})
            case _:
                return frozenset()

    def _below(self, value: expr, attr: str) -> frozenset[str]:
        return self._cut(frozenset({f"{origin}.{attr}" for origin in self.of(value)}))

    def _cut(self, names: frozenset[str]) -> frozenset[str]:
        plain = (name.removeprefix(_BUILTINS[0]).removeprefix(_BUILTINS[1]) for name in names)
        return frozenset({".".join(name.split(".")[: self._depth]) for name in plain})

    def _imports(self, node: AST) -> None:
        match node:
            case Import(names=names):
                for alias in names:
                    top = alias.name.partition(".")[0]
                    self._bind(
                        alias.asname or top, frozenset({alias.name if alias.asname else top})
                    )
            case ImportFrom(module=str(module), names=names):
                for alias in names:
                    if alias.name == "*":
                        self._stars |= {module}
                    else:
                        origin = frozenset({f"{module}.{alias.name}"})
                        self._bind(alias.asname or alias.name, origin)

    def _of_alias(self, value: expr) -> frozenset[str]:
        """Return origins like `of`, for a value assigned to a name; a plain variable has none."""
        root: expr = value
        while isinstance(root, Attribute):
            root = root.value
        if isinstance(root, Name) and root.id not in self._known and root is not value:
            return frozenset()
        return self.of(value)

    def _bind(self, name: str, origins: frozenset[str]) -> bool:
        """Return whether the binding added an origin."""
        before = self._known.get(name, frozenset())
        after = before | self._cut(origins)
        if after:
            self._known[name] = after
        return after != before


def _aliases(node: AST) -> list[tuple[str, expr]]:
    """Yield the names that a statement binds to a possible function or module."""
    match node:
        case Assign(targets=targets, value=Name() | Attribute() | Call() as value):
            return [(target.id, value) for target in targets if isinstance(target, Name)]
        case AnnAssign(target=Name(id=name), value=Name() | Attribute() | Call() as value):
            return [(name, value)]
        case NamedExpr(target=Name(id=name), value=Name() | Attribute() | Call() as value):
            return [(name, value)]
        case _:
            return []


def _bound(tree: Module) -> set[str]:
    """Return the names that the cell binds, whose earlier origins no longer hold."""
    bound = set()
    for node in walk(tree):
        match node:
            case Name(id=name, ctx=Store()):
                bound.add(name)
            case FunctionDef() | AsyncFunctionDef() | ClassDef():
                bound.add(node.name)
    return bound


# Checks of a cell's imports and calls, made on its syntax tree before any of it runs.
#
# The checks see the text of a cell and not the values at run time: a function in a list, a name
# built from parts, or code given to `exec` passes. They tell well-meant code the rules; they do
# not contain hostile code.

# Names that a message lists; a model reads the message.
_LISTED = 40


class Violation(NamedTuple):
    """A forbidden construct and its place: line and column, both from 1."""

    line: int
    column: int
    text: str


def refuse(violations: list[Violation]) -> None:
    """Raise a PolicyError for the first of `violations` in source order, if there is one."""
    if not violations:
        return
    first = min(violations)
    more = len(set(violations)) - 1
    rest = f" (and {more} more in this cell)" if more else ""
    raise PolicyError(f"{first.text}{rest}", first.line, first.column)


def listed(names: Collection[str]) -> str:
    """Return names as text for a message."""
    listed_names = sorted(name for name in names if name != "__future__")  # no reader needs it
    shown = ", ".join(listed_names[:_LISTED])
    more = len(listed_names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none"


class Lint:
    """Rules for the cells of one session. `imports` None allows any module.

    `package`: package that relative imports start from, "" for cells, which are in none.
    """

    def __init__(
        self, imports: Collection[str] | None, calls_denied: Collection[str], package: str = ""
    ) -> None:
        self._package = package
        self._imports = None if imports is None else frozenset(imports)
        self._denied = frozenset(calls_denied)
        self._origins = NameOrigins(max((name.count(".") + 1 for name in calls_denied), default=1))

    def __call__(self, tree: Module) -> Module:
        """Return `tree` unchanged; PolicyError with line and column if it breaks a rule."""
        origins = self._origins.learn(tree)
        refuse([found for node in walk(tree) for found in self._violations(node, origins)])
        self._origins = origins
        return tree

    def _violations(self, node: AST, origins: NameOrigins) -> Iterator[Violation]:
        match node:
            case Import(names=names):
                for alias in names:
                    yield from self._module(alias, alias.name)
            case ImportFrom(module=module, level=level, names=names):
                origin = self._origin(module or "", level)
                full_names = [f"{origin}.{alias.name}" for alias in names]
                if not all(self._allows(name) for name in full_names):
                    yield from self._module(node, origin)
            case Call(func=func):
                yield from self._call(node, func, origins)
                yield from self._dynamic(node, origins)
            case FunctionDef() | AsyncFunctionDef() | ClassDef():
                for decorator in node.decorator_list:
                    yield from self._call(decorator, decorator, origins)

    def _module(self, node: AST, module: str) -> Iterator[Violation]:
        if not self._allows(module):
            yield self._at(node, f"import of {module!r} is not allowed; {self._allowed()}")

    def _origin(self, module: str, level: int) -> str:
        """Return the module that a `from` statement names."""
        if not level or not self._package:
            return "." * level + module
        above = self._package.rsplit(".", level - 1)[0]
        return f"{above}.{module}" if module else above

    def _dynamic(self, node: Call, origins: NameOrigins) -> Iterator[Violation]:
        modules = None if self._imports is None else origins.imported(node)
        if modules is None:
            return
        for module in modules:
            yield from self._module(node, module)
        if not modules:
            yield self._at(
                node, f"an import must name its module as a plain text; {self._allowed()}"
            )

    def _call(self, node: expr, func: expr, origins: NameOrigins) -> Iterator[Violation]:
        if not self._denied:
            return
        for name in sorted(origins.of(func)):
            rule = next((rule for rule in self._denied if _is_below(name, rule)), None)
            if rule is not None:
                yield self._at(
                    node,
                    f"the call of {name!r} is not allowed; calls denied: {listed(self._denied)}",
                )
                return

    def _allows(self, module: str) -> bool:
        if self._imports is None or module == "__future__" or module.startswith("__future__."):
            return True
        return any(_is_below(module, allowed) for allowed in self._imports)

    def _allowed(self) -> str:
        return f"imports allowed: {listed(self._imports or ())}"

    def _at(self, node: AST, text: str) -> Violation:
        return Violation(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, text)


def _is_below(name: str, rule: str) -> bool:
    return name == rule or name.startswith(f"{rule}.")


# Builtins of cells under `Policy(language="restricted")`: the allowed ones, and reasons.
#
# RestrictedPython's own list (`safe_builtins`) is the base. All exceptions are allowed.

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
    "__form__": "the hook around printed forms of an answer, which returns what it takes",
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
