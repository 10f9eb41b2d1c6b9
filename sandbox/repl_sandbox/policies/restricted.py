"""The language "restricted": the guarded syntax tree of a cell, and the guards that it calls.

Loaded by "restricted" only: it needs RestrictedPython.
"""

from __future__ import annotations

import ast
import builtins
import operator
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, ForwardRef, TypeGuard, TypeVar

from RestrictedPython.Guards import (
    guarded_iter_unpack_sequence,
    guarded_unpack_sequence,
    safe_builtins,
    safer_getattr_raise,
)
from RestrictedPython.transformer import (
    ALLOWED_FUNC_NAMES,
    INSPECT_ATTRIBUTES,
    IOPERATOR_TO_STR,
    RestrictingNodeTransformer,
)

from ..errors import HostCallError, PolicyError
from .lint import (
    ITERATION,
    METHODS,
    OWN,
    READABLE,
    REFUSED,
    VALUES,
    Lint,
    Violation,
    is_private,
    listed,
    refuse,
)
from .modules import GuardedFormatter, ModuleProxies, ModuleProxy

# Guards that guarded code calls to read, write and import, and the builtins of such code.
#
# RestrictedPython's transformer writes calls of `_getattr_`, `_getitem_`, `_write_` and others
# into a cell's syntax tree; no cell can write these names itself.

# Never given to a cell, whichever object holds them. A ForwardRef evaluates text.
_INSIDES = frozenset({ModuleType, FrameType, CodeType, CellType, ForwardRef})
# Classes for which `type(x)` would create functions, code or modules.
_MAKERS = _INSIDES | {FunctionType, TracebackType, ModuleProxy}
_print = print
_FORMATS = ("format", "format_map")
# Bases of a cell's own classes without private names of their own; SyntaxError has some since
# CPython 3.14. In a class with any other base, a cell can reach no private name.
_ROOTS = frozenset(
    each
    for each in (object, *vars(builtins).values())
    if each is object or (isinstance(each, type) and issubclass(each, BaseException))
    if not any(map(is_private, vars(each)))
)

_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "|=": operator.ior,
    "^=": operator.ixor,
    "&=": operator.iand,
    "//=": operator.ifloordiv,
    "@=": operator.imatmul,
}
assert set(_IN_PLACE) == set(IOPERATOR_TO_STR.values())


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def get_attribute(owner: Any, name: str, *default: Any) -> Any:
    """Return `owner.name`; also the `getattr` of cells.

    Raises:
        PolicyError: the name belongs to the internals of Python.
        AttributeError: there is no such attribute, and no default.
    """
    _check_name(owner, name)
    if name in _FORMATS:
        return _formatting(owner, name, default)
    if name in {"__name__", "__init__"}:
        return getattr(owner, name, *default)
    if is_private(name):
        return _outside(getattr(owner, name, *default))
    if type(owner) is ModuleProxy and name not in vars(owner):
        offers = listed([each for each in vars(owner) if each[:1] != "_"])
        raise PolicyError(
            f"{owner.__name__}.{name} is not offered; {owner.__name__} offers {offers}"
        )
    return _outside(safer_getattr_raise(owner, name, *default))  # type: ignore[no-untyped-call]


def get_item(owner: Any, index: Any) -> Any:
    """Return `owner[index]`."""
    return _outside(owner[index])


def has_attribute(owner: Any, name: str) -> bool:
    """`hasattr` of cells; PolicyError for a forbidden name."""
    try:
        get_attribute(owner, name)
    except AttributeError:
        return False
    return True


def _check_name(owner: Any, name: str) -> None:
    if type(name) is not str:
        raise TypeError(f"attribute name must be string, not {type(name).__name__!r}")
    if name == "__name__" or (name == "__init__" and type(owner) is super):
        return
    if is_private(name) and _is_own(owner):
        return
    if name[:1] == "_" or name.endswith("__roles__"):
        raise PolicyError(f"the attribute {name!r} begins with '_'; such names are not allowed")
    inside = name in INSPECT_ATTRIBUTES or (name == "mro" and isinstance(owner, type))
    if inside or (name == "obj" and issubclass(type(owner), AttributeError)):
        raise PolicyError(f"the attribute {name!r} leads to the insides of Python: not allowed")


