"""`Policy`: the part of Python that the cells of a sandbox may use."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .set_module import set_module

Language: TypeAlias = Literal["full", "lint", "restricted"]

LANGUAGES: tuple[Language, ...] = ("full", "lint", "restricted")

# A policy travels in the message that starts a template, and people read it when it refuses code.
_MAX_NAMES = 256
_LONGEST_NAME = 100


@set_module("repl_sandbox")
@dataclass(frozen=True)
class Policy:
    """The part of Python that the cells of a sandbox may use: a rule for well-meant code, not
    isolation.

    `language`: "full", all of it; "lint", a check of each cell's syntax tree before it runs;
    "restricted", RestrictedPython compiled in the session, with modules behind proxies. `imports`:
    the modules that may be imported; a name allows its submodules. None is all of them under
    "lint", and the default rows of `repl_sandbox.policies.modules` under "restricted".
    `calls_denied`: functions that may not be called, as "eval" or "os.system"; a module or class
    stands for everything in it. Forbidden code raises `PolicyError` in the cell.

    Raises:
        TypeError, ValueError: naming the field.
    """

    language: Language = "full"
    imports: Iterable[str] | None = None
    calls_denied: Iterable[str] = ()

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(
                f"language must be one of {', '.join(LANGUAGES)}, not {self.language!r}"
            )
        if self.imports is not None:
            object.__setattr__(self, "imports", _dotted_names(self.imports, "imports"))
        object.__setattr__(self, "calls_denied", _dotted_names(self.calls_denied, "calls_denied"))
        for name, is_set in (
            ("imports", self.imports is not None),
            ("calls_denied", self.calls_denied),
        ):
            if is_set and self.language == "full":
                raise ValueError(
                    f"{name} has no effect under language='full'; use 'lint' or 'restricted'"
                )


def _dotted_names(names: Iterable[str], field_name: str) -> tuple[str, ...]:
    """Return `names` without repetitions and sorted, so that equal policies are equal values."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{field_name} must be a list of names, not {type(names).__name__}")
    from unicodedata import normalize  # not loaded in sessions

    checked = set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{field_name}: {name!r} must be a str, not {type(name).__name__}")
        parts = name.split(".")
        # The parser normalises identifiers; a name in another form would never match.
        if (
            len(name) > _LONGEST_NAME
            or normalize("NFKC", name) != name
            or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        ):
            raise ValueError(f"{field_name}: {name!r} is not a name, or names joined by dots")
        checked.add(name)
    if len(checked) > _MAX_NAMES:
        raise ValueError(f"{field_name} has {len(checked):,} names; the limit is {_MAX_NAMES}")
    return tuple(sorted(checked))
