"""`match` in guarded cells: patterns of values, sequences, mappings and classes.

A pattern reads attributes without the guards, so patterns that read any are refused: dotted names,
and patterns in the parentheses of a class pattern, except a name in one of Python's own types. The
other patterns read only what a loop or a subscript may read. Loaded by "restricted" only.
"""

from __future__ import annotations

import ast
from typing import Any

from RestrictedPython.transformer import RestrictingNodeTransformer

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