def _is_own(owner: Any) -> bool:
    """Return whether `owner` is a class that a cell made, or an instance of one."""
    kind = owner if issubclass(type(owner), type) else type(owner)
    own = type(kind) is type and OWN in vars(kind)
    return own and all(each in _ROOTS or OWN in vars(each) for each in kind.__mro__)


def _outside(value: Any) -> Any:
    if type(value) in _INSIDES:
        raise PolicyError(f"a {type(value).__name__} is one of the insides of Python: not allowed")
    return value


_formatter = GuardedFormatter(get_attribute, get_item)


def _formatting(owner: Any, name: str, default: tuple[Any, ...]) -> Any:
    """Return guarded `format` and `format_map`, which otherwise read attributes of any name."""
    found = getattr(owner, name, *default)
    if type(found) is BuiltinMethodType and issubclass(type(found.__self__), str):
        return _format_of(str.__str__(found.__self__), name)
    if type(found) is MethodDescriptorType and found.__objclass__ is str:
        return lambda text, *args, **fields: _format_of(str.__str__(text), name)(*args, **fields)
    return found


def _format_of(text: str, name: str) -> Callable[..., str]:
    if name == "format":
        return lambda *args, **fields: _formatter.vformat(text, args, fields)
    return lambda mapping: _formatter.vformat(text, (), mapping)


# ── writing ───────────────────────────────────────────────────────────────────────────────────


class WriteGuard:
    """Decides which objects may be changed: containers, and objects that cells made."""

    def __init__(self, writable: tuple[type, ...]) -> None:
        self._classes = (dict, list, bytearray, deque, *writable)
        self.builtins: dict[str, object] = {}

    def writable(self, owner: Any) -> Any:
        """Return `owner` if its items and attributes may be set and deleted; else PolicyError."""
        kind = type(owner)
        if issubclass(kind, self._classes) or hasattr(kind, OWN):
            return owner
        if isinstance(owner, type) and hasattr(owner, OWN):
            return owner
        if kind is FunctionType and owner.__builtins__ is self.builtins:
            return owner
        raise PolicyError(f"an object of type {kind.__name__!r} cannot be changed here")

    def own(self, owner: Any) -> Any:
        """Return `owner` if its attributes with a leading underscore may be set and deleted."""
        if not _is_own(owner):
            kind = type(owner).__name__
            raise PolicyError(f"a {kind} is of no class of the cells' own: no names with '_' here")
        return self.writable(owner)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """`setattr` of cells."""
        _check_name(owner, name)
        _check_settable(name)
        setattr(self.writable(owner), name, value)

    def delete_attribute(self, owner: Any, name: str) -> None:
        """`delattr` of cells."""
        _check_name(owner, name)
        _check_settable(name)
        delattr(self.writable(owner), name)

    def in_place_item(self, sign: str, owner: Any, index: Any, value: Any) -> None:
        """Perform `owner[index] += value`."""
        self.writable(owner)[index] = in_place(sign, get_item(owner, index), value)

    def in_place_attribute(self, sign: str, owner: Any, name: str, value: Any) -> None:
        """Perform `owner.name += value`."""
        self.set_attribute(owner, name, in_place(sign, get_attribute(owner, name), value))


def _check_settable(name: str) -> None:
    if name[:1] == "_" and not is_private(name):
        raise PolicyError(f"the attribute {name!r} begins with '_'; such names are not allowed")


def in_place(sign: str, left: Any, right: Any) -> Any:
    """Return the new value for the left side of `left += right` and the like."""
    return _IN_PLACE[sign](left, right)


# ── making and calling ────────────────────────────────────────────────────────────────────────


