"""Origins of the names in a cell: the modules and functions that they are bound to.

Read from the syntax tree without following control flow: a name bound twice has both origins.
"""

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
