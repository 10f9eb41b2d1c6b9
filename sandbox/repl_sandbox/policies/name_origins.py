"""What the names of a cell stand for: the modules and functions that they were bound to.

Read from the syntax tree, without following its flow: a name that is bound twice stands for both.
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

# An alias of an alias of an alias: more steps than people write, and an end for `a = b; b = a`.
_STEPS = 8


class NameOrigins:
    """For each name its dotted origins, no longer than `depth` parts; kept from cell to cell."""

    def __init__(self, depth: int) -> None:
        self._depth = max(depth, 2)  # an importer has two parts
        self._known: dict[str, frozenset[str]] = {}
        self._stars: frozenset[str] = frozenset()

    def learn(self, tree: Module) -> NameOrigins:
        """The origins once the cell `tree` has run."""
        learnt = NameOrigins(self._depth)
        bound = _bound(tree)
        learnt._known = {name: found for name, found in self._known.items() if name not in bound}
        learnt._stars = self._stars
        aliases: list[tuple[str, expr]] = []
        for node in walk(tree):
            learnt._imports(node)
            aliases += _aliases(node)
        for _ in range(_STEPS):
            if not sum([learnt._bind(name, learnt._of_alias(value)) for name, value in aliases]):
                break
        return learnt

    def of(self, node: expr) -> frozenset[str]:
        """The dotted names that an expression may stand for; none if it is not that simple."""
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
        """The modules that a call imports: None if it is no import, empty if it cannot be told."""
        importers = self.of(call.func) & IMPORTERS
        if not importers:
            return None
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
        match given:
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
        """As `of`, for what is assigned to a name: nothing is learnt from a plain variable."""
        root: expr = value
        while isinstance(root, Attribute):
            root = root.value
        if isinstance(root, Name) and root.id not in self._known and root is not value:
            return frozenset()
        return self.of(value)

    def _bind(self, name: str, origins: frozenset[str]) -> bool:
        """Whether anything new was learnt."""
        before = self._known.get(name, frozenset())
        after = before | self._cut(origins)
        if after:
            self._known[name] = after
        return after != before


def _aliases(node: AST) -> list[tuple[str, expr]]:
    """The names that a statement binds to what may be a function or module."""
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
    """The names that the cell binds, and that so no longer stand for what they did."""
    bound = set()
    for node in walk(tree):
        match node:
            case Name(id=name, ctx=Store()):
                bound.add(name)
            case FunctionDef() | AsyncFunctionDef() | ClassDef():
                bound.add(node.name)
    return bound