def make_class(name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    """Return the class of a class statement."""
    namespace[OWN] = True
    return type(name, bases, namespace)


def kind_of(*values: Any) -> Any:
    """`type` of cells: one argument, and never a class that makes classes, functions or modules."""
    if len(values) != 1:
        raise PolicyError("type() takes one value; a class is made by a class statement")
    kind = type(values[0])
    if issubclass(kind, type):
        return kind_of
    if kind in _MAKERS or type(kind) not in (type, ABCMeta):
        raise PolicyError(f"the type of a {kind.__name__} is not offered")
    return kind


def call(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """Return `function(*args, **keywords)`."""
    return function(*args, **keywords)


def show(
    *values: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = False,
) -> None:
    """`print` of cells: to standard output only."""
    if file is not None:
        raise PolicyError("print() writes to standard output only: file= is not offered")
    _print(*values, sep=sep, end=end, flush=flush)


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refused(*args: Any, **keywords: Any) -> Any:
        raise PolicyError(f"{name}() is not offered: {reason}")

    refused.__name__ = refused.__qualname__ = name
    return refused


def guarded_builtins(proxies: ModuleProxies) -> dict[str, object]:
    """Return a new dictionary of builtins for guarded code, with the guards."""
    original = vars(builtins)
    errors = {
        k: v for k, v in original.items() if isinstance(v, type) and issubclass(v, BaseException)
    }
    writing = WriteGuard(proxies.writable)
    found: dict[str, object] = {
        **safe_builtins,
        **errors,
        **{name: original[name] for name in (ITERATION + " " + VALUES).split()},
        **{name: _refusal(name, reason) for name, reason in REFUSED.items()},
        "HostCallError": HostCallError,
        "PolicyError": PolicyError,
        "print": show,
        "type": kind_of,
        "getattr": get_attribute,
        "hasattr": has_attribute,
        "setattr": writing.set_attribute,
        "delattr": writing.delete_attribute,
        "__import__": proxies.import_module,
        "__metaclass__": make_class,
        "_getattr_": get_attribute,
        "_getitem_": get_item,
        "_getiter_": iter,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        "_unpack_sequence_": guarded_unpack_sequence,
        "_write_": writing.writable,
        "_own_": writing.own,
        "_inplacevar_": in_place,
        "_inplaceitem_": writing.in_place_item,
        "_inplaceattribute_": writing.in_place_attribute,
        "_apply_": call,
        "_kind_": kind_of,
    }
    writing.builtins = found
    return found


# `match` in guarded cells: patterns of values, sequences, mappings and classes.
#
# A pattern reads attributes without the guards, so patterns that read any are refused: dotted
# names, and patterns in the parentheses of a class pattern, except a name in one of Python's own
# types. The other patterns read only what a loop or a subscript may read. Loaded by "restricted"
# only.

# For these, `case int(n)` binds the whole value and reads no attribute.
_WHOLE = frozenset("bool bytearray bytes dict float frozenset int list set str tuple".split())
_DOTTED = "A dotted name in a pattern is not allowed; compare in a guard: case x if x == a.b"
_INNER = "Attributes in a pattern are not allowed; read them in the case: case Point() as p"


class MatchPatterns(RestrictingNodeTransformer):
    """Allows the safe nodes of a `match` statement, and refuses the others."""

    def visit_Match(self, node: Any) -> Any:  # noqa: N802
        """Check subject, patterns, guards and bodies."""
        return self.node_contents_visit(node)

    visit_match_case = visit_MatchSequence = visit_MatchOr = visit_Match  # noqa: N815

    def visit_MatchSingleton(self, node: ast.MatchSingleton) -> Any:  # noqa: N802
        """Allow None, True and False."""
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> Any:  # noqa: N802
        """Allow a literal. The `__eq__` of the subject receives it."""
        self._check_literal(node.value)
        return node

    def visit_MatchStar(self, node: ast.MatchStar) -> Any:  # noqa: N802
        """Allow `*rest`."""
        self.check_name(node, node.name)
        return node

    def visit_MatchMapping(self, node: ast.MatchMapping) -> Any:  # noqa: N802
        """Allow literal keys."""
        for key in node.keys:
            self._check_literal(key)
        self.check_name(node, node.rest)
        node.patterns = [self.visit(pattern) for pattern in node.patterns]
        return node

    def visit_MatchAs(self, node: ast.MatchAs) -> Any:  # noqa: N802
        """Allow a name that is bound."""
        self.check_name(node, node.name)
        return self.node_contents_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> Any:  # noqa: N802
        """Allow `Point()`, and `int(n)`, which is `int() as n`."""
        if not isinstance(node.cls, ast.Name):
            self.error(node, _DOTTED)
            return node
        inner, kind = node.patterns, node.cls.id
        node.patterns, node.cls = [], self.visit(node.cls)
        if not inner and not node.kwd_patterns:
            return node
        (first, *more) = [*inner, *node.kwd_patterns]
        bare = isinstance(first, ast.MatchAs) and first.pattern is None
        if more or node.kwd_patterns or kind not in _WHOLE or not bare:
            self.error(node, _INNER)
            return node
        assert isinstance(first, ast.MatchAs)
        first.pattern = None if first.name is None else node
        self.check_name(first, first.name)
        return node if first.name is None else first

    def _check_literal(self, node: ast.expr) -> None:
        if isinstance(node, ast.Attribute):
            self.error(node, _DOTTED)


# Guarded syntax tree of a cell, or the list of refused constructs with their places.
#
# Built on RestrictedPython's transformer, which knows the safe kinds of nodes and refuses all
# others. This module adds constructs that ordinary code needs and the guards can check: plain
# `print`, annotated and in-place assignment, `nonlocal`, `super().__init__`, some names with
# underscores (`lint.py`).

Node = TypeVar("Node", bound=ast.AST)


class GuardTransformer(MatchPatterns):
    """Guards one cell; collects refused constructs in `refused`."""

    def __init__(self, proxies: ModuleProxies) -> None:
        super().__init__()
        self.refused: list[Violation] = []
        self._proxies = proxies
        self._values = 0
        self._classes = 0  # depth of class statements around the node
        self._methods: set[ast.stmt] = set()

    def error(self, node: ast.AST, info: str) -> None:
        """Record that `node` is refused."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        self.refused.append(Violation(line, column, f"{info} (language='restricted')"))

    def check_name(self, node: Any, name: str | None, allow_magic_methods: bool = False) -> None:
        """Check a name like RestrictedPython, but allow more methods, and `printed`."""
        in_class = allow_magic_methods and getattr(node, "col_offset", None)
        private = allow_magic_methods and node in self._methods and is_private(name or "")
        if not (in_class and name in METHODS) and not private and name != "printed":
            super().check_name(node, name, allow_magic_methods)

    # ── names and attributes ──────────────────────────────────────────────────────────────────

    def visit_Name(self, node: ast.Name) -> Any:  # noqa: N802
        """Allow `print` and `printed`: RestrictedPython would collect the output."""
        is_reserved = node.id in READABLE or node.id == "print"
        if node.id == "printed" or (is_reserved and isinstance(node.ctx, ast.Load)):
            return node
        return super().visit_Name(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
        """Allow reading `x.__name__`, `x.__class__.__name__`, and `super().__init__`.

        Inside a class also `x._y`: a guard checks at run time whether `x` is an instance of a
        cell's class.
        """
        if self._classes and is_private(node.attr):
            value = self.visit(node.value)
            if isinstance(node.ctx, ast.Load):
                return self._call(node, "_getattr_", value, ast.Constant(node.attr))
            node.value = self._call(node.value, "_own_", value)
            return node
        if not isinstance(node.ctx, ast.Load):
            return super().visit_Attribute(node)
        if node.attr == "__name__" and _is_class_of(node.value):
            kind = self._call(node.value, "_kind_", self.visit(node.value.value))
            return self._call(node, "_getattr_", kind, ast.Constant(node.attr))
        if node.attr == "__name__" or (node.attr == "__init__" and _is_super(node.value)):
            return self._call(node, "_getattr_", self.visit(node.value), ast.Constant(node.attr))
        return super().visit_Attribute(node)

    # ── statements ────────────────────────────────────────────────────────────────────────────

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
        """Rewrite an assignment; RestrictedPython evaluates `a, b = c = f()` twice."""
        if len(node.targets) == 1 or not any(isinstance(t, ast.Tuple) for t in node.targets):
            return super().visit_Assign(node)
        self._values += 1
        temporary = f"<value {self._values}>"  # no identifier, so no cell can write it
        first = ast.Assign([ast.Name(temporary, ast.Store())], self.visit(node.value))
        body: list[ast.stmt] = []
        for target in node.targets:
            each = ast.Assign([target], ast.Name(temporary, ast.Load()))
            guarded: Any = super().visit_Assign(_placed(each, node))
            body += guarded if isinstance(guarded, list) else [guarded]
        last = ast.Delete([ast.Name(temporary, ast.Del())])
        return [_placed(first, node), _placed(ast.Try(body, [], [], [last]), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
        """Rewrite as an assignment without the annotation."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.visit(ast.copy_location(plain, node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
        """Rewrite an in-place assignment, also of items and attributes.

        The right side is evaluated first.
        """
        sign, target = ast.Constant(IOPERATOR_TO_STR[type(node.op)]), node.target
        match target:
            case ast.Subscript():
                guard, place = "_inplaceitem_", self.visit(target.slice)
            case ast.Attribute():
                self._check_attribute(target)
                guard, place = "_inplaceattribute_", ast.Constant(target.attr)
            case _:
                return super().visit_AugAssign(node)
        call = self._call(
            node, guard, sign, self.visit(target.value), place, self.visit(node.value)
        )
        return ast.copy_location(ast.Expr(call), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> Any:  # noqa: N802
        """Allow `nonlocal`: names are checked where they are bound."""
        return self.node_contents_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        """Check a comprehension; RestrictedPython misses `async for` here."""
        if node.is_async:
            self.error(node.target, "AsyncFor statements are not allowed.")
        return super().visit_comprehension(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:  # noqa: N802
        """Check a class statement; RestrictedPython drops keywords and omits positions."""
        if any(keyword.arg != "metaclass" for keyword in node.keywords):
            self.error(node, "Keyword arguments of a class statement are not allowed.")
        self._methods.update(each for each in node.body if isinstance(each, ast.FunctionDef))
        self._classes += 1
        guarded: Any = super().visit_ClassDef(node)
        self._classes -= 1
        for part in (
            guarded,
            *(each for keyword in guarded.keywords for each in ast.walk(keyword)),
        ):
            ast.copy_location(part, node)
        return guarded

    def visit_Import(self, node: ast.Import) -> Any:  # noqa: N802
        """Refuse a module without a proxy, also below a package with one."""
        for alias in node.names:
            if not self._proxies.knows(alias.name):
                self.error(alias, f"import of {alias.name!r} is not allowed")
        return super().visit_Import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:  # noqa: N802
        """Refuse names that the module does not offer, before any code runs."""
        module = node.module or ""
        if not self._proxies.knows(module):
            self.error(node, f"import of {module!r} is not allowed")
            return node
        for alias in node.names:
            if alias.name != "*" and (reason := self._proxies.missing(module, alias.name)):
                self.error(alias, reason)
        return super().visit_ImportFrom(node)

    def _check_attribute(self, node: ast.Attribute) -> None:
        private = self._classes and is_private(node.attr)
        if (node.attr.startswith("_") and not private) or node.attr in INSPECT_ATTRIBUTES:
            self.error(node, f'"{node.attr}" is an invalid attribute name')

    def _call(self, node: ast.AST, guard: str, *args: ast.expr) -> ast.Call:
        call = ast.Call(func=ast.Name(guard, ast.Load()), args=list(args), keywords=[])
        return _placed(call, node)


class Restricted:
    """Rules for the cells of one session."""

    def __init__(self, lint: Lint, proxies: ModuleProxies) -> None:
        self._lint = lint
        self._proxies = proxies

    def __call__(self, tree: ast.Module) -> ast.Module:
        """Return the guarded tree; PolicyError with line and column if it breaks a rule."""
        self._lint(tree)
        guarding = GuardTransformer(self._proxies)
        guarded = guarding.visit(tree)
        refuse(guarding.refused)
        assert isinstance(guarded, ast.Module)
        return guarded


def _placed(new: Node, old: ast.AST) -> Node:
    """Return `new` with the position of `old`."""
    return ast.fix_missing_locations(ast.copy_location(new, old))


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _is_class_of(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "__class__"


# A method allowed here must not be one that RestrictedPython has come to allow itself.
assert not METHODS & ALLOWED_FUNC_NAMES
