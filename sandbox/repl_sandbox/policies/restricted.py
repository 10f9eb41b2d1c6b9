"""Guarded syntax tree of a cell, or the list of refused constructs with their places.

Built on RestrictedPython's transformer, which knows the safe kinds of nodes and refuses all others.
This module adds constructs that ordinary code needs and the guards can check: plain `print`,
annotated and in-place assignment, `nonlocal`, `super().__init__`, some names with underscores
(`names.py`). Loaded by "restricted" only.
"""

from __future__ import annotations

import ast
from typing import Any, TypeGuard, TypeVar

from RestrictedPython.transformer import (
    ALLOWED_FUNC_NAMES,
    INSPECT_ATTRIBUTES,
    IOPERATOR_TO_STR,
)

from .lint import Lint, Violation, refuse
from .match_patterns import MatchPatterns
from .module_proxies import ModuleProxies
from .names import METHODS, READABLE, is_private

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
