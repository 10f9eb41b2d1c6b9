"""Values across the wall: in by `set`, out by `get`, and the list of variables."""

from __future__ import annotations

from typing import Any

from repl_sandbox.types import JSON

from .steps import Check, Fetch, Put, Run, Step, Variables, shows

_NO_JSON: Any = object()
_NUMBER_KEY: Any = {1: 2}
_SET: Any = {2, 1}
_JSON: JSON = {"a": [1, 2.5, None, True], "ü": {"nested": "中"}}


def _check(name: str, *steps: Step) -> Check:
    return Check(name, "values", steps)


VALUES = (
    _check(
        "text goes in and out", Put("t", "ä\n🎉"), Run("t", shows(r"'ä\n🎉'")), Fetch("t", "ä\n🎉")
    ),
    _check(
        "text of many megabytes goes in",
        Put("t", "ü" * 5_000_000),
        Run("len(t), t[-1]", shows("(5000000, 'ü')")),
    ),
    _check("bytes go in", Put("b", b"\x00\xff"), Run("b", shows(r"b'\x00\xff'"))),
    _check(
        "JSON goes in and out",
        Put("j", _JSON),
        Run("j['ü']['nested']", shows("'中'")),
        Fetch("j", _JSON),
    ),
    _check(
        "JSON of many megabytes goes in",
        Put("j", list(range(300_000))),
        Run("sum(j)", shows("44999850000")),
    ),
    _check("a copy goes in", Put("j", [1]), Run("j.append(2)"), Fetch("j", [1, 2])),
    _check("a set goes in and comes out as a list", Put("x", _SET), Fetch("x", [1, 2])),
    _check("a key that is no text is refused", Put("x", _NUMBER_KEY, TypeError)),
    _check("a tuple comes out as a list", Run("x = (1, 2)"), Fetch("x", [1, 2])),
    _check(
        "a name that is none is refused",
        Put("not a name", 1, ValueError),
        Put("a.b", 1, ValueError),
    ),
    _check(
        "a value that is no JSON is refused",
        Put("x", _NO_JSON, TypeError),
        Put("x", float("nan"), ValueError),
    ),
    _check("an unknown name is a KeyError", Fetch("nothing", error=KeyError)),
    _check(
        "a value that JSON cannot carry is a TypeError",
        Run("x = object()"),
        Fetch("x", error=TypeError),
    ),
    _check(
        "variables are listed in their order",
        Run("b = 1\na = 'x'\nc = [b]"),
        Put("d", 1.5),
        Variables((("b", "int"), ("a", "str"), ("c", "list"), ("d", "float"))),
    ),
    _check("an empty session has no variables", Variables(())),
    _check(
        "what was put is not a change of the next cell",
        Put("x", 1),
        Run("y = 2", shows(changes=(("new", "y"),))),
    ),
)
